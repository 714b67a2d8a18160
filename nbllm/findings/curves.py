"""A run's log as curves: what rules look at. Fed with the events of `metrics.jsonl`, in order; draws nothing.

A run that was started again drops what the older generation did after the step that it goes on from.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbllm.findings.line import Line

Floats = NDArray[np.float64]
_FIELDS = (
    "loss", "lr", "grad_norm", "tokens", "seconds", "tokens_per_s", "memory_bytes", "memory_free_bytes", "data_s",
    "other_s", "scale", "skipped",
)  # fmt: skip
_SMALLEST_WINDOW = 10


class Curves:
    """Every step of a run by name of what was measured; NaN where it wasn't.

    Args:
        config: the run's `config.json`.
        call: what its manifest keeps of how it was asked for.
        name: the run's.
    """

    def __init__(self, config: Mapping[str, Any], call: Mapping[str, Any] | None = None, *, name: str = "") -> None:
        self.config = config
        self.name = name
        self.line = Line(call or {}, config)
        self.start: dict[str, Any] = {}
        """The newest `start` event."""
        self.end: dict[str, Any] | None = None
        """The `end` event."""
        self.structure: dict[str, Any] = {}
        """What the `structure` event says of the model's parts."""
        self.nowhere: dict[int, dict[str, Any]] = {}
        """By step: where the first number that isn't finite came from, of `nonfinite` events."""
        self.said: dict[str, dict[str, Any]] = {}
        """By title: the newest `finding` event."""
        self._step = array("d")
        self._values: dict[str, array[float]] = {name: array("d") for name in _FIELDS}
        self._evals: list[tuple[int, float]] = []

    def __len__(self) -> int:
        return len(self._step)

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes in one event; kinds that it doesn't know are passed over."""
        kind, step = event.get("kind"), event.get("step", 0)
        if kind == "start":
            if self.start:
                self._go_back(int(step))
            self.start, self.end = dict(event), None
        elif kind == "step":
            self._step.append(float(step))
            for name, values in self._values.items():
                values.append(_number(event.get(name)))
        elif kind == "eval":
            self._evals.append((int(step), _number(event.get("eval_loss"))))
        elif kind == "structure":
            self.structure = dict(event)
        elif kind == "nonfinite":
            self.nowhere[int(step)] = dict(event)
        elif kind == "finding":
            self.said[str(event.get("title"))] = dict(event)
        elif kind == "end":
            self.end = dict(event)

    def extend(self, events: Iterable[Mapping[str, Any]]) -> Curves:
        """Takes in several events; returns itself."""
        for event in events:
            self.add(event)
        return self

    @property
    def steps(self) -> NDArray[np.int64]:
        """The steps that were taken, int64 [N]."""
        return np.array(self._step).astype(np.int64)

    def of(self, name: str) -> Floats:
        """A curve, float64 [N]; `loss` in nats a target, times in seconds."""
        return np.array(self._values[name])

    @property
    def evals(self) -> list[tuple[int, float]]:
        """Step and held-out loss of every evaluation."""
        return [(step, loss) for step, loss in self._evals if math.isfinite(loss)]

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.end is not None

    @property
    def peak_lr(self) -> float:
        """The learning rate that the schedule goes up to; 0 where nothing says."""
        named = _number(self.start.get("lr"))
        return named if math.isfinite(named) else float(np.nanmax(self.of("lr"), initial=0.0))

    @property
    def warm(self) -> int | None:
        """Index of the first step that took the full learning rate; None: there was none yet."""
        reached = np.flatnonzero(self.of("lr") >= 0.99 * self.peak_lr) if self.peak_lr else np.array([])
        return int(reached[0]) if len(reached) else None

    def _go_back(self, step: int) -> None:
        kept = int(np.searchsorted(np.array(self._step), step, side="right"))
        del self._step[kept:]
        for values in self._values.values():
            del values[kept:]
        self._evals = [one for one in self._evals if one[0] <= step]
        self.nowhere = {at: event for at, event in self.nowhere.items() if at <= step}
        self.said = {name: event for name, event in self.said.items() if event.get("step", 0) <= step}


def window(count: int) -> int:
    """Steps over which a run of `count` is smoothed: a twentieth, at least ten."""
    return max(_SMALLEST_WINDOW, count // 20)


def medians(values: Floats, width: int) -> Floats:
    """Medians of neighbouring blocks of `width` values; the last block ends with the last value."""
    count = len(values) // width
    return np.median(values[len(values) - count * width :].reshape(count, width), axis=1)


def noise(values: Floats) -> float:
    """By how much values swing from one to the next, as a standard deviation: of their differences, by the median
    absolute deviation (1.4826 makes it that of a normal distribution), over the root of two."""
    steps = np.diff(values)
    return float(1.4826 * np.median(np.abs(steps - np.median(steps))) / math.sqrt(2)) if len(steps) else 0.0


def _number(value: object) -> float:
    if isinstance(value, bool):
        return float(value)
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
