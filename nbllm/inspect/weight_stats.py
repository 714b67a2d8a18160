"""What a weight's numbers are like: mean, spread, ends, norm, zeros, numbers that are none, a histogram."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_BINS = 40


@dataclass(frozen=True, kw_only=True)
class WeightStats:
    """One tensor, over its finite numbers; quantised weights by their integers."""

    name: str
    """Its name in the model."""
    shape: tuple[int, ...]
    dtype: str
    mean: float
    std: float
    """Of the population, not of a sample."""
    low: float
    high: float
    norm: float
    """The square root of the sum of squares."""
    zeros: float
    """The share that is exactly 0."""
    not_finite: int
    """How many are NaN or infinite."""
    histogram: tuple[int, ...]
    """Counts in 40 equal bins from `low` to `high`."""


def weight_stats(name: str, weight: Tensor) -> WeightStats:
    """Looks at every number of a tensor, in float32 (float64 sums)."""
    values = weight.detach().float().flatten()
    finite = values[values.isfinite()]
    some = finite if len(finite) else torch.zeros(1)
    exact = some.double()
    low, high = float(some.min()), float(some.max())
    counts = torch.histc(some.cpu(), bins=_BINS, min=low, max=high if high > low else low + 1)
    return WeightStats(
        name=name,
        shape=tuple(weight.shape),
        dtype=str(weight.dtype).removeprefix("torch."),
        mean=float(exact.mean()),
        std=float(exact.std(correction=0)),
        low=low,
        high=high,
        norm=float(exact.norm()),
        zeros=float((values == 0).float().mean()) if len(values) else 0.0,
        not_finite=len(values) - len(finite),
        histogram=tuple(int(count) for count in counts.tolist()),
    )
