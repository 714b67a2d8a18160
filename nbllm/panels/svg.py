"""A loss chart as inline SVG, for the static face that stays in a saved notebook.

Colours are given twice, as attributes and as style variables: a code host that removes styles still shows the chart.
Knows points only, nothing of runs.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 660, 226
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 16, 20
_MOST_POINTS = 300
MANY_MARKS = 8
"""More marks than this are short, so that they don't fence the curve in."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One curve, or one set of dots, of a chart."""

    steps: Sequence[float]
    values: Sequence[float]
    """As many as steps; NaN is a gap."""
    colour: str
    """A colour for light paper, as #rrggbb."""
    variable: str
    """The style variable that takes the colour's place where there is a style sheet."""
    width: float = 2.0
    opacity: float = 1.0
    dots: bool = False


def ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Round values between two numbers: multiples of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return []
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [index * step + 0.0 for index in range(first, math.floor(high / step + 1e-9) + 1)]


def right_end(step: float, total: float | None) -> float:
    """Where the axis ends: the run's end, halved until the curve fills at least a fifth or so of the width."""
    end = total or step
    while end / 2 > max(step * 1.1, 20):
        end /= 2
    return max(end, step)


def limits(layers: Sequence[Layer]) -> tuple[float, float]:
    """The lowest and highest value to show, with a little room; spikes beyond the 99th hundredth don't set it."""
    values = sorted(value for layer in layers for value in layer.values if math.isfinite(value))
    if not values:
        return 0.0, 1.0
    low, high = values[0], values[min(len(values) - 1, math.ceil(len(values) * 0.995) - 1)]
    room = (high - low) * 0.06 or max(abs(low) * 0.05, 0.05)
    return low - room, high + room


def chart(layers: Sequence[Layer], *, last_step: float, marks: Sequence[float] = (), label: str) -> str:
    """An `<svg>` element.

    Args:
        layers: curves and dots, drawn in order.
        last_step: the right end of the axis.
        marks: steps to mark with a thin line, such as checkpoints.
        label: what a screen reader says.
    """
    low, high = limits(layers)
    last_step = max(last_step, 1.0)

    def x(step: float) -> float:
        return _LEFT + step / last_step * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        shown = min(max(value, low), high)
        return _TOP + (high - shown) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img"',
        f' aria-label="{html.escape(label)}" style="width:100%;max-width:780px;height:auto"',
        ' font-size="11">',
    ]
    drawn = any(math.isfinite(value) for layer in layers for value in layer.values)
    values = ticks(low, high) if drawn else []
    digits = max(0, -math.floor(math.log10(values[1] - values[0]) + 1e-9)) if len(values) > 1 else 1
    for value in values:
        parts.append(
            f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="#dfe3e8" '
            f'style="stroke:var(--nb-line,#dfe3e8)"/>'
            f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#666" '
            f'style="fill:var(--nb-fg2,#666)">{value:.{digits}f}</text>'
        )
    steps = [step for step in ticks(0, last_step, 6) if step == int(step)]
    for index, step in enumerate(steps):
        anchor = "start" if index == 0 else "end" if x(step) > _WIDTH - 30 else "middle"
        parts.append(
            f'<text x="{x(step):.1f}" y="{_HEIGHT - 4}" text-anchor="{anchor}" fill="#666" '
            f'style="fill:var(--nb-fg2,#666)">{step:,.0f}</text>'
        )
    foot = _HEIGHT - _BOTTOM if len(marks) <= MANY_MARKS else _TOP
    for step in marks:
        parts.append(
            f'<path d="M{x(step):.1f} {_TOP - 10}V{foot}" stroke="#666" opacity="0.5" '
            f'style="stroke:var(--nb-fg2,#666)"/>'
        )
    parts.extend(_layer(layer, x, y) for layer in layers)
    parts.append("</svg>")
    return "".join(parts)


def _layer(layer: Layer, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    colour = f'style="{"fill" if layer.dots else "stroke"}:var({layer.variable},{layer.colour})"'
    points = list(zip(layer.steps, layer.values, strict=True))
    if layer.dots:
        return "".join(
            f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="3.5" fill="{layer.colour}" {colour}/>'
            for step, value in points[:: max(1, len(points) // 60)]
            if math.isfinite(value)
        )
    path, pen_down = [], False
    for step, value in _thinned(points):
        if not math.isfinite(value):
            pen_down = False
            continue
        path.append(f"{'L' if pen_down else 'M'}{x(step):.1f} {y(value):.1f}")
        pen_down = True
    return (
        f'<path d="{"".join(path)}" fill="none" stroke="{layer.colour}" stroke-width="{layer.width}" '
        f'opacity="{layer.opacity}" stroke-linejoin="round" {colour}/>'
    )


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lowest and highest of each bucket, with one gap where a bucket holds one; the last point stays."""
    if len(points) <= _MOST_POINTS:
        return points
    width = math.ceil(2 * len(points) / _MOST_POINTS)
    kept = []
    for start in range(0, len(points), width):
        bucket = points[start : start + width]
        finite = [point for point in bucket if math.isfinite(point[1])]
        chosen = [point for point in bucket if not math.isfinite(point[1])][:1]
        if finite:
            chosen += [min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])]
        kept += sorted(set(chosen), key=lambda point: point[0])
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]
