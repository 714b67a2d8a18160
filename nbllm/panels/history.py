"""What a panel knows of a run: its curves, thinned so that memory stays bounded, and the numbers of its header.

Fed with the events of a run's metrics file, in order; knows nothing of files, of widgets or of how a curve is drawn.

Thinning keeps extremes: once a curve holds `capacity` points, every four neighbours become their lowest and highest,
and points that come later are gathered in buckets of the same width, so that density stays even over the whole run
(min/max decimation, as in Steinarsson, "Downsampling Time Series for Visual Representation", 2013, section 3).
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

CAPACITY = 4096
FRESH_LIMIT = 2000
"""More new points than this in one message, and the whole, thinned, curve is the smaller message."""
_CHECKPOINTS_KEPT = 400
_SAMPLE_CHARACTERS = 2000
_SMOOTH_POINTS = 60
_WORDS = 40


def number(value: Any) -> float:
    """A float from a JSON number, or from "NaN", "Infinity", "-Infinity"; NaN for anything else."""
    if isinstance(value, bool) or value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


class Series:
    """One curve: points in the order of their steps, never more than `capacity` + 3.

    Args:
        keep: `extremes` for a noisy curve (lowest and highest of each bucket), `last` for a smooth one.
        capacity: most points held, a multiple of four.
    """

    def __init__(self, keep: Literal["extremes", "last"] = "extremes", capacity: int = CAPACITY) -> None:
        self.keep = keep
        self.capacity = capacity
        self.stride = 1
        """Points of the run that stand behind one kept point."""
        self._steps = array("d")
        self._values = array("d")
        self._bucket: list[tuple[float, float]] = []
        self._newest: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self.points()[0])

    def append(self, step: float, value: float) -> None:
        """Adds a point; a value that isn't finite is kept as NaN, which is drawn as a gap."""
        value = value if math.isfinite(value) else math.nan
        self._newest = step, value
        if self.stride == 1:
            self._push(step, value)
        else:
            self._bucket.append((step, value))
            if len(self._bucket) == 2 * self.stride:
                for point in self._thin(self._bucket):
                    self._push(*point)
                self._bucket.clear()
        if len(self._steps) >= self.capacity:
            self._halve()

    def truncate(self, step: float) -> None:
        """Drops every point after `step`."""
        keep = sum(1 for kept in self._steps if kept <= step)
        del self._steps[keep:], self._values[keep:]
        self._bucket = [point for point in self._bucket if point[0] <= step]
        if self._newest is not None and self._newest[0] > step:
            self._newest = None

    def points(self) -> tuple[array[float], array[float]]:
        """Steps and values, both float64, with the bucket being filled and the newest point at the end."""
        steps, values = self._steps[:], self._values[:]
        tail = self._thin(self._bucket)
        if self._newest is not None and self._newest[0] > (tail[-1][0] if tail else steps[-1]):
            tail.append(self._newest)
        for step, value in tail:
            steps.append(step)
            values.append(value)
        return steps, values

    def _push(self, step: float, value: float) -> None:
        self._steps.append(step)
        self._values.append(value)

    def _halve(self) -> None:
        points = list(zip(self._steps, self._values, strict=True))
        self._steps, self._values = array("d"), array("d")
        for start in range(0, len(points), 4):
            for point in self._thin(points[start : start + 4]):
                self._push(*point)
        self.stride *= 2

    def _thin(self, bucket: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """At most two points for a bucket, in order."""
        if len(bucket) <= 2:
            return list(bucket)
        if self.keep == "last":
            return [bucket[len(bucket) // 2 - 1], bucket[-1]]
        finite = [point for point in bucket if not math.isnan(point[1])]
        holes = [point for point in bucket if math.isnan(point[1])]
        chosen = holes[:1]  # a gap stays visible however far a curve is thinned
        if finite:
            chosen.append(max(finite, key=lambda point: point[1]))
            if not holes:
                chosen.append(min(finite, key=lambda point: point[1]))
        return sorted(set(chosen), key=lambda point: point[0])


class RunHistory:
    """The curves and header numbers of one run, from its events."""

    CURVES = ("loss", "smooth", "grad_norm", "lr", "eval_loss", "bits_per_byte")

    def __init__(self) -> None:
        self.curves: dict[str, Series] = {
            name: Series("last" if name in ("smooth", "lr") else "extremes") for name in self.CURVES
        }
        self.checkpoints: list[int] = []
        """Steps of the checkpoints written, oldest first; the newest few hundred."""
        self.happened: list[tuple[int, str]] = []
        """Step and a word or two for what happened besides: restarts, changes of the learning-rate factor, findings."""
        self.sample: tuple[int, str] | None = None
        """Step and text of what the model last said."""
        self.start: dict[str, Any] = {}
        """The newest `start` event: world size, wrapper, precision, device, total steps."""
        self.last: dict[str, Any] = {}
        """The newest `step` event."""
        self.first_bad_step: int | None = None
        """The first step whose loss isn't finite."""
        self._fresh: dict[str, list[tuple[float, float]]] = {name: [] for name in self.CURVES}
        self._rebuilt = False
        self._pace: deque[tuple[float, float]] = deque(maxlen=60)
        self._averages = (math.nan, math.nan)
        self._steps_seen = 0
        self._factor = 1.0

    @property
    def step(self) -> int:
        """The newest step, 0 before the first."""
        return int(self.last.get("step", self.start.get("step", 0)) or 0)

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes in one event; kinds it doesn't know are passed over."""
        kind = event.get("kind")
        step = number(event.get("step"))
        if kind == "start":
            self._restart(event, 0.0 if math.isnan(step) else step)
        elif math.isnan(step):
            return
        elif kind == "step":
            self._add_step(event, step)
        elif kind == "eval":
            self._point("eval_loss", step, number(event.get("eval_loss")))
            self._point("bits_per_byte", step, number(event.get("bits_per_byte")))
        elif kind == "checkpoint":
            if int(step) not in self.checkpoints:
                self.checkpoints = [*self.checkpoints, int(step)][-_CHECKPOINTS_KEPT:]
        elif kind == "finding":
            self._note(step, str(event.get("title", "finding")))
        elif kind == "sample":
            self.sample = int(step), str(event.get("text", ""))[:_SAMPLE_CHARACTERS]

    def latest(self, name: str) -> float | None:
        """The newest value of a curve where it is finite, else None."""
        values = self.curves[name].points()[1]
        return values[-1] if values and math.isfinite(values[-1]) else None

    def best(self, name: str) -> float | None:
        """The lowest finite value of a curve, or None."""
        return min((value for value in self.curves[name].points()[1] if math.isfinite(value)), default=None)

    def seconds_a_step(self) -> float | None:
        """Pace over the last sixty steps, in seconds of training time, or None where it isn't known yet."""
        if len(self._pace) < 2:
            return None
        (first_step, first_s), (last_step, last_s) = self._pace[0], self._pace[-1]
        return (last_s - first_s) / (last_step - first_step) if last_step > first_step and last_s > first_s else None

    def take_fresh(self) -> dict[str, tuple[array[float], array[float]]] | None:
        """The points that came since the last call, by curve; None where the whole must be sent again.

        That is so after a restart, which drops points, and where so many came that the thinned whole is smaller.
        """
        fresh, rebuilt = self._fresh, self._rebuilt
        self._fresh, self._rebuilt = {name: [] for name in self.CURVES}, False
        if rebuilt or max(len(points) for points in fresh.values()) > FRESH_LIMIT:
            return None
        return {
            name: (array("d", [step for step, _ in points]), array("d", [value for _, value in points]))
            for name, points in fresh.items()
            if points
        }

    def _restart(self, event: Mapping[str, Any], step: float) -> None:
        if self._steps_seen:
            for curve in self.curves.values():
                curve.truncate(step)
            self.checkpoints = [kept for kept in self.checkpoints if kept <= step]
            if self.sample and self.sample[0] > step:
                self.sample = None
            if self.first_bad_step is not None and self.first_bad_step > step:
                self.first_bad_step = None
            self.happened = [(at, what) for at, what in self.happened if at <= step]
            self._note(step, "restart")
            self.last = {**self.last, "step": int(step)}
            smooth = self.latest("smooth")
            self._averages = (smooth, smooth) if smooth is not None else (math.nan, math.nan)
            self._rebuilt = True
        self._pace.clear()
        self.start = dict(event)

    def _add_step(self, event: Mapping[str, Any], step: float) -> None:
        self.last = dict(event)
        self._steps_seen += 1
        factor = number(event.get("lr_factor", 1.0))
        if factor != self._factor:
            self._factor = factor
            self._note(step, f"rate × {factor:g}")
        loss = number(event.get("loss"))
        if math.isfinite(loss):
            # the window grows with the run, so that the steep beginning isn't dragged and the long end is calm
            window = min(self._steps_seen, 8 + 0.1 * self._steps_seen, _SMOOTH_POINTS)
            self._smooth(loss, weight=2.0 / (window + 1.0))
        elif self.first_bad_step is None:
            self.first_bad_step = int(step)
        self._point("loss", step, loss)
        once, twice = self._averages
        self._point("smooth", step, 2 * once - twice if math.isfinite(loss) else math.nan)
        self._point("grad_norm", step, number(event.get("grad_norm")))
        self._point("lr", step, number(event.get("lr")))
        seconds = number(event.get("seconds"))
        if math.isfinite(seconds):
            self._pace.append((step, seconds))

    def _note(self, step: float, what: str) -> None:
        self.happened = [*self.happened, (int(step), what[:_WORDS])][-_CHECKPOINTS_KEPT:]

    def _smooth(self, loss: float, *, weight: float) -> None:
        """The double exponential moving average, which doesn't lag behind a slope.

        Mulloy, "Smoothing Data with Faster Moving Averages", Technical Analysis of Stocks & Commodities 12:1, 1994.
        """
        once, twice = self._averages
        once = loss if math.isnan(once) else once + weight * (loss - once)
        twice = once if math.isnan(twice) else twice + weight * (once - twice)
        self._averages = once, twice

    def _point(self, name: str, step: float, value: float) -> None:
        self.curves[name].append(step, value)
        points = self._fresh[name]
        if len(points) <= FRESH_LIMIT:  # beyond that the whole is sent, and the rest needn't be kept
            points.append((step, value))
