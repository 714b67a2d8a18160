"""The model panel: the architecture as a picture whose parts can be chosen, with the statistics of a part's weights.

Statistics are worked out by a thread when a part is chosen, for one layer at a time; of several wishes only the newest
is kept. The same picture stays in the saved notebook (`model_face`), with the part that was chosen last.
"""

from __future__ import annotations

from typing import Any

import anywidget

from nbllm.errors import NbllmError
from nbllm.panels import model_face, registry, source
from nbllm.panels.face import Face
from nbllm.panels.model_drawing import as_message, draw
from nbllm.panels.wishes import Wishes

_MOST_WEIGHTS = 24


def show_model(session: Any, summary: Any) -> None:
    """Displays the picture and the static face that stays in the saved notebook; text outside Jupyter.

    Args:
        session: whose lock is held while weights are looked at.
        summary: the architecture.
    """
    if not registry.has_kernel():
        print(model_face.as_text(summary))
        return
    from IPython.display import publish_display_data

    panel = ModelPanel(session, summary)
    registry.enter("model", f"{id(session)}", panel)
    if summary.layers:
        view = {"version_major": 2, "version_minor": 0, "model_id": panel.model_id}
        publish_display_data({"application/vnd.jupyter.widget-view+json": view})
    panel.start()


class ModelPanel(anywidget.AnyWidget):
    """The widget of one picture; `show_model` makes, registers and displays it.

    Messages to the page: `snapshot` (`model`, `facts`, `drawing`, `parts`, `face`) and `news`, both with `state`:
    `chosen`, `layer`, `doing`, `error` and `weights` (each a `name`, `lines` and `histogram`, an SVG path).
    Messages from the page: `snapshot`, and `do: look` with `part` and `layer`.
    """

    _esm = source.module("model")
    _css = source.style() + model_face.STYLE

    def __init__(self, session: Any, summary: Any) -> None:
        super().__init__()
        self.session, self.summary = session, summary
        self.chosen: str | None = None
        self.layer: int | None = None
        self.stats: list[Any] = []
        self.face = Face()
        self._wishes: Wishes[dict[str, Any]] = Wishes("model", self._do, rest=self.settle)
        self._closed = False
        self._stale = False
        self.on_msg(self._receive)

    def start(self) -> None:
        """Shows the static face and begins to listen."""
        self.face.show(model_face.as_html(self.summary), model_face.as_text(self.summary))
        self._wishes.start()

    def settle(self) -> None:
        """Brings the static face up to date."""
        if self._stale and not self._closed:
            self._stale = False
            page = model_face.as_html(self.summary, self.chosen, self.layer, self.stats)
            self.face.update(page, model_face.as_text(self.summary, self.stats))

    def close(self) -> None:
        """Ends the thread and removes the panel from the page; the static face stays."""
        if not self._closed:
            self._closed = True
            registry.leave(self)
            self._wishes.end()
            super().close()

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        if content.get("ask") == "snapshot":
            head = {"kind": "snapshot", "view": str(content.get("view")), "face": self.face.id}
            self.send({**head, **self._about(), **self._state()})
        elif content.get("do") == "look":
            self._wishes.want(content)

    def _do(self, wish: dict[str, Any], _outdated: object) -> None:
        try:
            self._look(wish)
        except Exception as error:  # shown in the panel: nobody sees a traceback of this thread
            known = str(error) if isinstance(error, NbllmError) else f"{type(error).__name__}: {error}"
            self._tell(error=" ".join(known.split()))

    def _look(self, wish: dict[str, Any]) -> None:
        part = str(wish.get("part"))
        layer = int(wish["layer"]) if wish.get("layer") is not None else None
        self._tell(doing="looking at the weights…")
        with self.session.lock:
            stats = self.summary.stats(part, layer=layer, most=_MOST_WEIGHTS)
        self.chosen, self.layer, self.stats, self._stale = part, layer, stats, True
        self._tell()

    def _tell(self, *, doing: str = "", error: str = "") -> None:
        if not self._closed:
            self.send({"kind": "news", **self._state(doing=doing, error=error)})

    def _state(self, *, doing: str = "", error: str = "") -> dict[str, Any]:
        weights = [
            {"name": one.name, "lines": model_face.weight_lines(one), "histogram": model_face.histogram(one)}
            for one in self.stats
        ]
        state = {"chosen": self.chosen, "layer": self.layer, "doing": doing, "error": error, "weights": weights}
        return {"state": state}

    def _about(self) -> dict[str, Any]:
        summary = self.summary
        parts = {}
        for group in (None, *summary.layers):
            for part in group.parts if group is not None else (*summary.before, *summary.after):
                parts[part.id] = {
                    "title": part.title,
                    "facts": [*part.facts, model_face.cost(part)],
                    "layers": list(group.numbers) if group is not None else [],
                    "more": max(0, len(part.names) - _MOST_WEIGHTS),
                }
        return {
            "model": summary.model,
            "facts": model_face.facts(summary),
            "drawing": as_message(draw(summary, model_face.cost, model_face.layers_label)),
            "parts": parts,
        }
