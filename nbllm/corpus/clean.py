"""`clean`: text in, a corpus in the store out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.corpus import Corpus
from nbllm.corpus.documents import BATCH_DOCUMENTS, batches
from nbllm.corpus.engine import Progress, file_stem, run
from nbllm.corpus.estimate import LARGE_BYTES, SAMPLE, Estimate, estimate
from nbllm.corpus.mix_report import MixShare
from nbllm.corpus.notes import Notes
from nbllm.corpus.readers import ReadOptions
from nbllm.corpus.recipe import recipe_lines
from nbllm.corpus.report import CorpusReport
from nbllm.corpus.scratch import Scratch, open_scratch
from nbllm.corpus.sources import Files, Source, default_name, find_sources
from nbllm.corpus.stage import Stage
from nbllm.corpus.stages import parse_stages
from nbllm.corpus.stages.mix import Mix, mix_line
from nbllm.corpus.stages.python import changed_functions
from nbllm.corpus.steps import Runner
from nbllm.corpus.unpacking import MAX_EXPANSION
from nbllm.corpus.workers import Workers
from nbllm.errors import DataError, NotFoundError, StoreError, UsageError, did_you_mean
from nbllm.files import check_name, read_json, write_json
from nbllm.store import Store

ENGINES = ("local", "ray")
_FORMAT = 1
"""Raised whenever the files of a corpus change."""


def clean(
    store: Store,
    sources: Sequence[Any] = (),
    *,
    texts: Sequence[str] | None = None,
    recipe: str = "default",
    stages: Sequence[str] | None = None,
    name: str | None = None,
    text_column: str | None = None,
    split: str = "file",
    stream: bool = False,
    max_expansion: int = MAX_EXPANSION,
    mix: str | Mapping[str, float] | None = None,
    tokens: int | str | None = None,
    bytes_per_token: float | None = None,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    workers: int | None = None,
    engine: str = "local",
    ray_address: str | None = None,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    batch_documents: int = BATCH_DOCUMENTS,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    estimated: Callable[[Estimate], None] | None = None,
    call: Mapping[str, Any] | None = None,
) -> Corpus:
    """Cleans text into a corpus; one made before by the same stages from the same content is reused.

    An interrupted cleaning leaves no corpus, and goes on where it stopped when the same is cleaned again.

    Args:
        store: where the corpus goes.
        sources: files, folders, globs (each perhaps as `LABEL=…`), `hf:NAME[:CONFIG][:SPLIT]`, `builtin:pydocs`,
            lists of strings or dicts, DataFrames, Arrow tables, Datasets.
        texts: plain strings to clean.
        recipe: the name of a list of stages, see `RECIPES`.
        stages: stage lines instead of the recipe's, see `STAGES`; an empty list keeps everything.
        name: the corpus's name; by default from the first source.
        text_column: the column or field that holds the text.
        split: how a text file becomes documents: `file`, `line`, `blank` (lines), or a marker between documents.
        stream: `hf:` sources are read as they come, without a copy on disk.
        max_expansion: how many times its size a compressed file may unpack to; one that is over it is left out.
        mix: weights by source, `"web=0.67,code=0.045"` or a dict: a last stage `mix` takes so much of each.
        tokens: how many the mix takes, such as `"1B"`; by default as many as there are without a copy.
        bytes_per_token: how tokens are estimated before there is a tokenizer; 4 by default.
        functions: what a stage line `python NAME` may name.
        workers: processes that local stages use, 1 by default, on Ray all its CPUs; the result doesn't depend on it.
        engine: `local`, or `ray`, which measures on a Ray cluster and gives the same corpus.
        ray_address: of a running cluster; see `ray_workers.on_ray`.
        keep: ids of documents that no stage drops (an allow-list).
        overwrite: replace a corpus of that name with another content.
        batch_documents: documents that are worked on at once, at most; the result doesn't depend on it.
        progress: called with a stage's name, documents done and their total (while files are read
            an estimate from their bytes; None where it isn't known).
        say: told in one line what should be known before, such as that an interrupted cleaning goes on.
        estimated: called before a large cleaning starts with what it will take (files of 50 MB and more).
        call: how to make the corpus again, kept in its manifest.

    Returns:
        The corpus; `reused` says whether it was there already.

    Raises:
        UsageError: an unknown recipe, stage or argument.
        NotFoundError: a source or function that isn't there.
        DataError: text that can't be read, or nothing left.
        StoreError: the name is in use by a different content.
    """
    if engine not in ENGINES:
        raise UsageError(f"There is no engine {engine!r}", next=did_you_mean(engine, ENGINES))
    if ray_address is not None and engine != "ray":
        raise UsageError("ray_address belongs to Ray", next="Add --engine ray")
    if workers is not None and workers < 1:
        raise UsageError("workers is 1 or more", received=workers)
    if batch_documents < 1:
        raise UsageError("batch_documents is 1 or more", received=batch_documents)
    if not split:
        raise UsageError("split is file, line, blank or a marker", received=split)
    if max_expansion < 1:
        raise UsageError("max_expansion is 1 or more", received=max_expansion)
    if isinstance(sources, str):
        sources = (sources,)
    if mix is None and (tokens is not None or bytes_per_token is not None):
        raise UsageError("tokens belongs to a mix", next="Add --mix NAME=WEIGHT,…")
    last = [] if mix is None else [mix_line(mix, tokens, bytes_per_token)]
    chosen = parse_stages([*(recipe_lines(recipe) if stages is None else stages), *last], functions)
    options = ReadOptions(split=split, text_column=text_column, stream=stream, max_expansion=max_expansion)
    found = find_sources(sources, texts, options)
    for stage in chosen:
        if isinstance(stage, Mix):
            stage.check([source.label for source in found])
    name = check_name(name or default_name(found[0]))
    parameters = {
        "format": _FORMAT,
        "stages": [stage.parameters() for stage in chosen],
        "sources": [source.parameters() for source in found],
        "split": split,
        "text_column": text_column,
    }
    if max_expansion != MAX_EXPANSION:
        parameters["max_expansion"] = max_expansion
    if keep:
        parameters["keep"] = sorted(set(keep))
    same = store.reusable("corpus", parameters, ())
    if same is not None and (same.name == name or not overwrite):
        return Corpus(store, same, reused=True)
    _tell_of_changed_functions(store, name, parameters, overwrite, say or (lambda line: None))
    started = time.monotonic()
    with (
        store.create("corpus", name, parameters=parameters, call=call, overwrite=overwrite) as draft,
        open_scratch(store, name, {**parameters, "batch": batch_documents}, say) as scratch,
    ):
        reading = _Reading(found, batch_documents, scratch)
        notes = reading.notes
        if estimated is not None and scratch.state is None:
            _tell_estimate(found, chosen, store, workers or 1, estimated)
        told = _with_total(progress, found, notes) if progress else None
        with _runner(engine, workers, keep, ray_address) as runner:
            tally = run(reading, chosen, draft.folder, scratch=scratch, keep=keep, progress=told, runner=runner)
        if keep:
            notes.hints += _not_found(draft.folder / "documents.arrow", keep)
        report = CorpusReport(
            name=name,
            recipe=recipe if stages is None else "own stages",
            names=[stage.NAME for stage in chosen],
            lines=[stage.line(short=True) for stage in chosen],
            counts=tally.counts(),
            notes=notes.lines(),
            mix=_shares(draft.folder, chosen),
        )
        _refuse_if_nothing_left(report, notes)
        write_json(
            draft.folder / "report.json", {key: value for key, value in report.to_json().items() if key != "name"}
        )
        if notes.aside:
            write_json(draft.folder / "aside.json", {"left_out": notes.aside})
        seconds = time.monotonic() - started
        draft.summary = {
            "documents": report.went_out.documents,
            "documents_in": report.came_in.documents,
            "characters": report.went_out.characters,
            "bytes": report.went_out.bytes,
            "seconds": round(seconds, 3),
            "documents_per_s": round(report.came_in.documents / max(seconds, 1e-9), 1),
        }
    assert draft.manifest is not None
    return Corpus(store, draft.manifest)


@contextlib.contextmanager
def _runner(engine: str, workers: int | None, keep: Sequence[str], ray_address: str | None) -> Iterator[Runner | None]:
    """What applies local stages; None for this process."""
    if engine == "ray":
        from nbllm.corpus.ray_workers import on_ray

        with on_ray(workers, keep, ray_address) as runner:
            yield runner
    else:
        yield Workers(workers, keep) if workers is not None and workers > 1 else None


def _tell_of_changed_functions(
    store: Store, name: str, parameters: Mapping[str, Any], overwrite: bool, say: Callable[[str], None]
) -> None:
    """A notice where the corpus of that name was made with the same stages but another code of a function."""
    try:
        before = store.get("corpus", name).parameters
    except (NotFoundError, StoreError):
        return
    changed = changed_functions(before.get("stages", []), parameters["stages"])
    if not changed:
        return
    what = f"{' and '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since the corpus {name} was made"
    if not overwrite:
        raise StoreError(what, next="Add --overwrite to make it again, or choose another --name")
    say(f"{what}: it is made again.")


class _Reading:
    """The batches of all sources, and what reading them had to tell.

    The notes are kept in the scratch once all is read, since a cleaning that goes on after that doesn't read again.
    """

    def __init__(self, sources: Sequence[Source], batch_documents: int, scratch: Scratch) -> None:
        self._sources = sources
        self._batch_documents = batch_documents
        self._kept = scratch.folder / "notes.json"
        self.notes = Notes(**read_json(self._kept)) if self._kept.exists() else Notes()

    def __call__(self, start: int) -> Iterator[pa.RecordBatch]:
        """Batches from the first on; reads from the beginning, leaving out what isn't wanted."""
        self.notes.clear()
        documents = (document for source in self._sources for document in source.documents(self.notes))
        yield from batches(documents, batch_documents=self._batch_documents, skip=start)
        write_json(self._kept, asdict(self.notes))


