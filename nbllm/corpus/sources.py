"""What a user may clean: files, folders, globs, labelled ones, notebook values, and `builtin:pydocs`.

A source knows its label (the `source` column of its documents), gives its documents in an order that doesn't change,
and says by a hash of its content whether it is still the same. Knows nothing of stages.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from nbllm.corpus import hub, pydocs
from nbllm.corpus.documents import well_formed
from nbllm.corpus.notes import Notes
from nbllm.corpus.readers import (
    READABLE,
    ReadOptions,
    Row,
    column_of_schema,
    find_column,
    read_file,
    suffix,
    values_of,
)
from nbllm.corpus.unpacking import COMPRESSED
from nbllm.errors import DataError, NotFoundError, RunError, UsageError, did_you_mean

_LABELLED = re.compile(r"([\w.+-]+)=(.+)", re.DOTALL)
_BUILTIN = {"builtin:pydocs": "pydocs"}
_GLOB = re.compile(r"[*?\[]")
_ROWS_A_BATCH = 1000


class Source(Protocol):
    """Something that gives documents."""

    @property
    def label(self) -> str:
        """Its name in the `source` column."""

    def parameters(self) -> dict[str, Any]:
        """What makes two sources the same, as JSON: the label and a hash of the content."""

    def documents(self, notes: Notes) -> Iterator[tuple[str, str, str]]:
        """(text, id, source) of each document."""


@dataclass(frozen=True)
class Files:
    """Files on disk."""

    label: str
    files: tuple[tuple[str, Path], ...]
    """Each with its name in ids, in the order of reading."""
    options: ReadOptions

    def parameters(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for name, path in self.files:
            try:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError:
                content = "unreadable"  # told when it is read
            digest.update(f"{well_formed(name)}\0{content}\n".encode())
        return {"label": self.label, "files": len(self.files), "hash": digest.hexdigest()}

    def size_bytes(self) -> int:
        """Of all files, as they lie on disk."""
        return sum(_size(path) for _, path in self.files)

    def text_bytes(self) -> int:
        """About how much text they hold: packed ones three times what they are on disk."""
        return sum(
            _size(path) * (3 if path.suffix.lower() in (*COMPRESSED, ".parquet") else 1) for _, path in self.files
        )

    def documents(self, notes: Notes) -> Iterator[tuple[str, str, str]]:
        total = 0
        first: DataError | None = None
        for name, path in self.files:
            if not path.stat().st_size and len(self.files) == 1:
                raise DataError(f"{path} is empty", next="Check the path, or clean another source")
            count = 0
            try:
                for where, text in read_file(path, self.options, notes):
                    count += 1
                    yield text, f"{name}:{where}" if where else name, self.label
            except DataError as error:
                if len(self.files) == 1:
                    raise
                # one of many: it is told, and the others are cleaned
                notes.bad_file(str(path), error.what, count)
                first = first or error
            total += count
            notes.read_bytes += _size(path)
        if not total and first is not None:
            raise first
        if not total:
            raise DataError(f"{self.label} holds no document", next="Check the path and --split")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@dataclass(frozen=True)
class Pydocs:
    """The texts that the user's own Python carries."""

    label: str = "pydocs"

    def parameters(self) -> dict[str, Any]:
        return {"label": self.label, "builtin": "pydocs", "hash": pydocs.identity()}

    def documents(self, notes: Notes) -> Iterator[tuple[str, str, str]]:
        for name, text in pydocs.documents():
            yield text, name, self.label


@dataclass(frozen=True)
class Streamed:
    """A data set of the hub that is read row by row and never lies on disk as a whole."""

    label: str
    typed: str
    dataset: Any
    """A `datasets.IterableDataset`."""
    version: str
    """What tells its content."""
    options: ReadOptions

    def parameters(self) -> dict[str, Any]:
        return {"label": self.label, "hub": self.typed, "version": self.version}

    def documents(self, notes: Notes) -> Iterator[tuple[str, str, str]]:
        column: str | None = None
        for number, row in enumerate(self._rows(), 1):
            if column is None:
                strings = [name for name, value in row.items() if isinstance(value, str)]
                column = find_column(list(row), self.options.text_column, strings, self.label)
            text = row.get(column)
            if isinstance(text, str):
                yield text, f"{self.label}:{number}", self.label
            else:
                notes.bad(self.label, number, "no text")

    def _rows(self) -> Iterator[dict[str, Any]]:
        number = 0
        try:
            for number, row in enumerate(self.dataset, 1):  # noqa: B007 (told below)
                yield row
        except (OSError, RuntimeError, ValueError) as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)[:300]
            raise RunError(
                f"{self.typed} broke off after {number:,} rows: {why}", next="Run the cell again: it goes on from there"
            ) from error


