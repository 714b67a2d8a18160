"""From a session's choices to a run: config, shards, start. Shared by training and fine-tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from nbllm.errors import UsageError, did_you_mean
from nbllm.files import read_json, write_json
from nbllm.store import Parent

if TYPE_CHECKING:
    from nbllm.corpus import Corpus
    from nbllm.sessions.pointers import Pointers
    from nbllm.sessions.training_plan import TrainingPlan
    from nbllm.shards import Shards
    from nbllm.tokenizer import Tokenizer
    from nbllm.train import Run, TrainConfig

_REFERENCE = "reference.json"


def new_config(session: Pointers, options: Mapping[str, Any], **fixed: Any) -> TrainConfig:
    """The checked config of a run whose shards aren't there yet; raises UsageError for an unknown option."""
    from nbllm.train import TrainConfig

    known = {field.name for field in dataclasses.fields(TrainConfig)}
    for key in options:
        if key not in known:
            raise UsageError(f"Training has no option {key!r}", next=did_you_mean(key, known))
    return TrainConfig(**{**options, **fixed, "shards": "", "store_root": str(session.store.root)})


def plain_corpus(session: Pointers, data: Any, base: str) -> Corpus:
    """Text as it is, without any stage, as a corpus under a free name; the same text is found again.

    Args:
        session: its store takes the corpus.
        data: a list of strings, or anything that `clean` takes as a source.
        base: what a free name begins with.
    """
    from nbllm.corpus import clean

    strings = isinstance(data, (list, tuple)) and all(isinstance(text, str) for text in data)
    taken = session.store.names("corpus")
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    sources, lines = ((), list(data)) if strings else ((data,), None)
    return clean(session.store, sources, texts=lines, recipe="none", name=name)


def new_shards(session: Pointers, source: Corpus, tokenizer: Tokenizer, held_out: float) -> Shards:
    """The packed tokens of a corpus's two parts, made or found again."""
    from nbllm.shards import build

    session.store.verify(source.manifest)
    return build(
        session.store,
        tokenizer,
        train=source.texts("train", held_out),
        held_out=source.texts("held-out", held_out),
        parents=(source.manifest.as_parent(), tokenizer.as_parent()),
        parameters={"held_out": held_out},
    )


def planned(session: Pointers, config: TrainConfig, *, name: str, tokenizer: str, shards: Shards) -> TrainingPlan:
    """What `start_run` would start, worked out in a process of its own; nothing is started or written."""
    from nbllm.sessions.training_plan import TrainingPlan
    from nbllm.train import forecast

    config = dataclasses.replace(config, shards=shards.name, tokenizer=tokenizer)
    found, launch = forecast(config, session.store.path("run", name))
    return TrainingPlan(config=config, forecast=found, launch=launch)


def start_run(
    session: Pointers,
    config: TrainConfig,
    *,
    name: str | None,
    base: str,
    tokenizer: str,
    shards: Shards,
    held_out_texts: Iterable[str],
    method: str,
    arguments: Mapping[str, Any],
    more_parents: Iterable[Parent] = (),
) -> Run:
    """Starts a run, or gives the live one that does the same already, and notes what compressors need for its
    held-out text."""
    from nbllm.evaluate import compressed_bits_per_byte
    from nbllm.train import check_device, live_runs, start

    check_device(config)
    config = dataclasses.replace(config, shards=shards.name, tokenizer=tokenizer)
    assert shards.manifest is not None  # just built in, or found in, the store
    parents = (shards.manifest.as_parent(), *shards.manifest.parents, *more_parents)
    for live in live_runs(session.store):  # the same cell again while its run lives
        same = live.manifest.parameters == config.as_json() and live.manifest.parents == parents
        if same and name in (None, live.name):
            return live
    call = {"method": method, "arguments": recordable(dict(arguments))}
    run = start(session.store, config, name=name, base=base, parents=parents, call=call)
    held_out = list(held_out_texts)
    if held_out:
        write_json(run.folder / _REFERENCE, compressed_bits_per_byte(held_out))
    return run


def compressed_reference(run: Run) -> dict[str, float]:
    """What compressors need for the run's held-out text, in bits a byte (`xz`, `gzip`); empty without such text."""
    path = run.folder / _REFERENCE
    return dict(read_json(path)) if path.is_file() else {}


def recordable(value: Any) -> Any:
    """A JSON value that stands for a call's argument; objects of the notebook are only described."""
    if isinstance(value, Mapping):
        return {str(key): recordable(item) for key, item in value.items() if not callable(item)}
    if isinstance(value, (list, tuple)) and len(value) <= 50 and sum(len(str(item)) for item in value) < 20_000:
        return [recordable(item) for item in value]
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return {"object": f"{type(value).__name__}{size}"}
