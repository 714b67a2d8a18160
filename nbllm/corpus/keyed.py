"""Equal keys among many, in bounded memory: a column of 64-bit keys is looked at part by part of the key space.

Each part holds every document (or line) whose key falls into it, so that equal keys are always seen together. The
column itself stays on disk and is read once a part; memory is that of one part and what the caller keeps for each
document. Knows nothing of what keys mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nbllm.corpus.layout import Ints
from nbllm.corpus.shingles import Hashes

AT_ONCE = 2_000_000
"""Keys in a part, about; sorting one takes some 40 bytes a key."""


def parts(column: Sequence[pa.Array], at_once: int | None = None) -> Iterator[tuple[Hashes, Ints]]:
    """The keys of each part of the key space with their positions in the column, ascending.

    Args:
        column: chunks of uint64 keys that are spread evenly, or of 16-byte digests, whose first half is the key;
            nulls belong to no part.
        at_once: keys in a part; `AT_ONCE` by default.
    """
    total = sum(len(chunk) for chunk in column)
    count = max(1, -(-total // (at_once or AT_ONCE)))
    for part in range(count):
        keys: list[Hashes] = []
        places: list[Ints] = []
        start = 0
        for chunk in column:
            values, where = _values(chunk)
            if count > 1:
                mine = (values >> np.uint64(40)) % np.uint64(count) == part
                values, where = values[mine], where[mine]
            keys.append(values)
            places.append(where + start)
            start += len(chunk)
        if keys:
            yield np.concatenate(keys), np.concatenate(places)


def runs(sorted_keys: NDArray[np.generic]) -> tuple[Ints, Ints]:
    """Where runs of equal neighbours start and end."""
    if not len(sorted_keys):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    starts = np.flatnonzero(np.concatenate(([True], sorted_keys[1:] != sorted_keys[:-1])))
    return starts, np.append(starts[1:], len(sorted_keys))


def _values(chunk: pa.Array) -> tuple[Hashes, Ints]:
    if pa.types.is_fixed_size_binary(chunk.type):
        data = np.frombuffer(chunk.buffers()[1], "<u8", 2 * (chunk.offset + len(chunk)))
        return data[2 * chunk.offset :: 2], np.arange(len(chunk))
    if chunk.null_count:
        where = np.flatnonzero(chunk.is_valid().to_numpy(zero_copy_only=False))
        return chunk.drop_null().to_numpy(), where
    return chunk.to_numpy(), np.arange(len(chunk))
