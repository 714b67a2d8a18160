"""The logit lens as a panel: a table of layers by positions that can be walked through, and along a run's checkpoints.

Numbers travel as typed arrays, each different token's text once. A thread looks, so that neither a cell nor the page
waits; of several wishes only the newest is kept. `lens_face` stays in the saved notebook.
"""

from __future__ import annotations

import contextlib
from typing import Any

import anywidget
import numpy as np

from nbllm.errors import NbllmError
from nbllm.panels import lens_face, place, registry, source
from nbllm.panels.face import Face
from nbllm.panels.wishes import Wishes


def show_lens(session: Any, lens: Any, *, text: str, wanted: dict[str, Any] | None = None) -> None:
    """Displays the lens and the static face that stays in the saved notebook; text outside Jupyter.

    Args:
        session: what looks at further texts and checkpoints.
        lens: what to show first.
        text: what it shows.
        wanted: `model`, `checkpoint`, `adapter`, `chat` and `top`, as they were given.
    """
    if not registry.has_kernel():
        print(lens_face.as_text(lens))
        return
    panel = LensPanel(session, lens, text=text, wanted=wanted)
    registry.enter("lens", f"{id(session)}", panel)
    place.present(panel)
    panel.start()


class LensPanel(anywidget.AnyWidget):
    """The widget of one lens; `show_lens` makes, registers and displays it.

    Messages to the page: `snapshot` and `news`, both with `state`, and where the lens is new also `lens` (shapes,
    names, `strings`) with five buffers: int32 [R, T, K] places of the top tokens in `strings`, float32 [R, T, K] their
    probabilities, float32 [R, T] the final token's, float32 [R, T] the actual token's, int32 [R, T] its rank.
    Messages from the page: `snapshot`, and `do: look` with `text` or `checkpoint`.
    """

    _esm = source.module("lens")
    _css = source.style() + lens_face.STYLE

    def __init__(self, session: Any, lens: Any, *, text: str, wanted: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.session, self.lens, self.text = session, lens, text
        self.wanted = dict(wanted or {})
        self.face = Face()
        self._wishes: Wishes[dict[str, Any]] = Wishes("lens", self._do, rest=self.settle)
        self._closed = False
        self._stale = False
        self.on_msg(self._receive)

    def start(self) -> None:
        """Shows the static face and begins to listen."""
        self.face.show(lens_face.as_html(self.lens), lens_face.as_text(self.lens))
        self._wishes.start()

    def settle(self) -> None:
        """Brings the static face up to date."""
        if self._stale and not self._closed:
            self._stale = False
            self.face.update(lens_face.as_html(self.lens), lens_face.as_text(self.lens))

    def close(self) -> None:
        """Ends the thread and removes the panel from the page; the static face stays."""
        if not self._closed:
            self._closed = True
            registry.leave(self)
            self._wishes.end()
            super().close()

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        if content.get("ask") == "snapshot":
            about, buffers = self._everything()
            head = {"kind": "snapshot", "view": str(content.get("view")), "face": self.face.id}
            self.send({**head, **self._state(), **about}, buffers)
        elif content.get("do") == "look":
            self._wishes.want(content)

    def _do(self, wish: dict[str, Any], _outdated: object) -> None:
        try:
            self._look(wish)
        except Exception as error:  # shown in the panel: nobody sees a traceback of this thread
            known = str(error) if isinstance(error, NbllmError) else f"{type(error).__name__}: {error}"
            self._tell(self._state(error=" ".join(known.split())))

    def _look(self, wish: dict[str, Any]) -> None:
        text, wanted = str(wish.get("text", self.text)), dict(self.wanted)
        if wish.get("checkpoint") is not None:
            wanted["checkpoint"] = int(wish["checkpoint"])
        self._tell(self._state(doing="looking…"))
        lens = self.session.logit_lens(text, **wanted)
        self.lens, self.text, self.wanted, self._stale = lens, text, wanted, True
        about, buffers = self._everything()
        self._tell({**self._state(), **about}, buffers)

    def _tell(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        if not self._closed:
            self.send({"kind": "news", **content}, buffers or [])

    def _state(self, *, doing: str = "", error: str = "") -> dict[str, Any]:
        steps: list[int] = []
        current = str(getattr(self.session.model, "source", ""))
        with contextlib.suppress(NbllmError):
            if self.wanted.get("model") in (None, current):
                steps = list(self.session.checkpoints())
        state = {"doing": doing, "error": error, "checkpoints": steps, "checkpoint": self.wanted.get("checkpoint")}
        return {"state": {**state, "text": self.text}}

    def _everything(self) -> tuple[dict[str, Any], list[bytes]]:
        lens = self.lens
        strings, places = np.unique(lens.top_texts.astype(str).reshape(-1), return_inverse=True)
        about = {
            "model": lens.model,
            "summary": lens.summary,
            "tokens": list(lens.tokens),
            "rows": list(lens.rows),
            "predicts": lens.predicts,
            "top": int(lens.top_ids.shape[2]),
            "settles": lens.settles.tolist(),
            "strings": strings.tolist(),
        }
        arrays = [places, lens.top_probabilities, lens.final_probability, lens.actual_probability, lens.actual_rank]
        kinds = ["<i4", "<f4", "<f4", "<f4", "<i4"]
        return {"lens": about}, [
            np.ascontiguousarray(array, dtype=kind).tobytes() for array, kind in zip(arrays, kinds, strict=True)
        ]
