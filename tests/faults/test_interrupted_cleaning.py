"""A cleaning that is killed or interrupted leaves no half corpus, and goes on at the batch where it stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_kit import apart, sound

from nbllm.corpus import clean, scratch, settling
from nbllm.corpus.scratch import remove_unfinished, unfinished
from nbllm.corpus.stages.normalize import Normalize
from nbllm.errors import DataError
from nbllm.sessions import Session
from nbllm.store import Store

TEXTS = [f"Text {n}  of\r\nmany, about the number {n % 150}.\n\nA part of all of them.\n\nMore of {n % 7}."
         for n in range(400)] + [""] * 3  # fmt: skip
STAGES = ["normalize", "dedup exact", "length min=20", "dedup paragraph", "pii mask"]


@pytest.fixture(autouse=True)
def kept_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "KEEP_EVERY_S", 0.0)


def cleaned(store: Store, **options: Any) -> Any:
    given: dict[str, Any] = {"texts": TEXTS, "stages": STAGES, "name": "docs", "batch_documents": 25, **options}
    return clean(store, **given)


@pytest.fixture
def whole(tmp_path: Path) -> str:
    """The hash of the corpus that nobody interrupted."""
    return str(cleaned(Store(tmp_path / "whole")).manifest.hash)


def killed_at(step: str, documents: int) -> Callable[[str, int, int | None], None]:
    def progress(name: str, done: int, total: int | None) -> None:
        if step in name and done >= documents:
            os.kill(os.getpid(), signal.SIGKILL)

    return progress


@pytest.mark.parametrize(
    ("step", "documents", "batches"),
    [("read", 25, 15), ("read", 300, 4), ("dedup exact", 50, 0), ("dedup paragraph", 0, 0), ("pii", 100, 0)],
)
def test_a_killed_cleaning_goes_on_where_it_was(
    tmp_path: Path, whole: str, step: str, documents: int, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / ".nbllm")
    code, said = apart(lambda: cleaned(store, progress=killed_at(step, documents)))
    assert code == signal.SIGKILL, said
    assert sound(store) == {}
    assert [one.name for one in unfinished(store)] == ["docs"]

    measured: list[int] = []
    real = Normalize.measure

    def counted(self: Normalize, batch: Any) -> Any:
        measured.append(len(batch))
        return real(self, batch)

    monkeypatch.setattr(Normalize, "measure", counted)
    lines: list[str] = []
    corpus = cleaned(store, say=lines.append)
    assert corpus.manifest.hash == whole
    assert len(lines) == 1
    assert "that was interrupted goes on" in lines[0]
    assert len(measured) == batches  # of 16 that hold a text
    assert unfinished(store) == []
    assert not list((store.root / "cleaning").iterdir())


def test_an_interrupt_keeps_the_last_whole_batch(tmp_path: Path, whole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "KEEP_EVERY_S", 1000.0)
    store = Store(tmp_path / ".nbllm")

    def interrupt(name: str, done: int, total: int | None) -> None:
        if done == 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cleaned(store, progress=interrupt, workers=2)
    assert sound(store) == {}
    (one,) = unfinished(store)
    assert (one.name, one.documents) == ("docs", 200)
    assert one.size_bytes > 1000
    assert "docs (200 documents read" in str(Session(store, "default").card())
    lines: list[str] = []
    assert cleaned(store, say=lines.append).manifest.hash == whole
    assert lines == ["The cleaning of docs that was interrupted goes on: 200 documents were read."]


def test_killed_while_the_files_are_written(tmp_path: Path, whole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / ".nbllm")

    def die() -> None:
        import nbllm.corpus.engine as engine

        monkeypatch.setattr(engine, "write_file", lambda *_: os.kill(os.getpid(), signal.SIGKILL))

    code, said = apart(lambda: cleaned(store), die)
    assert code == signal.SIGKILL, said
    assert sound(store) == {}

    def never(*_: Any) -> Any:
        raise AssertionError("settled again")

    monkeypatch.setattr(settling, "settle", never)
    assert cleaned(store).manifest.hash == whole


@pytest.mark.parametrize("change", [{"texts": TEXTS[1:]}, {"stages": STAGES[1:]}, {"batch_documents": 24}])
def test_another_recipe_or_source_starts_anew_and_says_so(tmp_path: Path, change: dict[str, Any]) -> None:
    store = Store(tmp_path / ".nbllm")
    assert apart(lambda: cleaned(store, progress=killed_at("read", 200)))[0] == signal.SIGKILL
    lines: list[str] = []
    corpus = cleaned(store, say=lines.append, **change)
    assert corpus.manifest.hash == cleaned(Store(tmp_path / "other"), **change).manifest.hash
    assert len(lines) == 1
    assert "this starts anew" in lines[0]
    assert unfinished(store) == []


def test_what_was_damaged_meanwhile_starts_anew(tmp_path: Path, whole: str) -> None:
    store = Store(tmp_path / ".nbllm")
    assert apart(lambda: cleaned(store, progress=killed_at("pii", 50)))[0] == signal.SIGKILL
    table = next((store.root / "cleaning").rglob("documents.stream"))
    table.write_bytes(table.read_bytes()[:100])
    assert cleaned(store).manifest.hash == whole


def test_a_refusal_keeps_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / ".nbllm")

    def fails(text: str) -> str:
        raise ValueError("no")

    with pytest.raises(DataError, match="python fails failed on document"):
        cleaned(store, stages=["normalize", "python fails"], functions={"fails": fails})
    assert unfinished(store) == []
    assert not list((store.root / "cleaning").iterdir())


def test_few_are_kept_and_gc_removes_them(tmp_path: Path) -> None:
    store = Store(tmp_path / ".nbllm")
    for number in range(5):
        name = f"docs{number}"
        assert apart(lambda name=name: cleaned(store, name=name, progress=killed_at("read", 100)))[0] == signal.SIGKILL
        os.utime(store.root / "cleaning" / name, (1_000_000 + number,) * 2)
    assert [one.name for one in unfinished(store)] == ["docs2", "docs3", "docs4"]
    Session(store, "default").gc()
    assert unfinished(store) == []
    assert remove_unfinished(store) == []
