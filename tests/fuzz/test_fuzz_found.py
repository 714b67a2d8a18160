"""What the fuzzing found once, with the right answer; each stands for its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nbllm.commands.options import Option, check_value
from nbllm.corpus.notes import Notes
from nbllm.corpus.readers import ReadOptions, read_file
from nbllm.errors import DataError, UsageError


def documents(path: Path, notes: Notes | None = None) -> list[str]:
    return [text for _, text in read_file(path, ReadOptions(), notes or Notes())]


def test_a_json_number_of_thousands_of_digits_leaves_out_its_row(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": "b", "n": ' + "9" * 5000 + '}\n{"text": "c"}\n')
    notes = Notes()
    assert documents(tmp_path / "rows.jsonl", notes) == ["a", "c"]
    assert notes.lines() == ["1 row couldn't be read and was left out (rows.jsonl, row 2: no JSON)"]
    (tmp_path / "one.json").write_text('{"text": "b", "n": ' + "9" * 5000 + "}")
    with pytest.raises(DataError, match=r"one\.json isn't JSON: Exceeds the limit"):
        documents(tmp_path / "one.json")


def test_a_csv_header_that_never_ends_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('"text\nnever closed\n')
    with pytest.raises(DataError, match=r"rows\.csv has no header that can be read: unexpected end of data"):
        documents(tmp_path / "rows.csv")


def test_damaged_offsets_in_an_arrow_file_are_found(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    table = pa.table({"text": ["one", "two " * 50]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    good = path.read_bytes()
    offsets = (0).to_bytes(4, "little") + (3).to_bytes(4, "little") + (203).to_bytes(4, "little")
    assert good.count(offsets) == 1
    path.write_bytes(good.replace(offsets, (0).to_bytes(4, "little") + (300).to_bytes(4, "little") + offsets[8:]))
    with pytest.raises(DataError, match="is damaged or cut short"):
        documents(path)


def test_a_number_that_no_float_holds_is_named() -> None:
    with pytest.raises(UsageError, match="--lr takes a number"):
        check_value(Option(name="--lr", help="", kind="number"), 10**400)


def test_a_benchmark_of_an_empty_prompt_is_refused(tiny_session: Any) -> None:
    with pytest.raises(UsageError, match="the prompt has no tokens"):
        tiny_session().bench(prompt="", backends=["eager"], compile=False)
