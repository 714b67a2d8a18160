"""Starting a run, and finding the runs of a store. Imports no torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nbllm.errors import RunError, StoreError, UsageError
from nbllm.files import check_name, hash_value, write_json
from nbllm.store import Manifest, Parent, Store, now, versions
from nbllm.train import attention, launch, locks
from nbllm.train.config import TrainConfig
from nbllm.train.detach import start_supervisor
from nbllm.train.names import new_name
from nbllm.train.parallel.names import check_offload
from nbllm.train.phase import begin
from nbllm.train.run import CONFIG, LIVE, Run


def start(
    store: Store,
    config: TrainConfig,
    *,
    name: str | None = None,
    base: str | None = None,
    parents: Sequence[Parent] = (),
    call: Mapping[str, Any] | None = None,
    worker: Sequence[str] = (),
) -> Run:
    """Starts a run in processes of its own and returns at once.

    Args:
        store: where its folder goes.
        config: what to train.
        name: its name; None: a generated one.
        base: what a generated name is made from, with a number where it is taken; None: two words.
        parents: what it is made from: shards, tokenizer, a base model.
        call: the session method and arguments that make it again.
        worker: program and arguments to run in place of `accelerate launch -m nbllm.train.worker`; the run's folder
            is appended, and `--resume` where it applies.

    Raises:
        StoreError: the name is in use.
        RunError: the supervisor didn't start.
    """
    parameters = config.as_json()
    runs_folder = store.path("run", "x").parent
    store.prepare()
    runs_folder.mkdir(parents=True, exist_ok=True)
    draft = runs_folder / f".{uuid.uuid4().hex}"
    draft.mkdir()
    lock = None
    try:
        write_json(draft / CONFIG, parameters)
        begin(draft, resume=False)
        # Taken before the folder has its name, so that nobody ever sees a run without a lock and calls it dead.
        lock = locks.take(draft / locks.SUPERVISOR_LOCK)
        if lock is None:
            raise RunError(f"The file system of {store.root} has no locks", next="Set NBLLM_HOME to a local directory")
        while True:
            chosen = check_name(name or new_name(_names(runs_folder), base))
            manifest = Manifest(
                kind="run",
                name=chosen,
                hash=hash_value(parameters),
                created=now(),
                parameters=parameters,
                parents=tuple(parents),
                versions=versions(),
                call=dict(call or {}),
            )
            write_json(draft / "manifest.json", asdict(manifest))
            folder = store.path("run", chosen)
            try:
                os.rename(draft, folder)  # refuses a folder that holds anything
                break
            except OSError as error:
                if not folder.exists():
                    raise
                if name is not None:
                    raise StoreError(
                        f"A run is already named {name!r}",
                        next=f"Choose another --name, or go on with it by %llm_train --resume {name}",
                    ) from error
        try:
            start_supervisor(folder, lock, resume=False, worker=worker)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Run(store, chosen)
    finally:
        if lock is not None:
            lock.release()
        shutil.rmtree(draft, ignore_errors=True)


def check_device(config: TrainConfig) -> None:
    """Refuses here what this machine's devices can't train, rather than in a run that fails for it.

    Raises:
        UsageError: fp16, an implementation of attention or an offload that needs a GPU; DeepSpeed isn't installed.
    """
    if config.parallel.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        raise UsageError(f"--parallel {config.parallel} needs DeepSpeed", next='pip install "nbllm[deepspeed]"')
    half, special = config.precision == "fp16", config.attention in attention.GPU_ONLY
    if not half and not special and not config.offload:
        return  # looking at the devices takes seconds where there may be GPUs
    kind = launch.visible_devices().kind
    if special:
        attention.choose(config.attention, kind)
    if config.offload:
        check_offload(kind)
    if half:
        from nbllm.train import precision

        precision.choose(config.precision, kind)


def runs(store: Store) -> list[Run]:
    """Every run of a store, newest first."""
    return [Run(store, name) for name in store.names("run")]


def live_runs(store: Store) -> list[Run]:
    """The runs of a store that live, newest first."""
    return [run for run in runs(store) if run.alive and run.status in LIVE]


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}
