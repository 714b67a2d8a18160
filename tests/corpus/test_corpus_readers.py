"""Files become documents: formats, compression, byte-order marks, encodings, bad rows."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from nbllm.corpus import Corpus, clean
from nbllm.errors import DataError, NotFoundError
from nbllm.store import Store

BOM = codecs.BOM_UTF8
INNER = "one\ufefftwo"


def read(tmp_path: Path, *sources: object, **options: object) -> Corpus:
    return clean(Store(tmp_path / ".nbllm"), sources, stages=[], **options)  # type: ignore[arg-type]


def texts(tmp_path: Path, *sources: object, **options: object) -> list[str]:
    return list(read(tmp_path, *sources, **options).texts())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", INNER.encode()),
        ("a.md", INNER.encode()),
        ("a.jsonl", json.dumps({"text": INNER}).encode()),
        ("a.json", json.dumps([{"text": INNER}], ensure_ascii=False).encode()),
        ("a.csv", f"text,n\n{INNER},1\n".encode()),
        ("a.tsv", f"text\tn\n{INNER}\t1\n".encode()),
    ],
)
@pytest.mark.parametrize("mark", [b"", BOM])
@pytest.mark.parametrize(
    ("end", "pack"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".zst", zstandard.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
    ],
)
def test_the_mark_goes_at_the_start_only(
    tmp_path: Path, name: str, content: bytes, mark: bytes, end: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / (name + end)
    path.write_bytes(pack(mark + content))
    assert texts(tmp_path, path) == [INNER]


@pytest.mark.parametrize("end", ["", ".gz", ".zst"])
def test_parquet_and_arrow(tmp_path: Path, end: str) -> None:
    table = pa.table({"n": [1, 2], "text": ["first", "\ufeffsecond"]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "b.arrow", table.schema) as sink:
        sink.write_table(table)
    with pa.ipc.new_stream(tmp_path / "c.arrow", table.schema) as sink:
        sink.write_table(table)
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[end]
    for name in ("a.parquet", "b.arrow", "c.arrow"):
        path = tmp_path / (name + end)
        path.write_bytes(pack((tmp_path / name).read_bytes()))
        assert texts(tmp_path, path) == ["first", "\ufeffsecond"]


def test_zst_of_several_frames(tmp_path: Path) -> None:
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(b"one ") + zstandard.compress(b"two"))
    assert texts(tmp_path, tmp_path / "a.txt.zst") == ["one two"]


def test_utf16_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("häuser".encode("utf-16"))
    assert texts(tmp_path, tmp_path / "a.txt") == ["häuser"]


def test_a_wrong_encoding_says_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("café".encode("latin1"))
    with pytest.raises(DataError, match=r"a\.txt isn't UTF-8 \(it holds the byte 0xe9\).*iconv -f latin1"):
        read(tmp_path, tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("split", "wanted"),
    [
        ("file", ["a\u2028b\x0cc\r\nd\re\n\n \nf<|end|>g\n"]),
        ("line", ["a\u2028b\x0cc", "d", "e", "f<|end|>g"]),
        ("blank", ["a\u2028b\x0cc\r\nd\re", "f<|end|>g"]),
        ("<|end|>", ["a\u2028b\x0cc\r\nd\re\n\n \nf", "g"]),
    ],
)
def test_split(tmp_path: Path, split: str, wanted: list[str]) -> None:
    (tmp_path / "a.txt").write_bytes("a\u2028b\x0cc\r\nd\re\n\n \nf<|end|>g\n".encode())
    assert texts(tmp_path, tmp_path / "a.txt", split=split) == wanted


def test_a_marker_across_the_pieces_of_reading(tmp_path: Path) -> None:
    body = "x" * ((1 << 20) - 3)
    (tmp_path / "a.txt").write_text(f"{body}<|end|>tail", encoding="utf-8")
    assert texts(tmp_path, tmp_path / "a.txt", split="<|end|>") == [body, "tail"]


def test_a_large_single_file_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("word " * 250_000, encoding="utf-8")
    corpus = read(tmp_path, tmp_path / "book.txt")
    assert len(corpus) == 1
    assert any("--split line, blank or a MARKER" in note for note in corpus.report.notes)


def test_bad_rows_are_counted_and_named(tmp_path: Path) -> None:
    rows = ['{"text": "good"}', "{broken", '{"text": null}', "[1]", '{"other": 1}', "", '{"text": "also \\ud800 good"}']
    path = tmp_path / "a.jsonl"
    path.write_bytes("\n".join(rows).encode() + b'\n{"text": "\xff"}\n')
    corpus = read(tmp_path, path)
    assert list(corpus.texts()) == ["good", "also \ufffd good"]
    assert any("5 rows couldn't be read" in note and "a.jsonl, row 2: no JSON" in note for note in corpus.report.notes)
    assert corpus.dataset["id"].to_pylist() == ["a.jsonl:1", "a.jsonl:7"]


def test_csv_rows_with_line_ends_and_long_fields(tmp_path: Path) -> None:
    long = "y" * 300_000
    (tmp_path / "a.csv").write_text(f'n,text\n1,"two\nlines"\n2,{long}\n3,short,row\n', encoding="utf-8")
    corpus = read(tmp_path, tmp_path / "a.csv")
    assert list(corpus.texts()) == ["two\nlines", long]
    assert any("1 row couldn't" in note and "3 fields instead of 2" in note for note in corpus.report.notes)


@pytest.mark.parametrize(("suffix", "content"), [("csv", "title,n\nx,1\n"), ("jsonl", '{"title": "x", "n": 1}\n')])
def test_the_only_column_of_strings_is_the_text(tmp_path: Path, suffix: str, content: str) -> None:
    (tmp_path / f"a.{suffix}").write_text(content, encoding="utf-8")
    assert texts(tmp_path, tmp_path / f"a.{suffix}") == ["x"]


@pytest.mark.parametrize(
    ("suffix", "content"), [("csv", "title,body\nx,y\n"), ("jsonl", '{"title": "x", "body": "y"}\n')]
)
def test_no_text_column_names_what_there_is(tmp_path: Path, suffix: str, content: str) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"no column named text \(columns: title, body\).*--text-column title"):
        read(tmp_path, path)
    with pytest.raises(DataError, match=r"no column 'bodi'. Did you mean body\?"):
        read(tmp_path, path, text_column="bodi")
    assert texts(tmp_path, path, text_column="body") == ["y"]


def test_a_parquet_column_that_holds_no_strings(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="holds int64, no strings"):
        read(tmp_path, tmp_path / "a.parquet")


def test_nothing_to_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "note.pdf").write_bytes(b"%PDF")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad.gz.txt.gz").write_bytes(b"no gzip")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"words " * 1000)[:-20])
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    (tmp_path / "prose.jsonl").write_text("Once upon a time\nthere was\n", encoding="utf-8")
    cases: list[tuple[str, type[Exception], str]] = [
        ("empty.txt", DataError, r"empty\.txt is empty"),
        ("note.pdf", DataError, r"can't be read.*Readable: \.txt"),
        ("folder", NotFoundError, r"holds no file that can be read \(nothing\)"),
        ("*.pdf", NotFoundError, r"only \.pdf"),
        ("emty.txt", NotFoundError, r"Did you mean empty\.txt\?"),
        ("bad.gz.txt.gz", DataError, "is damaged"),
        ("cut.txt.gz", DataError, "is damaged or cut short"),
        ("bad.parquet", DataError, "is damaged"),
        ("prose.jsonl", DataError, r"No line of .*prose\.jsonl is a JSON object"),
    ]
    for name, kind, wanted in cases:
        with pytest.raises(kind, match=wanted) as caught:
            read(tmp_path, str(tmp_path / name))
        assert "\n" not in str(caught.value)
    assert not list((tmp_path / ".nbllm").glob("corpora/*"))


@pytest.mark.parametrize(
    ("end", "pack"),
    [(".gz", gzip.compress), (".zst", zstandard.compress), (".bz2", bz2.compress), (".xz", lzma.compress)],
)
def test_a_bomb_is_left_out_and_named(
    tmp_path: Path, end: str, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbllm.corpus.unpacking._ALWAYS_BYTES", 50_000)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("a sound document")
    (folder / f"bomb.txt{end}").write_bytes(pack(b"0" * 20_000_000))
    corpus = read(tmp_path, str(folder), name="one")
    assert list(corpus.texts()) == ["a sound document"]
    assert "unpacks to more than 100 times its size" in " ".join(corpus.report.notes)
    with pytest.raises(DataError, match="bomb.*more than 100 times its size.*type --max-expansion 10000"):
        read(tmp_path, str(folder / f"bomb.txt{end}"), name="two")
    whole = texts(tmp_path, str(folder / f"bomb.txt{end}"), name="three", max_expansion=10_000_000)
    assert [len(text) for text in whole] == [20_000_000]
