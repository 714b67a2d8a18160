"""What an adapter changed, to look at: how large the change is by layer and module, and which tokens moved most.

The picture is an inline SVG, the darker the larger, with the numbers in a table behind it. Plain values; all text from
data is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbllm.adapters import Change

_CELL_HEIGHT, _CELL_WIDTH, _LEFT, _TOP = 14, 62, 46, 34
_COLOURS = ("440154", "472f7d", "39568c", "287c8e", "1fa187", "4ac16d", "a5d136", "ecdb2f")
_SHOWN = 12
STYLE = (
    ".nbllm-changed{display:flex;flex-wrap:wrap;gap:8px 24px;align-items:flex-start}.nbllm-changed>div{min-width:0}"
    ".nbllm-changed>div{max-width:100%;overflow-x:auto;padding:2px}.nbllm-changed svg{max-width:100%;height:auto}"
    ".nbllm-changed text{fill:currentColor;font-size:11px}"
    ".nbllm-changed details{font-size:12px}"
    ".nbllm .nbllm-changed table,.nbllm-changed table{border-collapse:collapse;margin:2px 0;font-size:12px;"
    "color:inherit}.nbllm-changed th,.nbllm-changed td{padding:1px 12px 1px 0;text-align:left;font-weight:400;border:0;"
    "background:none;vertical-align:top}"
    ".nbllm-changed .n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".nbllm-changed .m{font-family:var(--jp-code-font-family,ui-monospace,monospace);white-space:pre-wrap}"
    ".nbllm-changed .up{color:var(--nb-s1,#0072b2)}.nbllm-changed .down{color:var(--nb-s2-text,#b14e00)}"
    ".nbllm-changed .lab{font-size:12px;opacity:.8}"
)
"""Rules that the report needs, here and in the panel."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A token of the held-out text whose probability the adapter moved."""

    context: str
    """What stands before it, its end."""
    token: str
    """The token, visible."""
    before: float
    """Its probability under the base."""
    after: float
    """The same with the adapter."""


