"""Attention weights as colours: the cividis scale, block maxima, and images small enough for a saved notebook.

Cividis reads the same with and without colour vision (Nuñez, Anderton and Renslow 2018,
doi:10.1371/journal.pone.0199239). Knows arrays only.
"""

from __future__ import annotations

import base64
import struct
import zlib
from functools import cache

import numpy as np
from numpy.typing import NDArray

_CIVIDIS = (
    "00224e", "002b62", "083370", "233e6c", "33476b", "404f6b", "4b586c", "56606e", "606970", "6a7173", "747a76",
    "7f8378", "8a8c77", "969675", "a29f71", "aea96b", "bbb364", "c8be5a", "d6c94d", "e4d43d", "f2e02e", "fee838",
)  # fmt: skip


@cache
def palette() -> bytes:
    """256 colours from dark blue (0) to yellow (255): 768 bytes of red, green and blue."""
    anchors = np.array([[int(colour[i : i + 2], 16) for i in (0, 2, 4)] for colour in _CIVIDIS], dtype=np.float64)
    places = np.linspace(0, len(anchors) - 1, 256)
    channels = [np.interp(places, np.arange(len(anchors)), anchors[:, channel]) for channel in range(3)]
    return bytes(np.stack(channels, axis=1).round().astype(np.uint8).tobytes())


def pooled(values: NDArray[np.float32], most: int) -> NDArray[np.float32]:
    """Block maxima of a matrix, at most `most` rows and columns: a thin bright line stays bright."""
    step = -(-max(values.shape) // most)
    if step <= 1:
        return values
    rows = np.maximum.reduceat(values, np.arange(0, values.shape[0], step), axis=0)
    return np.maximum.reduceat(rows, np.arange(0, values.shape[1], step), axis=1)


def levels(values: NDArray[np.float32], top: float) -> NDArray[np.uint8]:
    """0 to `top` as 0 to 255."""
    return np.clip(values * (255 / max(top, 1e-12)), 0, 255).round().astype(np.uint8)


def sheet(thumbnails: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """All heads as one image: layers are rows, heads columns, each `size` pixels with one dark pixel between.

    Args:
        thumbnails: uint8 [L, H, S, S] with S a multiple of `size`.
        size: pixels a side of each head's picture.
    """
    layers, heads, side, _ = thumbnails.shape
    step = max(1, side // size)
    small = thumbnails.reshape(layers, heads, side // step, step, side // step, step).max(axis=(3, 5))
    gap = np.zeros((layers, heads, small.shape[2] + 1, small.shape[3] + 1), dtype=np.uint8)
    gap[:, :, :-1, :-1] = small
    return gap.transpose(0, 2, 1, 3).reshape(layers * gap.shape[2], heads * gap.shape[3])


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of one palette index a pixel."""
    height, width = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), dtype=np.uint8), pixels], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"PLTE", palette()), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def data_uri(image: bytes) -> str:
    """A PNG as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(image).decode("ascii")
