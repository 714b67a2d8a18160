"""Tokens that a model has hardly learnt, by their rows of its embedding.

Rows that training never moved stay alike. Land and Bartolo 2024, "Fishing for Magikarp: automatically detecting
under-trained tokens in large language models" (https://arxiv.org/abs/2405.05417), section 2: the rows of the output
embedding without their first principal component (what all rows share), compared by cosine with the mean row of tokens
that are known never to occur; the 2 % that come nearest are candidates. Where no such tokens are known, and input and
output embeddings differ, the norm of the input's rows stands in, small ones first; where both are one, frequent tokens
have small norms too, and nothing is said. A candidate is a suspicion, not a proof.

Legend: V rows, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nbllm.errors import UsageError
from nbllm.tokenizer import Tokenizer

SHARE = 0.02
_SHOWN = 40
_NEVER_IN_UTF8 = (0xC0, 0xC1, *range(0xF5, 0x100))


@dataclass(frozen=True, kw_only=True, eq=False)
class UndertrainedTokens:
    """What `undertrained` found; shows itself in a notebook and by `print`."""

    model: str
    """What was looked at."""
    indicator: str
    """`cosine` (distance from tokens that never occur) or `norm` (of the row)."""
    values: NDArray[np.float32]
    """float32 [V]: the smaller, the less trained."""
    known: tuple[int, ...]
    """Ids that can't occur in any text, which `cosine` is measured against."""
    tokens: tuple[tuple[int, str, float], ...]
    """The 2 % that are most suspicious, without `known` and special tokens: id, visible text, value; worst first."""

    def __str__(self) -> str:
        shown = [f"{value:.3f}  {id:>7}  {text}" for id, text, value in self.tokens[:_SHOWN]]
        more = len(self.tokens) - len(shown)
        return "\n".join([self._caption, *shown, *([f"… {more:,} more"] if more > 0 else [])])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:right">{value:.3f}</td><td style="text-align:right">{id}</td>'
            f'<td style="text-align:left">{escape(text)}</td></tr>'
            for id, text, value in self.tokens[:_SHOWN]
        )
        head = f"<thead><tr><th>{self.indicator}</th><th>id</th><th>token</th></tr></thead>"
        return f"<table><caption>{escape(self._caption)}</caption>{head}<tbody>{rows}</tbody></table>"

    @property
    def _caption(self) -> str:
        how = (
            f"cosine distance from {len(self.known):,} tokens that never occur"
            if self.indicator == "cosine"
            else "norm of the embedding's row"
        )
        return f"Tokens that {self.model} has hardly learnt, by the {how}"


def undertrained(
    model: Any, tokenizer: Tokenizer, *, known: Sequence[int] = (), name: str = "", share: float = SHARE
) -> UndertrainedTokens:
    """Ranks a model's tokens by how little their embedding was trained.

    Args:
        model: a language model of transformers.
        tokenizer: the model's.
        known: ids that are known never to have been trained, besides those that no text can give.
        name: what to call the model.
        share: which part of the vocabulary to name.

    Raises:
        UsageError: input and output embeddings are one, and no token is known to be untrained.
    """
    head = model.get_output_embeddings() or model.get_input_embeddings()
    rows = head.weight.detach().float().cpu()
    size = len(rows)
    known = sorted({id for id in (*known, *known_unused(tokenizer, size)) if 0 <= id < size})
    if not known and head.weight is model.get_input_embeddings().weight:
        raise UsageError(
            "No token of this vocabulary is known never to occur, and the embedding's norms say nothing where it is "
            "the output's too",
            next="session.undertrained_tokens(known=[ids that were never trained])",
        )
    if known:
        common = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -1]  # the first principal component, [D]
        kept = rows - (rows @ common)[:, None] * common
        values = 1 - torch.nn.functional.cosine_similarity(kept, kept[known].mean(0)[None], dim=1)
    else:
        values = model.get_input_embeddings().weight.detach().float().norm(dim=1).cpu()
    skipped = {*known, *tokenizer.special_tokens.values(), *range(tokenizer.vocab_size, size)}
    order = [id for id in values.argsort().tolist() if id not in skipped][: max(1, round(size * share))]
    return UndertrainedTokens(
        model=name or type(model).__name__,
        indicator="cosine" if known else "norm",
        values=values.numpy().astype(np.float32),
        known=tuple(known),
        tokens=tuple((id, tokenizer.token_text(id), float(values[id])) for id in order),
    )


def known_unused(tokenizer: Tokenizer, rows: int) -> Sequence[int]:
    """Ids that no text can give: rows beyond the vocabulary, unreachable tokens, bytes that UTF-8 never has."""
    found = {*range(tokenizer.vocab_size, rows), *tokenizer.unreachable_ids}
    if tokenizer.byte_level:
        never = {bytes([byte]) for byte in _NEVER_IN_UTF8}
        found |= {id for id in range(tokenizer.vocab_size) if tokenizer.token_bytes(id) in never}
    return sorted(found - set(tokenizer.special_tokens.values()))
