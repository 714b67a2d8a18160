"""Runs stages over batches: local stages batch by batch, global stages in two goes, everything on disk in between.

Writes into the folder of a corpus being made:

    documents.arrow            what stays: row, text, id, source, split_key
    scores/03-length.arrow     row, the scores of stage 3 (`length`), reason (null: kept)
    scores/05-….pairs.arrow    a global stage's further tables
    dropped/03-length.arrow    row, text (as it came into the stage), id, source, reason

Memory holds a few batches, and for a global stage its keys. Nothing written depends on the number of workers. Knows
nothing of readers, recipes or reports beyond counting.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.documents import SCHEMA
from nbllm.corpus.stage import GlobalStage, Outcome, Stage, scores_of

READ = "read"
"""The name of what stands before the first stage; it drops what is empty as it comes."""
Progress = Callable[[str, int, "int | None"], None]


@dataclass(frozen=True)
class Count:
    """Documents of one source at one stage: those that came in (`in`), left (`out`) or were dropped for a reason."""

    stage: int
    """Position of the stage; 0 is `read`."""
    source: str
    kind: str
    reason: str | None
    documents: int
    characters: int
    bytes: int


@dataclass
class Tally:
    """Sums of `Count`s."""

    sums: dict[tuple[int, str, str, str | None], list[int]] = field(default_factory=dict)

    def add(self, stage: int, kind: str, batch: pa.RecordBatch, reasons: pa.Array | None = None) -> None:
        """Counts a batch's documents by source, and by reason where reasons are given."""
        if not len(batch):
            return
        columns = {
            "source": batch["source"],
            "characters": pc.utf8_length(batch["text"]).cast(pa.int64()),
            "bytes": pc.binary_length(batch["text"]).cast(pa.int64()),
        }
        if reasons is not None:
            columns["reason"] = reasons
        by = ["source", "reason"] if reasons is not None else ["source"]
        grouped = pa.table(columns).group_by(by, use_threads=False).aggregate(
            [("characters", "count"), ("characters", "sum"), ("bytes", "sum")]
        )  # fmt: skip
        for row in grouped.to_pylist():
            key = (stage, row["source"], kind, row.get("reason"))
            sums = self.sums.setdefault(key, [0, 0, 0])
            for index, name in enumerate(("characters_count", "characters_sum", "bytes_sum")):
                sums[index] += row[name]

    def counts(self) -> list[Count]:
        """The sums, ordered by stage, then source and kind as they first came."""
        return [
            Count(stage, source, kind, reason, *sums)
            for (stage, source, kind, reason), sums in sorted(self.sums.items(), key=lambda item: item[0][0])
        ]


@dataclass(frozen=True)
class Step:
    """What one stage did to one batch."""

    stage: int
    before: pa.RecordBatch
    scores: pa.RecordBatch
    reasons: pa.Array
    after: pa.RecordBatch


class Runner(Protocol):
    """Applies a chain of local stages to batches; may use other processes, keeps the order."""

    def __call__(
        self, chain: Sequence[tuple[int, Stage]], batches: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[pa.RecordBatch, list[Step]]]: ...


def run(
    batches: Iterable[pa.RecordBatch],
    stages: Sequence[Stage],
    folder: Path,
    *,
    keep: Iterable[str] = (),
    progress: Progress | None = None,
    runner: Runner | None = None,
) -> Tally:
    """Cleans batches into `folder` and counts what happened.

    Args:
        batches: of `documents.SCHEMA`.
        stages: in order; stage n of the report is `stages[n - 1]`.
        folder: exists, and is filled as this file's docstring says.
        keep: ids of documents that no stage drops; what a stage edits in them stays edited.
        progress: called with a name, documents done and their total (None while it isn't known).
        runner: how local stages are applied; in this process by default. It is made with the same `keep`.
    """
    allowed = allow_list(keep)
    work = folder / "work"
    work.mkdir()
    tally = Tally()
    report = progress or (lambda name, done, total: None)
    runner = runner or partial(run_here, keep=allowed)
    chain: list[tuple[int, Stage]] = [(0, _Read())]
    stream: Iterable[pa.RecordBatch] = batches
    total: int | None = None
    with _Writers(folder, [READ, *(stage.NAME for stage in stages)]) as writers:
        for number, stage in enumerate(stages, 1):
            if not isinstance(stage, GlobalStage):
                chain.append((number, stage))
                continue
            spill, keys = work / f"{number:02d}.arrow", work / f"{number:02d}-keys.arrow"
            total = _pass(stream, chain, spill, keys, stage, total, tally, writers, report, runner)
            report(stage.NAME, 0, total)
            stream = _settle(number, stage, spill, keys, total, tally, writers, report, allowed)
            chain = []
        _pass(stream, chain, folder / "documents.arrow", None, None, total, tally, writers, report, runner)
    shutil.rmtree(work)
    return tally


