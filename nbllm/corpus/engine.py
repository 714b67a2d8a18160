"""Runs stages over batches: local stages batch by batch, global stages in two goes, everything on disk in between.

Writes into the folder of a corpus being made:

    documents.arrow            what stays: row, text, id, source, split_key
    scores/03-length.arrow     row, the scores of stage 3 (`length`), reason (null: kept)
    scores/05-….pairs.arrow    a global stage's further tables
    dropped/03-length.arrow    row, text (as it came into the stage), id, source, reason

Stages between two global ones make a pass over all documents. While it runs everything lies in a scratch, and every
few seconds, and when it is interrupted, how far it is; from there another run goes on at the next batch. Memory holds a
few batches, and for a global stage its keys. Nothing written depends on the number of workers or on how documents were
cut into batches. Knows nothing of readers, recipes or reports.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.documents import SCHEMA
from nbllm.corpus.scratch import REFUSALS, Scratch
from nbllm.corpus.settling import settle, settled_batches
from nbllm.corpus.stage import GlobalStage, Stage
from nbllm.corpus.steps import READ, Chain, Done, Read, Runner, Step, allow_list, run_here
from nbllm.corpus.streams import Streams, write_file
from nbllm.corpus.tally import Tally

Progress = Callable[[str, int, "int | None"], None]
Batches = Callable[[int], Iterable[pa.RecordBatch]]
"""Batches of `documents.SCHEMA` in order, without the first so many."""


def run(
    batches: Batches,
    stages: Sequence[Stage],
    folder: Path,
    *,
    scratch: Scratch | None = None,
    keep: Iterable[str] = (),
    progress: Progress | None = None,
    runner: Runner | None = None,
) -> Tally:
    """Cleans batches into `folder` and counts what happened.

    Args:
        batches: the documents, the same ones in the same batches whenever it is called.
        stages: in order; stage n of the report is `stages[n - 1]`.
        folder: exists, and is filled as this file's docstring says.
        scratch: where it lies meanwhile, and where it goes on from; by default a folder that goes with this call.
        keep: ids of documents that no stage drops; what a stage edits in them stays edited.
        progress: called with a name, documents done and their total (None while it isn't known).
        runner: how local stages are applied; in this process by default. It is made with the same `keep`.
    """
    with ExitStack() as stack:
        if scratch is None:
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix=".scratch-", dir=folder.parent))
            scratch = Scratch(Path(place), None)
        streams = stack.enter_context(scratch.streams())
        tell = progress or (lambda name, done, total: None)
        work = _Cleaning(stages, scratch, streams, allow_list(keep), tell)
        try:
            work.run(batches, runner)
        except BaseException as error:
            if not isinstance(error, (*REFUSALS, OSError)):
                work.keep_state()
            raise
        _write_files(streams, folder)
        return work.tally


def file_stem(stage: int, name: str) -> str:
    """The name of a stage's files: `03-length`, `05-dedup-minhash`."""
    return f"{stage:02d}-{name.replace(' ', '-')}"


class _Cleaning:
    """One run: its passes, and how far they are."""

    def __init__(
        self, stages: Sequence[Stage], scratch: Scratch, streams: Streams, keep: pa.Array | None, progress: Progress
    ) -> None:
        self._passes = list(passes(stages))
        self._pass_names = pass_names(stages)
        self._names = [READ, *(stage.NAME for stage in stages)]
        self._scratch = scratch
        self._streams = streams
        self._keep = keep
        self._progress = progress
        kept = scratch.state or {}
        self.tally = Tally.from_json(kept.get("tally", []))
        self._pass = int(kept.get("pass", 0))
        """The pass that runs; as many as there are once all are done."""
        self._settled = bool(kept.get("settled", False))
        """Whether the global stage before it is settled."""
        self._batches = int(kept.get("batches", 0))
        """Batches of it that are done …"""
        self._documents = int(kept.get("documents", 0))
        """… and their documents, as they came in."""
        self._stayed = int(kept.get("stayed", 0))
        """Documents that it let through so far."""
        self._total: int | None = kept.get("total")
        """Documents that come into it, where it is known."""
        self._read = int(kept.get("read", 0))
        self._state: dict[str, Any] = dict(kept)
        self._note()

    def run(self, batches: Batches, runner: Runner | None) -> None:
        apply = runner or partial(run_here, keep=self._keep)
        while self._pass < len(self._passes):
            chain, following = self._passes[self._pass]
            name = self._pass_names[self._pass]
            for done in apply(chain, following, self._stream(batches)):
                self._record(done)
                self._note()
                if self._scratch.due():
                    self.keep_state()
                self._progress(name, self._documents, self._total)
            self._next_pass()

    def keep_state(self) -> None:
        """Keeps how far it is, as of the last batch that was wholly done."""
        if self._state["batches"] or self._state["pass"]:
            self._scratch.keep(self._state, self._streams)
            # what a pass leaves behind goes once no state names it
            for name in self._streams.names("work"):
                if name not in self._state["sizes"]:
                    self._streams.remove(name)

    def _stream(self, batches: Batches) -> Iterator[tuple[pa.RecordBatch, list[Step]]]:
        """What comes into the pass, from where it is."""
        if not self._pass:
            for batch in batches(self._batches):
                yield batch, []
            return
        number, stage = self._before()
        spill, target = f"work/{self._pass - 1}", f"work/{self._pass - 1}.settled"
        if not self._settled:
            self._progress(stage.NAME, 0, self._total)
            settle(stage, self._streams, spill, f"{spill}.keys", target, f"scores/{self._stem(number)}")
            self._settled = True
            self._note()
        yield from settled_batches(number, stage, self._streams, spill, target, self._keep, self._batches)

    def _record(self, done: Done) -> None:
        """Counts and writes one batch."""
        for step in done.steps:
            self._write(step)
        came = len(done.steps[0].before) if done.steps else 0
        if not self._pass:
            self._read += came
        self._batches += 1
        self._documents += came
        self._stayed += len(done.batch)
        if len(done.batch):
            last = self._pass == len(self._passes) - 1
            self._streams.write("documents" if last else f"work/{self._pass}", done.batch)
            if done.keys is not None:
                self._streams.write(f"work/{self._pass}.keys", done.keys)

    def _write(self, step: Step) -> None:
        """Counts a step and writes its scores and what it dropped."""
        before, reasons = step.before, step.reasons
        self.tally.add(step.stage, "in", before)
        self.tally.add(step.stage, "out", step.after)
        if step.stage and len(before):
            columns = dict(zip(step.scores.schema.names, step.scores.columns, strict=True))
            scores = pa.record_batch({"row": before["row"], **columns, "reason": reasons})
            self._streams.write(f"scores/{self._stem(step.stage)}", scores)
        if reasons.null_count != len(reasons):
            hit = pc.is_valid(reasons)
            gone = before.select(["row", "text", "id", "source"]).append_column("reason", reasons).filter(hit)
            self.tally.add(step.stage, "dropped", gone, gone["reason"])
            self._streams.write(f"dropped/{self._stem(step.stage)}", gone)

    def _next_pass(self) -> None:
        self._pass += 1
        self._settled, self._batches, self._documents = False, 0, 0
        self._total, self._stayed = self._stayed, 0
        self._note()

    def _note(self) -> None:
        """Remembers this moment as one to go on from."""
        wanted = (f"work/{self._pass}", f"work/{self._pass - 1}")
        sizes = {name: size for name, size in self._streams.sizes().items()
                 if not name.startswith("work/") or name.partition(".")[0] in wanted}  # fmt: skip
        self._state = {
            "pass": self._pass,
            "settled": self._settled,
            "batches": self._batches,
            "documents": self._documents,
            "stayed": self._stayed,
            "total": self._total,
            "read": self._read,
            "sizes": sizes,
            "tally": self.tally.to_json(),
        }

    def _before(self) -> tuple[int, GlobalStage]:
        """The global stage that stands before the pass."""
        stage = self._passes[self._pass - 1][1]
        assert stage is not None
        # `read` is number 0, so that all stages of the passes so far count one too many
        return sum(len(chain) + 1 for chain, _ in self._passes[: self._pass]) - 1, stage

    def _stem(self, number: int) -> str:
        return file_stem(number, self._names[number])


def passes(stages: Sequence[Stage]) -> Iterator[tuple[Chain, GlobalStage | None]]:
    """The local stages up to each global one, with it; the last ones with None."""
    chain: list[tuple[int, Stage]] = [(0, Read())]
    for number, stage in enumerate(stages, 1):
        if isinstance(stage, GlobalStage):
            yield chain, stage
            chain = []
        else:
            chain.append((number, stage))
    yield chain, None


def pass_names(stages: Sequence[Stage]) -> list[str]:
    """What progress names each pass: the global stage before it and its local stages."""
    found, before = [], ""
    for chain, following in passes(stages):
        found.append(", ".join(filter(None, [before, *(stage.NAME for _, stage in chain)])))
        before = following.NAME if following is not None else ""
    return found


def _write_files(streams: Streams, folder: Path) -> None:
    """The corpus's files from its finished tables."""
    for kind in ("scores", "dropped"):
        (folder / kind).mkdir()
        for name in streams.names(kind):
            batches = streams.read(name)
            write_file(folder / f"{name}.arrow", batches[0].schema, batches)
    write_file(folder / "documents.arrow", SCHEMA, streams.read("documents"))
