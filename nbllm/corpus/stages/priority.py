"""`priority=wiki,web`: of copies in several sources, that of the source named first stays. Shared by `dedup` stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.stage import argument


def priority_argument() -> Any:
    """The argument of a stage."""
    return argument((), "sources whose copies stay, the best first, such as wiki,web", parse=_labels)


def rank(sources: pa.Array, priority: Sequence[str]) -> pa.Array:
    """int32: the place of each document's source in `priority`; behind all of them where it isn't named."""
    return pc.fill_null(pc.index_in(sources, pa.array(priority, pa.string())), len(priority))


def _labels(typed: str) -> tuple[str, ...]:
    return tuple(label.strip() for label in typed.split(",") if label.strip())
