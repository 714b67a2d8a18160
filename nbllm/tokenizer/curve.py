"""What a smaller vocabulary would cost: tokens for the same texts at every size, from one training and one counting.

A byte-pair vocabulary cut off after its first merges is the one that a shorter training gives, and since a token's
merges come in the order of their ranks, what a token falls apart into is known from its merges alone: no text is
encoded again. Unigram and WordPiece can't be cut off so. Knows a Tokenizer and counts by id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nbllm.errors import UsageError
from nbllm.tokenizer.tokenizer import Tokenizer

_POINTS = 12
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560, 170, 44, 24, 12


@dataclass(frozen=True, kw_only=True)
class VocabularyCurve:
    """Tokens by the size of the vocabulary, as `curve` gives them."""

    sizes: tuple[int, ...]
    """Entries of the vocabulary, rising; the last is the whole one."""
    tokens: tuple[int, ...]
    """Tokens that the counted texts become at each size."""
    text_bytes: int
    """The texts' size in UTF-8."""

    @property
    def bytes_per_token(self) -> tuple[float, ...]:
        """UTF-8 bytes a token at each size."""
        return tuple(self.text_bytes / count if count else 0.0 for count in self.tokens)

    def __str__(self) -> str:
        rows = zip(self.sizes, self.tokens, self.bytes_per_token, strict=True)
        lines = [f"{size:>10,}  {count:>14,}  {ratio:>13.2f}" for size, count, ratio in rows]
        return "\n".join([f"{'vocabulary':>10}  {'tokens':>14}  {'bytes a token':>13}", *lines])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<div>{self._svg()}<pre>{self}</pre></div>"

    def _svg(self) -> str:
        low, high = math.log2(self.sizes[0]), math.log2(self.sizes[-1])
        most = max(self.bytes_per_token) or 1.0

        def place(size: int, ratio: float) -> tuple[float, float]:
            across = (math.log2(size) - low) / (high - low) if high > low else 1.0
            return _LEFT + across * (_WIDTH - _LEFT - 20), _HEIGHT - _BOTTOM - ratio / most * (_HEIGHT - _BOTTOM - _TOP)

        points = [place(*point) for point in zip(self.sizes, self.bytes_per_token, strict=True)]
        path = "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
        marks = "".join(
            f"<g><title>{size:,} entries: {ratio:.2f} bytes a token, {count:,} tokens</title>"
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#0072b2"/></g>'
            for (x, y), size, ratio, count in zip(points, self.sizes, self.bytes_per_token, self.tokens, strict=True)
        )
        ends = "".join(
            f'<text x="{x:.0f}" y="{_HEIGHT - 6}" text-anchor="{anchor}" font-size="11" fill="currentColor">{size:,}'
            "</text>"
            for x, size, anchor in ((points[0][0], self.sizes[0], "start"), (points[-1][0], self.sizes[-1], "end"))
        )
        return (
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
            f'aria-label="Bytes a token by vocabulary size; the table has the numbers" style="max-width:100%;'
            f'height:auto"><text x="{_LEFT - 8}" y="{_TOP + 4}" text-anchor="end" font-size="11" fill="currentColor">'
            f'{most:.1f}</text><path d="{path}" fill="none" stroke="#0072b2" stroke-width="2"/>{marks}{ends}</svg>'
        )


def curve(tokenizer: Tokenizer, counts: Sequence[int], text_bytes: int) -> VocabularyCurve:
    """Tokens for the same texts at smaller sizes of the vocabulary.

    Args:
        tokenizer: a byte-pair tokenizer.
        counts: how often each id stands in the texts. int64 [V]
        text_bytes: their size in UTF-8.

    Raises:
        UsageError: a vocabulary that isn't byte-pair.
    """
    if tokenizer.algorithm != "bpe" or not len(tokenizer.merges):
        raise UsageError(
            "Only a byte-pair vocabulary can be cut off; one training of Unigram or WordPiece gives one size",
            received=tokenizer.algorithm,
        )
    special = set(tokenizer.special_tokens.values())
    held: dict[str, int] = {}
    for id, count in enumerate(counts):
        if count and id not in special:
            held[tokenizer.token(id)] = held.get(tokenizer.token(id), 0) + int(count)
    total = sum(int(count) for count in counts)
    at_merges = {len(tokenizer.merges): total}
    # from the last merge to the first, each token falls into its two parts
    for rank in range(len(tokenizer.merges) - 1, -1, -1):
        left, right = tokenizer.merges.pairs[rank]
        token = tokenizer.merges.joined(left, right)
        made = tokenizer.merges.of(token)
        if made is not None and made[0] == rank and held.get(token):
            count = held.pop(token)
            total += count
            held[left] = held.get(left, 0) + count
            held[right] = held.get(right, 0) + count
        at_merges[rank] = total
    base = tokenizer.vocab_size - len(tokenizer.merges)
    smallest = max(base, 1)
    steps = (smallest * (tokenizer.vocab_size / smallest) ** (i / (_POINTS - 1)) for i in range(_POINTS))
    sizes = sorted({min(max(round(size), smallest), tokenizer.vocab_size) for size in steps} | {tokenizer.vocab_size})
    return VocabularyCurve(
        sizes=tuple(sizes),
        tokens=tuple(at_merges[min(max(size - base, 0), len(tokenizer.merges))] for size in sizes),
        text_bytes=text_bytes,
    )
