"""Recipes: named lists of stage lines.

`gopher` follows Rae et al. 2021 (arXiv 2112.11446, appendix A1): quality, repetition, then deduplication; the paper's
filters are made for English web prose and ruin code and mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping

from nbllm.errors import UsageError, did_you_mean

RECIPES: Mapping[str, list[str]] = {
    "default": ["normalize", "length min=100", "dedup exact", "dedup minhash"],
    "gopher": [
        "normalize",
        "language en",
        "quality gopher",
        "repetition gopher",
        "dedup exact",
        "dedup minhash",
    ],
    "none": [],
}
"""By name; each is a list of stage lines."""


def recipe_lines(name: str) -> list[str]:
    """The stage lines of a recipe; raises UsageError with the nearest name."""
    if name not in RECIPES:
        raise UsageError(f"No recipe is named {name!r}", next=did_you_mean(name, RECIPES))
    return list(RECIPES[name])
