"""The live panel of a run: loss, gradient norm and learning rate as they come, and the buttons that steer the run.

A watcher thread in the kernel asks the run's metrics reader for news a few times a second and sends what is new as
binary messages; a page that renders the panel asks for a snapshot, so that a reload or a second view catches up. The
widget's state holds no history. A static face beside it keeps the final numbers in the saved notebook. Steering
happens on a thread of its own, so that no cell and no other callback waits for a run.

Knows a run only as an object with `name`, `status`, `error`, `config`, `total_steps`, `lr_factor`, `checkpoints`,
`reader()`, `stop()`, `pause()`, `resume()`, `checkpoint()` and `set_lr_factor()`; never imports the training package.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from array import array
from typing import Any

import anywidget

from nbllm.errors import NbllmError, UsageError
from nbllm.panels import place, registry, run_face, source
from nbllm.panels.face import Face
from nbllm.panels.history import RunHistory

_POLL_S = 0.3
_POLL_PAUSED_S = 1.0
_FACE_S = 10.0
_QUIET_S = 60.0
_QUIET_POLL_S = 10.0
_SETTLED_S = 2.0
_HERE_S = 5.0
_USAGE_S = 2.0
_LONG_BYTES = 1 << 22
"""A file of metrics that is longer is shown from a preview first, and read in pieces of that size."""


def show_run(run: Any, *, reference_bits_per_byte: float | None = None) -> None:
    """Displays a run's live panel, and the static face that stays in the saved notebook; plain text outside Jupyter.

    Args:
        run: the run to show.
        reference_bits_per_byte: what `xz -9` needs for the held-out text, shown beside the model's bits a byte.
    """
    if not registry.has_kernel():
        print(static_text(run, reference_bits_per_byte=reference_bits_per_byte))
        return
    panel = TrainPanel(run, reference_bits_per_byte=reference_bits_per_byte)
    registry.enter("train", str(run.name), panel)
    place.present(panel)
    panel.start()


def static_html(run: Any, *, reference_bits_per_byte: float | None = None) -> str:
    """The run now as HTML with inline SVG: works without a kernel, a script or a network. All text is escaped."""
    from nbllm.panels.face import wrap

    history = _read(run)
    return wrap(run_face.as_html(run_face.head(run, history, reference_bits_per_byte), history))


def static_text(run: Any, *, reference_bits_per_byte: float | None = None) -> str:
    """The run now in one line of plain text, and a second one where it failed or died."""
    return run_face.as_text(run_face.head(run, _read(run), reference_bits_per_byte))


class TrainPanel(anywidget.AnyWidget):
    """The widget of one run; `show_run` makes, registers and displays it.

    Messages to the page: `snapshot` (answers one view, or all after a restart of the run) and `delta`, both with the
    header's numbers and one buffer a curve: n float64 steps, then n float64 values; `here` where there was nothing to
    say. Deltas are numbered, so that a view that missed one asks for a snapshot. Messages from the page: `snapshot`,
    `alive`, and `do` with a command.
    """

    _esm = source.module("train", "series", "chart")
    _css = source.style()

    def __init__(self, run: Any, *, reference_bits_per_byte: float | None = None) -> None:
        reader = run.reader()
        super().__init__()
        self.run = run
        self.history = RunHistory()
        self.face = Face()
        self._reader = reader
        self._reference = reference_bits_per_byte
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closed = False
        self._sequence = 0
        self._sent: dict[str, Any] = {}
        self._head: run_face.Head | None = None
        self._face_shown = -math.inf
        self._settled = False
        self._heard = self._spoke = time.monotonic()
        self._trouble: str | None = None
        self._usage: list[dict[str, Any]] = []
        self._usage_seen = -math.inf
        self._whole: RunHistory | None = None
        if getattr(reader, "unread", 0) > _LONG_BYTES:
            self._whole = RunHistory()
            for event in reader.skim():
                self.history.add(event)
        self._watcher: threading.Thread | None = None
        self._commands: queue.Queue[tuple[str, Any] | None] = queue.Queue(maxsize=32)
        self._steerer: threading.Thread | None = None
        self.on_msg(self._receive)

    def start(self) -> None:
        """Shows the static face and begins to watch; again after a run that was over goes on."""
        self.update(face_every_s=math.inf)
        with self._lock:
            if self._head is not None and self._face_shown == -math.inf:
                self.face.show(run_face.as_html(self._head, self.history), run_face.as_text(self._head))
                self._face_shown = time.monotonic()
            if self._watcher is None or not self._watcher.is_alive():
                self._settled = False
                name = f"nbllm-panel-{self.run.name}"
                self._watcher = threading.Thread(target=self._watch, name=name, daemon=True)
                self._watcher.start()

    def settle(self) -> None:
        """Writes the newest numbers into the static face, so that a notebook saved after this cell holds them."""
        with self._lock:
            if self._settled:
                return
            self.update(face_every_s=_SETTLED_S)
            if self._head is not None and self._head["over"]:
                # once more from the cell itself: tools that execute notebooks pass over what a thread sends
                self._refresh_face(again=True)
                self._settled = True

    def close(self) -> None:
        """Ends the threads and removes the panel from the page; the static face stays."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        registry.leave(self)
        self._wake.set()
        with contextlib.suppress(queue.Full):  # then it sees that the panel is closed after the command it is at
            self._commands.put_nowait(None)
        super().close()

    # watching

    def update(self, *, face_every_s: float = _FACE_S) -> None:
        """Reads what is new and sends it; refreshes the static face where it is older than that, or the run is over."""
        with self._lock:
            if self._closed:
                return
            try:
                status = str(self.run.status)  # before the events: all that a run wrote before its end is then read
                if self._whole is None:
                    for event in self._reader.poll():
                        self.history.add(event)
                self._look_at_usage(status)
                self._head = run_face.head(self.run, self.history, self._reference, status=status)
            except Exception as error:
                if self._head is None:
                    raise
                self._trouble = f"The run can't be read: {_one_line(error)}"  # go on: a busy disk comes back
            self._send_news(self._head)
            if self._head["over"] or time.monotonic() - self._face_shown > face_every_s:
                self._refresh_face()

    def _read_on(self) -> bool:
        """Reads a piece of a long file; False once all of it has taken the preview's place."""
        if self._whole is None:
            return False
        try:
            for event in self._reader.poll(_LONG_BYTES):
                self._whole.add(event)
        except Exception as error:
            self._complain(f"The run can't be read: {_one_line(error)}")
            return False
        if self._reader.unread > _LONG_BYTES:
            return True
        with self._lock:
            self.history, self._whole = self._whole, None
            self.history.take_fresh()
            if self._head is not None and not self._closed:
                self.update()
                self._send_snapshot(None, self._head)
        return False

    def _look_at_usage(self, status: str) -> None:
        """Memory and use by rank, every few seconds of a run that lives."""
        if status in run_face.OVER:
            self._usage = []
        elif hasattr(self.run, "usage") and time.monotonic() - self._usage_seen > _USAGE_S:
            self._usage_seen = time.monotonic()
            self._usage = [run_face.usage(use) for use in self.run.usage()]

    def _refresh_face(self, *, again: bool = False) -> None:
        if self._head is not None and self._face_shown > -math.inf:
            self.face.update(run_face.as_html(self._head, self.history), run_face.as_text(self._head), again=again)
            self._face_shown = time.monotonic()

    def _watch(self) -> None:
        while not self._closed and self._read_on():
            pass
        while not self._closed:
            self.update()
            if self._head is None or self._head["over"]:
                return
            # where no page listens, messages pile up in the server: fewer and larger ones then
            if time.monotonic() - self._spoke > _HERE_S:
                self._speak(
                    {"kind": "here"}
                )  # a paused run has no news, but the page should know that somebody is there
            quiet = time.monotonic() - self._heard > _QUIET_S
            self._wake.wait(_QUIET_POLL_S if quiet else _POLL_PAUSED_S if self._head["status"] == "paused" else _POLL_S)
            self._wake.clear()

    # talking to the page

    def _send_news(self, head: run_face.Head) -> None:
        fresh = self.history.take_fresh()
        if fresh is None:
            self._send_snapshot(None, head)
            return
        changed = self._changed(head)
        if not fresh and not changed:
            return
        self._sequence += 1
        names, buffers = _pack(fresh)
        self._speak({"kind": "delta", "sequence": self._sequence, "head": changed, "curves": names}, buffers)

    def _send_snapshot(self, view: str | None, head: run_face.Head) -> None:
        """All there is: for one view that asked, or (None) for all of them."""
        extended = self._extended(head)
        if view is None:
            self._sequence += 1
            self._sent = extended
        names, buffers = _pack({name: curve.points() for name, curve in self.history.curves.items()})
        content = {
            "kind": "snapshot",
            "view": view,
            "sequence": self._sequence,
            "head": extended,
            "curves": names,
            "strides": {name: curve.stride for name, curve in self.history.curves.items()},
            "face": self.face.id,
        }
        self._speak(content, buffers)

    def _speak(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        self._spoke = time.monotonic()
        self.send(content, buffers)

    def _extended(self, head: run_face.Head) -> dict[str, Any]:
        return {
            **head,
            "checkpoints": self.history.checkpoints,
            "sample": list(self.history.sample) if self.history.sample else None,
            "happened": [list(pair) for pair in self.history.happened],
            "ranks": self._usage,
            "first_bad_step": self.history.first_bad_step,
            "trouble": self._trouble,
        }

    def _changed(self, head: run_face.Head) -> dict[str, Any]:
        """What differs from the header sent last."""
        now = self._extended(head)
        changed = {key: value for key, value in now.items() if key not in self._sent or self._sent[key] != value}
        self._sent = now
        return changed

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        self._heard = time.monotonic()
        if content.get("ask") == "snapshot":
            with self._lock:
                self.update(face_every_s=math.inf)
                if self._head is not None and not self._closed:
                    self._send_snapshot(str(content.get("view")), self._head)
        elif "do" in content:
            self._steer(str(content["do"]), content.get("value"))
        self._wake.set()

    # steering

    def _steer(self, command: str, value: Any) -> None:
        with self._lock:
            if self._steerer is None:
                self._steerer = threading.Thread(target=self._obey, name="nbllm-panel-steering", daemon=True)
                self._steerer.start()
        try:
            self._commands.put_nowait((command, value))
        except queue.Full:
            self._complain("Too many commands are waiting for this run")

    def _obey(self) -> None:
        while (item := self._commands.get()) is not None and not self._closed:
            try:
                self._command(*item)
            except Exception as error:  # shown in the panel: nobody sees a traceback of this thread
                self._complain(_one_line(error))
            else:
                self._complain(None)
                self.start()  # a run that was over may go on

    def _command(self, command: str, value: Any) -> None:
        if command == "stop":
            self.run.stop(wait=False)
        elif command == "pause":
            self.run.pause(wait=False)
        elif command == "resume":
            self.run.resume(wait=False)
        elif command == "checkpoint":
            self.run.checkpoint(wait=False)
        elif command == "lr_factor":
            self.run.set_lr_factor(min(2.0, max(0.0, float(value))))
        else:
            raise UsageError("The panel doesn't know this command", received=command)

    def _complain(self, line: str | None) -> None:
        with self._lock:
            self._trouble = line
        self._wake.set()


def _read(run: Any) -> RunHistory:
    history = RunHistory()
    for event in run.reader().poll():
        history.add(event)
    return history


def _pack(
    curves: dict[str, tuple[array[float], array[float]]],
) -> tuple[list[str], list[bytes]]:
    """Names of the curves, and for each a buffer of its steps followed by its values."""
    return list(curves), [steps.tobytes() + values.tobytes() for steps, values in curves.values()]


def _one_line(error: Exception) -> str:
    return str(error) if isinstance(error, NbllmError) else f"{type(error).__name__}: {' '.join(str(error).split())}"
