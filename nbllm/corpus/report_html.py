"""The report as HTML with an inline SVG: what stays in blue, what is dropped in vermilion, stage by stage.

Everything that comes from data or names is escaped. Colours go through JupyterLab's variables with fallbacks for light
and dark; a table with the same numbers stands under the picture.
"""

from __future__ import annotations

import html

from nbllm.corpus.mix_report import mix_table
from nbllm.corpus.report import Amount, CorpusReport, StageReport

STYLE = """<style>
.nbllm-corpus{--nb-fg:var(--jp-ui-font-color1,#1f2328);--nb-quiet:var(--jp-ui-font-color2,#59636e);
--nb-line:var(--jp-border-color2,#d1d9e0);--nb-keep:#0072b2;--nb-drop:#d55e00;--nb-drop-text:#a94700;
color:var(--nb-fg);font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);font-variant-numeric:tabular-nums;
max-width:900px}
@media (prefers-color-scheme:dark){.nbllm-corpus{--nb-fg:var(--jp-ui-font-color1,#e6edf3);
--nb-quiet:var(--jp-ui-font-color2,#9198a1);--nb-line:var(--jp-border-color2,#3d444d)}
body:not([data-jp-theme-light=true]) .nbllm-corpus{--nb-keep:#56b4e9;--nb-drop:#ff9a57;--nb-drop-text:#ff9a57}}
[data-jp-theme-light=false] .nbllm-corpus{--nb-keep:#56b4e9;--nb-drop:#ff9a57;--nb-drop-text:#ff9a57}
[data-jp-theme-light=true] .nbllm-corpus{--nb-keep:#0072b2;--nb-drop:#d55e00;--nb-drop-text:#a94700}
.nbllm-corpus .head{display:flex;flex-wrap:wrap;gap:4px 10px;align-items:baseline}
.nbllm-corpus .head b{font-weight:600}.nbllm-corpus .quiet{color:var(--nb-quiet)}
.nbllm-corpus .drop{color:var(--nb-drop-text)}.nbllm-corpus .keep{color:var(--nb-keep)}
.nbllm-corpus svg{display:block;width:100%;height:auto;margin:8px 0;overflow:visible}
.nbllm-corpus svg text{fill:var(--nb-fg);font-size:11px}.nbllm-corpus svg text.quiet{fill:var(--nb-quiet)}
.nbllm-corpus svg text.gone{fill:var(--nb-drop-text)}
.nbllm-corpus table{border-collapse:collapse;margin:4px 0;color:inherit;font:inherit;font-variant-numeric:inherit}
.nbllm-corpus th,.nbllm-corpus td{text-align:right;padding:2px 10px 2px 0;border:0;background:none;
color:inherit;vertical-align:top;font-weight:400}
.nbllm-corpus th{color:var(--nb-quiet)}.nbllm-corpus tbody tr{border-top:1px solid var(--nb-line);background:none}
.nbllm-corpus td:first-child,.nbllm-corpus th:first-child,.nbllm-corpus .left{text-align:left}
.nbllm-corpus .left{white-space:nowrap}
.nbllm-corpus .examples td,.nbllm-corpus .examples th{text-align:left}
.nbllm-corpus .examples td:first-child{min-width:150px;max-width:260px}
.nbllm-corpus pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;background:none;color:inherit;
font:12px/1.45 var(--jp-code-font-family,ui-monospace,monospace)}
.nbllm-corpus summary{cursor:pointer;color:var(--nb-quiet)}.nbllm-corpus .note{margin:2px 0}
.nbllm-corpus .scroll{overflow-x:auto}
</style>"""

_HEIGHT = 190
_BASE = 160
_TOP = 18
_COLUMN = 104
_BAR = 34


def report_html(report: CorpusReport) -> str:
    """The report's rich face."""
    came, went = report.came_in, report.went_out
    numbers = f"{came.documents:,} documents → {went.documents:,} · {_size(came.bytes)} → {_size(went.bytes)}"
    notes = "".join(f"<div class='note'>⚠ {html.escape(note)}</div>" for note in report.notes)
    return (
        f"{STYLE}<div class='nbllm-corpus'><div class='head'><b>{html.escape(report.name)}</b>"
        f"<span class='quiet'>{html.escape(report.recipe)}</span><span>{numbers}</span></div>"
        f"<div class='quiet'>documents, by stage</div><div class='scroll'>{_flow(report)}</div>{notes}"
        f"<details open><summary>numbers</summary><div class='scroll'>{_stage_table(report)}{_source_table(report)}"
        f"{_mix_table(report)}</div></details></div>"
    )


