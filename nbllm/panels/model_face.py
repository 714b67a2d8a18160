"""The static face of a model's picture: the drawing, the chosen part's weights, the shapes of every part.

HTML that needs no kernel and no script; a part of the list opens by click or keyboard. Knows a summary as an object
with `before`, `layers`, `after` and `tree`. All text from data is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from nbllm.panels import text
from nbllm.panels.face import table
from nbllm.panels.model_drawing import STYLE as DRAWING
from nbllm.panels.model_drawing import draw, svg

STYLE = DRAWING + (
    ".nbllm-model details{border-left:4px solid var(--c,var(--nb-line));margin:0 0 3px;padding:0 8px}"
    ".nbllm-model summary{cursor:pointer}"
    ".nbllm-model-weight{margin-top:8px;overflow-wrap:anywhere}"
    ".nbllm-model-weight svg{display:block;width:200px;height:40px;margin-top:2px}"
    ".nbllm-model-weight svg path{fill:var(--nb-s1)}"
    ".nbllm-model td:first-child{text-align:left;overflow-wrap:anywhere}"
)
"""Rules of the picture, the list of parts and the weights, in the face and in the widget."""
_MOST_SHAPES = 24
_MOST_ROWS = 400


def as_html(summary: Any, chosen: str | None = None, layer: int | None = None, stats: Sequence[Any] = ()) -> str:
    """The picture, a chosen part's weights, and every part's shapes; the tree of a model that couldn't be read.

    Args:
        summary: the architecture.
        chosen: the id of the part that was clicked.
        layer: which layer's weights `stats` are of.
        stats: statistics of its weights.
    """
    if summary.layers:
        picture = svg(draw(summary, cost, layers_label), f"architecture of {summary.model}", chosen)
        parts = [*summary.before, *(part for group in summary.layers for part in group.parts), *summary.after]
        listed = "".join(map(_part, parts))
        weights = _weights(summary.part(chosen), layer, stats) if chosen and stats else ""
        body = (
            f"{picture}{weights}<details class='nbllm-table'><summary>shapes of all parts</summary>{listed}</details>"
        )
    else:
        rows = [[name, kind, text.count(count)] for name, kind, count in summary.tree[:_MOST_ROWS]]
        body = table(["module", "class", "parameters"], rows, "modules: this model has no layers that could be read")
    return (
        f'<style>{STYLE}</style><div class="nbllm-head"><strong>Model</strong><span class="nbllm-chip">'
        f'{html.escape(summary.model)}</span><span class="nbllm-dim">{html.escape(facts(summary))}</span></div>'
        f'<div class="nbllm-body"><div class="nbllm-model">{body}</div></div>'
    )


def as_text(summary: Any, stats: Sequence[Any] = ()) -> str:
    """The same in plain text; behind the parts the statistics of the chosen one's weights."""
    lines = [f"{summary.model}: {facts(summary)}"]
    lines += [f"  {_line(part)}" for part in summary.before]
    for group in summary.layers:
        lines += [f"  {layers_label(group)}", *(f"    {_line(part)}" for part in group.parts)]
    lines += [f"  {_line(part)}" for part in summary.after]
    if not summary.layers:
        lines += [f"  {name}  {kind}  {text.count(count)}" for name, kind, count in summary.tree[:_MOST_ROWS]]
    lines += [f"  {one.name}: {' · '.join(weight_lines(one))}" for one in stats]
    return "\n".join(lines)


def facts(summary: Any) -> str:
    """The numbers that matter, in one line."""
    flops = f" · {_flops(summary.flops)} a token at {text.count(summary.tokens)} tokens" if summary.layers else ""
    return f"{summary.kind} · {text.count(summary.parameters)} parameters · {text.size(summary.size_bytes)}{flops}"


def layers_label(group: Any) -> str:
    """Layers that are alike, by their numbers."""
    numbers = list(group.numbers)
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    named = f"{numbers[0]} to {numbers[-1]}" if whole and len(numbers) > 1 else ", ".join(map(str, numbers))
    return f"{len(numbers)} × layer ({named})" if len(numbers) > 1 else f"layer {named}"


def _line(part: Any) -> str:
    return " · ".join([part.title, *part.facts, cost(part)])


def cost(part: Any) -> str:
    """What a part costs: parameters, memory, FLOPs a token."""
    size = text.size(part.size_bytes) if part.size_bytes >= 1000 else f"{part.size_bytes} bytes"
    costs = [f"{text.count(part.parameters)} parameters", size]
    return " · ".join([*costs, *([_flops(part.flops)] if part.flops else [])])


def weight_lines(stats: Any) -> list[str]:
    """A weight's statistics in words and numbers."""
    lines = [
        f"{' × '.join(map(str, stats.shape))} {stats.dtype}",
        f"mean {stats.mean:.3g} · std {stats.std:.3g} · norm {stats.norm:.4g}",
        f"from {stats.low:.3g} to {stats.high:.3g} · {stats.zeros:.1%} zeros",
    ]
    return lines + ([f"{text.count(stats.not_finite)} are NaN or infinite"] if stats.not_finite else [])


def histogram(stats: Any) -> str:
    """A weight's histogram as the path of an SVG element of 200 by 40, its ends at the smallest and largest number."""
    most = max(stats.histogram) or 1
    width = 200 / len(stats.histogram)
    bars = [
        f"M{at * width:.4g} 40v-{38 * (count / most) ** 0.5:.3g}h{width * 0.85:.3g}V40z"
        for at, count in enumerate(stats.histogram)
        if count
    ]
    return "".join(bars)


def _weights(part: Any, layer: int | None, stats: Sequence[Any]) -> str:
    where = f" of layer {layer}" if layer is not None else ""
    rows = "".join(
        f'<div class="nbllm-model-weight"><span class="nbllm-mono">{html.escape(one.name)}</span>'
        f'<svg viewBox="0 0 200 40" role="img" aria-label="histogram"><path d="{histogram(one)}"/></svg>'
        + "".join(f'<div class="nbllm-dim">{html.escape(line)}</div>' for line in weight_lines(one))
        + "</div>"
        for one in stats
    )
    return (
        f'<div class="nbllm-label">weights of {html.escape(part.title + where)}; bars by the root of counts</div>{rows}'
    )


def _flops(count: int) -> str:
    for unit, scale in (("TFLOPs", 1e12), ("GFLOPs", 1e9), ("MFLOPs", 1e6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{text.count(count / 1e3)} kFLOPs"


def _part(part: Any) -> str:
    rows = "".join(
        f'<tr><td class="nbllm-mono">{html.escape(name)}</td><td>{" × ".join(map(str, shape))}</td>'
        f"<td>{html.escape(dtype)}</td></tr>"
        for name, shape, dtype in part.shapes[:_MOST_SHAPES]
    )
    more = len(part.shapes) - _MOST_SHAPES
    rows += f"<tr><td>… and {more} more</td></tr>" if more > 0 else ""
    title = html.escape(" · ".join([part.title, *part.facts, cost(part)]))
    return (
        f'<details class="{html.escape(part.kind)}"><summary>{title}</summary>'
        f'<div class="nbllm-table"><table><tbody>{rows}</tbody></table></div></details>'
    )
