"""Tables on disk that grow batch by batch, can be cut back to where they were, and become files whose bytes don't
depend on how their rows came.

While a cleaning runs each table is an Arrow stream: its schema, then a message a batch, and nothing at the end. Cut at
the end of a message it is a whole stream of fewer batches, which is what makes a killed cleaning able to go on.
Finished, it is written again as an Arrow file in batches of an even size. Knows nothing of stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbllm.errors import StoreError

_SUFFIX = ".stream"
EVEN_ROWS = 1024
EVEN_BYTES = 8_000_000
"""A batch of a finished file ends with the row that reaches one of these (bytes of `text`)."""


class Streams:
    """The tables below a folder, by names such as `scores/03-length`; a context manager that closes them.

    Args:
        folder: is made if it isn't there.
        sizes: bytes of each table as `sizes` said; longer ones are cut back, others removed.

    Raises:
        StoreError: a table is shorter than that.
    """

    def __init__(self, folder: Path, sizes: Mapping[str, int] | None = None) -> None:
        self.folder = folder
        self._open: dict[str, tuple[IO[bytes], pa.Schema]] = {}
        self._sizes = dict(sizes or {})
        folder.mkdir(parents=True, exist_ok=True)
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            name = path.relative_to(folder).as_posix().removesuffix(_SUFFIX)
            if name not in self._sizes:
                path.unlink()
                continue
            if path.stat().st_size > self._sizes[name]:
                with path.open("r+b") as file:
                    file.truncate(self._sizes[name])
        for name, size in self._sizes.items():
            path = self._path(name)
            if not path.exists() or path.stat().st_size != size:
                raise StoreError(f"{path} isn't as it was left", next="Run the cell again: it starts anew")

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        for file, _schema in self._open.values():
            file.close()
        self._open = {}

    def write(self, name: str, batch: pa.RecordBatch) -> None:
        """Appends a batch; all batches of a table have one schema."""
        known = self._open.get(name)
        if known is None:
            path = self._path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            file: IO[bytes] = path.open("ab")
            if name not in self._sizes:
                file.write(batch.schema.serialize())
            known = self._open[name] = file, batch.schema
        file, schema = known
        if schema != batch.schema:
            raise TypeError(f"{name} has the columns {schema.names}, a batch has {batch.schema.names} or other types")
        file.write(batch.serialize())
        self._sizes[name] = file.tell()

    def write_table(self, name: str, table: pa.Table) -> None:
        """A whole table at once; what was there under that name goes."""
        self.remove(name)
        for batch in table.to_batches(max_chunksize=65_536):
            self.write(name, batch)
        if not table.num_rows:
            self.write(name, pa.RecordBatch.from_pylist([], table.schema))

    def sizes(self) -> dict[str, int]:
        """Bytes of each table as it is now."""
        return dict(self._sizes)

    def flush(self) -> None:
        """Hands what was written to the operating system."""
        for file, _ in self._open.values():
            file.flush()

    def names(self, under: str) -> list[str]:
        """The tables below a folder such as `scores`, sorted."""
        return sorted(name for name in self._sizes if name.startswith(f"{under}/"))

    def read(self, name: str) -> list[pa.RecordBatch]:
        """The batches of a table, memory-mapped; empty where there is none."""
        if name not in self._sizes:
            return []
        if name in self._open:
            self._open[name][0].flush()
        return list(pa.ipc.open_stream(pa.memory_map(str(self._path(name)))))

    def remove(self, name: str) -> None:
        """Removes a table."""
        if name in self._open:
            self._open.pop(name)[0].close()
        if self._sizes.pop(name, None) is not None:
            with suppress(FileNotFoundError):
                self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"


def write_file(target: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Writes rows as an Arrow file in even batches."""
    with pa.ipc.new_file(target, schema) as sink:
        for batch in even(batches):
            sink.write_batch(batch)


def even(
    batches: Iterable[pa.RecordBatch], rows: int = EVEN_ROWS, size_bytes: int = EVEN_BYTES
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that depend on the rows alone."""
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches:
        weights = (
            pc.binary_length(batch["text"]).to_numpy()
            if "text" in batch.schema.names
            else np.zeros(len(batch), np.int64)
        )
        ends = np.cumsum(weights, dtype=np.int64)
        start = 0
        while start < len(batch):
            before = int(ends[start - 1]) if start else 0
            full = int(np.searchsorted(ends, before + size_bytes - held_bytes)) + 1
            end = min(len(batch), start + rows - held_rows, full)
            held.append(batch.slice(start, end - start))
            held_rows += end - start
            held_bytes += int(ends[end - 1]) - before
            if held_rows >= rows or held_bytes >= size_bytes:
                yield _joined(held)
                held, held_rows, held_bytes = [], 0, 0
            start = end
    if held:
        yield _joined(held)


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Parts as one batch in memory of its own, so that no bit of their neighbours is written with it."""
    empty = parts[0].slice(0, 0)
    columns = [pa.concat_arrays([*(part.column(index) for part in parts), empty.column(index)])
               for index in range(parts[0].num_columns)]  # fmt: skip
    if not columns:
        return parts[0]
    return pa.record_batch(columns, schema=parts[0].schema)
