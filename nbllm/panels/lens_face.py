"""The static face of the logit lens: layer by position, coloured by probability, the most probable tokens on hover.

A long text shows its end; what doesn't fit is said. All text from data is escaped.
"""

from __future__ import annotations

import html
from typing import Any

import numpy as np

_MOST_BYTES = 230_000
_LEVELS = 8
_MOST_ROWS = 64
_COLOURS = ("440154", "472f7d", "39568c", "287c8e", "1fa187", "4ac16d", "a5d136", "ecdb2f")
STYLE = (
    ".nbllm-lens{overflow:auto;max-height:640px;max-width:100%}"
    ".nbllm .nbllm-lens table{border-collapse:separate;border-spacing:1px;font-size:12px;color:inherit;margin:0;"
    "table-layout:auto}"
    ".nbllm .nbllm-lens th,.nbllm .nbllm-lens td{padding:1px 5px;text-align:center;font-weight:400;border:0;"
    "white-space:pre;line-height:1.35;background:none}"
    ".nbllm .nbllm-lens thead th,.nbllm .nbllm-lens td{font-family:var(--jp-code-font-family,ui-monospace,monospace)}"
    ".nbllm .nbllm-lens tbody th{text-align:right;color:var(--nb-fg2);position:sticky;left:0;z-index:1;"
    "background:var(--nb-bg);box-shadow:0 0 0 1px var(--nb-bg)}"
    ".nbllm .nbllm-lens thead th{position:sticky;top:0;z-index:1;background:var(--nb-bg)}"
    ".nbllm .nbllm-lens thead th:first-child{left:0;z-index:2}"
    ".nbllm .nbllm-lens tr{background:none}"
    ".nbllm .nbllm-lens td.s{box-shadow:0 -3px 0 var(--nb-s2)}"
    + "".join(
        f".nbllm .nbllm-lens td.v{level},.nbllm-lens-scale .v{level}"
        f"{{background:#{colour};color:{'#fff' if level < 4 else '#000'}}}"
        for level, colour in enumerate(_COLOURS)
    )
    + ".nbllm-lens-scale i{display:inline-block;width:14px;height:8px;margin-right:1px}"
)
"""Rules that the table needs, in the face and in the widget; letters stay readable on each colour in both themes."""


def as_html(lens: Any) -> str:
    """The panel's body: at most `_MOST_BYTES` of table, whatever the text's length."""
    rows = _rows(lens)
    settled = lens.settles
    shown: dict[int, list[str]] = {}
    used = 0
    for at in reversed(range(len(lens.tokens))):
        cells = [_cell(lens, row, at, settles=settled[at] == row) for row in rows]
        used += sum(len(cell.encode()) for cell in cells)
        if shown and used > _MOST_BYTES:
            break
        shown[at] = cells
    columns = sorted(shown)
    head = "".join(f'<th scope="col">{html.escape(_short(lens.tokens[at]))}</th>' for at in columns)
    body = "".join(
        f'<tr><th scope="row">{html.escape(lens.rows[row])}</th>{"".join(shown[at][place] for at in columns)}</tr>'
        for place, row in enumerate(rows)
    )
    where = "".join(f"<td>{html.escape(lens.rows[int(settled[at])])}</td>" for at in columns)
    left = len(lens.tokens) - len(columns)
    cut = f" · the last {len(columns):,} of {len(lens.tokens):,} tokens" if left else ""
    cut += f" · {len(rows)} of {len(lens.rows)} rows" if len(rows) < len(lens.rows) else ""
    swatches = "".join(f'<i class="v{level}"></i>' for level in range(_LEVELS))
    return (
        f"<style>{STYLE}</style>"
        f'<div class="nbllm-head"><strong>Logit lens</strong><span class="nbllm-chip">{html.escape(lens.model)}</span>'
        f'<span class="nbllm-dim">{html.escape(lens.summary)}</span></div>'
        f'<div class="nbllm-body"><div class="nbllm-label">after each layer ↓ the most probable {_what(lens)}, at each '
        f"token →{html.escape(cut)} <span class='nbllm-lens-scale'>0 {swatches} 1</span> "
        f"a line above: the prediction stays from here on</div>"
        f'<div class="nbllm-lens"><table><thead><tr><th>layer</th>{head}</tr></thead><tbody>{body}'
        f'<tr><th scope="row">settles</th>{where}</tr></tbody></table></div></div>'
    )


def as_text(lens: Any) -> str:
    """The same in plain text: for the last tokens, what some layers find most probable."""
    columns = list(range(max(0, len(lens.tokens) - 6), len(lens.tokens)))
    count = len(lens.rows)
    rows = sorted({round(at) for at in np.linspace(0, count - 1, min(count, 12))})
    lines = [["layer", *(lens.tokens[at] for at in columns)]]
    for row in rows:
        cells = [f"{lens.top_texts[row, at, 0]} {lens.top_probabilities[row, at, 0]:.2f}" for at in columns]
        lines.append([lens.rows[row], *cells])
    lines.append(["settles", *(lens.rows[int(lens.settles[at])] for at in columns)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([f"Logit lens of {lens.model}: {lens.summary}", *text])


def _rows(lens: Any) -> list[int]:
    count = len(lens.rows)
    return sorted({round(at) for at in np.linspace(0, count - 1, min(count, _MOST_ROWS))})


def _cell(lens: Any, row: int, at: int, *, settles: bool) -> str:
    chances, texts = lens.top_probabilities[row, at], lens.top_texts[row, at]
    level = min(_LEVELS - 1, int(float(chances[0]) * _LEVELS))
    title = "&#10;".join(f"{chance:.3f} {html.escape(text)}" for text, chance in zip(texts, chances, strict=True))
    if lens.actual_rank[row, at]:
        title += f"&#10;{_actual(lens)}: {lens.actual_probability[row, at]:.3f}, rank {lens.actual_rank[row, at]:,}"
    return f'<td class="v{level}{" s" if settles else ""}" title="{title}">{html.escape(_short(str(texts[0])))}</td>'


def _what(lens: Any) -> str:
    return "next token" if lens.predicts == "next" else "token in this place"


def _actual(lens: Any) -> str:
    return "what comes" if lens.predicts == "next" else "what stands here"


def _short(token: str) -> str:
    return token if len(token) <= 10 else token[:9] + "…"
