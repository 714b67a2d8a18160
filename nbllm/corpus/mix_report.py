"""What a mix of sources achieved: shares of tokens beside those asked for, and epochs. Knows nothing of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MANY_EPOCHS = 4
"""More copies than this teach little (Muennighoff et al. 2023, arXiv 2305.16264)."""


@dataclass(frozen=True, kw_only=True)
class MixShare:
    """One source in a mix; tokens are estimated from bytes."""

    source: str
    weight: float
    """The share that was asked for, 0 to 1."""
    available: float
    """Tokens that reached the mix."""
    tokens: float
    """Tokens taken, copies counted each time."""

    @property
    def epochs(self) -> float:
        """How often the source is in the corpus."""
        return self.tokens / self.available if self.available else 0.0


def mix_table(shares: Sequence[MixShare]) -> list[list[str]]:
    """Rows of cells: source, share asked for, share achieved, tokens, epochs."""
    total = sum(share.tokens for share in shares) or 1.0
    rows = [["mix", "asked", "achieved", "tokens", "epochs"]]
    for share in shares:
        rows.append(
            [share.source, f"{share.weight:.1%}", f"{share.tokens / total:.1%}", f"≈{share.tokens:,.0f}",
             f"{share.epochs:.2f}"]
        )  # fmt: skip
    return rows


def repeated(shares: Sequence[MixShare]) -> list[str]:
    """A sentence for each source that is in the corpus too often."""
    return [
        f"{share.source} is in the corpus {share.epochs:.1f} times; more than {MANY_EPOCHS} teach little"
        for share in shares
        if share.epochs > MANY_EPOCHS
    ]
