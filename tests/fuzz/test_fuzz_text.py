"""All of Unicode through every tokenizer, and random bytes through every reader."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from fuzz_kit import CASES, MANY, bounded, cases, one_line
from hypothesis import given
from hypothesis import strategies as st

from nbllm.corpus import clean
from nbllm.corpus.notes import Notes
from nbllm.corpus.readers import COMPRESSED, READABLE, ReadOptions, read_file
from nbllm.errors import DataError
from nbllm.store import Store
from nbllm.tokenizer import StreamDecoder, Tokenizer, train

COUNTS = [pytest.param(CASES, id="some"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
ALL_OF_UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
ENDS = [kind + packed for kind in READABLE for packed in ("", *COMPRESSED)]
SPLITS = st.sampled_from(["file", "line", "blank", "<|endoftext|>", "\n"])
HARD = [
    b"[" * 200_000,
    b'{"text": ' + b"[" * 200_000,
    b'{"text": ' + b"9" * 6000 + b"}",
    b'{"text": 1e999}',
    b'{"text": "\\ud800"}',
    b'{"text": "a", "text": 7}',
    b"x" * 3_000_000,
    b'"' + b"y," * 300_000,
    b"text\n" + b'"' * 99_999,
    b"text,text\na,b\n",
    b"\xff\xfe",
    b"\xff\xfe\x00\xd8",
    b"\xef\xbb\xbf",
    b"\0" * 1000,
    b"PAR1" + b"\0" * 50 + b"PAR1",
    b"ARROW1\0\0" + b"\xff" * 60,
    b"<" * 5000,
    b"<div>" * 3000,
]


def packed(content: bytes, end: str) -> bytes:
    """The bytes as a file of that suffix would hold them."""
    if end == ".gz":
        return gzip.compress(content, 1)
    if end == ".bz2":
        return bz2.compress(content, 1)
    if end == ".xz":
        return lzma.compress(content, preset=0)
    return zstandard.compress(content, 1) if end == ".zst" else content


def read(path: Path, options: ReadOptions) -> list[tuple[str, str]] | None:
    """Every document; None where the file is refused in one line."""
    try:
        with bounded():
            rows = list(read_file(path, options, Notes()))
    except DataError as error:
        one_line(error, path.name)
        return None
    assert all(isinstance(id, str) and isinstance(text, str) for id, text in rows)
    return rows


@pytest.mark.parametrize("count", COUNTS)
def test_random_bytes_in_every_kind_of_file(tmp_path: Path, count: int) -> None:
    @cases(count)
    @given(st.binary(max_size=300), st.sampled_from(ENDS), st.booleans(), st.integers(0, 400), SPLITS)
    def check(content: bytes, end: str, whole: bool, cut: int, split: str) -> None:
        path = tmp_path / f"file{end}"
        data = packed(content, path.suffix)
        path.write_bytes(data if whole else data[:cut] + content[:cut])
        read(path, ReadOptions(split=split))

    check()


@pytest.mark.parametrize("end", [kind for kind in READABLE if kind != ".htm"])
@pytest.mark.parametrize("number", range(len(HARD)))
def test_hard_content_in_every_kind_of_file(tmp_path: Path, end: str, number: int) -> None:
    for compressed in ("", ".gz") if len(HARD[number]) > 10_000 else ("", *COMPRESSED):
        path = tmp_path / f"file{end}{compressed}"
        path.write_bytes(packed(HARD[number], compressed))
        read(path, ReadOptions())


@pytest.mark.parametrize("end", [".parquet", ".arrow", ".jsonl.gz", ".csv.zst", ".txt.bz2", ".json.xz"])
def test_each_bit_flipped_or_cut_is_refused_or_read(tmp_path: Path, end: str) -> None:
    """A flipped byte is found by the format's own check, or gives other text; never anything but a DataError."""
    table = pa.table({"text": ["one", "two " * 50], "n": [1, 2]})
    memory = io.BytesIO()
    if end == ".parquet":
        pyarrow.parquet.write_table(table, memory)
        good = memory.getvalue()
    elif end == ".arrow":
        with pa.ipc.new_file(memory, table.schema) as writer:
            writer.write_table(table)
        good = memory.getvalue()
    else:
        rows = table.to_pylist()
        plain = {
            ".jsonl": "\n".join(json.dumps(row) for row in rows),
            ".json": json.dumps(rows),
            ".csv": "text,n\none,1\ntwo,2\n",
            ".txt": "one\ntwo\n",
        }
        kind, compressed = end[: end.rindex(".")], end[end.rindex(".") :]
        good = packed(plain[kind].encode(), compressed)
    path = tmp_path / f"file{end}"
    path.write_bytes(good)
    assert read(path, ReadOptions())
    for place in range(0, len(good), max(1, len(good) // 150)):
        flipped = bytearray(good)
        flipped[place] ^= 0x41
        path.write_bytes(flipped)
        read(path, ReadOptions())
        path.write_bytes(good[:place])
        read(path, ReadOptions())


def test_half_a_character_from_json_becomes_a_replacement_character(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "good"}\n{"text": "bad \\ud800"}\n{"text": "\\ud83d\\ude00"}\n')
    corpus = clean(Store(tmp_path / ".nbllm"), (str(tmp_path / "rows.jsonl"),), recipe="none", name="rows")
    assert list(corpus.texts()) == ["good", "bad \ufffd", "😀"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    store = Store(tmp_path_factory.mktemp("store"))
    texts = ["the quick brown fox, 12 123 1234; naïve 中文 😀\n"] * 20
    made = {}
    for pattern in ("gpt2", "gpt4", "gpt4o", "llama3", "none"):
        made[pattern] = train(store, texts, text_bytes=1000, vocab_size=300, pattern=pattern, name=pattern)
    return made


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("pattern", ["gpt2", "gpt4", "gpt4o", "llama3", "none"])
def test_all_of_unicode_comes_back(trained: dict[str, Tokenizer], pattern: str, count: int) -> None:
    tokenizer = trained[pattern]

    @cases(count)
    @given(ALL_OF_UNICODE)
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        stream = StreamDecoder(tokenizer)
        assert "".join(stream.push(id) for id in ids) + stream.flush() == text

    check()


def test_every_code_point_comes_back(trained: dict[str, Tokenizer]) -> None:
    every = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    for start in range(0, len(every), 50_000):
        text = "".join(every[start : start + 50_000])
        assert trained["gpt4"].decode(trained["gpt4"].encode(text)) == text


@pytest.mark.parametrize("count", COUNTS)
def test_any_ids_decode_to_text(trained: dict[str, Tokenizer], count: int) -> None:
    @cases(count)
    @given(st.lists(st.integers(-(2**70), 2**70) | st.integers(0, 299)))
    def check(ids: list[int]) -> None:
        trained["gpt4"].decode(ids).encode("utf-8")

    check()
