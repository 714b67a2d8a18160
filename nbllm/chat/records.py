"""Rows with fields, out of whatever holds them: .jsonl, .json, .csv, .tsv, .parquet, .arrow (also compressed), folders
and globs of these, lists of dicts, DataFrames, Arrow tables, datasets, and `hf:NAME[:CONFIG][:SPLIT]`.

Each row keeps where it comes from, so that it can be named. Knows nothing of what the fields mean.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbllm.errors import DataError, NotFoundError, UsageError

READABLE = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_COMPRESSED = (".gz", ".zst", ".bz2")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One row."""

    where: str
    """Where it stands: `data.jsonl:3`, or `row 3`."""
    fields: Mapping[str, Any]
    """Its values by name; a plain text is the one field `text`."""


def find_records(data: Any) -> list[Record]:
    """Every row of the data, in its order.

    Args:
        data: a file, folder or glob, `hf:NAME[:CONFIG][:SPLIT]`, or a value of the notebook.

    Raises:
        NotFoundError: nothing is there under a name.
        DataError: a file that can't be read, or no row in it.
        UsageError: a value that holds no rows.
    """
    if isinstance(data, (str, Path)):
        text = str(data)
        found = _hub(text) if text.startswith("hf:") else [row for path in _files(text) for row in _read(path)]
    else:
        found = _numbered(_values(data), "row {}")
    if not found:
        raise DataError("The data holds no row", next="Check what --data names")
    return found


def names_records(data: Any) -> bool:
    """Whether the data can hold rows with fields at all: not plain texts, nor files of plain text."""
    if isinstance(data, (str, Path)):
        text = str(data)
        return text.startswith("hf:") or any(_suffix(Path(path)) in READABLE for path in (text, *_listed(text)))
    if isinstance(data, (list, tuple)):
        return bool(data) and all(isinstance(row, Mapping) or _is_messages(row) for row in data)
    return hasattr(data, "columns") or hasattr(data, "column_names") or hasattr(data, "__arrow_c_stream__")


def _is_messages(row: Any) -> bool:
    return isinstance(row, (list, tuple)) and all(isinstance(item, Mapping) for item in row)


def _suffix(path: Path) -> str:
    name = path.name.lower()
    for compressed in _COMPRESSED:
        name = name.removesuffix(compressed)
    return Path(name).suffix


def _listed(text: str) -> list[str]:
    """The files of a folder, or of a glob, in the order of their names."""
    path = Path(text).expanduser()
    if path.is_dir():
        return sorted(str(file) for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    return sorted(glob.glob(str(path), recursive=True)) if any(mark in text for mark in "*?[") else []


def _files(text: str) -> list[Path]:
    path = Path(text).expanduser()
    if path.is_file():
        if _suffix(path) not in READABLE:
            raise DataError(f"{text} holds no rows with fields", next=f"Readable: {', '.join(READABLE)}")
        return [path]
    files = [Path(name) for name in _listed(text) if _suffix(Path(name)) in READABLE]
    if not files:
        raise NotFoundError(f"There is no file with rows under {text!r}", next=f"Readable: {', '.join(READABLE)}")
    return files


def _read(path: Path) -> list[Record]:
    import pyarrow as pa

    kind = _suffix(path)
    if not path.stat().st_size:
        raise DataError(f"{path} is empty", next="Check the path")
    try:
        with pa.input_stream(str(path), compression="detect") as raw:
            if kind in (".parquet", ".arrow"):
                return _numbered(_table(io.BytesIO(raw.read()), kind), path.name + ":{}")
            text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
            rows = _csv_rows(text, kind) if kind in (".csv", ".tsv") else _json_rows(text, kind, path)
            return _numbered(rows, path.name + ":{}")
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        raise DataError(f"{path} is damaged or cut short: {error}", next="Get the file again") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} isn't UTF-8", next="Convert it first") from error


def _table(file: Any, kind: str) -> list[Any]:
    import pyarrow as pa

    if kind == ".parquet":
        import pyarrow.parquet as pq

        return list(pq.read_table(file).to_pylist())
    head = file.read(6)
    file.seek(0)
    reader = pa.ipc.open_file(file) if head == b"ARROW1" else pa.ipc.open_stream(file)
    return list(reader.read_all().to_pylist())


def _csv_rows(text: Any, kind: str) -> Iterator[Any]:
    before = csv.field_size_limit(sys.maxsize)  # one limit for the whole process, put back below
    try:
        yield from csv.DictReader(text, delimiter="," if kind == ".csv" else "\t")
    except csv.Error as error:
        raise DataError(f"A row of the CSV file can't be read: {error}") from error
    finally:
        csv.field_size_limit(before)


def _json_rows(text: Any, kind: str, path: Path) -> Iterator[Any]:
    try:
        if kind == ".json":
            value = json.load(text)
            yield from value if isinstance(value, list) else [value]
            return
        for number, line in enumerate(text, 1):
            if line.strip():
                where = f"line {number} of "
                yield json.loads(line)
            where = ""
    except (json.JSONDecodeError, RecursionError) as error:
        at = where if kind == ".jsonl" else ""
        raise DataError(
            f"{at}{path} isn't JSON: {error}", next="One object a line in .jsonl, a list in .json"
        ) from error


def _values(data: Any) -> Iterable[Any]:
    module = type(data).__module__.partition(".")[0]
    if isinstance(data, Mapping):
        raise UsageError(
            f"A {type(data).__name__} isn't a list of rows (it has {', '.join(map(str, list(data)[:5]))})",
            next="Give one of its parts, such as data['train'], or a list of dicts",
        )
    if module == "pandas" and hasattr(data, "to_dict"):
        return list(data.to_dict("records"))
    if module == "datasets":
        return iter(data)
    if hasattr(data, "__arrow_c_stream__"):
        import pyarrow as pa

        return list(pa.table(data).to_pylist())
    if isinstance(data, (list, tuple)) or hasattr(data, "__next__"):
        return data
    raise UsageError(f"A {type(data).__name__} holds no rows", next="Give a path, a list of dicts, or a DataFrame")


def _numbered(rows: Iterable[Any], where: str) -> list[Record]:
    found = []
    for number, row in enumerate(rows, 1):
        if isinstance(row, str):
            row = {"text": row}
        elif _is_messages(row):
            row = {"messages": row}
        elif not isinstance(row, Mapping):
            raise DataError(f"{where.format(number)} holds no fields", received=row)
        found.append(Record(where=where.format(number), fields=row))
    return found


def _hub(text: str) -> list[Record]:
    from datasets import load_dataset

    name, *rest = text.removeprefix("hf:").split(":")
    if not name or len(rest) > 2:
        raise UsageError("A data set of the hub is hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT", received=text)
    config, split = (rest[0], rest[1]) if len(rest) == 2 else (None, rest[0] if rest else "train")
    try:
        return _numbered(load_dataset(name, config, split=split), f"{name}:{{}}")
    except Exception as error:  # datasets and the hub raise all kinds
        said = " ".join(str(error).split())[:200]
        raise NotFoundError(
            f"The data set {text} can't be loaded: {said}", next="Check its name and the network"
        ) from error