def allow_list(ids: Iterable[str]) -> pa.Array | None:
    """Ids as an array to look into; None for none."""
    found = sorted(set(ids))
    return pa.array(found, pa.string()) if found else None


def run_here(
    chain: Sequence[tuple[int, Stage]], batches: Iterable[pa.RecordBatch], *, keep: pa.Array | None = None
) -> Iterator[tuple[pa.RecordBatch, list[Step]]]:
    """The runner of this process."""
    for batch in batches:
        yield run_chain(chain, batch, keep)


def run_chain(
    chain: Sequence[tuple[int, Stage]], batch: pa.RecordBatch, keep: pa.Array | None = None
) -> tuple[pa.RecordBatch, list[Step]]:
    """One batch through local stages: what stays of it, and what each stage did."""
    steps = []
    for number, stage in chain:
        if not len(batch):
            break
        outcome = stage.measure(batch)
        step = apply_outcome(number, batch, outcome, stage.decide(outcome.scores), keep)
        steps.append(step)
        batch = step.after
    return batch, steps


def _pass(
    stream: Iterable[pa.RecordBatch],
    chain: Sequence[tuple[int, Stage]],
    target: Path,
    keys_target: Path | None,
    following: GlobalStage | None,
    total: int | None,
    tally: Tally,
    writers: _Writers,
    report: Progress,
    runner: Runner,
) -> int:
    """Sends a stream through local stages into a file, with the keys that the following global stage wants."""
    name = ", ".join(stage.NAME if number else READ for number, stage in chain) or "write"
    done = kept = 0
    with ExitStack() as files:
        sink = files.enter_context(pa.ipc.new_file(target, SCHEMA))
        key_sink: Any = None
        for batch, steps in runner(chain, stream):
            for step in steps:
                writers.record(step, tally)
            done += len(steps[0].before) if steps else len(batch)
            if len(batch):
                kept += len(batch)
                sink.write_batch(batch)
                if following is not None and keys_target is not None:
                    keys = following.keys(batch)
                    if key_sink is None:
                        key_sink = files.enter_context(pa.ipc.new_file(keys_target, keys.schema))
                    key_sink.write_batch(keys)
            report(name, done, total)
    return kept


def _settle(
    number: int,
    stage: GlobalStage,
    spill: Path,
    keys_path: Path,
    total: int,
    tally: Tally,
    writers: _Writers,
    report: Progress,
    keep: pa.Array | None,
) -> Iterator[pa.RecordBatch]:
    """The batches of a spilled file after a global stage; the file is removed once they have been read."""
    if total:
        with pa.memory_map(str(spill)) as source, pa.memory_map(str(keys_path)) as key_source:
            file = pa.ipc.open_file(source)
            texts = _SpilledTexts(file)
            settled = stage.settle(pa.ipc.open_file(key_source).read_all(), texts)
            for name, table in settled.tables.items():
                writers.write_table(number, name, table)
            scores = settled.scores.combine_chunks()
            smallest = _smallest_keys(file, settled.groups)
            done = 0
            for index in range(file.num_record_batches):
                batch = file.get_batch(index)
                part = _rows(scores, done, len(batch))
                if smallest is not None:
                    position = SCHEMA.get_field_index("split_key")
                    changed = pa.array(smallest[done : done + len(batch)])
                    batch = batch.set_column(position, "split_key", changed)
                outcome = Outcome(part, stage.edit(batch, part))
                step = apply_outcome(number, batch, outcome, stage.decide(part), keep)
                writers.record(step, tally)
                done += len(batch)
                report(stage.NAME, done, total)
                if len(step.after):
                    yield step.after
            if settled.copies is not None:
                for again in _copies(file, settled.copies):
                    tally.add(number, "out", again)
                    yield again
    keys_path.unlink(missing_ok=True)
    spill.unlink()


