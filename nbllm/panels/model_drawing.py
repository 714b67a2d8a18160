"""A model's architecture as a drawing: boxes in the order they run, hung on the residual stream as the summary read it.

The stream is the line at the left. A part that the stream passes sits on it; a branch leaves it, goes through its parts
and comes back to a plus. An attention box shows its query heads in groups over the key/value head that they share.
Makes shapes only: `svg` writes them for a static page, `model.js` makes the same elements; knows summaries as objects.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH = 620
_STREAM, _LEFT, _RIGHT = 34, 78, 580
_LANE = 600
_IN = 16
"""From a box's left edge to the line below it."""
_GAP, _LINE, _CHARACTER = 14, 16, 6.4
_MOST_HEADS = 96

STYLE = (
    ".nbllm-model svg{display:block;width:100%;max-width:620px;height:auto;font-size:12px}"
    ".nbllm-model svg .box{fill:var(--nb-bg2);stroke:var(--nb-line)}"
    ".nbllm-model svg .bar{fill:var(--c,var(--nb-fg2))}"
    ".nbllm-model svg .line{fill:none;stroke:var(--nb-fg2);stroke-width:1.5}"
    ".nbllm-model svg .turn{fill:none;stroke:var(--nb-s4);stroke-dasharray:3 3}"
    ".nbllm-model svg .unknown{stroke-dasharray:2 4}"
    ".nbllm-model svg .frame{fill:none;stroke:var(--nb-fg2);opacity:.6}"
    ".nbllm-model svg .plus{fill:var(--nb-bg);stroke:var(--nb-fg2);stroke-width:1.5}"
    ".nbllm-model svg .dot{fill:var(--nb-fg2)}"
    ".nbllm-model svg .query{fill:var(--nb-s1)}.nbllm-model svg .key{fill:var(--nb-s3)}"
    ".nbllm-model svg text{fill:var(--nb-fg)}.nbllm-model svg text.dim{fill:var(--nb-fg2)}"
    ".nbllm-model svg text.title{font-weight:600}"
    ".nbllm-model .attention{--c:var(--nb-s1)}.nbllm-model .feed_forward{--c:var(--nb-s2)}"
    ".nbllm-model .embedding,.nbllm-model .head{--c:var(--nb-s3)}.nbllm-model .positions{--c:var(--nb-s4)}"
    ".nbllm-model svg .part[role]{cursor:pointer;outline:none}"
    ".nbllm-model svg .part[role]:hover .box{stroke:var(--nb-accent)}"
    ".nbllm-model svg .part[role]:focus-visible .box{stroke:var(--nb-accent);stroke-width:2.5}"
    ".nbllm-model svg .part.chosen .box{stroke:var(--nb-accent);stroke-width:2;fill:var(--nb-chip)}"
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One SVG element."""

    tag: str
    attributes: dict[str, str | float]
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Elements that belong together; those of a part can be chosen."""

    shapes: list[Shape]
    part: str | None = None
    """The part's id."""
    kind: str = ""
    label: str = ""
    """What a screen reader says."""


@dataclass(kw_only=True)
class Drawing:
    """The whole picture: `WIDTH` wide."""

    height: float = 0
    groups: list[Group] = field(default_factory=list)
    lines: list[Shape] = field(default_factory=list)
    """Drawn below the groups."""


def draw(summary: Any, cost: Any, layers: Any) -> Drawing:
    """The picture of a summary that has layers.

    Args:
        summary: the architecture.
        cost: what to write about a part's size, as a function of the part.
        layers: what to write over layers that are alike, as a function of them.
    """
    return _Pen(summary, cost, layers).drawing


def svg(drawing: Drawing, label: str, chosen: str | None = None) -> str:
    """The picture as an `<svg>` element, all text escaped.

    Args:
        drawing: what to draw.
        label: what a screen reader says.
        chosen: the part to mark.
    """
    parts = [f'<svg viewBox="0 0 {WIDTH} {drawing.height:g}" role="img" aria-label="{html.escape(label)}">']
    parts += map(_written, drawing.lines)
    for group in drawing.groups:
        mark = " chosen" if group.part == chosen and chosen else ""
        name = f"part {group.kind}{mark}" if group.part else ""
        title = f"<title>{html.escape(group.label)}</title>" if group.label else ""
        parts.append(f'<g class="{html.escape(name)}">{title}{"".join(map(_written, group.shapes))}</g>')
    return "".join([*parts, "</svg>"])


def as_message(drawing: Drawing) -> dict[str, Any]:
    """The picture for the page: numbers and strings."""
    return {
        "width": WIDTH,
        "height": drawing.height,
        "lines": [[shape.tag, shape.attributes, shape.text] for shape in drawing.lines],
        "groups": [
            {
                "part": group.part,
                "kind": group.kind,
                "label": group.label,
                "shapes": [[shape.tag, shape.attributes, shape.text] for shape in group.shapes],
            }
            for group in drawing.groups
        ],
    }


def _written(shape: Shape) -> str:
    attributes = "".join(
        f' {name}="{html.escape(f"{value:g}" if isinstance(value, float) else str(value))}"'
        for name, value in shape.attributes.items()
    )
    return f"<{shape.tag}{attributes}>{html.escape(shape.text)}</{shape.tag}>"


def _path(d: str, kind: str) -> Shape:
    return Shape(tag="path", attributes={"d": d, "class": kind})


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> Shape:
    return Shape(tag="text", attributes={"x": x, "y": y, "class": kind, "text-anchor": anchor}, text=text)


def _rect(x: float, y: float, width: float, height: float, kind: str, radius: float = 4) -> Shape:
    place: dict[str, str | float] = {"x": round(x, 1), "y": round(y, 1), "width": round(width, 1), "height": height}
    return Shape(tag="rect", attributes={**place, "rx": radius, "class": kind})


class _Pen:
    """Draws from the top down; `y` is where the next thing begins."""

    def __init__(self, summary: Any, cost: Any, layers: Any) -> None:
        self.drawing = Drawing()
        self.cost = cost
        self.y: float = 22
        self._lane: float | None = None
        self._line(_text(_STREAM - 20, 12, "token ids", "dim"))
        before = [part for part in summary.before if not self._turns(part)]
        count = next((at for at, part in enumerate(before) if part.kind not in ("embedding", "positions")), len(before))
        first = before[:count]
        if summary.embeddings_added:
            self._side_by_side([[part] for part in first], entered=False)
        else:
            for part in first:
                self._on_stream(part)
        for part in before[count:]:
            self._on_stream(part)
        for part in summary.before:
            if self._turns(part):
                top = self.y
                self._box(part, _LEFT, _RIGHT, tail="")
                self._line(_path(f"M{_STREAM} {top}V{self.y}", "line"))
                self._lane = top + 20
        for group in summary.layers:
            self._layers(group, layers(group))
        for part in summary.after:
            self._on_stream(part)
        self._line(_path(f"M{_STREAM} {self.y}V{self.y + 14}m-4 -6l4 6l4 -6", "line"))
        self._line(_text(_STREAM + 12, self.y + 14, "a score for each token that may come", "dim"))
        self.drawing.height = self.y + 22

    def _turns(self, part: Any) -> bool:
        return part.kind == "positions" and not part.parameters

    def _line(self, shape: Shape) -> None:
        self.drawing.lines.append(shape)

    def _layers(self, group: Any, label: str) -> None:
        top = self.y + 4
        self._line(_path(f"M{_STREAM} {self.y}V{top + 34}", "line"))
        self.drawing.groups.append(Group(shapes=[_text(_LEFT, top + 20, label, "dim")]))
        self.y = top + 34
        if not group.steps:
            self._line(_text(_LEFT, self.y + 6, "how these add to the residual stream couldn't be read", "dim"))
            self.y += _GAP
            for part in group.parts:
                self._on_stream(part, kind="line unknown")
        for step in group.steps:
            for place in step.through:
                self._on_stream(group.parts[place])
            if step.branches:
                shared = [group.parts[place] for place in step.shared]
                branches = [[group.parts[place] for place in branch] for branch in step.branches]
                self._branches(shared, branches, step.scale)
        self._line(_rect(6, top, WIDTH - 8 - 6, self.y - top + 4, "frame", 8))
        self._line(_path(f"M{_STREAM} {self.y}V{self.y + _GAP}", "line"))
        self.y += _GAP

    def _on_stream(self, part: Any, kind: str = "line") -> None:
        """A box that the stream passes."""
        self._box(part, _STREAM - _IN, _RIGHT, tail=kind)

    def _branches(self, shared: list[Any], branches: list[list[Any]], scale: float) -> None:
        begin = self.y + 4
        self._line(Shape(tag="circle", attributes={"cx": _STREAM, "cy": begin, "r": 2.5, "class": "dot"}))
        self.y = begin - 8
        for part in shared:
            self._box(part, _LEFT, _RIGHT)
        if len(branches) == 1:
            for part in branches[0]:
                self._box(part, _LEFT, _RIGHT)
            self._line(_path(f"M{_STREAM} {begin}H{_LEFT}m-6 -4l6 4l-6 4", "line"))
        else:
            if shared:
                self._line(_path(f"M{_STREAM} {begin}H{_LEFT}m-6 -4l6 4l-6 4", "line"))
            self._side_by_side(branches, entered=not shared, stream=False)
        end = self.y
        self._line(_path(f"M{_LEFT + _IN} {end}H{_STREAM + 8}m6 -4l-6 4l6 4", "line"))
        if scale != 1:
            self._line(_text(_LEFT + _IN + 6, end + 4, f"× {scale:.3g}", "dim"))
        self._line(_path(f"M{_STREAM} {begin - 4}V{end + 16}", "line"))
        self._plus(end)
        self.y = end + 16

    def _side_by_side(self, branches: Sequence[Sequence[Any]], *, entered: bool, stream: bool = True) -> None:
        """Columns that are added: each a few boxes, a line under all of them."""
        left = _STREAM - _IN if stream else _LEFT
        width = (_RIGHT - left + 10) / len(branches)
        top, ends = self.y, []
        for number, branch in enumerate(branches):
            self.y = top
            for part in branch:
                self._box(part, left + number * width, left + (number + 1) * width - 10)
            ends.append(self.y)
        self.y = end = max(ends)
        middles = [left + number * width + _IN for number in range(len(branches))]
        if entered:
            self._line(_path(f"M{_STREAM} {top + 12}H{_LEFT}", "line"))
            self._line(_path("".join(f"M{_STREAM + 22} {top + 12}V{top - 6}H{x}V{top}" for x in middles[1:]), "line"))
        joins = "".join(f"M{x} {own}V{end}" for x, own in zip(middles, ends, strict=True))
        self._line(_path(f"{joins}M{middles[-1]} {end}H{middles[0]}", "line"))
        if stream:
            self._plus(end)
            self._line(_path(f"M{_STREAM} {end + 8}V{end + 16}", "line"))
            self.y = end + 16

    def _plus(self, y: float) -> None:
        shapes = [
            Shape(tag="circle", attributes={"cx": _STREAM, "cy": y, "r": 8, "class": "plus"}),
            _path(f"M{_STREAM - 4} {y}H{_STREAM + 4}M{_STREAM} {y - 4}V{y + 4}", "line"),
        ]
        self.drawing.groups.append(Group(shapes=shapes))

    def _box(self, part: Any, left: float, right: float, *, tail: str = "line") -> None:
        """A part's box, with a short line of that kind to what comes below."""
        top, inner = self.y, left + 14
        room = int((right - inner - 8) / _CHARACTER)
        cost = self.cost(part)
        beside = len(part.title) + len(cost) + 4 <= room
        lines = textwrap.wrap(" · ".join(part.facts), room)
        lines += [] if beside else textwrap.wrap(cost, room)
        shapes = [_text(inner, top + 17, part.title, "title")]
        if beside:
            shapes.append(_text(right - 8, top + 17, cost, "dim", "end"))
        for number, line in enumerate(lines):
            shapes.append(_text(inner, top + 17 + _LINE * (number + 1), line, "dim"))
        height = 26 + _LINE * len(lines)
        if part.heads:
            shapes += _heads(part.heads, part.groups or part.heads, inner, top + height - 2, right - inner - 10)
            height += 26
        shapes[:0] = [_rect(left, top, right - left, height, "box"), _rect(left, top, 5, height, "bar", 2)]
        label = " · ".join([part.title, *part.facts, cost])
        self.drawing.groups.append(Group(shapes=shapes, part=part.id, kind=part.kind, label=label))
        if part.heads and self._lane is not None:
            y = top + 14
            self._line(_path(f"M{_RIGHT} {self._lane}H{_LANE}V{y}H{right}m6 -4l-6 4l6 4", "turn"))
        self.y = top + height + _GAP
        if tail:
            self._line(_path(f"M{left + _IN} {top + height}V{self.y}", tail))


def _heads(heads: int, groups: int, left: float, top: float, width: float) -> list[Shape]:
    """Query heads above the key/value heads that they share; of very many only the first."""
    each = max(1, heads // groups)
    shown = min(heads, max(each, _MOST_HEADS // each * each))
    step = min(17.0, width / (shown + 0.35 * (shown // each)))
    shapes, x = list[Shape](), left
    for number in range(shown):
        if number and number % each == 0:
            x += step * 0.35
        shapes.append(_rect(x, top, step - 2 if step > 4 else step * 0.7, 10, "query", 1.5))
        if number % each == 0:
            shapes.append(_rect(x, top + 13, step * min(each, shown - number) - 2, 5, "key", 1.5))
        x += step
    return shapes
