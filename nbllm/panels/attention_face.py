"""The static face of the attention panel: the chosen head's map, the sheet of all heads and the table of scores.

Images are PNGs of the cividis palette inside the HTML, kept small enough for a saved notebook whatever the text's
length. All text from data is escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbllm.panels import attention_scale, text
from nbllm.panels.attention_view import SCORES, Side
from nbllm.panels.face import table

_EMPTY = (
    '<div class="nbllm-head"><strong>Attention</strong></div><div class="nbllm-body">'
    '<div class="nbllm-label">no text yet: <code>%llm_attention "text"</code></div></div>'
)
EMPTY = _EMPTY, 'Attention: no text yet (%llm_attention "text")'
"""The face, in HTML and in plain text, before there is a text."""
_MAP_SIDE = 440
_MAP_BYTES = 90_000
_SHEET_BYTES = 70_000
_LABEL_ROOM = 96
_LABELLED = 40
_THUMBNAIL = 32
_MOST_ROWS = 300


def as_html(
    sides: Sequence[Side],
    layer: int,
    head: int,
    *,
    pinned: int,
    off: Sequence[tuple[int, int]] = (),
    following: Sequence[dict[str, Any]] = (),
) -> str:
    """The panel's body.

    Args:
        sides: one text through one model, or two of them.
        layer: row of the chosen head in the sheet.
        head: its column.
        pinned: the query whose strongest keys are listed.
        off: heads that are switched off.
        following: the next tokens before and after, as `text`, `before`, `after`.
    """
    first = sides[0]
    columns = "".join(_column(side, layer, head, pinned, alone=len(sides) == 1) for side in sides)
    rows = [
        [f"{first.number(at // first.maps.heads)}.{at % first.maps.heads}", *map(_number, scores)]
        for at, scores in enumerate(first.scores()[:_MOST_ROWS].tolist())
    ]
    head_line = ["head", *(name.replace("_", " ") for name in SCORES)]
    every = table(head_line, rows, f"scores of {len(rows)} heads (entropy in nats, distance in tokens)")
    return (
        f'<div class="nbllm-head"><strong>Attention</strong><span class="nbllm-chip">{html.escape(first.maps.model)}'
        f'</span><span class="nbllm-dim">{html.escape(facts(first, layer, head))}</span></div>'
        f'<div class="nbllm-body"><div class="nbllm-attention-face">{_sheet(first, layer, head)}{columns}</div>'
        f"{_ablation(first, off, following)}{every}"
        f'<div class="nbllm-label nbllm-gap">live again with <code>%llm_panel attention</code></div></div>'
    )


def as_text(
    sides: Sequence[Side],
    layer: int,
    head: int,
    *,
    pinned: int,
    off: Sequence[tuple[int, int]] = (),
    following: Sequence[dict[str, Any]] = (),
) -> str:
    """The same in plain text."""
    lines = []
    for side in sides:
        lines.append(f"Attention of {side.maps.model}: {facts(side, layer, head)}")
        if side.has(layer, head) and pinned < side.tokens:
            found = ", ".join(f"{token} {weight:.2f}" for token, weight in strongest(side, layer, head, pinned))
            lines.append(f"  {side.maps.tokens[pinned]!r} looks at {found}")
    lines.append("  heads by score:")
    for name, best in best_heads(sides[0]).items():
        lines.append(f"    {name:<16} " + ", ".join(f"{where} {value:.2f}" for where, value in best))
    for row in following:
        lines.append(f"  next without {len(off)} heads: {row['text']} {row['before']:.2f} → {row['after']:.2f}")
    return "\n".join(lines)


def facts(side: Side, layer: int, head: int) -> str:
    """The chosen head in one line."""
    if head == side.maps.heads:
        where = [f"rollout up to layer {side.number(layer)}"]
    else:
        where = [f"layer {side.number(layer)}", f"head {head}"]
        kind = side.kind(layer, head)
        score = side.score(layer, head)
        where += [f"{kind[0]} {kind[1]:.2f}"] if kind else []
        where += [f"entropy {score['entropy']:.2f} nats", f"distance {score['distance']:.1f} tokens"]
    return " · ".join([*where, f"{text.count(side.tokens)} tokens"])


def strongest(side: Side, layer: int, head: int, query: int, most: int = 6) -> list[tuple[str, float]]:
    """The keys that a query looks at most, with their weights, largest first."""
    row = side.weights(layer, head)[query]
    return [(side.maps.tokens[key], float(row[key])) for key in np.argsort(-row, kind="stable")[:most] if row[key] > 0]


def best_heads(side: Side, most: int = 3) -> dict[str, list[tuple[str, float]]]:
    """For each of the four kinds the heads that are most of it: `layer.head` and score."""
    found = {}
    for column, name in enumerate(SCORES[:4]):
        values = np.nan_to_num(side.scores()[:, column], nan=-1.0)
        order = [int(at) for at in np.argsort(-values, kind="stable")[:most] if values[at] >= 0]
        heads = side.maps.heads
        found[name.replace("_", " ")] = [
            (f"{side.number(at // heads)}.{at % heads}", float(values[at])) for at in order
        ]
    return found


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


def _sheet(side: Side, layer: int, head: int) -> str:
    """All heads in one image, the chosen one framed."""
    thumbnails = side.thumbnails()
    layers, heads, full, _ = thumbnails.shape
    size = min(full, _THUMBNAIL)
    pixels = attention_scale.sheet(thumbnails, size)
    while True:
        image = attention_scale.png(pixels)
        if len(image) <= _SHEET_BYTES or size <= 8:
            break
        size //= 2
        pixels = attention_scale.sheet(thumbnails, size)
    height, width = pixels.shape
    scale = min(26 / (size + 1), 280 / width, 900 / height)
    cell = (size + 1) * scale
    frame = ""
    if head < heads:
        frame = (
            f'<rect x="{head * cell:.1f}" y="{layer * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}" fill="none" '
            f'stroke="#d55e00" stroke-width="2"/>'
        )
    label = f"all {layers * heads} heads, a row a layer, a column a head"
    return (
        f'<div><div class="nbllm-label">all heads, layer ↓ head →</div>'
        f'<svg width="{width * scale:.0f}" height="{height * scale:.0f}" role="img" aria-label="{label}">'
        f'<image width="{width * scale:.1f}" height="{height * scale:.1f}" preserveAspectRatio="none" '
        f'href="{attention_scale.data_uri(image)}"/>{frame}</svg></div>'
    )


def _column(side: Side, layer: int, head: int, pinned: int, *, alone: bool) -> str:
    caption = "" if alone else f"{side.maps.model} · "
    if not side.has(layer, head):
        return f'<div class="nbllm-label">{html.escape(caption)}no such head</div>'
    weights = side.weights(layer, head)
    top = float(weights.max())
    pixels, image = _small_map(weights, top)
    pinned = min(pinned, side.tokens - 1)
    keys = "".join(
        f'<tr><td class="nbllm-mono">{html.escape(token)}</td><td>{weight:.2f}</td></tr>'
        for token, weight in strongest(side, layer, head, pinned)
    )
    legend = f"{caption}query ↓ key → (cividis, 0 … {top:.2f})"
    return (
        f'<div><div class="nbllm-label">{html.escape(legend)}</div>{_map_svg(side, pixels, image, pinned)}</div>'
        f'<div class="nbllm-table"><div class="nbllm-label">“{html.escape(side.maps.tokens[pinned])}” looks at</div>'
        f"<table><tbody>{keys}</tbody></table></div>"
    )


def _small_map(weights: NDArray[np.float32], top: float) -> tuple[int, bytes]:
    """Pixels a side, and a PNG below the limit: block maxima where the text is long."""
    most = min(weights.shape[0], 512)
    while True:
        pixels = attention_scale.levels(attention_scale.pooled(weights, most), top)
        image = attention_scale.png(pixels)
        if len(image) <= _MAP_BYTES or most <= 32:
            return pixels.shape[0], image
        most = most * 2 // 3


def _map_svg(side: Side, pixels: int, image: bytes, pinned: int) -> str:
    """The map with token labels on both axes; of a long text every so many."""
    count = side.tokens
    size = min(_MAP_SIDE, max(160, count * 24))
    room = _LABEL_ROOM
    cell = size / count
    every = max(1, -(-count // _LABELLED))
    labels = []
    for at in range(0, count, every):
        token = html.escape(_short(side.maps.tokens[at]))
        middle = room + (at + 0.5) * cell
        labels.append(f'<text x="{room - 4}" y="{middle + 3:.1f}" text-anchor="end">{token}</text>')
        labels.append(f'<text transform="translate({middle + 3:.1f} {room - 4}) rotate(-60)">{token}</text>')
    frame = (
        f'<rect x="{room}" y="{room + pinned * cell:.1f}" width="{size}" height="{cell:.1f}" fill="none" '
        f'stroke="#d55e00" stroke-width="1.5"/>'
    )
    whole = room + size
    return (
        f'<svg viewBox="0 0 {whole + 30} {whole + 2}" width="{whole + 30}" role="img" font-size="10" '
        f'fill="currentColor" '
        f'aria-label="attention weights of {count} tokens" style="max-width:100%;height:auto">'
        f'<image x="{room}" y="{room}" width="{size}" height="{size}" preserveAspectRatio="none" '
        f'style="image-rendering:{"pixelated" if pixels <= size else "auto"}" '
        f'href="{attention_scale.data_uri(image)}"/>{frame}{"".join(labels)}</svg>'
    )


def _short(token: str) -> str:
    return token if len(token) <= 14 else token[:13] + "…"


def _ablation(side: Side, off: Sequence[tuple[int, int]], following: Sequence[dict[str, Any]]) -> str:
    if not off or not following:
        return ""
    named = ", ".join(f"{side.number(layer)}.{head}" for layer, head in off[:12]) + (" …" if len(off) > 12 else "")
    rows = "".join(
        f'<tr><td class="nbllm-mono">{html.escape(row["text"])}</td><td>{row["before"]:.3f}</td>'
        f"<td>{row['after']:.3f}</td></tr>"
        for row in following
    )
    return (
        f'<div class="nbllm-table nbllm-gap"><div class="nbllm-label">{html.escape(side.predicts)}, '
        f"with all heads and without {named}"
        f"</div><table><tbody>{rows}</tbody></table></div>"
    )
