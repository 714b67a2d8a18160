"""Keys and values in places that don't move: a transformers cache over buffers that grow by doubling.

What lies beyond `length` is never read, so cutting a text back costs nothing, an interrupted step leaves nothing
behind, and a compiled step can write into the same buffers. Layers with a sliding window are kept whole (their mask
does the sliding), so that a prefix can be used again at any length. Doesn't know sampling.

Legend: B rows, K key/value heads, T new ids, S ids so far, L places (a power of two, at least 256), C head size.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

_SMALLEST = 256


def places_for(length: int) -> int:
    """L for a text of so many ids: the next power of two, at least 256."""
    return max(_SMALLEST, 1 << (length - 1).bit_length())


class _Layer(CacheLayerMixin):
    """One layer's buffers [B, K, L, C]."""

    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self._slots = slots

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        places = places_for(self._slots.length + key_states.shape[2])
        self.keys, self.values = (_buffer(states, places) for states in (key_states, value_states))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes [B, K, T, C] after `length`; returns what is there so far, [B, K, S, C]."""
        start = self._slots.length
        end = start + key_states.shape[2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.grow(end)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def grow(self, length: int) -> None:
        """Makes room for so many ids."""
        if length <= self.keys.shape[2]:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = _buffer(old, places_for(length))
            new[:, :, : self._slots.length] = old[:, :, : self._slots.length]
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._slots.length + query_length, 0

    def get_seq_length(self) -> int:
        return self._slots.length

    def get_max_length(self) -> int:
        return -1


class Slots(Cache):
    """The keys and values of a batch.

    Args:
        layers: how many layers the model has.
    """

    def __init__(self, layers: int) -> None:
        self.length = 0
        """S: ids whose keys and values count. Whoever ran new ids adds them, once the run came to its end."""
        super().__init__(layers=[_Layer(self) for _ in range(layers)])

    @staticmethod
    def layers_of(config: Any) -> int | None:
        """How many layers a model with this config has; None where keys and values alone aren't its memory."""
        layers = DynamicCache(config=config).layers
        fit = layers and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
        return len(layers) if fit else None

    @property
    def size_bytes(self) -> int:
        """Memory of the buffers."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers if layer.is_initialized)

    def prefix(self, length: int) -> Slots:
        """A copy of the first so many ids."""
        copy = Slots(len(self.layers))
        copy.length = length
        for mine, theirs in zip(self.layers, copy.layers, strict=True):
            if mine.is_initialized and length:
                theirs.keys, theirs.values = (
                    _buffer(states, places_for(length + 1)) for states in (mine.keys, mine.values)
                )
                theirs.keys[:, :, :length] = mine.keys[:, :, :length]
                theirs.values[:, :, :length] = mine.values[:, :, :length]
                theirs.is_initialized = True
        return copy

    def shared(self) -> Slots:
        """The same buffers under a length of their own."""
        other = Slots(len(self.layers))
        other.length = self.length
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            theirs.keys, theirs.values, theirs.is_initialized = mine.keys, mine.values, mine.is_initialized
        return other

    def make_room(self, length: int) -> None:
        """Lets the buffers grow so that so many ids fit."""
        for layer in self.layers:
            layer.grow(length)

    def select(self, places: Tensor) -> None:
        """Keeps these rows in this order; a row may come more than once. int64 [B']."""
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[places], layer.values[places]


def _buffer(like: Tensor, places: int) -> Tensor:
    """Zeros [B, K, L, C], for states [B, K, ·, C]: zeros, since what a mask leaves out is still multiplied."""
    return like.new_zeros(*like.shape[:2], places, like.shape[3])
