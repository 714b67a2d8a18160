"""What a document is while it is cleaned: the columns of a record batch, and how texts become batches.

Columns: `row` int64 (position in the input, never changed), `text` string, `id` string, `source` string, `split_key`
float64 in [0, 1). Knows nothing of files or stages.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("text", pa.string()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("split_key", pa.float64()),
    ]
)
BATCH_DOCUMENTS = 1024
"""A batch ends after so many documents …"""
BATCH_BYTES = 8_000_000
"""… or once it holds so many bytes of text, so that memory stays bounded when documents are long."""


def well_formed(text: str) -> str:
    """The same text with U+FFFD in the place of lone surrogates, which no UTF-8 file can hold."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def split_key(text: str) -> float:
    """Where a document falls between training and held-out part, from its original text.

    The first 8 bytes of the SHA-256 of the normalised text (NFC, line ends as \\n, without spaces at the ends of lines
    or empty lines at both ends), as a fraction of 2**64; rounded down to 53 bits, so that it stays below 1.
    """
    lines = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    normalised = "\n".join(line.rstrip() for line in lines).strip()
    return (int.from_bytes(hashlib.sha256(normalised.encode()).digest()[:8], "big") >> 11) / 2**53


def batches(
    documents: Iterable[tuple[str, str, str]],
    *,
    batch_documents: int = BATCH_DOCUMENTS,
    batch_bytes: int = BATCH_BYTES,
    skip: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Cuts (text, id, source) triples into record batches of `SCHEMA`, in order, and leaves out the first `skip`."""
    rows: list[tuple[str, str, str]] = []
    first = size_bytes = cut = 0
    for text, identity, source in documents:
        text = well_formed(text)
        rows.append((text, well_formed(identity), source))
        size_bytes += 4 * len(text) if not text.isascii() else len(text)
        if len(rows) >= batch_documents or size_bytes >= batch_bytes:
            if cut >= skip:
                yield _batch(rows, first)
            first += len(rows)
            cut += 1
            rows, size_bytes = [], 0
    if rows and cut >= skip:
        yield _batch(rows, first)


def _batch(rows: list[tuple[str, str, str]], first: int) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array(range(first, first + len(rows)), pa.int64()),
            pa.array([row[0] for row in rows], pa.string()),
            pa.array([row[1] for row in rows], pa.string()),
            pa.array([row[2] for row in rows], pa.string()),
            pa.array([split_key(row[0]) for row in rows], pa.float64()),
        ],
        schema=SCHEMA,
    )
