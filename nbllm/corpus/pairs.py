"""Duplicates side by side: the text that went, the one that stays for it, how similar they are and where they differ.

Knows nothing of how duplicates are found.
"""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, overload

Piece = tuple[Literal["same", "kept", "dropped"], str]
"""Part of a pair: in both texts, only in the kept one, or only in the dropped one."""
_TOKEN = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_TOKENS = 4000
_AROUND = 60
_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class DuplicatePair:
    """A dropped document and the one that stays for it."""

    dropped_id: str
    kept_id: str
    dropped_text: str
    kept_text: str
    stage: str
    similarity: float
    """Jaccard similarity of n-grams, 0 to 1; 1 for exact copies."""

    @cached_property
    def difference(self) -> list[Piece]:
        """The two texts as one sequence of pieces; of long texts the start."""
        kept, dropped = (_TOKEN.findall(text)[:_MOST_TOKENS] for text in (self.kept_text, self.dropped_text))
        found: list[Piece] = []
        for what, k1, k2, d1, d2 in difflib.SequenceMatcher(None, kept, dropped, autojunk=True).get_opcodes():
            if what == "equal":
                found.append(("same", "".join(kept[k1:k2])))
                continue
            if k2 > k1:
                found.append(("kept", "".join(kept[k1:k2])))
            if d2 > d1:
                found.append(("dropped", "".join(dropped[d1:d2])))
        return found

    def shown(self) -> list[Piece]:
        """The difference with long equal stretches cut in their middle."""
        found: list[Piece] = []
        pieces = self.difference[:_SHOWN]
        for index, (kind, text) in enumerate(pieces):
            if kind == "same" and len(text) > 2 * _AROUND + 3:
                head = text[:_AROUND] if index else ""
                tail = text[-_AROUND:] if index + 1 < len(pieces) else ""
                text = f"{head or (text[:_AROUND] if not tail else '')} … {tail}"
            found.append((kind, text))
        if len(self.difference) > _SHOWN:
            found.append(("same", " …"))
        return found

    def __str__(self) -> str:
        marks = {"same": "{}", "kept": "[+{}+]", "dropped": "[-{}-]"}
        text = "".join(marks[kind].format(part) for kind, part in self.shown())
        return (
            f"{self.dropped_id} → {self.kept_id} stays, similarity {self.similarity:.3f}\n    {' '.join(text.split())}"
        )

    __repr__ = __str__


class DuplicatePairs(Sequence[DuplicatePair]):
    """A few pairs, as a list that shows itself: what only the kept text has is blue, what only the dropped one has
    vermilion."""

    def __init__(self, items: Sequence[DuplicatePair]) -> None:
        self._items = list(items)

    @overload
    def __getitem__(self, index: int) -> DuplicatePair: ...
    @overload
    def __getitem__(self, index: slice) -> DuplicatePairs: ...
    def __getitem__(self, index: int | slice) -> DuplicatePair | DuplicatePairs:
        return DuplicatePairs(self._items[index]) if isinstance(index, slice) else self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[DuplicatePair]:
        return iter(self._items)

    def __str__(self) -> str:
        return "\n".join(map(str, self._items)) or "No duplicates were dropped"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from nbllm.corpus.report_html import STYLE

        if not self._items:
            return f"{STYLE}<div class='nbllm-corpus'>{html.escape(str(self))}</div>"
        tags = {"same": ("", ""), "kept": ("<ins class='keep'>", "</ins>"), "dropped": ("<del class='drop'>", "</del>")}
        rows = []
        for pair in self._items:
            text = "".join(f"{tags[kind][0]}{html.escape(part)}{tags[kind][1]}" for kind, part in pair.shown())
            rows.append(
                f"<tr><td><span class='drop'>{html.escape(pair.dropped_id)}</span><br>like "
                f"<span class='keep'>{html.escape(pair.kept_id)}</span><br><span class='quiet'>similarity "
                f"{pair.similarity:.3f}</span></td><td><pre>{text}</pre></td></tr>"
            )
        return (
            f"{STYLE}<div class='nbllm-corpus'><table class='examples'><thead><tr><th scope='col'>pair</th>"
            f"<th scope='col'><ins class='keep'>only in the kept text</ins>, <del class='drop'>only in the dropped one"
            f"</del></th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        )
