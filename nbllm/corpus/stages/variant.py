"""`variant=paper|datatrove`: the argument that rules share whose paper and whose best known code differ.

`paper` counts as the papers say. `datatrove` decides as datatrove 0.10 does, with its word splitting, so that a recipe
made there gives the same corpus here; what differs is listed in each stage's file.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.layout import Layout
from nbllm.corpus.scripts import SPACED, UNSPACED_OTHER, scripts
from nbllm.corpus.stage import argument

DATATROVE = "datatrove"
_VARIANTS = ("paper", DATATROVE)


def variant_argument() -> Any:
    """The dataclass field."""
    return argument("paper", "count as the paper says, or as datatrove does", choices=_VARIANTS)


def by_script_argument() -> Any:
    """The dataclass field that turns per-script thresholds off."""
    return argument(
        "yes", "FineWeb-2's thresholds for Chinese and Japanese texts where it has one", choices=("yes", "no")
    )


def scripts_of(layout: Layout, variant: str, by_script: str) -> pa.Array:
    """The score `script`: what decides by script is off for datatrove, which takes every text for English."""
    if variant == DATATROVE:
        return pa.array([SPACED] * layout.documents, pa.string())
    found = scripts(layout)
    # without thresholds by script the rules that need spaces between words stay off for scripts without
    return found if by_script == "yes" else pc.if_else(pc.equal(found, SPACED), SPACED, UNSPACED_OTHER)
