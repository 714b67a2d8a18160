"""What the attention panel shows of one text through one model, and how it travels to the page.

One map at a time is made and sent: a byte a weight (the square root, as a share of its row's largest), compressed.
A row travels as float32 where it is looked at closely. Knows attention maps as an object with `tokens`, `token_ids`,
`layers`, `heads`, `layer_indices`, `model`, `weights()`, `thumbnails()`, `entropy()`, `scores`, `rollout()` and
`next_tokens()`.

Shapes: T tokens, L layers, H heads, S a thumbnail's side. Head H of a layer is the rollout up to that layer.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCORES = ("previous_token", "first_token", "duplicate_token", "induction", "entropy", "distance")
"""The columns of the table of heads, beside layer and head."""
MOST_SIDE = 1024
"""A longer text's map travels as block maxima of at most so many rows."""
_FEW_HEADS = 512


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a text is looked at through; None: what is current in the session."""

    text: str
    model: str | None = None
    checkpoint: int | None = None
    adapter: str | None = None
    """A name, `off`, or None."""
    chat: bool = False

    def look(self, session: Any) -> Any:
        """Runs the model once over the text; returns its attention maps."""
        return session.attention(
            self.text, model=self.model, checkpoint=self.checkpoint, adapter=self.adapter, chat=self.chat
        )


@dataclass(kw_only=True)
class Side:
    """One text through one model."""

    wanted: Wanted
    maps: Any
    _thumbnails: NDArray[np.uint8] | None = None
    _scores: NDArray[np.float32] | None = None
    _last: tuple[tuple[int, int], NDArray[np.float32]] | None = field(default=None, repr=False)

    @property
    def tokens(self) -> int:
        """T."""
        return len(self.maps.tokens)

    @property
    def predicts(self) -> str:
        """What `maps.next_tokens` are, in words."""
        return str(getattr(self.maps, "predicts", "next token"))

    def has(self, layer: int, head: int) -> bool:
        """Whether there is such a head, the rollout included."""
        return 0 <= layer < self.maps.layers and 0 <= head <= self.maps.heads

    def weights(self, layer: int, head: int) -> NDArray[np.float32]:
        """float32 [T, T]; the last one asked for is kept, so that a look at its rows costs nothing."""
        if self._last is None or self._last[0] != (layer, head):
            rollout = head == self.maps.heads
            number = self.number(layer)
            found = self.maps.rollout(until=number) if rollout else self.maps.weights(number, head)
            self._last = (layer, head), found
        return self._last[1]

    def number(self, layer: int) -> int:
        """A row of the sheet as the model's own number of the layer: a hybrid model has layers without attention."""
        return int(self.maps.layer_indices[layer])

    def thumbnails(self) -> NDArray[np.uint8]:
        """uint8 [L, H, S, S]; smaller where there are very many heads."""
        if self._thumbnails is None:
            size = 64 if self.maps.layers * self.maps.heads <= _FEW_HEADS else 32
            self._thumbnails = self.maps.thumbnails(size)
        return self._thumbnails

    def scores(self) -> NDArray[np.float32]:
        """float32 [L * H, 6], heads in order; NaN where a text has nothing to score, such as no repetition."""
        if self._scores is None:
            self.thumbnails()  # one pass over all maps makes both
            table = self.maps.scores
            columns = [np.asarray(table.column(name).to_pylist(), dtype=np.float32) for name in SCORES]
            self._scores = np.stack(columns, axis=1)
        return self._scores

    def score(self, layer: int, head: int) -> dict[str, float]:
        """One head's scores by name; empty for the rollout."""
        if head == self.maps.heads:
            return {}
        return dict(zip(SCORES, self.scores()[layer * self.maps.heads + head].tolist(), strict=True))

    def kind(self, layer: int, head: int) -> tuple[str, float] | None:
        """Which of the four kinds a head is most of, and how much; None for the rollout and where none is known."""
        found = [(value, name) for name, value in self.score(layer, head).items() if name in SCORES[:4]]
        best = max((pair for pair in found if math.isfinite(pair[0])), default=None)
        return (best[1].replace("_", " "), best[0]) if best else None

    def telling_head(self) -> tuple[int, int]:
        """Layer and head to begin with: the one that is most of an induction head, else of a previous-token head."""
        for name in ("induction", "previous_token"):
            column = np.nan_to_num(self.scores()[:, SCORES.index(name)], nan=0.0)
            if column.max(initial=0) >= 0.2:
                return divmod(int(column.argmax()), self.maps.heads)
        return 0, 0


def encode(weights: NDArray[np.float32]) -> tuple[bytes, bytes, int]:
    """A map as the page reads it.

    Args:
        weights: float32 [T, T].

    Returns:
        zlib of uint8 [N, N], each `255 sqrt(weight / its row's largest)`; float32 [3, T] with each query's largest
        weight among the N, entropy in nats and mean distance in tokens; and how many tokens a row of the N stands for
        (1 up to `MOST_SIDE` tokens, block maxima above).
    """
    count = weights.shape[0]
    stride = -(-count // MOST_SIDE)
    shown = weights
    if stride > 1:
        starts = np.arange(0, count, stride)
        shown = np.maximum.reduceat(np.maximum.reduceat(weights, starts, axis=0), starts, axis=1)
    top = shown.max(axis=1, keepdims=True)
    coded = np.sqrt(shown / np.maximum(top, 1e-12))
    coded *= 255
    coded += 0.5
    at = np.arange(count, dtype=np.float32)
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    entropy = -np.einsum("qk,qk->q", weights, logs)
    # causal rows look back only; for others the mean of |q - k|
    distance = np.einsum("qk,qk->q", weights, np.abs(at[:, None] - at[None, :]))
    stats = np.stack([np.repeat(top[:, 0], stride)[:count], entropy, distance]).astype(np.float32)
    return zlib.compress(coded.astype(np.uint8).tobytes(), 1), stats.tobytes(), stride


def encode_thumbnails(thumbnails: NDArray[np.uint8]) -> bytes:
    """zlib of uint8 [L, H, S, S]."""
    return zlib.compress(thumbnails.tobytes(), 1)