@dataclass(frozen=True, kw_only=True, repr=False)
class AdapterReport:
    """What one adapter changed."""

    adapter: str
    """Its name."""
    changes: tuple[Change, ...]
    """By layer and module."""
    moved: tuple[Moved, ...]
    """The tokens that moved most, up or down, the largest first."""
    tokens: int
    """How many tokens of text were looked at."""
    loss_before: float
    """Mean loss on them under the base, nats a token; NaN where there is no text."""
    loss_after: float
    """The same with the adapter."""
    on: str
    """What text that is."""

    @property
    def summary(self) -> str:
        """One line."""
        parts = [f"{len(self.changes)} changes"]
        if self.changes:
            most = max(self.changes, key=_size)
            where = "" if most.layer is None else f" of layer {most.layer}"
            parts.append(f"the largest in {most.module}{where} ({_number(most)})")
        if self.tokens:
            losses = f"{self.loss_before:.3f} → {self.loss_after:.3f} nats a token"
            parts.append(f"loss on {self.on} {losses} ({self.tokens:,} tokens)")
        return " · ".join(parts)

    def __repr__(self) -> str:
        return f"AdapterReport({self.adapter}: {self.summary})"

    def __str__(self) -> str:
        columns, rows = self._grid()
        lines = [["layer", *columns]]
        lines += [[_layer(layer), *(_number(cells.get(name)) for name in columns)] for layer, cells in rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines]
        moved = [f"  {one.before:.3f} → {one.after:.3f}  {one.token}   after {one.context!r}" for one in self.moved]
        head = [f"{self.adapter}: {self.summary}", f"{self._what()}, by layer and module:"]
        return "\n".join([*head, *text, *([f"tokens of {self.on} that moved most:"] if moved else []), *moved])

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        head = f"<p><b>{escape(self.adapter)}</b> <small>{escape(self.summary)}</small></p>"
        return f"<style>{STYLE}</style>{head}{self.body_html()}"

    def body_html(self) -> str:
        """Picture and tables alone."""
        return f'<div class="nbllm-changed">{self._picture()}{self._table()}</div>'

    def _what(self) -> str:
        return "change / weight (Frobenius norms)" if any(one.share is not None for one in self.changes) else "norm"

    def _grid(self) -> tuple[list[str], list[tuple[int | None, dict[str, Change]]]]:
        """Modules, and for each layer its change by module."""
        columns = list(dict.fromkeys(one.module for one in self.changes))
        rows: dict[int | None, dict[str, Change]] = {}
        for one in self.changes:
            rows.setdefault(one.layer, {})[one.module] = one
        return columns, list(rows.items())

    def _picture(self) -> str:
        columns, rows = self._grid()
        if not columns:
            return ""
        most = max(map(_size, self.changes)) or 1.0
        width, height = _LEFT + _CELL_WIDTH * len(columns), _TOP + _CELL_HEIGHT * len(rows)
        label = f"{self._what()} by layer and module, {self.summary}"
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        parts = [f'<svg {size} role="img" aria-label="{escape(label)}">']
        for place, name in enumerate(columns):
            x = _LEFT + _CELL_WIDTH * (place + 0.5)
            shown = name if len(name) <= 10 else name[:9] + "…"
            parts.append(f'<text x="{x}" y="{_TOP - 6}" text-anchor="middle">{escape(shown)}</text>')
        for row, (layer, cells) in enumerate(rows):
            y = _TOP + _CELL_HEIGHT * row
            if len(rows) <= 12 or row % 5 == 0 or row == len(rows) - 1:
                parts.append(f'<text x="{_LEFT - 6}" y="{y + 11}" text-anchor="end">{_layer(layer)}</text>')
            for place, name in enumerate(columns):
                found = cells.get(name)
                if found is None:
                    continue
                colour = _COLOURS[min(7, int(8 * _size(found) / most))]
                parts.append(
                    f'<rect x="{_LEFT + _CELL_WIDTH * place}" y="{y}" width="{_CELL_WIDTH - 1}" '
                    f'height="{_CELL_HEIGHT - 1}" fill="#{colour}"><title>layer {_layer(layer)}, {escape(name)}: '
                    f"{_number(found)}</title></rect>"
                )
        parts.append("</svg>")
        largest = f"{most:.3g}"
        scale = "".join(
            f'<span style="display:inline-block;width:12px;height:8px;background:#{c}"></span>' for c in _COLOURS
        )
        head = "".join(f'<th class="n">{escape(name)}</th>' for name in columns)
        body = "".join(
            f'<tr><td class="n">{_layer(layer)}</td>'
            + "".join(f'<td class="n">{_number(cells.get(name))}</td>' for name in columns)
            + "</tr>"
            for layer, cells in rows
        )
        return (
            f'<div><div class="lab">{escape(self._what())}, layer ↓ module → 0 {scale} {largest}</div>{"".join(parts)}'
            f'<details><summary>as a table</summary><table><tr><th class="n">layer</th>{head}</tr>{body}</table>'
            "</details></div>"
        )

    def _table(self) -> str:
        if not self.moved:
            return ""
        rows = "".join(
            f'<tr><td class="n">{one.before:.3f}</td><td class="n {"up" if one.after > one.before else "down"}">'
            f'{"▲" if one.after > one.before else "▼"} {one.after:.3f}</td><td class="m">{escape(one.token)}</td>'
            f'<td class="m">…{escape(one.context)}</td></tr>'
            for one in self.moved
        )
        return (
            f'<div><div class="lab">tokens of {escape(self.on)} whose probability moved most</div><table><tr>'
            f'<th class="n">base</th><th class="n">adapter</th><th>token</th><th>after</th></tr>{rows}</table></div>'
        )


def most_moved(found: Sequence[Moved], most: int = _SHOWN) -> tuple[Moved, ...]:
    """Those whose probability moved most, the largest first."""
    return tuple(sorted(found, key=lambda one: -abs(one.after - one.before))[:most])


def _size(change: Change) -> float:
    value = change.norm if change.share is None else change.share
    return value if math.isfinite(value) else 0.0


def _number(change: Change | None) -> str:
    return "–" if change is None else f"{_size(change):.3g}"


def _layer(layer: int | None) -> str:
    return "–" if layer is None else str(layer)