def _copies(file: Any, copies: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[pa.RecordBatch]:
    """Documents that go on more than once, pass after pass, so that copies don't lie side by side."""
    for turn in range(2, int(copies.max(initial=0)) + 1):
        done = 0
        for index in range(file.num_record_batches):
            batch = file.get_batch(index)
            again = batch.filter(pa.array(copies[done : done + len(batch)] >= turn))
            done += len(batch)
            if len(again):
                yield again


def _rows(table: pa.Table, start: int, count: int) -> pa.RecordBatch:
    part = table.slice(start, count)
    columns = {name: pa.concat_arrays(part[name].chunks) for name in part.column_names}
    return scores_of(count, **columns)


def _smallest_keys(file: Any, groups: pa.Array | None) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Every document's split key, lowered to the smallest of its group, so that a group isn't torn apart."""
    if groups is None or groups.null_count == len(groups):
        return None
    keys = np.concatenate([file.get_batch(index)["split_key"].to_numpy() for index in range(file.num_record_batches)])
    grouped = groups.is_valid().to_numpy(zero_copy_only=False)
    numbers = groups.filter(groups.is_valid()).to_numpy()
    smallest = np.full(int(numbers.max()) + 1, np.inf)
    np.minimum.at(smallest, numbers, keys[grouped])
    keys[grouped] = smallest[numbers]
    return keys


def apply_outcome(
    number: int, batch: pa.RecordBatch, outcome: Outcome, reasons: pa.Array, keep: pa.Array | None = None
) -> Step:
    """What a stage's outcome and decision make of a batch; a text that an edit left without a character is `empty`.

    A document whose id is in `keep` stays whatever the reason, with its text as it was where an edit left none.
    """
    texts = batch["text"] if outcome.texts is None else outcome.texts
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    if keep is not None:
        wanted = pc.is_in(batch["id"], keep)
        reasons = pc.if_else(wanted, pa.scalar(None, pa.string()), reasons)
        if outcome.texts is not None:
            lost = pc.and_(wanted, blank)
            texts = pc.if_else(lost, batch["text"], texts)
            outcome = Outcome(outcome.scores, texts)
            blank = pc.and_(blank, pc.invert(lost))
    if pc.any(blank).as_py():
        reasons = pc.if_else(pc.and_(blank, pc.is_null(reasons)), pa.scalar("empty", pa.string()), reasons)
    after = batch
    if outcome.texts is not None:
        after = after.set_column(SCHEMA.get_field_index("text"), "text", texts)
    if reasons.null_count != len(reasons):
        after = after.filter(pc.is_null(reasons))
    return Step(number, batch, outcome.scores, reasons, after)


class _Read(Stage):
    """Measures nothing: `apply_outcome` drops what is empty."""

    NAME = READ
    SUMMARY = "drops what is empty as it comes"

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        return Outcome(scores_of(len(batch)))


class _SpilledTexts:
    """Texts of a spilled file by position."""

    def __init__(self, file: Any) -> None:
        self._columns = [file.get_batch(index)["text"] for index in range(file.num_record_batches)]
        self._ends = np.cumsum([len(column) for column in self._columns])

    def __call__(self, positions: Sequence[int]) -> list[str]:
        found = []
        for position in positions:
            index = int(np.searchsorted(self._ends, position, side="right"))
            start = int(self._ends[index - 1]) if index else 0
            found.append(self._columns[index][position - start].as_py())
        return found


class _Writers(ExitStack):
    """The open files of scores and dropped documents, one of each a stage, made when first needed."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__()
        self._folder = folder
        self._names = names
        self._open: dict[tuple[str, int], Any] = {}
        (folder / "scores").mkdir()
        (folder / "dropped").mkdir()

    def record(self, step: Step, tally: Tally) -> None:
        """Counts a step and writes its scores and what it dropped."""
        before, reasons = step.before, step.reasons
        tally.add(step.stage, "in", before)
        tally.add(step.stage, "out", step.after)
        if step.stage:
            columns = dict(zip(step.scores.schema.names, step.scores.columns, strict=True))
            scores = pa.record_batch({"row": before["row"], **columns, "reason": reasons})
            self._write("scores", step.stage, scores)
        if reasons.null_count != len(reasons):
            hit = pc.is_valid(reasons)
            gone = before.select(["row", "text", "id", "source"]).append_column("reason", reasons).filter(hit)
            tally.add(step.stage, "dropped", gone, gone["reason"])
            self._write("dropped", step.stage, gone)

    def write_table(self, stage: int, name: str, table: pa.Table) -> None:
        """Keeps a further table of a global stage."""
        path = self._folder / "scores" / f"{file_stem(stage, self._names[stage])}.{name}.arrow"
        with pa.ipc.new_file(path, table.schema) as sink:
            sink.write_table(table)

    def _write(self, kind: str, stage: int, batch: pa.RecordBatch) -> None:
        sink = self._open.get((kind, stage))
        if sink is None:
            path = self._folder / kind / f"{file_stem(stage, self._names[stage])}.arrow"
            sink = self._open[kind, stage] = self.enter_context(pa.ipc.new_file(path, batch.schema))
        sink.write_batch(batch)


def file_stem(stage: int, name: str) -> str:
    """The name of a stage's files: `03-length`, `05-dedup-minhash`."""
    return f"{stage:02d}-{name.replace(' ', '-')}"
