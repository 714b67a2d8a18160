"""The static face of the cleaning panel: the report, one stage's histograms, warnings, a few dropped documents.

Also how texts are cut into marked pieces for the page. Everything from data is escaped.
"""

from __future__ import annotations

import html
import re
from typing import Any

from nbllm.errors import UsageError
from nbllm.panels.face import table

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufff9-\ufffb]")
_SHOWN = 1200
_BEFORE = 160
_EXAMPLES = 4


def printable(text: str) -> str:
    """A text with control characters and marks of direction written out, so that they can't change what is seen."""
    return _UNSEEN.sub(lambda match: f"<U+{ord(match[0]):04X}>", text.replace("\r\n", "\n").replace("\r", "\n"))


def pieces(reason: str, text: str) -> list[list[str]]:
    """A text from shortly before its first evidence on, as pieces: `same`, or `mark` where the reason stands."""
    from nbllm.corpus.evidence import spans

    found = spans(reason, text)
    start = max(0, found[0][0] - _BEFORE) if found and found[0][0] > _SHOWN // 2 else 0
    end = min(len(text), start + _SHOWN)
    result: list[list[str]] = [["same", "… "]] if start else []
    at = start
    for first, last in found:
        if first >= end:
            break
        if first > at:
            result.append(["same", printable(text[at:first])])
        result.append(["mark", printable(text[first : min(last, end)])])
        at = min(last, end)
    if at < end:
        result.append(["same", printable(text[at:end])])
    if end < len(text):
        result.append(["same", " …"])
    return result


def as_html(corpus: Any, number: int) -> str:
    """The face as HTML.

    Args:
        corpus: whose report it is.
        number: the stage whose histograms it shows.
    """
    report = corpus.report
    parts = [report._repr_html_()]
    extra = corpus.warnings[len(report.notes) :]
    parts += [f"<div class='nbllm-note'>⚠ {html.escape(printable(note))}</div>" for note in extra]
    try:
        histograms = corpus.moving(number).histograms
    except UsageError:
        histograms = []
    if histograms:
        parts.append(f"<div class='nbllm-label nbllm-gap'>{html.escape(report.stages[number].line)}: documents by "
                     "score; the line is the threshold, what it drops is vermilion</div>")  # fmt: skip
        parts.append("<div class='nbllm-clean-handles'>" + "".join(map(_histogram, histograms)) + "</div>")
        overlap = corpus.moving(number).overlap({})
        rows = [
            [reason, *(f"{count:,}" for count in overlap.documents[index]), f"{overlap.alone[index]:,}"]
            for index, reason in enumerate(overlap.reasons)
            if overlap.documents[index, index]
        ]
        if rows:
            parts.append(table(["rule", *overlap.reasons, "alone"], rows, "documents that two rules would drop"))
    if corpus.by_language:
        rows = [
            [name, f"{counts['in']:,}", f"{counts['in'] - counts['out']:,}", f"{counts['out']:,}"]
            for name, counts in list(corpus.by_language.items())[:30]
        ]
        parts.append(table(["language", "in", "dropped", "out"], rows, "by language"))
    for example in corpus.examples(_EXAMPLES):
        marked = "".join(
            f"<mark>{html.escape(text)}</mark>" if kind == "mark" else html.escape(text)
            for kind, text in pieces(example.reason, example.text[:2000])
        )
        parts.append(
            f"<details><summary class='nbllm-dim'>{html.escape(printable(example.why))} · "
            f"{html.escape(printable(example.id))}</summary><div class='nbllm-mono'>{marked}</div></details>"
        )
    return f"<div class='nbllm-body'>{''.join(parts)}</div>"


def as_text(corpus: Any) -> str:
    """The face as plain text."""
    extra = corpus.warnings[len(corpus.report.notes) :]
    return "\n".join([str(corpus.report), *(f"note: {note}" for note in extra)])


def _histogram(found: Any) -> str:
    """One histogram as an SVG with its threshold."""
    wide, tall = 220, 46
    edges, counts = found.edges, found.documents
    most = max(1, int(counts.max(initial=0)))
    step = wide / len(counts)
    bars = []
    for index, count in enumerate(counts.tolist()):
        if count:
            gone = found.limit is not None and (
                edges[index + 1] <= found.limit if found.handle.least else edges[index] > found.limit
            )
            colour = "var(--nb-s2,#d55e00)" if gone else "var(--nb-s1,#0072b2)"
            height = max(1.0, tall * count / most)
            bars.append(
                f"<rect x='{index * step:.1f}' y='{tall - height:.1f}' width='{max(step - 0.6, 0.6):.1f}' "
                f"height='{height:.1f}' style='fill:{colour}'/>"
            )
    title = f"{found.handle.score.replace('_', ' ')}"
    limit = "no limit" if found.limit is None else f"{found.handle.argument} = {found.limit:g}"
    if found.limit is not None and edges[0] <= found.limit <= edges[-1]:
        index = max(0, min(int((edges <= found.limit).sum()) - 1, len(counts) - 1))
        within = (found.limit - edges[index]) / (edges[index + 1] - edges[index])
        x = (index + within) * step
        bars.append(f"<path d='M{x:.1f} 0V{tall}' style='stroke:var(--nb-fg,#222)' stroke-width='1.5'/>")
    return (
        f"<div><div class='nbllm-label'>{html.escape(title)} · {html.escape(limit)}</div>"
        f"<svg viewBox='0 0 {wide} {tall}' width='{wide}' height='{tall}' role='img' "
        f"aria-label='{html.escape(f'histogram of {title}, {limit}')}'>{''.join(bars)}</svg>"
        f"<div class='nbllm-dim nbllm-clean-ends'><span>{edges[0]:.3g}</span><span>{edges[-1]:.3g}</span></div></div>"
    )
