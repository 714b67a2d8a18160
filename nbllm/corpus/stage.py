"""The contract of a stage, and how a line such as `length min=100` becomes one.

A stage measures: from a batch of documents it gives scores, one row a document, and perhaps edited texts. It decides
from the scores alone, so that a threshold can move over stored scores without reading a text again. A local stage looks
at one batch at a time. A global stage looks at all documents: it emits keys a batch, settles them at once, and then
goes over the batches again. Stages are stateless between two cleanings, and what they give doesn't depend on how
documents were cut into batches. Knows neither files nor the store.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One `name=value` that a stage takes, for help and completion."""

    name: str
    """What is typed before the equals sign; for a positional argument a word such as LANGUAGES."""
    default: Any
    """The value where none is typed; `dataclasses.MISSING` where one must be."""
    summary: str
    """A phrase."""
    positional: bool = False
    """Typed as a bare word after the stage's name."""
    choices: tuple[str, ...] = ()
    """The values that exist, where they can be listed."""
    parse: Callable[[str], Any] = str
    """Makes the value from what was typed; raises ValueError."""


Rules = list[tuple[Any, str]]
"""Boolean arrays (where the rule drops; null counts as False) with their reasons, in order of precedence."""


def argument(
    default: Any,
    summary: str,
    *,
    positional: bool = False,
    choices: tuple[str, ...] = (),
    parse: Callable[[str], Any] = str,
) -> Any:
    """A dataclass field that is also an argument of the stage's line."""
    extra = {"summary": summary, "positional": positional, "choices": choices, "parse": parse}
    return dataclasses.field(default=default, metadata=extra)


@dataclass(frozen=True)
class Handle:
    """A threshold as a histogram shows it: a line in the distribution of a score."""

    score: str
    argument: str
    """The argument that holds the threshold; one may stand in two scores."""
    least: bool
    """Documents below are dropped, else those above."""


@dataclass(frozen=True)
class Outcome:
    """What a stage found in a batch."""

    scores: pa.RecordBatch
    """One row a document, in the batch's order; possibly without columns."""
    texts: pa.Array | None = None
    """The edited texts, or None where the stage doesn't edit."""


class Texts(Protocol):
    """Random access to the documents that reached a global stage."""

    def __call__(self, positions: Sequence[int]) -> list[str]:
        """Texts at positions 0 … n-1 among them."""


@dataclass(frozen=True, kw_only=True)
class Stage(ABC):
    """A local stage; its dataclass fields are the arguments of its line."""

    NAME: ClassVar[str]
    """What is typed, such as `length` or `dedup exact`."""
    SUMMARY: ClassVar[str]
    """One line for help."""
    VERSION: ClassVar[int] = 1
    """Raised whenever the same arguments would decide otherwise, so that older corpora aren't reused."""
    EVIDENCE: ClassVar[Mapping[str, str]] = {}
    """The score behind a reason, where a stage has many."""
    HANDLES: ClassVar[tuple[Handle, ...]] = ()
    """The thresholds that only `rules` reads: they can move over stored scores."""

    @classmethod
    def arguments(cls) -> Mapping[str, Argument]:
        """The arguments by name, in the order of help."""
        return {
            field.name: Argument(name=field.name, default=field.default, **field.metadata)
            for field in dataclasses.fields(cls)
            if "summary" in field.metadata
        }

    @abstractmethod
    def measure(self, batch: pa.RecordBatch) -> Outcome:
        """Scores and edits of a batch (columns of `documents.SCHEMA`); no text in it is empty."""

    def rules(self, scores: pa.RecordBatch) -> Rules:
        """What drops a document, from scores alone."""
        return []

    def decide(self, scores: pa.RecordBatch) -> pa.Array:
        """The reason to drop each document, null where it is kept: a string array made from scores alone."""
        return reasons(len(scores), *self.rules(scores))

    def scores_again(self, scores: pa.Table, tables: Mapping[str, pa.Table]) -> pa.Table:
        """The stored scores as they are with these thresholds: the same, but where a stage compares documents.

        Args:
            scores: as stored, with `row` and `reason`, which stay.
            tables: the stage's further tables.
        """
        return scores

    def measured(self, score: str, scores: pa.Table, tables: Mapping[str, pa.Table]) -> NDArray[np.float64]:
        """What a threshold on a score is held against, one value a document; NaN where there is none."""
        return np.asarray(scores[score].to_numpy(), np.float64)

    def limit(self, argument: str) -> Any:
        """The value of a threshold, where None stands for one that depends on other arguments; None: no limit."""
        return getattr(self, argument)

    @classmethod
    def thresholds(cls) -> tuple[str, ...]:
        """The arguments that can move over stored scores."""
        return tuple(dict.fromkeys(handle.argument for handle in cls.HANDLES))

    def line(self, *, short: bool = False) -> str:
        """The stage as a line with every argument, as a corpus's parameters keep it; `short` leaves out defaults."""
        shown = [self.NAME]
        for name, known in self.arguments().items():
            value = getattr(self, name)
            if value not in (None, ()) and not (short and not known.positional and value == known.default):
                text = ",".join(value) if isinstance(value, tuple) else f"{value}"
                shown.append(text if known.positional else f"{name}={text}")
        return " ".join(shown)

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The functions of the notebook that its line names; with these the line says everything."""
        return {}

    def parameters(self) -> dict[str, Any]:
        """What makes two stages the same, as JSON."""
        return {"stage": self.line(), "version": self.VERSION}


@dataclass(frozen=True)
class Settled:
    """What a global stage found over all documents that reached it."""

    scores: pa.Table
    """One row a document, in order."""
    groups: pa.Array | None = None
    """int64: documents with the same number go to one side of the split; null for those without company."""
    tables: Mapping[str, pa.Table] = dataclasses.field(default_factory=dict)
    """More to keep with the scores, such as pairs with their similarity."""
    copies: NDArray[np.int64] | None = None
    """How often each document that stays goes on; once without."""


@dataclass(frozen=True, kw_only=True)
class GlobalStage(Stage):
    """A stage that needs all documents at once."""

    @abstractmethod
    def keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What a batch contributes, one row a document."""

    @abstractmethod
    def settle(self, keys: pa.Table, texts: Texts) -> Settled:
        """Scores of every document from the keys of all, in the order of the documents."""

    def edit(self, batch: pa.RecordBatch, scores: pa.RecordBatch) -> pa.Array | None:
        """The edited texts of a batch, from its rows of the settled scores."""
        return None

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        """Not used: a global stage is measured by `keys` and `settle`."""
        raise UsageError(f"{self.NAME} looks at all documents at once", next="Call keys, then settle")


def scores_of(size: int, **columns: Any) -> pa.RecordBatch:
    """A record batch of scores; without columns it still has `size` rows."""
    if columns:
        return pa.record_batch(columns)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * size, pa.struct([])))


def reasons(size: int, *rules: tuple[Any, str]) -> pa.Array:
    """The first rule that applies to each row.

    Args:
        size: the number of rows.
        rules: (boolean array or sequence: the rule applies, reason) in order of precedence; null counts as False.
    """
    found = pa.nulls(size, pa.string())
    for applies, reason in reversed(rules):
        hit = applies if isinstance(applies, (pa.Array, pa.ChunkedArray)) else pa.array(applies, pa.bool_())
        found = pc.if_else(pc.fill_null(hit, False), pa.scalar(reason, pa.string()), found)
    return found
