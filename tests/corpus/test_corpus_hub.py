"""A data set of the hub as a source; how far a cleaning is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from nbllm.corpus import clean
from nbllm.corpus.hub import split_name
from nbllm.corpus.progress import CalmProgress
from nbllm.errors import NotFoundError, UsageError
from nbllm.store import Store


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("hf:a/b", ("a/b", None, "train")),
        ("hf:a/b:en", ("a/b", "en", "train")),
        ("hf:a/b:test", ("a/b", None, "test")),
        ("hf:a/b:train[:10%]", ("a/b", None, "train[:10%]")),
        ("hf:a/b:20231101.de:train[5:10]", ("a/b", "20231101.de", "train[5:10]")),
    ],
)
def test_names(typed: str, wanted: tuple[str, str | None, str]) -> None:
    assert split_name(typed) == wanted


@pytest.mark.parametrize("typed", ["hf:", "hf:a:b:c:d", "hf:a::train"])
def test_what_is_no_name(typed: str) -> None:
    with pytest.raises(UsageError, match=r"hf:NAME\[:CONFIG\]"):
        split_name(typed)


def test_a_data_set_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(*names: Any, **options: Any) -> Any:
        asked.append((names, options))
        if names[0] == "gone":
            raise FileNotFoundError("gone isn't on the hub\nmore")
        return datasets.Dataset.from_dict({"text": ["one", "two", None]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    store = Store(tmp_path / ".nbllm")
    made = clean(store, ["hf:who/books:en:test", "mine=hf:who/books"], recipe="none", name="c")
    assert asked == [(("who/books", "en"), {"split": "test"}), (("who/books", None), {"split": "train"})]
    assert [(one["id"], one["text"]) for one in made] == [
        ("books:1", "one"), ("books:2", "two"), ("mine:1", "one"), ("mine:2", "two"),
    ]  # fmt: skip
    with pytest.raises(NotFoundError, match=r"hf:gone can't be loaded: gone isn't on the hub\. Check the name"):
        clean(store, ["hf:gone"], name="d")


def test_a_data_set_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a folder, which `datasets` reads as it reads a repository."""
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "one", "n": 1}\n{"text": null, "n": 2}\n{"text": "three", "n": 3}\n')

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("copied")

    monkeypatch.setattr(datasets, "load_dataset", never)
    store = Store(tmp_path / ".nbllm")
    made = clean(store, [f"hf:{folder}"], recipe="none", name="c", stream=True)
    assert [(one["id"], one["text"]) for one in made] == [("books:1", "one"), ("books:3", "three")]
    assert any("books, row 2: no text" in note for note in made.report.notes)
    assert clean(store, [f"hf:{folder}"], recipe="none", name="c", stream=True).reused
    (folder / "train.jsonl").write_text('{"text": "another", "n": 1}\n')
    again = clean(store, [f"hf:{folder}"], recipe="none", name="c", stream=True, overwrite=True)
    assert list(again.texts()) == ["another"]
    with pytest.raises(NotFoundError, match=r"hf:.*gone can't be loaded"):
        clean(store, [f"hf:{tmp_path}/gone"], name="d", stream=True)


def test_progress_is_calm_and_says_what_is_left() -> None:
    said: list[str] = []
    now = [0.0]
    progress = CalmProgress(said.append, clock=lambda: now[0])
    for seconds, step, done, total in (
        (1, "read", 100, None), (6, "read", 600, None), (7, "read", 700, None), (16, "read", 1600, 16000),
        (20, "dedup", 0, 1000), (30, "dedup", 500, 1000), (31, "dedup", 900, 1000),
    ):  # fmt: skip
        now[0] = seconds
        progress(step, done, total)
    assert said == [
        "read: 600 documents, 120/s",
        "read: 1,600 of 16,000 documents, 107/s, about 2 min left of this step",
        "dedup: 500 of 1,000 documents, 50/s, about 10 s left of this step",
    ]


def test_the_total_is_estimated_from_files(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("\n".join(["a line of text"] * 2000))
    told: list[tuple[str, int, int | None]] = []
    clean(
        Store(tmp_path / ".nbllm"), [tmp_path / "*.txt"], recipe="none", split="line", name="c",
        progress=lambda *one: told.append(one),
    )  # fmt: skip
    assert told[0] == ("read", 1024, None)
    assert told[-1] == ("read", 8000, 8000)
