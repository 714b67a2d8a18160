"""The attention panel: every head as a thumbnail, one map large, and what the model says next without some heads.

A thread looks, so that neither a cell nor the page waits; of each kind of wish only the newest is kept. Nothing of all
maps is ever sent: thumbnails once, then the one map that is looked at (`attention_view`). A static face beside the
widget keeps the chosen head in the saved notebook (`attention_face`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import anywidget
import numpy as np

from nbllm.errors import NbllmError, UsageError
from nbllm.panels import attention_face, attention_scale, place, registry, source
from nbllm.panels.attention_view import SCORES, Side, Wanted, encode, encode_thumbnails
from nbllm.panels.face import Face

_PARTS = ("chart", "attention_sheet", "attention_map", "attention_lines", "attention_heads", "attention_source")
_MOST_OFF = 200


def show_attention(
    session: Any,
    *,
    wanted: Wanted | None = None,
    maps: Any = None,
    other: tuple[Wanted, Any] | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> None:
    """Displays the attention panel and the static face that stays in the saved notebook; text outside Jupyter.

    Args:
        session: what looks at further texts, checkpoints and adapters.
        wanted: what `maps` show; without it the panel begins with the text it showed before, or empty.
        maps: the attention maps of that text.
        other: a second text or model beside it, with its maps.
        layer: the head to begin with, by the model's own number of its layer; the most telling one by default.
        head: its place in the layer.

    Raises:
        UsageError: where there is no such layer or head, or nothing to show outside a Jupyter kernel.
    """
    sides = [Side(wanted=wanted, maps=maps)] if wanted is not None and maps is not None else []
    sides += [Side(wanted=other[0], maps=other[1])] if sides and other is not None else []
    if sides:
        chosen = _chosen(sides[0], layer, head)
    if not registry.has_kernel():
        if not sides:
            raise UsageError("A panel needs a Jupyter notebook", next='Type %llm_attention "text" here')
        print(attention_face.as_text(sides, *chosen, pinned=sides[0].tokens - 1))
        return
    if not sides:
        before = [panel for panel in registry.live("attention") if panel.session is session]
        sides = list(before[-1].sides) if before else []
        chosen = (before[-1].layer, before[-1].head) if before else (0, 0)
    panel = AttentionPanel(session, sides, layer=chosen[0], head=chosen[1])
    registry.enter("attention", f"{id(session)}", panel)
    place.present(panel)
    panel.start()


def static_html(sides: Sequence[Side], layer: int, head: int) -> str:
    """The face of a head as HTML that works without a kernel, a script or a network."""
    from nbllm.panels.face import wrap

    return wrap(attention_face.as_html(sides, layer, head, pinned=sides[0].tokens - 1))


def _chosen(side: Side, layer: int | None, head: int | None) -> tuple[int, int]:
    """The head to begin with, as a row and a column of the sheet."""
    numbers = [side.number(row) for row in range(side.maps.layers)]
    if layer is not None and layer not in numbers:
        raise UsageError("There is no such layer with attention", received=layer, next=f"Choose {_span(numbers)}")
    if head is not None and not 0 <= head < side.maps.heads:
        raise UsageError("There is no such head", received=head, next=f"Choose 0 to {side.maps.heads - 1}")
    if layer is None and head is None:
        return side.telling_head()
    return numbers.index(layer) if layer is not None else 0, head or 0


def _span(numbers: Sequence[int]) -> str:
    whole = list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if whole == list(numbers) else ", ".join(map(str, numbers))


class AttentionPanel(anywidget.AnyWidget):
    """The widget of one look; `show_attention` makes, registers and displays it.

    Messages to the page: `snapshot` (everything, for one view) and `news`: some of `state`, `sides`, `map`, `rows` and
    `next`. `names` tells what each buffer is: `palette` (256 colours), and for each side `thumbnails0`, `scores0`
    (float32 [L * H, 6]), `map0`, `stats0` (see `attention_view.encode`) and `row0` (float32 [T]).
    Messages from the page: `snapshot`, `choices`, and `do` with `head`, `row`, `pin`, `off`, `look` or `compare`.
    """

    _esm = source.module("attention", *_PARTS)
    _css = source.style()

    def __init__(self, session: Any, sides: Sequence[Side] = (), *, layer: int = 0, head: int = 0) -> None:
        super().__init__()
        self.session = session
        self.sides = list(sides)
        self.layer, self.head = layer, head
        self.pinned = self.sides[0].tokens - 1 if self.sides else 0
        self.off: list[tuple[int, int]] = []
        self.face = Face()
        self._next: list[dict[str, Any]] | None = None
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._wishes: dict[str, dict[str, Any]] = {}
        self._doing: str = "idle"
        self._error: str | None = None
        self._choices: dict[str, list[Any]] = {"checkpoints": [], "adapters": []}
        self._closed = False
        self._stale = False
        self.on_msg(self._receive)

    def start(self) -> None:
        """Shows the static face and begins to listen."""
        self._look_for_choices()
        self.face.show(*self._as_face())
        threading.Thread(target=self._work, name="nbllm-panel-attention", daemon=True).start()

    def settle(self) -> None:
        """Brings the static face up to date."""
        with self._lock:
            if not self._closed and self._stale and self._doing == "idle":
                self._stale = False
                self.face.update(*self._as_face())

    def close(self) -> None:
        """Ends the thread and removes the panel from the page; the static face stays."""
        if self._closed:
            return
        self._closed = True
        registry.leave(self)
        self._wake.set()
        super().close()

    # what the page asks for

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        kind = "snapshot" if content.get("ask") == "snapshot" else str(content.get("do") or content.get("ask"))
        with self._lock:
            if kind == "off":  # each counts, also where several came at once
                self._switch(content)
            key = f"snapshot {content.get('view')}" if kind == "snapshot" else kind
            self._wishes.pop(key, None)
            self._wishes[key] = {**content, "do": kind}
        self._wake.set()

    def _switch(self, content: dict[str, Any]) -> None:
        if not self.sides:
            return
        if content.get("all"):
            self.off = []
            return
        head = int(content["layer"]), int(content["head"])
        if head in self.off:
            self.off.remove(head)
        elif self.sides[0].has(*head) and head[1] < self.sides[0].maps.heads and len(self.off) < _MOST_OFF:
            self.off.append(head)

    # the thread

    def _work(self) -> None:
        while not self._closed:
            if not self._wake.wait(2.0 if self._stale else None):
                self.settle()
                continue
            self._wake.clear()
            while not self._closed and (wish := self._newest()) is not None:
                try:
                    self._obey(wish)
                except Exception as error:  # shown in the panel: nobody sees a traceback of this thread
                    self._say("idle", error=_one_line(error))

    def _newest(self) -> dict[str, Any] | None:
        with self._lock:
            return self._wishes.pop(next(iter(self._wishes))) if self._wishes else None

    def _obey(self, wish: dict[str, Any]) -> None:
        kind = wish["do"]
        if kind == "snapshot":
            self._tell({"kind": "snapshot", "view": str(wish.get("view")), "face": self.face.id}, *self._everything())
        elif kind == "choices":
            self._look_for_choices()
            self._say(self._doing)
        elif kind in ("look", "compare"):
            self._look(int(kind == "compare"), dict(wish.get("wanted") or {}))
        elif not self.sides:
            return
        elif kind == "head":
            self._go(int(wish["layer"]), int(wish["head"]))
        elif kind == "row":
            self._tell({"kind": "news"}, *self._row(int(wish["query"])))
        elif kind == "pin":
            self.pinned = min(max(0, int(wish["query"])), self.sides[0].tokens - 1)
            self._stale = True
        elif kind == "off":
            self._ablate()
        else:
            raise UsageError("The panel doesn't know this command", received=kind)

    def _go(self, layer: int, head: int) -> None:
        if not self.sides[0].has(layer, head):
            raise UsageError("There is no such head", received=f"{layer}.{head}")
        self.layer, self.head, self._stale = layer, head, True
        self._error = None
        content, buffers = self._map()
        self._tell({"kind": "news"}, {**self._state(), **content}, buffers)

    def _look(self, number: int, wanted: dict[str, Any]) -> None:
        """Looks at another text, checkpoint or adapter; an empty wish for the second side ends the comparison."""
        if number == 1 and not wanted:
            self.sides = self.sides[:1]
            self._stale = True
            self._tell({"kind": "news"}, *self._everything())
            return
        if number == 1 and not self.sides:
            raise UsageError("There is nothing to compare with yet", next="Look at a text first")
        before = self.sides[0].wanted if self.sides else Wanted(text="")
        found = _wanted(wanted, self.sides[number].wanted if number < len(self.sides) else before)
        with self._model():
            self._say("looking")
            side = Side(wanted=found, maps=found.look(self.session))
            side.thumbnails()
            side.scores()
            kept = self.sides[1:] if number == 0 else []
            with self._lock:
                first = side if number == 0 else self.sides[0]
                again = bool(self.sides) and self.sides[0].maps.token_ids == first.maps.token_ids
                self.sides = [first, *kept] if number == 0 else [first, side]
                if not first.has(self.layer, self.head) or not before.text:
                    self.layer, self.head = first.telling_head()
                self.pinned = min(self.pinned, first.tokens - 1) if again else first.tokens - 1
                self.off = [head for head in self.off if first.has(*head)]
        self._doing, self._error, self._stale = "idle", None, True
        self._next = None
        self._look_for_choices()
        self._tell({"kind": "news"}, *self._everything())
        if self.off:
            self._ablate()

    def _ablate(self) -> None:
        if not self.off:
            self._next = None
        else:
            with self._model():
                self._say("computing")
                first = self.sides[0]
                without = [(first.number(layer), head) for layer, head in self.off]
                self._next = [_next(token) for token in first.maps.next_tokens(without=without, top=10)]
        self._doing, self._error, self._stale = "idle", None, True
        self._tell({"kind": "news"}, self._state())

    @contextlib.contextmanager
    def _model(self) -> Iterator[None]:
        """The session's lock; says where it waits for a cell that holds it."""
        if not self.session.lock.acquire(blocking=False):
            self._say("waiting")
            self.session.lock.acquire()
        try:
            yield
        finally:
            self.session.lock.release()

    def _look_for_choices(self) -> None:
        found: dict[str, list[Any]] = {"checkpoints": [], "adapters": []}
        current = str(getattr(self.session.model, "source", ""))
        asked = self.sides[0].wanted.model if self.sides else None
        with contextlib.suppress(NbllmError):  # looking says what is wrong
            found["adapters"] = [manifest.name for manifest in self.session.adapters()]
            if asked in (None, current):  # the session knows the checkpoints of its own model
                found["checkpoints"] = list(self.session.checkpoints())
        self._choices = found

    # what the page is told

    def _say(self, doing: str, *, error: str | None = None) -> None:
        self._doing, self._error = doing, error
        self._tell({"kind": "news"}, self._state())

    def _tell(self, content: dict[str, Any], more: dict[str, Any], buffers: Sequence[tuple[str, bytes]] = ()) -> None:
        if not self._closed:
            names = [name for name, _ in buffers]
            self.send({**content, **more, "names": names}, [buffer for _, buffer in buffers])

    def _state(self) -> dict[str, Any]:
        kind = self.sides[0].kind(self.layer, self.head) if self.sides else None
        state = {
            "doing": self._doing,
            "error": self._error,
            "layer": self.layer,
            "head": self.head,
            "pinned": self.pinned,
            "score": {"name": kind[0], "value": kind[1]} if kind else None,
            "off": [list(head) for head in self.off],
            "next": self._next,
            "predicts": self.sides[0].predicts if self.sides else "next token",
            "choices": self._choices,
        }
        return {"state": state}

    def _everything(self) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
        about, buffers = [], [("palette", attention_scale.palette())]
        for number, side in enumerate(self.sides):
            thumbnails = side.thumbnails()
            about.append(
                {
                    "tokens": list(side.maps.tokens),
                    "text": side.wanted.text,
                    "checkpoint": side.wanted.checkpoint,
                    "adapter": side.wanted.adapter,
                    "model": side.maps.model,
                    "layers": [side.number(row) for row in range(side.maps.layers)],
                    "heads": side.maps.heads,
                    "size": thumbnails.shape[-1],
                    "same": tuple(side.maps.token_ids) == tuple(self.sides[0].maps.token_ids),
                }
            )
            buffers += [
                (f"thumbnails{number}", encode_thumbnails(thumbnails)),
                (f"scores{number}", side.scores().tobytes()),
            ]
        content: dict[str, Any] = {**self._state(), "sides": about, "columns": list(SCORES)}
        if self.sides:
            shown, more = self._map()
            content |= shown
            buffers += more
        return content, buffers

    def _map(self) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
        """The chosen head on each side that has it, and the pinned query's exact row."""
        strides, buffers = [], []
        for number, side in enumerate(self.sides):
            if not side.has(self.layer, self.head):
                strides.append(0)
                continue
            coded, stats, stride = encode(side.weights(self.layer, self.head))
            strides.append(stride)
            buffers += [(f"map{number}", coded), (f"stats{number}", stats)]
        rows, more = self._row(self.pinned)
        return {"map": {"layer": self.layer, "head": self.head, "strides": strides}, **rows}, [*buffers, *more]

    def _row(self, query: int) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
        """One query's exact weights, on each side that has it."""
        buffers = [
            (f"row{number}", np.ascontiguousarray(side.weights(self.layer, self.head)[query], dtype="<f4").tobytes())
            for number, side in enumerate(self.sides)
            if side.has(self.layer, self.head) and 0 <= query < side.tokens
        ]
        return {"rows": {"layer": self.layer, "head": self.head, "query": query}}, buffers

    def _as_face(self) -> tuple[str, str]:
        if not self.sides:
            return attention_face.EMPTY
        parts: dict[str, Any] = {"pinned": self.pinned, "off": self.off, "following": self._next or ()}
        return (
            attention_face.as_html(self.sides, self.layer, self.head, **parts),
            attention_face.as_text(self.sides, self.layer, self.head, **parts),
        )


def _wanted(asked: dict[str, Any], before: Wanted) -> Wanted:
    """What the page asked for; what it doesn't say stays as it was."""
    step, adapter = asked.get("checkpoint", before.checkpoint), asked.get("adapter", before.adapter)
    return Wanted(
        text=str(asked.get("text", before.text)),
        model=before.model,
        checkpoint=None if step is None else int(step),
        adapter=None if adapter is None else str(adapter),
        chat=before.chat,
    )


def _next(token: Any) -> dict[str, Any]:
    return {"text": str(token.text), "before": float(token.probability), "after": float(token.without)}


def _one_line(error: Exception) -> str:
    return str(error) if isinstance(error, NbllmError) else f"{type(error).__name__}: {' '.join(str(error).split())}"
