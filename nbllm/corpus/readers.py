"""Reads documents out of files: text, Markdown, JSON, CSV, Parquet, Arrow and HTML, compressed or not.

A byte-order mark goes at the start of a file only. A row that can't be read is counted, named and kept aside in the
notes; a file that can't is an error here, and the source goes on with its next one. Lines end at \\n, \\r\\n and \\r
only. Text files are read in pieces unless a file is one document. Knows nothing of
stages, nor of how a file is unpacked.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from nbllm.corpus.notes import Notes
from nbllm.corpus.unpacking import COMPRESSED, DAMAGE, MAX_EXPANSION, damaged, opened, opened_text
from nbllm.errors import DataError, did_you_mean

_TEXT = (".txt", ".md")
_HTML = (".html", ".htm")
READABLE = (*_TEXT, ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow", *_HTML)
_LARGE_BYTES = 1_000_000
_PIECE_CHARACTERS = 1 << 20

Row = tuple[str, str]
"""What follows the file's name in a document's id (empty for a file that is one document), and the text."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How files become documents."""

    split: str = "file"
    """`file`, `line`, `blank`, or a marker that stands between documents of a text file."""
    text_column: str | None = None
    """The column or field that holds the text; found by itself where there is only one candidate."""
    stream: bool = False
    """Data sets of the hub are read as they come, without a copy on disk."""
    max_expansion: int = MAX_EXPANSION
    """How many times its size a compressed file may unpack to."""


def suffix(path: Path) -> str:
    """The suffix that tells the format, without that of the compression: `.jsonl` of `a.jsonl.gz`."""
    name = path.name.lower()
    for compressed in COMPRESSED:
        name = name.removesuffix(compressed)
    return Path(name).suffix


def read_file(path: Path, options: ReadOptions, notes: Notes) -> Iterator[Row]:
    """The documents of one file.

    Raises:
        DataError: an unknown format, a wrong encoding, a damaged archive, no text column.
    """
    kind = suffix(path)
    if kind not in READABLE:
        readable = ", ".join(READABLE)
        raise DataError(f"{path} is of a kind that can't be read", next=f"Readable: {readable}, also as .gz or .zst")
    try:
        if kind in _TEXT:
            yield from _read_text(path, options, notes)
        elif kind == ".jsonl":
            yield from _read_json_lines(path, options, notes)
        elif kind == ".json":
            yield from _read_json(path, options, notes)
        elif kind in (".csv", ".tsv"):
            yield from _read_csv(path, "," if kind == ".csv" else "\t", options, notes)
        elif kind in _HTML:
            yield from _read_html(path, options)
        else:
            yield from _read_arrow(path, kind, options, notes)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        quoted, converted = shlex.quote(str(path)), shlex.quote(f"utf8-{path.name}")
        raise DataError(
            f"{path} isn't UTF-8 (it holds the byte 0x{byte:02x})",
            next=f"Convert it first, for example: iconv -f latin1 -t utf-8 {quoted} > {converted}",
        ) from error
    except DAMAGE as error:
        raise damaged(path, error) from error
    except OSError as error:
        if path.suffix.lower() in COMPRESSED and error.errno is None:
            raise damaged(path, error) from error
        raise DataError(f"{path} can't be read: {error.strerror or error}", next="Check its permissions") from error


def find_column(names: Sequence[str], wanted: str | None, strings: Sequence[str], what: str) -> str:
    """The column that holds the text: the wanted one, else `text`, else the only one that holds strings.

    Raises:
        DataError: it isn't there, or can't be told.
    """
    if wanted is not None:
        if wanted not in names:
            hint = did_you_mean(wanted, names) or "It has no columns"
            raise DataError(f"{what} has no column {wanted!r}", next=hint)
        return wanted
    if "text" in names:
        return "text"
    if len(strings) == 1:
        return strings[0]
    shown = ", ".join(map(str, names[:20])) or "none"
    raise DataError(
        f"{what} has no column named text (columns: {shown})",
        next=f"Say which holds the text, for example --text-column {(list(strings) or ['NAME'])[0]}",
    )


