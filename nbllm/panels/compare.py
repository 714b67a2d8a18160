"""Runs over one another: smoothed training loss and held-out loss of each in one chart, with a table behind it.

The page asks for the curves, every few seconds while a run lives, so that the kernel needs no thread for it. A static
face stays in the saved notebook. Knows a comparison as an object with `runs`, `table` (`head`, `rows`) and
`differences`; never imports the training package.
"""

from __future__ import annotations

import html
import threading
from typing import Any

import anywidget

from nbllm.panels import face, registry, run_face, source, svg
from nbllm.panels.history import RunHistory

_COLOURS = (
    ("#0072b2", "--nb-s1"), ("#d55e00", "--nb-s2"), ("#009e73", "--nb-s3"), ("#8a4f9e", "--nb-s4"),
)  # fmt: skip


def show_comparison(comparison: Any) -> None:
    """Displays the panel and its static face; text alone outside Jupyter."""
    if not registry.has_kernel():
        print(comparison)
        return
    from IPython.display import publish_display_data

    panel = ComparePanel(comparison)
    registry.enter("compare", " ".join(run.name for run in comparison.runs), panel)
    view = {"version_major": 2, "version_minor": 0, "model_id": panel.model_id}
    publish_display_data({"application/vnd.jupyter.widget-view+json": view})
    panel.face.show(as_html(comparison, panel.histories), str(comparison))


class ComparePanel(anywidget.AnyWidget):
    """The widget. It answers `snapshot` with each run's curves as float64: n steps, then n values."""

    _esm = source.module("compare", "series", "chart")
    _css = source.style()

    def __init__(self, comparison: Any) -> None:
        super().__init__()
        self.comparison = comparison
        self.face = face.Face()
        self.histories = [RunHistory() for _ in comparison.runs]
        self._readers = [run.reader() for run in comparison.runs]
        self._lock = threading.Lock()
        self._read()
        self.on_msg(self._receive)

    def settle(self) -> None:
        """Nothing: the face is written when the panel is shown."""

    def close(self) -> None:
        """Removes the panel from the page; the static face stays."""
        registry.leave(self)
        super().close()

    def _read(self) -> None:
        with self._lock:
            for history, reader in zip(self.histories, self._readers, strict=True):
                for event in reader.poll():
                    history.add(event)

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        if content.get("ask") != "snapshot":
            return
        self._read()
        runs, buffers = [], []
        for run, history in zip(self.comparison.runs, self.histories, strict=True):
            status = str(run.status)
            runs.append({"name": str(run.name), "status": status, "icon": run_face.STATUS[status][0]})
            for name in ("smooth", "eval_loss"):
                steps, values = history.curves[name].points()
                buffers.append(steps.tobytes() + values.tobytes())
        content = {
            "kind": "snapshot",
            "view": str(content.get("view")),
            "runs": runs,
            "live": any(run["status"] not in run_face.OVER for run in runs),
            "head": list(self.comparison.table.head),
            "rows": [list(row) for row in self.comparison.table.rows],
            "differences": [[key, *values] for key, values in self.comparison.differences.items()],
            "face": self.face.id,
        }
        self.send(content, buffers)


def as_html(comparison: Any, histories: list[RunHistory]) -> str:
    """The body of the static face. All text from data is escaped."""
    layers, legend = [], []
    for index, (run, history) in enumerate(zip(comparison.runs, histories, strict=True)):
        colour, variable = _COLOURS[index % len(_COLOURS)]
        opacity = 1.0 if index < len(_COLOURS) else 0.5
        for name, dots in (("smooth", False), ("eval_loss", True)):
            steps, values = history.curves[name].points()
            layers.append(
                svg.Layer(steps=steps, values=values, colour=colour, variable=variable, dots=dots, opacity=opacity)
            )
        swatch = f'<i class="nbllm-swatch" style="border-top:3px solid var({variable},{colour})"></i>'
        legend.append(f"{swatch}{html.escape(str(run.name))} ")
    last = max((history.step for history in histories), default=1)
    picture = svg.chart(
        layers, last_step=last, label="Losses of " + ", ".join(str(run.name) for run in comparison.runs)
    )
    table = face.table(list(comparison.table.head), [list(row) for row in comparison.table.rows], "runs as a table")
    names = ["option", *(str(run.name) for run in comparison.runs)]
    asked = [[key, *values] for key, values in comparison.differences.items()]
    differences = face.table(names, asked, "what was asked differently") if asked else ""
    return (
        '<div class="nbllm-head"><strong>Runs compared</strong></div><div class="nbllm-body">'
        f'<div class="nbllm-label">loss, nats a token (● held-out) {" ".join(legend)}</div>'
        f"{picture}{table}{differences}</div>"
    )