def _tell_estimate(
    sources: Sequence[Source],
    stages: Sequence[Stage],
    store: Store,
    workers: int,
    estimated: Callable[[Estimate], None],
) -> None:
    """Says what a cleaning of large files will take."""
    files = [source for source in sources if isinstance(source, Files)]
    total = sum(source.size_bytes() for source in files)
    if total < LARGE_BYTES or len(files) < len(sources):
        return
    notes = Notes()
    documents = (document for source in files for document in source.documents(notes))
    sample = next(iter(batches(documents, batch_documents=SAMPLE)), None)
    if sample is not None:
        estimated(estimate(sample, stages, total, store.root, workers))


def _with_total(progress: Progress, sources: Sequence[Source], notes: Notes) -> Progress:
    """The same, with the number of documents estimated from the files read so far while it isn't known."""
    files = [source for source in sources if isinstance(source, Files)]
    everything = sum(source.size_bytes() for source in files) if len(files) == len(sources) else 0

    def told(name: str, done: int, total: int | None) -> None:
        if total is None and notes.read_bytes and everything:
            total = max(done, round(done * everything / notes.read_bytes))
        progress(name, done, total)

    return told


def _shares(folder: Path, stages: Sequence[Stage]) -> list[MixShare]:
    """What the last mix achieved."""
    for number, stage in reversed(list(enumerate(stages, 1))):
        path = folder / "scores" / f"{file_stem(number, stage.NAME)}.shares.arrow"
        if isinstance(stage, Mix) and path.exists():
            with pa.memory_map(str(path)) as source:
                return [MixShare(**row) for row in pa.ipc.open_file(source).read_all().to_pylist()]
    return []


def _not_found(documents: Path, keep: Sequence[str]) -> list[str]:
    """A hint where ids of the allow-list name no document of the corpus."""
    with pa.memory_map(str(documents)) as source:
        file = pa.ipc.open_file(source)
        wanted = pa.array(sorted(set(keep)), pa.string())
        for index in range(file.num_record_batches):
            wanted = wanted.filter(pc.invert(pc.is_in(wanted, file.get_batch(index)["id"])))
    return [f"{len(wanted):,} of the ids to keep name no document, such as {wanted[0]}"] if len(wanted) else []


def _refuse_if_nothing_left(report: CorpusReport, notes: Notes) -> None:
    if report.went_out.documents:
        return
    if not report.came_in.documents:
        told = notes.lines()
        raise DataError("There was no text to clean" + (f": {told[0]}" if told else ""), next="Check the sources")
    worst = max(report.stages, key=lambda stage: stage.dropped.documents)
    raise DataError(
        f"All {report.came_in.documents:,} documents were dropped, most of them ({worst.dropped.documents:,}) by "
        f"{worst.name} as “{next(iter(worst.reasons))}”",
        next="Take a laxer stage, or --recipe none",
    )
