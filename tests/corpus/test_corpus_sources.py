"""What can be cleaned: folders, globs, labels, notebook values; and what says that it is still the same."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pytest

from nbllm.corpus import Corpus, clean
from nbllm.errors import DataError, NotFoundError, UsageError
from nbllm.store import Store


def read(tmp_path: Path, *sources: object, **options: Any) -> Corpus:
    return clean(Store(tmp_path / ".nbllm"), sources, stages=[], **options)


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / ".hidden").mkdir()
    for name in ("b.txt", "a.md", "deep/c.txt", ".hidden/d.txt", "e.bin"):
        (data / name).write_text(name, encoding="utf-8")
    corpus = read(tmp_path, data)
    assert corpus.name == "data"
    assert list(corpus.texts()) == ["a.md", "b.txt", "deep/c.txt"]
    assert corpus.dataset["id"].to_pylist() == ["data/a.md", "data/b.txt", "data/deep/c.txt"]
    assert set(corpus.dataset["source"].to_pylist()) == {"data"}


def test_globs_and_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a1.txt", "a2.txt", "b.txt"):
        Path(name).write_text(name, encoding="utf-8")
    corpus = read(tmp_path, "web=a*.txt", "book=b.txt")
    assert [(row["text"], row["source"]) for row in corpus] == [
        ("a1.txt", "web"),
        ("a2.txt", "web"),
        ("b.txt", "book"),
    ]
    assert corpus.name == "web"
    assert {source: amounts["out"].documents for source, amounts in corpus.by_source.items()} == {"web": 2, "book": 1}


def test_a_file_whose_name_holds_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.txt").write_text("text", encoding="utf-8")
    assert list(read(tmp_path, "a=b.txt").texts()) == ["text"]


def test_two_files_of_one_name_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("x", "y"):
        Path(folder).mkdir()
        Path(folder, "a.txt").write_text(folder, encoding="utf-8")
    corpus = read(tmp_path, "x/a.txt", "y/a.txt")
    assert corpus.dataset["source"].to_pylist() == ["a.txt", "y/a.txt"]
    assert len(set(corpus.dataset["id"].to_pylist())) == 2


VALUES: dict[str, Any] = {
    "list": ["one", "two"],
    "tuple": ("one", "two"),
    "dicts": [{"text": "one"}, {"text": "two"}],
    "generator": lambda: (text for text in ["one", "two"]),
    "frame": pd.DataFrame({"n": [1, 2], "text": ["one", "two"]}),
    "series": pd.Series(["one", "two"]),
    "table": pa.table({"text": ["one", "two"]}),
    "batch": pa.record_batch({"text": ["one", "two"]}),
    "array": pa.array(["one", "two"]),
    "chunked": pa.chunked_array([["one"], ["two"]]),
    "dataset": datasets.Dataset.from_dict({"n": [3, 4, 5], "text": ["x", "one", "two"]}).select([1, 2]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_notebook_values(tmp_path: Path, kind: str) -> None:
    value = VALUES[kind]() if kind == "generator" else VALUES[kind]
    corpus = read(tmp_path, value, name="v")
    assert list(corpus.texts()) == ["one", "two"]
    assert corpus.dataset["id"].to_pylist() == ["values:1", "values:2"]


def test_plain_strings_go_into_texts(tmp_path: Path) -> None:
    corpus = read(tmp_path, texts=["one", "two"])
    assert corpus.name == "texts"
    assert list(corpus.texts()) == ["one", "two"]
    with pytest.raises(UsageError, match="not one string"):
        read(tmp_path, texts="one")
    with pytest.raises(UsageError, match=r"texts=\[…\]"):
        read(tmp_path, "a sentence\nand another")


def test_values_without_text_are_counted(tmp_path: Path) -> None:
    corpus = read(tmp_path, pd.DataFrame({"text": ["one", None, "two"]}))
    assert list(corpus.texts()) == ["one", "two"]
    assert any("1 row couldn't be read" in note for note in corpus.report.notes)


@pytest.mark.parametrize(
    ("source", "kind", "wanted"),
    [
        ("builtin:pydoc", NotFoundError, "Did you mean builtin:pydocs"),
        (3, UsageError, "A int can't be cleaned"),
        ({"train": []}, UsageError, r"data\['train'\]"),
    ],
)
def test_what_can_not_be_a_source(tmp_path: Path, source: object, kind: type[Exception], wanted: str) -> None:
    with pytest.raises(kind, match=wanted):
        read(tmp_path, source)


def test_a_bad_file_among_others_is_named_and_kept_aside(tmp_path: Path) -> None:
    folder = tmp_path / "crawl"
    folder.mkdir()
    (folder / "a.txt").write_text("good")
    (folder / "b.txt").write_bytes(b"caf\xe9")
    (folder / "c.jsonl").write_text('{"text": "one"}\n{"text": 3}\nno json\n{"text": "two"}\n')
    packed = gzip.compress(b"\n".join(b'{"text": "%d"}' % number for number in range(10_000)))
    (folder / "d.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    made = clean(Store(tmp_path / ".nbllm"), [folder], recipe="none", name="c")
    assert list(made.texts())[:3] == ["good", "one", "two"]
    assert len(made) > 1000, "what stood before the damage"
    files, rows = made.report.notes
    assert files.startswith("2 files couldn't be read to the end and were left out (")
    assert "b.txt isn't UTF-8 (it holds the byte 0xe9); " in files
    assert "d.jsonl.gz is damaged or cut short" in files
    assert f"(after {len(made) - 3:,} documents)" in files
    assert rows == "2 rows couldn't be read and were left out (c.jsonl, row 2: no text in 'text')"
    assert [(one["row"], one["why"], one["content"]) for one in made.aside if one["row"]] == [
        (2, "no text in 'text'", '{"text": 3}\n'), (3, "no JSON", "no json\n"),
    ]  # fmt: skip
    assert [Path(one["file"]).name for one in made.aside if one["row"] is None] == ["b.txt", "d.jsonl.gz"]


def test_where_every_file_is_bad_the_first_is_the_error(tmp_path: Path) -> None:
    folder = tmp_path / "crawl"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"a\.txt isn't UTF-8"):
        clean(Store(tmp_path / ".nbllm"), [folder], recipe="none", name="c")


def test_nothing_given(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="builtin:pydocs"):
        read(tmp_path)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="There is no folder"):
        read(tmp_path, str(tmp_path / "nowhere" / "a.txt"))
