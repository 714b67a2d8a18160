"""What a cleaning left behind beside the documents: what each stage measured, and what it dropped and why.

Everything here is read from the store, memory-mapped; nothing is measured again. Knows nothing of how a corpus is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.engine import file_stem
from nbllm.corpus.examples import Example, Examples
from nbllm.corpus.languages import by_language, language_warnings
from nbllm.corpus.moving import Moving
from nbllm.corpus.pairs import DuplicatePair, DuplicatePairs
from nbllm.corpus.report import CorpusReport
from nbllm.corpus.stage import Stage
from nbllm.corpus.stages import STAGES
from nbllm.corpus.thresholds import WouldDrop, decide_again, moved
from nbllm.errors import StoreError, UsageError, did_you_mean
from nbllm.files import read_json
from nbllm.store import Manifest, Store


class Trail:
    """The stages of a cleaned corpus, their scores, and the documents that they dropped.

    Args:
        store: where the corpus is.
        manifest: which one.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.store = store
        self.manifest = manifest

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self.manifest.name

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.store.path("corpus", self.name)

    @cached_property
    def report(self) -> CorpusReport:
        """What the cleaning did, by stage and reason."""
        return CorpusReport.from_json({**read_json(self.folder / "report.json"), "name": self.name})

    @property
    def lines(self) -> list[str]:
        """The stages as they are typed, without defaults."""
        return [stage.line for stage in self.report.stages[1:]]

    @cached_property
    def _rows(self) -> pa.Table:
        """The documents with their `row`, the position in the input by which scores name them."""
        return _table(self.folder / "documents.arrow")

    def scores(self, stage: str | int) -> pa.Table:
        """What a stage measured: `row` (position in the input), its scores, `reason` (null: kept).

        Args:
            stage: its name, or its number where a name stands twice; 1 is the first.
        """
        number = self._number(stage)
        return _table(self._file("scores", number))

    def dropped(self, stage: str | int | None = None, n: int = 10) -> Examples:
        """Documents that were dropped, with the reason beside each.

        Args:
            stage: a stage's name such as `dedup minhash`, or its number; all stages by default.
            n: at most so many.
        """
        names = self._names()
        numbers = range(len(names)) if stage is None else [self._number(stage)]
        found: list[Example] = []
        for number in numbers:
            if len(found) < n and self._file("dropped", number).exists():
                table = _table(self._file("dropped", number)).slice(0, n - len(found))
                found += [self._example(number, row) for row in table.to_pylist()]
        return Examples(found, of=None if stage is None else names[self._number(stage)])

    def dropped_one(
        self, stage: str | int, at: int, reason: str | None = None
    ) -> tuple[Example, int, int, DuplicatePair | None] | None:
        """One of a stage's dropped documents, for stepping through them.

        Args:
            stage: its name or number.
            at: which, from 0; beyond the ends the first or last.
            reason: only those dropped for this reason.

        Returns:
            The document, its place, their number, and for a duplicate the pair; None where none was dropped.
        """
        number = self._number(stage)
        table = _table(self._file("dropped", number))
        if reason is not None and table.num_rows:
            table = table.filter(pc.equal(table["reason"], reason))
        if not table.num_rows:
            return None
        at = min(max(0, at), table.num_rows - 1)
        row = table.slice(at, 1).to_pylist()[0]
        pair = self._pair(number, row)
        return self._example(number, row), at, table.num_rows, pair

    def examples(self, n: int = 5) -> Examples:
        """Dropped documents of as many different stages and reasons as there are, in turn; kept ones if none was."""
        queues = []
        for number in range(len(self._names())):
            path = self._file("dropped", number)
            if path.exists():
                table = _table(path)
                for reason in pc.unique(table["reason"]).to_pylist():
                    rows = table.filter(pc.equal(table["reason"], reason)).slice(0, n).to_pylist()
                    queues.append([self._example(number, row) for row in rows])
        found: list[Example] = []
        while len(found) < n and any(queues):
            found += [queue.pop(0) for queue in queues if queue]
        if not found:
            rows = self._rows.slice(0, n).to_pylist()
            found = [
                Example(text=row["text"], id=row["id"], source=row["source"], stage="", reason="kept") for row in rows
            ]
        return Examples(found[:n])

    def duplicates(self, n: int = 10, stage: str | int | None = None) -> DuplicatePairs:
        """Dropped duplicates beside the documents that stay for them, the least similar first.

        Args:
            n: at most so many.
            stage: a stage such as `dedup minhash`, or its number; every stage that compares documents by default.
        """
        numbers = range(1, len(self._names())) if stage is None else [self._number(stage)]
        found: list[DuplicatePair] = []
        for number in numbers:
            scores = self.scores(number) if self._file("scores", number).exists() else pa.table({})
            if "copy_of" not in scores.column_names or not self._file("dropped", number).exists():
                continue
            scores = scores.filter(pc.is_valid(scores["reason"]))
            if "similarity" in scores.column_names:
                scores = scores.sort_by("similarity")
            dropped = _table(self._file("dropped", number))
            for row in scores.slice(0, n - len(found)).to_pylist():
                gone = dropped.slice(pc.index(dropped["row"], row["row"]).as_py(), 1).to_pylist()[0]
                if (pair := self._pair(number, gone)) is not None:
                    found.append(pair)
        return DuplicatePairs(found)

    def texts_of(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Documents by their `row`, kept or dropped, as dicts with `text` (as it is kept now), `id` and `source`."""
        found = []
        for row in rows:
            for table in self._everything:
                hit = pc.index(table["row"], row).as_py()
                if hit >= 0:
                    found.append(table.slice(hit, 1).select(["row", "text", "id", "source"]).to_pylist()[0])
                    break
            else:
                raise StoreError(f"{self.name} has no document of row {row}", next="Clean again with --overwrite")
        return found

    @cached_property
    def by_language(self) -> dict[str, dict[str, int]]:
        """Documents by language, where a stage told it: `in` (that reached the stage), `out`, and one entry for each
        stage from there on that dropped some."""
        names = self._names()
        first = next((number for number, name in enumerate(names) if name == "language"), 0)
        if not first:
            return {}
        gone = {}
        for number in range(first, len(names)):
            if self._file("dropped", number).exists():
                title = names[number] if names.count(names[number]) == 1 else f"{number} {names[number]}"
                gone[title] = _table(self._file("dropped", number))["row"].to_numpy()
        told = self.scores(first)
        return by_language(told["row"].to_numpy(), told["language"], gone, self._rows["row"].to_numpy())

    @property
    def warnings(self) -> list[str]:
        """The report's notes, and one for each stage after `language` that dropped most of a language."""
        return [*self.report.notes, *language_warnings(self.by_language)]

    def moving(self, stage: str | int) -> Moving:
        """A stage's scores, held ready for histograms and for thresholds that are dragged.

        Raises:
            UsageError: no such stage, or none of its thresholds can move.
        """
        number = self._number(stage)
        if number not in self._movings:
            if not number:
                raise UsageError("read has no threshold")
            scores = self.scores(number)
            line = self.manifest.parameters["stages"][number - 1]["stage"]
            kept = self._kept_by_id(scores["row"].to_numpy())
            self._movings[number] = Moving(line, scores, self._sizes, kept, self._tables(number))
        return self._movings[number]

    def would_drop(self, stage: str | int, *, n: int = 3, **thresholds: Any) -> WouldDrop:
        """What a stage would drop with other thresholds, from its stored scores: `would_drop("length", min=200)`.

        Args:
            stage: its name, or its number where a name stands twice; 1 is the first.
            n: at most so many examples on either side.
            thresholds: values by the names of the stage's arguments; the others stay as they were.

        Raises:
            UsageError: no such stage, or no threshold of it that can move.
        """
        number = self._number(stage)
        if not number:
            raise UsageError("read has no threshold")
        again = moved(self.manifest.parameters["stages"][number - 1]["stage"], thresholds)
        scores = self.scores(number)
        rows = scores["row"].to_numpy()
        now = again.scores_again(scores, self._tables(number))
        before, after, counts = decide_again(again, now, self._kept_by_id(rows))
        sizes = self._sizes[rows]

        def some(changed: np.ndarray[Any, np.dtype[np.bool_]], reason: str) -> Examples:
            places = np.flatnonzero(changed)[:n].tolist()
            return Examples(
                [self._changed(again, int(rows[place]), scores.slice(place, 1), reason) for place in places]
            )

        return WouldDrop(
            line=again.line(short=True),
            came_in=len(before),
            documents=int(after.sum()),
            bytes=int(sizes[after].sum()),
            documents_before=int(before.sum()),
            bytes_before=int(sizes[before].sum()),
            reasons=counts,
            now_dropped=some(after & ~before, "would go"),
            now_kept=some(before & ~after, "would stay"),
        )

    def with_thresholds(self, stage: str | int, thresholds: Mapping[str, Any]) -> str:
        """A stage's line with other thresholds, to be typed into a cell."""
        number = self._number(stage)
        return moved(self.manifest.parameters["stages"][number - 1]["stage"], thresholds).line(short=True)

    def _tables(self, number: int) -> dict[str, pa.Table]:
        """The further tables of a stage, by name."""
        stem = self._file("scores", number).stem
        paths = (self.folder / "scores").glob(f"{stem}.*.arrow")
        return {path.name.split(".")[-2]: _table(path) for path in paths}

    def _pair(self, number: int, gone: dict[str, Any]) -> DuplicatePair | None:
        """A dropped duplicate beside what stays for it."""
        if not number:
            return None
        scores = self.scores(number)
        if "copy_of" not in scores.column_names:
            return None
        row = scores.slice(pc.index(scores["row"], gone["row"]).as_py(), 1).to_pylist()[0]
        if row["copy_of"] is None:
            return None
        (kept,) = self.texts_of([row["copy_of"]])
        return DuplicatePair(
            dropped_id=gone["id"],
            kept_id=kept["id"],
            dropped_text=gone["text"],
            kept_text=kept["text"],
            stage=self._names()[number],
            similarity=row.get("similarity", 1.0),
        )

    def _kept_by_id(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Which rows the cleaning's allow-list names; None without one."""
        ids = self.manifest.parameters.get("keep")
        if not ids:
            return None
        wanted = pc.is_in(self._rows["id"], pa.array(ids, pa.string())).to_numpy()
        return np.isin(rows, self._rows["row"].to_numpy()[wanted])

    @cached_property
    def _movings(self) -> dict[int, Moving]:
        return {}

    @cached_property
    def _sizes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Bytes of each document by its position in the input."""
        tables = self._everything
        most = max((pc.max(table["row"]).as_py() or 0 for table in tables), default=0)
        found = np.zeros(most + 1, np.int64)
        for table in tables:
            found[table["row"].to_numpy()] = pc.binary_length(table["text"]).to_numpy()
        return found

    @cached_property
    def _everything(self) -> list[pa.Table]:
        """Kept and dropped documents."""
        paths = (self._file("dropped", number) for number in range(len(self._names())))
        return [self._rows, *(_table(path) for path in paths if path.exists())]

    def _changed(self, stage: Stage, row: int, scores: pa.Table, reason: str) -> Example:
        (found,) = self.texts_of([row])
        measured = scores.drop_columns(["row", "reason"])
        why = stage.decide(measured.combine_chunks().to_batches()[0])[0].as_py() or scores["reason"][0].as_py()
        values = measured.to_pylist()[0]
        evidence = stage.EVIDENCE.get(why)
        shown = {evidence: values[evidence]} if evidence else values
        return Example(
            text=found["text"], id=found["id"], source=found["source"], stage=stage.NAME,
            reason=f"{reason}: {why}", scores=shown,
        )  # fmt: skip

    def _names(self) -> list[str]:
        return [stage.name for stage in self.report.stages]

    def _number(self, stage: str | int) -> int:
        names = self._names()
        if isinstance(stage, int):
            if not 0 <= stage < len(names):
                raise UsageError(f"{self.name} was made with {len(names) - 1} stages", received=stage)
            return stage
        if stage in names:
            return names.index(stage)
        begins = [number for number, name in enumerate(names) if name.split()[0] == stage]
        if len(begins) == 1:
            return begins[0]
        raise UsageError(f"{self.name} was made without a stage {stage!r}", next=did_you_mean(stage, names))

    def _file(self, kind: str, number: int) -> Path:
        return self.folder / kind / f"{file_stem(number, self._names()[number])}.arrow"

    def _example(self, number: int, row: dict[str, Any]) -> Example:
        values: dict[str, Any] = {}
        if number:
            table = self.scores(number)
            hit = pc.index(table["row"], row["row"]).as_py()
            values = table.slice(hit, 1).to_pylist()[0]
        copy_of = values.pop("copy_of", None)
        scores = {name: value for name, value in values.items() if name not in ("row", "reason") and value is not None}
        name = self._names()[number]
        if name in STAGES and row["reason"] in STAGES[name].EVIDENCE:
            kept = STAGES[name].EVIDENCE[row["reason"]]
            scores = {kept: scores[kept]}
        if copy_of is not None:
            scores["like"] = self._id(copy_of)
        return Example(
            text=row["text"],
            id=row["id"],
            source=row["source"],
            stage=name,
            reason=row["reason"],
            scores=scores,
        )

    def _id(self, row: int) -> str:
        """The id of a document by its position in the input."""
        tables = [self._rows, *(_table(self._file("dropped", number)) for number in range(len(self._names())))]
        for table in tables:
            if table.num_rows and (found := pc.index(table["row"], row).as_py()) >= 0:
                return str(table["id"][found].as_py())
        return f"document {row}"


def _table(path: Path) -> pa.Table:
    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except FileNotFoundError:
        return pa.table({})
    except pa.ArrowInvalid as error:
        raise StoreError(f"{path} is damaged: {error}", next="Clean the corpus again with --overwrite") from error