def _read_text(path: Path, options: ReadOptions, notes: Notes) -> Iterator[Row]:
    with opened_text(path, options.max_expansion) as file:
        if options.split == "file":
            text = file.read()
            if len(text) > _LARGE_BYTES:
                notes.hints.append(
                    f"{path.name} is one document of {len(text) / 1e6:,.1f} million characters; "
                    "--split line, blank or a MARKER cuts it into documents"
                )
            yield "", text
            return
        pieces = {"line": _by_line, "blank": _by_blank_line}.get(options.split)
        parts = pieces(file) if pieces else _by_marker(file, options.split)
        for number, text in enumerate(parts, 1):
            yield str(number), text


def _read_html(path: Path, options: ReadOptions) -> Iterator[Row]:
    """The main text of a page; without one the document is empty, and counted as that."""
    from nbllm.corpus.html_text import html_text

    with opened_text(path, options.max_expansion) as file:
        yield "", html_text(file.read())


def _by_line(file: io.TextIOWrapper) -> Iterator[str]:
    for line in file:
        text = line.rstrip("\r\n")
        if text and not text.isspace():
            yield text


def _by_blank_line(file: io.TextIOWrapper) -> Iterator[str]:
    held: list[str] = []
    for line in file:
        if line.isspace():
            if held:
                yield "".join(held).rstrip("\r\n")
            held = []
        else:
            held.append(line)
    if held:
        yield "".join(held).rstrip("\r\n")


def _by_marker(file: io.TextIOWrapper, marker: str) -> Iterator[str]:
    held = ""
    while piece := file.read(_PIECE_CHARACTERS):
        *whole, held = (held + piece).split(marker)
        for text in whole:
            if text and not text.isspace():
                yield text.strip("\r\n")
    if held and not held.isspace():
        yield held.strip("\r\n")


def _read_json_lines(path: Path, options: ReadOptions, notes: Notes) -> Iterator[Row]:
    column: str | None = None
    seen, before = 0, notes.bad_rows.get(path.name, 0)
    with opened(path, options.max_expansion) as file:
        for number, raw in enumerate(file, 1):
            line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            if not line.strip():
                continue
            seen += 1
            try:
                value = json.loads(line.decode())
            except (ValueError, RecursionError) as error:  # a number of 4,301 digits is a plain ValueError
                if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise DataError(f"{path} is UTF-16", next="Convert it to UTF-8 first") from error
                notes.bad(
                    path.name, number, "no JSON" if not isinstance(error, UnicodeDecodeError) else "no UTF-8", raw
                )
                continue
            if isinstance(value, dict) and column is None:
                column = _field_of(value, options, str(path))
            text = value if isinstance(value, str) else _text_of(value, column)
            if text is None:
                notes.bad(path.name, number, f"no text in {column!r}" if isinstance(value, dict) else "no object", raw)
                continue
            yield str(number), text
    if seen and seen == notes.bad_rows.get(path.name, 0) - before and column is None:
        raise DataError(f"No line of {path} is a JSON object", next="Give it the suffix .txt if it is plain text")


def _field_of(value: dict[str, Any], options: ReadOptions, what: str) -> str:
    strings = [name for name, item in value.items() if isinstance(item, str)]
    return find_column(list(value), options.text_column, strings, what)


def _text_of(value: Any, column: str | None) -> str | None:
    text = value.get(column) if isinstance(value, dict) else None
    return text if isinstance(text, str) else None


def _read_json(path: Path, options: ReadOptions, notes: Notes) -> Iterator[Row]:
    with opened_text(path, options.max_expansion) as file:
        try:
            value = json.load(file)
        except UnicodeDecodeError:
            raise
        except (ValueError, RecursionError) as error:
            hint = "Give it the suffix .jsonl if it holds one object a line"
            raise DataError(f"{path} isn't JSON: {error}", next=hint) from error
    rows = value if isinstance(value, list) else [value]
    yield from values_of(rows, options, notes, path.name)