@dataclass(frozen=True)
class Values:
    """A value of the notebook: strings, dicts, a DataFrame, an Arrow table, a Dataset."""

    label: str
    value: Any
    options: ReadOptions

    def parameters(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        count = 0
        for where, text in self._rows(Notes()):
            content = hashlib.sha256(well_formed(text).encode()).hexdigest()
            digest.update(f"{where}\0{content}\n".encode())
            count += 1
        if not count:
            raise DataError(f"{self.label} holds no text", next="Give it at least one string")
        return {"label": self.label, "documents": count, "hash": digest.hexdigest()}

    def documents(self, notes: Notes) -> Iterator[tuple[str, str, str]]:
        for where, text in self._rows(notes):
            yield text, f"{self.label}:{where}", self.label

    def _rows(self, notes: Notes) -> Iterator[Row]:
        value, options = self.value, self.options
        if isinstance(value, (list, tuple)):
            yield from values_of(value, options, notes, self.label)
            return
        if isinstance(value, (pa.Array, pa.ChunkedArray)):
            yield from values_of(value.to_pylist(), options, notes, self.label)
            return
        for number, text in enumerate(self._column(), 1):
            if isinstance(text, str):
                yield str(number), text
            else:
                notes.bad(self.label, number, "no text")

    def _column(self) -> Iterator[Any]:
        """The values of the text column, whatever holds it."""
        value, options, what = self.value, self.options, self.label
        module = type(value).__module__.partition(".")[0]
        if module == "pandas" and hasattr(value, "columns"):
            names = [str(name) for name in value.columns]
            strings = [str(name) for name in value.columns if any(isinstance(item, str) for item in value[name][:100])]
            column = find_column(names, options.text_column, strings, what)
            yield from value[value.columns[names.index(column)]]
        elif module == "pandas":
            yield from value
        elif module == "datasets" and hasattr(value, "with_format") and hasattr(value, "num_rows"):
            column = column_of_schema(value.features.arrow_schema, options, what)
            for table in value.select_columns([column]).with_format("arrow").iter(_ROWS_A_BATCH):
                yield from table[column].to_pylist()
        elif isinstance(value, (pa.Table, pa.RecordBatch)) or hasattr(value, "__arrow_c_stream__"):
            table = value if isinstance(value, pa.Table) else pa.table(value)
            column = column_of_schema(table.schema, options, what)
            for chunk in table[column].chunks:
                yield from chunk.to_pylist()


def find_sources(
    given: Sequence[Any], texts: Iterable[str] | None, options: ReadOptions
) -> list[Source]:  # fmt: skip
    """The sources that were given, checked to exist.

    Args:
        given: names (files, folders, globs, `LABEL=…`, `hf:NAME`, `builtin:pydocs`), paths, and notebook values.
        texts: plain strings to clean.
        options: how files and tables become documents.

    Raises:
        NotFoundError: nothing is there under a name.
        UsageError: a value that can't be a source.
    """
    if isinstance(texts, str):
        raise UsageError("texts is a list of strings, not one string", next="Write texts=[text]")
    found: list[Source] = []
    for source in given:
        if isinstance(source, (str, Path)):
            found.append(_named(source, options, {other.label for other in found}))
        else:
            found.append(_value(source, "values" if len(given) == 1 else f"values{len(found) + 1}", options))
    if texts is not None:
        found.append(Values("texts", list(texts), options))
    if not found:
        raise UsageError("There is nothing to clean", next="Name a file or folder, or builtin:pydocs")
    return found


def default_name(source: Source) -> str:
    """The name of a corpus that is made from this source first."""
    name = source.label
    for _ in range(3):  # web.jsonl.gz
        stem, dot, end = name.rpartition(".")
        if not dot or f".{end.lower()}" not in (*READABLE, ".gz", ".zst", ".bz2", ".xz"):
            break
        name = stem
    name = re.sub(r"[^\w.+-]+", "-", name).strip("-._")
    name = re.sub(r"\.{2,}", ".", name)
    return name[:100].rstrip(".-") or "corpus"


def _named(source: str | Path, options: ReadOptions, labels: set[str]) -> Source:
    typed = str(source)
    label = None
    if isinstance(source, str) and not Path(typed).exists() and (match := _LABELLED.fullmatch(typed)):
        label, typed = match.groups()
    if typed.startswith("builtin:"):
        if typed not in _BUILTIN:
            raise NotFoundError(f"There is no source {typed!r}", next=did_you_mean(typed, _BUILTIN))
        return Pydocs(label or "pydocs")
    if typed.startswith(hub.PREFIX) and options.stream:
        name, dataset, version = hub.stream(typed)
        return Streamed(label or (name if name not in labels else typed), typed, dataset, version, options)
    if typed.startswith(hub.PREFIX):
        name, dataset = hub.load(typed)
        return Values(label or (name if name not in labels else typed), dataset, options)
    if "\n" in typed or len(typed) > 4096:
        raise UsageError("A source is a file, a folder or a glob", received=typed, next="Strings go into texts=[…]")
    path = Path(typed).expanduser()
    if path.is_dir():
        files = _readable(path, path.rglob("*"), typed)
        names = [(file.relative_to(path).as_posix(), file) for file in files]
    elif path.is_file():
        names = [(path.name, path)]
    elif _GLOB.search(typed):
        root = Path(path.anchor) if path.is_absolute() else Path()
        pattern = str(path.relative_to(root)) if path.is_absolute() else str(path)
        files = _readable(root, root.glob(pattern), typed)
        names = [(file.as_posix(), file) for file in files]
    else:
        raise _missing(path, typed)
    if label is None:
        label = path.name or path.resolve().name
        if label in labels or _GLOB.search(label):
            label = typed
    if path.is_file() and label == typed != path.name:
        names = [(typed, path)]
    elif path.is_dir() or label not in (path.name, typed):
        names = [(f"{label}/{name}", file) for name, file in names]
    return Files(well_formed(label), tuple(names), options)


def _readable(root: Path, found: Iterable[Path], typed: str) -> list[Path]:
    """The files among these whose format can be read, hidden ones left out, in the order of their names."""
    everything = [
        file
        for file in found
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(root).parts)
    ]
    readable = sorted((file for file in everything if suffix(file) in READABLE), key=lambda file: file.as_posix())
    if not readable:
        kinds = ", ".join(sorted({suffix(file) or file.name for file in everything})[:10])
        there = f"only {kinds}" if kinds else "nothing"
        raise NotFoundError(
            f"{typed} holds no file that can be read ({there})", next=f"Readable: {', '.join(READABLE)}"
        )
    return readable


