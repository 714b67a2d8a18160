"""Opens a file, compressed or not, as bytes or as characters.

A compressed file that unpacks to far more than text does is left. Knows nothing of what is in a file.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from nbllm.errors import DataError

COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
DAMAGE = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
"""What reading a damaged file raises."""
_ALWAYS_BYTES = 64 << 20
"""What a compressed file may always unpack to, however small it is."""
MAX_EXPANSION = 100
"""Text shrinks to a fourth, a log of nearly the same lines to a thirtieth; a bomb to a thousandth and less."""


class _Bounded(io.RawIOBase):
    """Bytes that are unpacked on the way, up to a limit."""

    def __init__(self, packed: Any, path: Path, max_expansion: int) -> None:
        # what stands before a damaged place must not be lost with it: `read` would go on until it is full
        self._read = getattr(packed, "read1", packed.read) if path.suffix.lower() != ".zst" else packed.read
        self._path, self._expansion = path, max_expansion
        self._left = max(_ALWAYS_BYTES, max_expansion * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._read(min(len(buffer), self._left + 1))
        self._left -= len(piece)
        if self._left < 0:
            raise DataError(
                f"{self._path} unpacks to more than {self._expansion} times its size",
                next=f"If it is sound, type --max-expansion {self._expansion * 100}",
            )
        buffer[: len(piece)] = piece
        return len(piece)


@contextlib.contextmanager
def opened(path: Path, max_expansion: int) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed.

    Raises:
        DataError: it is damaged, or unpacks to more than `max_expansion` times its size.
    """
    end = path.suffix.lower()
    if end not in COMPRESSED:
        with path.open("rb") as file:
            yield file
        return
    with contextlib.ExitStack() as stack:
        unpacked: Any
        try:
            if end == ".zst":
                import zstandard

                damage: type[Exception] = zstandard.ZstdError
                raw = stack.enter_context(path.open("rb"))
                unpacked = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            else:
                damage = zlib.error
                opener: Any = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}[end]
                unpacked = stack.enter_context(opener(path, "rb"))
            yield io.BufferedReader(_Bounded(unpacked, path, max_expansion), 1 << 17)
        except damage as error:
            raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> DataError:
    """What is said of a file that can't be read to its end."""
    return DataError(f"{path} is damaged or cut short: {error}", next="Get the file again")


@contextlib.contextmanager
def opened_text(path: Path, max_expansion: int) -> Iterator[io.TextIOWrapper]:
    """The file's characters: UTF-8 (or UTF-16 where a mark says so), line ends as they are, no mark at the start."""
    with opened(path, max_expansion) as raw:
        buffered = io.BufferedReader(raw, 1 << 16)  # type: ignore[type-var]
        head = buffered.peek(2)[:2]
        utf16 = head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        with io.TextIOWrapper(buffered, encoding="utf-16" if utf16 else "utf-8-sig", newline="") as text:
            yield text
