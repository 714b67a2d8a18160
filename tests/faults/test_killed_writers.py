"""Killed before and after every rename of every write: what was good is there, nothing half is visible, one command
goes on."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_kit import TEXTS, apart, die_at_rename, renames, some, sound

from nbllm.sessions import Session
from nbllm.store import Store
from nbllm.train.checkpoint import close_draft, draft_path, list_checkpoints, newest, open_draft

Action = Callable[[], Any]


def session() -> Session:
    return Session(Store(".nbllm"), "default")


def clean(name: str, overwrite: bool = False) -> Any:
    return session().clean(texts=TEXTS[:30], recipe="none", name=name, overwrite=overwrite)


def shards() -> Any:
    from nbllm.sessions.starting import new_shards

    now = session()
    return new_shards(now, now.corpus, now.tokenizer, 0.2)


def start() -> Any:
    """A run's folder, with a worker that ends at once."""
    from nbllm.train import start as begin
    from nbllm.train.config import TrainConfig

    config = TrainConfig(shards="none", store_root=str(Path(".nbllm").absolute()), steps=1)
    return begin(Store(".nbllm"), config, name="run", worker=["true"])


def checkpoint() -> Any:
    folder = Path(".nbllm/runs/old")
    draft = open_draft(folder, 20)
    (draft / "model.safetensors").write_bytes(b"new" * 1000)
    return close_draft(folder, 20, generation=2, eval_loss=None, bits_per_byte=None)


def export(folder: str, **options: Any) -> Any:
    now = session()
    now.model = "model"
    return now.export(folder, to="hf", **options)


def unpack() -> Any:
    return session().unpack("docs.zip", overwrite=True)


WRITES: dict[str, Action] = {
    "clean": lambda: clean("more"),
    "clean, replacing": lambda: clean("docs", overwrite=True),
    "tokenizer training": lambda: session().train_tokenizer(vocab_size=270, name="more"),
    "tokenizer training, replacing": lambda: session().train_tokenizer(vocab_size=270, name="docs", overwrite=True),
    "shards": shards,
    "start of a run": start,
    "checkpoint": checkpoint,
    "export": lambda: export("out"),
    "export, replacing": lambda: export("model2", overwrite=True),
    "pack": lambda: session().pack("all.zip"),
    "unpack, replacing": unpack,
    "session": lambda: session().use("docs"),
}


@pytest.fixture
def ready(home: Path) -> Path:
    """The small store, with a checkpoint of a run, an export and an archive of another corpus of the same name."""
    run = home / ".nbllm/runs/old"
    draft = open_draft(run, 10)
    (draft / "model.safetensors").write_bytes(b"old" * 1000)
    close_draft(run, 10, generation=1, eval_loss=1.0, bits_per_byte=None)
    shutil.copytree(home / "model", home / "model2")
    other = Session(Store(home / "other"), "default")
    other.clean(texts=TEXTS[:5], recipe="none", name="docs")
    other.pack(home / "docs.zip")
    return home


def good(home: Path) -> dict[str, str]:
    checkpoints = {f"checkpoint {item.step}": "" for item in list_checkpoints(home / ".nbllm/runs/old")}
    return {**sound(Store(home / ".nbllm")), **checkpoints}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("write", some(WRITES, "clean, replacing", "checkpoint", "session"))
def test_a_writer_killed_at_each_rename(ready: Path, write: str, when: str) -> None:
    action = WRITES[write]
    saved = ready.with_name("saved")
    shutil.copytree(ready, saved)
    before = good(ready)
    count = renames(action)
    assert count >= 1
    for number in range(1, count + 1):
        shutil.rmtree(ready)
        shutil.copytree(saved, ready)
        os.chdir(ready)
        code, said = apart(action, die_at_rename(number, when))
        assert code == signal.SIGKILL, said
        now = good(ready)
        replacing = write.endswith("replacing")
        for name, content in before.items():
            assert name in now, f"{name} is lost"
            assert now[name] == content or (replacing and name.endswith("docs")), f"{name} has changed"
        if write == "export, replacing":  # what a killed export had moved aside comes back with the next one
            assert (ready / "model2/config.json").exists() or (ready / ".was-model2/config.json").exists()
        newest_one = newest(ready / ".nbllm/runs/old")
        assert newest_one is not None
        newest_one.verify()
        assert session().corpus.name in ("docs", "more")
        if write == "start of a run" and (ready / ".nbllm/runs/run").exists():
            continue  # it has its name; its supervisor is what the tests of runs kill
        code, said = apart(action)
        again = "is there already" in said or "isn't empty" in said  # the last rename was done: all of it is there
        assert code == 0
        assert said == "done" or again, said
        assert not draft_path(ready / ".nbllm/runs/old", 20).exists()
