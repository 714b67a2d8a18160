"""Tokens a second as bars of inline SVG, with the machine's limit as a line on each.

A colour says what runs the step: PyTorch as it is, PyTorch compiled, another program. Knows rows of numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nbllm.bench.result import BenchRow
from nbllm.panels.svg import ticks

_WIDTH, _LEFT, _RIGHT = 720, 190, 60
_BAR, _STEP, _AXIS = 14, 24, 20
_COLOURS = {
    "PyTorch eager": ("--nb-s1", "#0072b2"),
    "PyTorch compiled": ("--nb-s3", "#009e73"),
    "other programs": ("--nb-s4", "#8a4f9e"),
}


def bars(rows: Sequence[BenchRow]) -> str:
    """An `<svg>` with its legend; nothing where no row was measured with one text at a time."""
    shown = [row for row in rows if row.tokens_per_s.get(1)]
    if not shown:
        return ""
    most = max(max(row.tokens_per_s[1], row.limit_tokens_per_s or 0.0) for row in shown)
    height = len(shown) * _STEP + _AXIS

    def x(value: float) -> float:
        return _LEFT + value / most * (_WIDTH - _LEFT - _RIGHT)

    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" font-size="11"'
    style = f"width:100%;max-width:{_WIDTH}px;height:auto"
    parts = [f'<svg {size} role="img" aria-label="Tokens a second of one text, by runtime" style="{style}">']
    foot = len(shown) * _STEP
    for tick in ticks(0.0, most, 6):
        parts.append(
            f'<path d="M{x(tick):.1f} 0V{foot}" stroke="#dfe3e8" style="stroke:var(--nb-line,#dfe3e8)"/>'
            f'<text x="{x(tick):.1f}" y="{height - 5}" text-anchor="middle" fill="#666" '
            f'style="fill:var(--nb-fg2,#666)">{tick:g}</text>'
        )
    for place, row in enumerate(shown):
        top, speed = place * _STEP + (_STEP - _BAR) / 2, row.tokens_per_s[1]
        variable, colour = _COLOURS[_kind(row)]
        parts.append(
            f'<text x="{_LEFT - 8}" y="{top + 11:.1f}" text-anchor="end" fill="#222" '
            f'style="fill:var(--nb-fg,#222)">{escape(row.label)}</text>'
            f'<rect x="{_LEFT}" y="{top:.1f}" width="{x(speed) - _LEFT:.1f}" height="{_BAR}" fill="{colour}" '
            f'style="fill:var({variable},{colour})"><title>{escape(_said(row))}</title></rect>'
        )
        after = x(speed)
        if row.limit_tokens_per_s:
            line = x(row.limit_tokens_per_s)
            parts.append(
                f'<path d="M{line:.1f} {top - 4:.1f}V{top + _BAR + 4:.1f}" stroke="#222" stroke-width="2" '
                f'style="stroke:var(--nb-fg,#222)"/>'
            )
            if -4 < line - after < 36:  # the number would lie on the line
                after = line
        parts.append(
            f'<text x="{after + 5:.1f}" y="{top + 11:.1f}" fill="#222" '
            f'style="fill:var(--nb-fg,#222)">{speed:.1f}</text>'
        )
    return "".join([_legend({_kind(row) for row in shown}), *parts, "</svg>"])


def _kind(row: BenchRow) -> str:
    if row.compiled is None:
        return "other programs"
    return "PyTorch compiled" if row.compiled else "PyTorch eager"


def _said(row: BenchRow) -> str:
    limit = f", limit {row.limit_tokens_per_s:.0f}" if row.limit_tokens_per_s else ""
    return f"{row.label}: {row.tokens_per_s[1]:.1f} tokens/s{limit}"


def _legend(kinds: set[str]) -> str:
    swatches = "".join(
        f'<span><i style="display:inline-block;width:10px;height:10px;margin:0 4px 0 8px;'
        f'background:var({variable},{colour})"></i>{kind}</span>'
        for kind, (variable, colour) in _COLOURS.items()
        if kind in kinds
    )
    return (
        f'<div class="nbllm-label">tokens/s, one text at a time {swatches}'
        f'<span style="margin-left:8px">┃ what reading the weights once a token allows</span></div>'
    )
