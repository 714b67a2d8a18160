"""Recipes: named lists of stage lines.

`gopher` follows Rae et al. 2021 (arXiv 2112.11446, appendix A1): quality, repetition, then deduplication. `c4` follows
Raffel et al. 2020 (section 2.2), without its list of bad words; its three-sentence spans are paragraphs here. `fineweb`
follows Penedo et al. 2024 (section 3.6) after the extraction of text: C4 without the rule on line ends, FineWeb's own
rules, MinHash, personal data masked. `refinedweb` follows Penedo et al. 2023 (arXiv 2306.01116): Gopher's rules and
a stricter MinHash, without its line corrections and its removal of long equal passages. All but `default` are made for
English web prose and ruin code and mathematics.
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
    "c4": [
        "normalize",
        "language en min=0.99",
        "quality c4",
        "dedup exact",
        "dedup paragraph",
    ],
    "fineweb": [
        "normalize",
        "language en min=0.65",
        "repetition gopher",
        "quality gopher",
        "quality c4 end_mark=no",
        "quality fineweb",
        "dedup minhash",
        "pii mask",
    ],
    "refinedweb": [
        "normalize",
        "language en min=0.65",
        "repetition gopher",
        "quality gopher",
        "dedup exact",
        "dedup minhash bands=450 rows=20",
    ],
    "none": [],
}
"""By name; each is a list of stage lines."""


def recipe_lines(name: str) -> list[str]:
    """The stage lines of a recipe; raises UsageError with the nearest name."""
    if name not in RECIPES:
        raise UsageError(f"No recipe is named {name!r}", next=did_you_mean(name, RECIPES))
    return list(RECIPES[name])