def _shown_stages(report: CorpusReport) -> list[StageReport]:
    return [stage for stage in report.stages if stage.name != "read" or stage.reasons]


def _flow(report: CorpusReport) -> str:
    """A bar a stage: what stays, and above it what was dropped; bands join what goes on."""
    bars = [("in", report.came_in.documents, 0)]
    bars += [(stage.name, stage.went_out.documents, stage.dropped.documents) for stage in _shown_stages(report)]
    most = max(1, report.came_in.documents)
    scale = (_BASE - _TOP) / most
    parts = []
    for index, (name, kept, gone) in enumerate(bars):
        x, tall, lost = index * _COLUMN, kept * scale, gone * scale
        title = f"{name}: {kept:,} kept" + (f", {gone:,} dropped" if gone else "")
        following = bars[index + 1][1] * scale if index + 1 < len(bars) else 0
        if following:
            parts.append(
                f"<rect x='{x + _BAR}' y='{_BASE - following:.1f}' width='{_COLUMN - _BAR}' height='{following:.1f}' "
                "fill='var(--nb-keep)' opacity='.16'/>"
            )
        parts.append(
            f"<g><title>{html.escape(title)}</title><rect x='{x}' y='{_BASE - tall:.1f}' width='{_BAR}' "
            f"height='{tall:.1f}' fill='var(--nb-keep)'/>"
        )
        if gone:
            parts.append(
                f"<rect x='{x}' y='{_BASE - tall - lost - 1:.1f}' width='{_BAR}' height='{max(lost, 1):.1f}' "
                f"fill='var(--nb-drop)' opacity='.8'/><text class='gone' x='{x + _BAR + 4}' "
                f"y='{max(_BASE - tall - lost / 2 - 2, 10):.1f}'>−{gone:,}</text>"
            )
        parts.append(
            f"</g><text class='quiet' x='{x}' y='{_BASE + 14}'>{html.escape(name)}</text>"
            f"<text x='{x}' y='{_BASE + 28}'>{kept:,}</text>"
        )
    width = len(bars) * _COLUMN
    label = f"{report.came_in.documents:,} documents in, {report.went_out.documents:,} out; the table has the numbers"
    return (
        f"<svg viewBox='0 0 {width} {_HEIGHT}' style='max-width:{width}px;min-width:{min(width, 560)}px' role='img' "
        f"aria-label='{html.escape(label)}'>{''.join(parts)}</svg>"
    )


def _stage_table(report: CorpusReport) -> str:
    rows = [f"<tr><td>in</td><td></td>{_cells(report.came_in)}<td></td></tr>"]
    for stage in _shown_stages(report):
        gone = stage.dropped.documents
        dropped = f"<span class='drop'>−{gone:,}</span>" if gone else "0"
        why = "<br>".join(
            f"{html.escape(reason)} <span class='drop'>−{amount.documents:,}</span>"
            for reason, amount in stage.reasons.items()
        )
        rows.append(
            f"<tr><td>{html.escape(stage.line)}</td><td>{dropped}</td>{_cells(stage.went_out)}"
            f"<td class='left'>{why}</td></tr>"
        )
    heads = "".join(
        f"<th scope='col'{left}>{head}</th>"
        for head, left in (("stage", ""), ("dropped", ""), ("documents", ""), ("characters", ""), ("bytes", ""),
                           ("reason", " class='left'"))
    )  # fmt: skip
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _source_table(report: CorpusReport) -> str:
    if len(report.by_source) < 2:
        return ""
    rows = "".join(
        f"<tr><td>{html.escape(source)}</td><td>{amounts['in'].documents:,}</td>"
        f"<td><span class='drop'>−{amounts['dropped'].documents:,}</span></td>{_cells(amounts['out'])}</tr>"
        for source, amounts in report.by_source.items()
    )
    heads = "".join(
        f"<th scope='col'>{head}</th>" for head in ("source", "in", "dropped", "out", "characters", "bytes")
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _mix_table(report: CorpusReport) -> str:
    if not report.mix:
        return ""
    head, *rows = mix_table(report.mix)
    heads = "".join(f"<th scope='col'>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _cells(amount: Amount) -> str:
    return f"<td>{amount.documents:,}</td><td>{amount.characters:,}</td><td>{amount.bytes:,}</td>"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:,} bytes"