def values_of(rows: Iterator[Any] | Sequence[Any], options: ReadOptions, notes: Notes, what: str) -> Iterator[Row]:
    """Documents of strings or of dicts with a text field."""
    column: str | None = None
    for number, value in enumerate(rows, 1):
        if isinstance(value, dict) and column is None:
            column = _field_of(value, options, what)
        text = value if isinstance(value, str) else _text_of(value, column)
        if text is None:
            notes.bad(what, number, f"no text in {column!r}" if column else f"a {type(value).__name__}, no text")
            continue
        yield str(number), text


def _read_csv(path: Path, delimiter: str, options: ReadOptions, notes: Notes) -> Iterator[Row]:
    with opened_text(path, options.max_expansion) as file, _any_field_size():
        rows = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = next(rows, None)
        except csv.Error as error:
            raise DataError(f"{path} has no header that can be read: {error}", next="Mend its first line") from error
        if header is None:
            return
        column: int | None = None
        number = 1
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                notes.bad(path.name, number + 1, str(error))
                number += 1
                continue
            number += 1
            if not row:
                continue
            if column is None:
                column = header.index(find_column(header, options.text_column, _wordy(header, row), str(path)))
            if len(row) != len(header):
                notes.bad(path.name, number, f"{len(row)} fields instead of {len(header)}", delimiter.join(row))
                continue
            yield str(number), row[column]


def _wordy(header: list[str], row: list[str]) -> list[str]:
    """The columns that hold something other than a number in this row."""
    found = []
    for name, value in zip(header, row, strict=False):
        try:
            float(value)
        except ValueError:
            found.append(name)
    return found


@contextlib.contextmanager
def _any_field_size() -> Iterator[None]:
    """Lets a CSV field be longer than 128 KB; the limit is one for the whole process, and is put back."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _read_arrow(path: Path, kind: str, options: ReadOptions, notes: Notes) -> Iterator[Row]:
    with opened(path, options.max_expansion) as file:
        source: Any = io.BytesIO(file.read()) if path.suffix.lower() in COMPRESSED else file
        try:
            schema, found = _arrow_batches(source, kind)
            column = column_of_schema(schema, options, str(path))
            number = 0
            for batch in found(column):
                batch.validate(full=True)  # damaged offsets would be read as they are
                for text in batch[column].cast(pa.large_string()).to_pylist():
                    number += 1
                    if text is None:
                        notes.bad(path.name, number, f"no text in {column!r}")
                    else:
                        yield str(number), text
        except pa.ArrowException as error:
            raise damaged(path, error) from error


def _arrow_batches(source: Any, kind: str) -> tuple[pa.Schema, Any]:
    """The schema, and a function from a column's name to the batches that hold it."""
    if kind == ".parquet":
        import pyarrow.parquet as pq

        parquet = pq.ParquetFile(source)
        return parquet.schema_arrow, lambda column: parquet.iter_batches(1024, columns=[column])
    head = source.read(6)
    source.seek(0)
    if head == b"ARROW1":
        file = pa.ipc.open_file(source)
        return file.schema, lambda column: (file.get_batch(index) for index in range(file.num_record_batches))
    stream = pa.ipc.open_stream(source)
    return stream.schema, lambda column: iter(stream)


def column_of_schema(schema: pa.Schema, options: ReadOptions, what: str) -> str:
    """The text column of an Arrow schema.

    Raises:
        DataError: it isn't there, can't be told, or doesn't hold strings.
    """
    strings = [name for name, kind in zip(schema.names, schema.types, strict=True) if _is_string(kind)]
    column = find_column(schema.names, options.text_column, strings, what)
    kind = schema.field(column).type
    if not _is_string(kind) and not pa.types.is_null(kind):
        raise DataError(f"Column {column!r} of {what} holds {kind}, no strings", next=did_you_mean(column, strings))
    return column


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
