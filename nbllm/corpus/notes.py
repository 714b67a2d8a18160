"""What reading has to tell: hints, and rows and files that had to be left out, counted, named and kept aside.

Knows nothing of formats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_SHOWN = 3
_ASIDE_MOST = 10_000
_CONTENT_CHARACTERS = 2000


@dataclass
class Notes:
    """Collected while sources are read."""

    hints: list[str] = field(default_factory=list)
    bad_rows: dict[str, int] = field(default_factory=dict)
    """How many, by file."""
    bad_files: list[str] = field(default_factory=list)
    """A phrase for each file that couldn't be read, or not to its end."""
    read_bytes: int = 0
    """Of files that were read to their end, as they lie on disk."""
    aside: list[dict[str, Any]] = field(default_factory=list)
    """The first rows and files left out: `file`, `row` (None for a whole file), `why`, `content` (its beginning)."""

    def clear(self) -> None:
        """Forgets everything, for sources that are read again from their beginning."""
        self.__dict__.update(Notes().__dict__)

    def bad(self, file: str, row: int, why: str, content: bytes | str = "") -> None:
        """Counts a row that couldn't be read, and keeps it aside."""
        self.bad_rows[file] = self.bad_rows.get(file, 0) + 1
        self._keep(file, row, why, content)

    def bad_file(self, file: str, why: str, documents: int) -> None:
        """Counts a file that couldn't be read after so many documents."""
        self.bad_files.append(f"{why} (after {documents:,} documents)" if documents else why)
        self._keep(file, None, why, "")

    def lines(self) -> list[str]:
        """Everything as sentences."""
        found = list(self.hints)
        if count := len(self.bad_files):
            unit, were = ("file", "was") if count == 1 else ("files", "were")
            examples = "; ".join(self.bad_files[:_SHOWN])
            found.append(f"{count:,} {unit} couldn't be read to the end and {were} left out ({examples})")
        if count := sum(self.bad_rows.values()):
            firsts: dict[str, dict[str, Any]] = {}
            for one in self.aside:
                if one["row"] is not None and len(firsts) < _SHOWN:
                    firsts.setdefault(one["file"], one)
            examples = "; ".join(f"{file}, row {one['row']}: {one['why']}" for file, one in firsts.items())
            unit = "row couldn't be read and was" if count == 1 else "rows couldn't be read and were"
            found.append(f"{count:,} {unit} left out ({examples})")
        return found

    def _keep(self, file: str, row: int | None, why: str, content: bytes | str) -> None:
        if len(self.aside) < _ASIDE_MOST:
            text = content.decode(errors="replace") if isinstance(content, bytes) else content
            self.aside.append({"file": file, "row": row, "why": why, "content": text[:_CONTENT_CHARACTERS]})