def _missing(path: Path, typed: str) -> NotFoundError:
    folder = path.parent
    if not folder.is_dir():
        return NotFoundError(f"There is no folder {folder}", next=f"The current one is {Path.cwd()}")
    names = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
    near = did_you_mean(path.name, names)
    hint = near if near and near.startswith("Did") else "Check the path, or try builtin:pydocs"
    return NotFoundError(f"There is no file or folder {typed!r}", next=hint)


def _value(value: Any, label: str, options: ReadOptions) -> Source:
    if isinstance(value, Mapping):
        keys = ", ".join(map(str, list(value)[:5]))
        raise UsageError(
            f"A {type(value).__name__} isn't a source (it has {keys})",
            next="Give one of its parts, such as data['train']",
        )
    module = type(value).__module__.partition(".")[0]
    if module == "datasets" and not hasattr(value, "num_rows"):
        raise UsageError(
            "A streamed Dataset can't be read twice",
            next="Give list(dataset.take(N)), or hf:NAME with --stream",
        )
    known = (list, tuple, pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)
    if isinstance(value, known) or module in ("pandas", "datasets") or hasattr(value, "__arrow_c_stream__"):
        return Values(label, value, options)
    if hasattr(value, "__next__"):
        return Values(label, list(value), options)
    raise UsageError(
        f"A {type(value).__name__} can't be cleaned",
        next="Give a path, a list of strings, a DataFrame, an Arrow table or a Dataset",
    )
