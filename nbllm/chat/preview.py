"""What of an example is trained on, decoded from the ids that the training will read: as text and as HTML.

Trained tokens are tinted and underlined (text: between ⟦ and ⟧), so that colour isn't needed. Everything from the data
is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from nbllm.tokenizer import Tokenizer

_SHOWN = 600
_STYLE = (
    ".nbllm-trained{font:13px/1.9 var(--jp-code-font-family,monospace);overflow-wrap:anywhere;"
    "color:var(--jp-content-font-color1,inherit);border-left:3px solid var(--jp-border-color2,#bbb);padding-left:10px}"
    ".nbllm-trained .t{background:rgba(0,158,115,.24);border-bottom:2px solid rgb(0,158,115);border-radius:2px;"
    "padding:1px 0}.nbllm-trained .g{opacity:.75}.nbllm-trained p{margin:0 0 4px;"
    "font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif)}"
)


@dataclass(frozen=True, kw_only=True)
class Preview:
    """One example as the training sees it."""

    tokens: tuple[str, ...]
    """Each token, visible."""
    trained: tuple[bool, ...]
    """Whether the model is to learn it."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, ids: Sequence[int], targets: Sequence[bool]) -> Preview:
        """From ids and targets; the first token is never learnt, since nothing stands before it."""
        texts = tuple(tokenizer.token_text(id) for id in ids)
        return cls(tokens=texts, trained=(False, *(bool(wanted) for wanted in targets[1:])))

    @property
    def summary(self) -> str:
        """How much of it is trained on."""
        return f"{sum(self.trained):,} of {len(self.tokens):,} tokens are trained on"

    def __str__(self) -> str:
        parts = [f"⟦{text}⟧" if wanted else text for wanted, text in self._groups()]
        return f"{self.summary} (between ⟦ and ⟧):\n{''.join(parts)}"

    def _repr_html_(self) -> str:
        parts = [f'<span class="{"t" if wanted else "g"}">{escape(text)}</span>' for wanted, text in self._groups()]
        body = "".join(parts).replace("↵", "↵<br>")
        return f'<style>{_STYLE}</style><div class="nbllm-trained"><p>{self.summary} (tinted)</p>{body}</div>'

    def _groups(self) -> list[tuple[bool, str]]:
        pairs = list(zip(self.trained, self.tokens, strict=True))
        shown = pairs if len(pairs) <= _SHOWN else [*pairs[: _SHOWN // 2], (False, " … "), *pairs[-_SHOWN // 2 :]]
        return [(wanted, "".join(text for _, text in group)) for wanted, group in groupby(shown, lambda pair: pair[0])]
