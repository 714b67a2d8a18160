"""Runs with a stand-in for the worker: fast, and made to misbehave at will."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stand_in import fake, kill, until

from nbllm.store import Store
from nbllm.train import Run, runs, start
from nbllm.train.config import TrainConfig
from nbllm.train.phase import read_state


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store whose runs are all ended afterwards."""
    store = Store(tmp_path / ".nbllm")
    yield store
    for run in runs(store):
        state = read_state(run.folder)
        with contextlib.suppress(Exception):
            kill(state.supervisor, state.launcher, *state.workers)
            until(lambda run=run: not run.alive)


@pytest.fixture
def begin_run(store: Store) -> Callable[..., Run]:
    """Starts a run with a stand-in worker: `begin_run(name, "--steps", 9)`."""

    def begin(name: str | None = None, *options: object, base: str | None = None) -> Run:
        config = TrainConfig(shards="none", store_root=str(store.root), steps=20)
        return start(store, config, name=name, base=base, worker=fake(*options))

    return begin
