"""What an export gives back: where it is, and how far it was checked in the program that it is for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison of what was written with the model that it was written from."""

    runtime: str
    """The program that loaded it."""
    tokens: int
    """How many next tokens were compared."""
    agreed: int
    """How many of them the source chooses too; of two that tie within rounding, either."""

    def __str__(self) -> str:
        if self.agreed == self.tokens:
            return f"{self.runtime} loads it and predicts the same next tokens ({self.tokens} compared)"
        return f"{self.runtime} loads it and predicts {self.agreed} of {self.tokens} next tokens as the original does"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A model that was written; it can stand wherever a path can."""

    folder: Path
    """The folder, absolute."""
    format: str
    """A key of `FORMATS`."""
    file: Path
    """What the runtime is given: the folder, or the .gguf file in it."""
    checks: tuple[Check, ...]
    """The comparisons made; a difference would have raised."""
    missing: str | None = None
    """Why the format's own runtime didn't check it, and what to do, as a clause; None where it did."""
    page: str | None = None
    """The address of the hub's page that it was uploaded to."""

    def __fspath__(self) -> str:
        return str(self.folder)

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def message(self) -> str:
        """What was written and what was checked, as one line."""
        parts = [f"Written to {self.file}", *map(str, self.checks)]
        if self.missing is not None:
            parts.append(self.missing)
        if self.page is not None:
            parts.append(f"uploaded to {self.page}")
        return "; ".join(parts) + "."
