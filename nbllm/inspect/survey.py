"""One look over all maps of a text: every head small, and its scores; never more than a few queries' rows at once.

A map is made in strips of queries that fit a processor's cache, each only as far as its queries see (half of a causal
map isn't computed), and a strip is summed up before the next is made. Knows layers' queries and keys; draws nothing.

Legend: L layers, H query heads, K key/value heads, T tokens, S a thumbnail's side, q queries and k keys of a strip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nbllm.inspect.capture import Layer
from nbllm.inspect.head_scores import KINDS, Patterns

_WEIGHTS = 2**20
"""Weights at once: 4 MiB in float32."""


@dataclass(frozen=True, kw_only=True)
class _Strip:
    """Queries that are looked at together, and how far they see."""

    rows: slice
    keys: slice
    """Every key that one of them sees."""
    masked: slice | None
    """Among `keys`, in whose columns the mask says anything; None: nowhere."""


def survey(
    layers: Sequence[Layer], ids: Sequence[int], size: int | None, *, scores: bool = True
) -> tuple[NDArray[np.uint8] | None, Tensor | None]:
    """Goes once over all maps.

    Args:
        layers: L layers of a text.
        ids: its T tokens.
        size: S; None: no thumbnails.
        scores: whether to score the heads.

    Returns:
        Thumbnails uint8 [L, H, S, S], the largest weight of each block against the head's largest; and float32
        [L, H, 6], the scores of `head_scores`, entropy in nats and distance in tokens. NaN and 0 where a layer has
        fewer heads.
    """
    heads, count = max(layer.heads for layer in layers), len(ids)
    small = np.zeros((len(layers), heads, size, size), dtype=np.uint8) if size else None
    found = torch.full((len(layers), heads, len(KINDS) + 2), torch.nan) if scores else None
    patterns = Patterns(ids) if scores else None
    # a thumbnail's row is the largest of so many queries; where there are few tokens, one is repeated instead
    edges = [count * at // size for at in range(size + 1)] if size and count > size else list(range(count + 1))
    strips: dict[int, list[_Strip]] = {}
    for at, layer in enumerate(layers):
        key = 0 if layer.mask is None else id(layer.mask)
        if key not in strips:
            strips[key] = _strips(layer.mask, edges, max(1, _WEIGHTS // (layer.heads * count)))
        pooled = torch.zeros(layer.heads, len(edges) - 1, count)
        total = torch.zeros(layer.heads, len(KINDS) + 2)
        begin = 0
        for strip in strips[key]:
            weights, entropies = _weights(layer, strip)
            if small is not None:
                begin = _pool(weights, strip, edges, begin, pooled)
            if patterns is not None:
                total += patterns.scores(weights, entropies, strip.rows, strip.keys)
        if small is not None and size:
            small[at, : layer.heads] = _shrunk(pooled.numpy(), edges, size)
        if found is not None:
            found[at, : layer.heads] = total
    return small, found


def _strips(mask: Tensor | None, edges: Sequence[int], most: int) -> list[_Strip]:
    """Whole rows of a thumbnail, together at most so many queries where that can be."""
    found, count, begin = [], edges[-1], 0
    for end, following in zip(edges[1:], [*edges[2:], edges[-1] + most + 1], strict=True):
        if following - begin <= most:
            continue
        rows, keys, masked = slice(begin, end), slice(0, count), None
        if mask is not None:
            part = mask[..., rows, :].reshape(-1, end - begin, count)
            seen = part > torch.finfo(mask.dtype).min / 2
            if bool(seen.any(-1).all()):  # a query that sees nothing spreads over everything
                keys = _span(seen.any(0).any(0)) or keys
            masked = _span((part != 0).any(0).any(0), keys)
        found.append(_Strip(rows=rows, keys=keys, masked=masked))
        begin = end
    return found


def _span(true: Tensor, within: slice = slice(None)) -> slice | None:
    """From the first to the last place that is true; None where none is."""
    places = true[within].nonzero() + (within.start or 0)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else None


def _weights(layer: Layer, strip: _Strip) -> tuple[Tensor, Tensor]:
    """A strip of every head's map, float32 [H, q, k], and its queries' entropies added up, float32 [H]."""
    scores = layer.scores(range(layer.heads), strip.rows, strip.keys, strip.masked)
    top = scores.amax(-1, keepdim=True)
    sinks = None if layer.sinks is None else layer.sinks.float()[:, None, None]
    if sinks is not None:
        top = torch.maximum(top, sinks)
    scores -= top
    weights = scores.exp()
    total = weights.sum(-1, keepdim=True)
    share = torch.ones(())
    if sinks is not None:
        share = total / (total + (sinks - top).exp())
        total = total / share
    weights /= total
    # of a row: -sum w log w = (sum w) log(total) - sum w (score - top)
    entropies = (share * total.log()).sum((1, 2))
    entropies -= torch.stack([one.dot(other) for one, other in zip(weights.flatten(1), scores.flatten(1), strict=True)])
    return weights, entropies


def _pool(weights: Tensor, strip: _Strip, edges: Sequence[int], begin: int, pooled: Tensor) -> int:
    """Each column's largest weight within a thumbnail's row, for the rows of a strip; returns the next row."""
    at = begin
    while at < len(edges) - 1 and edges[at] < strip.rows.stop:
        part = weights[:, edges[at] - strip.rows.start : edges[at + 1] - strip.rows.start]
        pooled[:, at, strip.keys] = part.amax(1)
        at += 1
    return at


def _shrunk(pooled: NDArray[np.float32], edges: Sequence[int], size: int) -> NDArray[np.uint8]:
    """Largest weights by a thumbnail's row and column, [H, ., T], as uint8 [H, S, S] against each head's largest."""
    count = edges[-1]
    if count > size:
        small = np.maximum.reduceat(pooled, edges[:-1], axis=2)
    else:
        places = np.arange(size) * count // size
        small = pooled[:, places][:, :, places]
    largest = small.max(axis=(1, 2), keepdims=True).clip(min=1e-30)
    scaled: NDArray[np.uint8] = (255 * small / largest).round().astype(np.uint8)
    return scaled
