"""A model's architecture as a picture: the parts in the order they run, alike layers once; shapes where a part opens.

HTML that needs no kernel and no script: a part opens by click or keyboard. Knows a summary as an object with `before`,
`layers`, `after` and `tree`. All text from data is escaped.
"""

from __future__ import annotations

import html
from typing import Any

from nbllm.panels import registry, text
from nbllm.panels.face import table, wrap

_STYLE = (
    ".nbllm-model{max-width:680px}"
    ".nbllm-model details{border:1px solid var(--nb-line);border-left:4px solid var(--c,var(--nb-line));"
    "border-radius:4px;margin:0 0 5px;padding:3px 8px}"
    ".nbllm-model summary{display:flex;flex-wrap:wrap;gap:0 12px;cursor:pointer}"
    ".nbllm-model summary b{font-weight:600;min-width:8em}"
    ".nbllm-model summary .nbllm-dim{margin-left:auto;text-align:right}"
    ".nbllm-model .attention{--c:var(--nb-s1)}.nbllm-model .feed_forward{--c:var(--nb-s2)}"
    ".nbllm-model .embedding,.nbllm-model .head{--c:var(--nb-s3)}.nbllm-model .positions{--c:var(--nb-s4)}"
    ".nbllm-model fieldset{border:1px solid var(--nb-fg2);border-radius:6px;margin:0 0 5px;padding:6px 10px 3px;"
    "min-width:0}.nbllm-model legend{font-size:12px;color:var(--nb-fg2);padding:0 5px}"
    ".nbllm-model td:first-child{text-align:left;overflow-wrap:anywhere}"
)
_MOST_SHAPES = 24
_MOST_ROWS = 400


def show_model(summary: Any) -> None:
    """Displays the picture with its text; text alone outside Jupyter."""
    if not registry.has_kernel():
        print(as_text(summary))
        return
    from IPython.display import publish_display_data

    publish_display_data({"text/html": wrap(as_html(summary)), "text/plain": as_text(summary)})


def as_html(summary: Any) -> str:
    """The picture, or the tree of a model that couldn't be read into layers."""
    if summary.layers:
        parts = [_part(part) for part in summary.before]
        for group in summary.layers:
            inside = "".join(_part(part) for part in group.parts)
            parts.append(f"<fieldset><legend>{html.escape(_layers(group))}</legend>{inside}</fieldset>")
        body = "".join([*parts, *(_part(part) for part in summary.after)])
    else:
        rows = [[name, kind, text.count(count)] for name, kind, count in summary.tree[:_MOST_ROWS]]
        body = table(["module", "class", "parameters"], rows, "modules: this model has no layers that could be read")
    return (
        f'<style>{_STYLE}</style><div class="nbllm-head"><strong>Model</strong><span class="nbllm-chip">'
        f'{html.escape(summary.model)}</span><span class="nbllm-dim">{html.escape(_facts(summary))}</span></div>'
        f'<div class="nbllm-body"><div class="nbllm-model">{body}</div></div>'
    )


def as_text(summary: Any) -> str:
    """The same in plain text."""
    lines = [f"{summary.model}: {_facts(summary)}"]
    lines += [f"  {_line(part)}" for part in summary.before]
    for group in summary.layers:
        lines += [f"  {_layers(group)}", *(f"    {_line(part)}" for part in group.parts)]
    lines += [f"  {_line(part)}" for part in summary.after]
    if not summary.layers:
        lines += [f"  {name}  {kind}  {text.count(count)}" for name, kind, count in summary.tree[:_MOST_ROWS]]
    return "\n".join(lines)


def _facts(summary: Any) -> str:
    flops = f" · {_flops(summary.flops)} a token at {text.count(summary.tokens)} tokens" if summary.layers else ""
    return f"{summary.kind} · {text.count(summary.parameters)} parameters · {text.size(summary.size_bytes)}{flops}"


def _layers(group: Any) -> str:
    numbers = list(group.numbers)
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    named = f"{numbers[0]} to {numbers[-1]}" if whole and len(numbers) > 1 else ", ".join(map(str, numbers))
    return f"{len(numbers)} × layer ({named}); each adds to the residual stream"


def _line(part: Any) -> str:
    return " · ".join([part.title, *part.facts, _cost(part)])


def _cost(part: Any) -> str:
    costs = [f"{text.count(part.parameters)} parameters", text.size(part.size_bytes)]
    return " · ".join([*costs, *([_flops(part.flops)] if part.flops else [])])


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
    return (
        f'<details class="{html.escape(part.kind)}"><summary><b>{html.escape(part.title)}</b>'
        f'<span>{html.escape(" · ".join(part.facts))}</span><span class="nbllm-dim">{html.escape(_cost(part))}</span>'
        f'</summary><div class="nbllm-table"><table><tbody>{rows}</tbody></table></div></details>'
    )
