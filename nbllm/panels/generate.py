"""The sampling panel: a prompt and sliders; moving one samples again with the same random numbers.

The sampling runs on a thread of the panel's own, under the session's lock, so that it waits for a cell that uses the
model and no callback waits for it; a newer wish cancels the one under way. The settings are the session's: a slider
assigns `session.sampling`, and an assignment made elsewhere moves the sliders. Text streams to the page as it comes.

Knows the session only as an object with `lock`, `sampling` (observable), `model`, `adapter` and `generate()`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import threading
import time
from typing import Any

import anywidget

from nbllm.errors import NbllmError, UsageError
from nbllm.panels import registry, source, text
from nbllm.panels.face import Face

SETTINGS: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
    "seed": int,
    "max_new_tokens": int,
}
"""The settings with a control, and their types."""
_FLUSH_S = 0.05
_FACE_S = 1.0


def show_generate(session: Any, *, prompt: str = "") -> None:
    """Displays the sampling panel of a session, and the static face that stays in the saved notebook.

    Args:
        session: the session whose model and settings it uses.
        prompt: what stands in the prompt field at first; by default what stood in this session's panel before.

    Raises:
        UsageError: outside a Jupyter kernel, where nothing could be moved.
    """
    if not registry.has_kernel():
        raise UsageError("A panel with sliders needs a Jupyter notebook", next='Type %llm_generate "text" here')
    from IPython.display import publish_display_data

    before = [panel for panel in registry.live("generate") if panel.session is session]
    panel = GeneratePanel(session, prompt=prompt or (before[-1].prompt if before else ""))
    registry.enter("generate", f"{id(session)}", panel)
    view = {"version_major": 2, "version_minor": 0, "model_id": panel.model_id}
    publish_display_data({"application/vnd.jupyter.widget-view+json": view})
    panel.start()


def as_cell(prompt: str, sampling: Any) -> str:
    """The `%%llm_generate` cell that samples the same again, whatever the session's settings are then."""
    options = [f"--{name.replace('_', '-')} {_typed(getattr(sampling, name))}" for name in SETTINGS]
    if getattr(sampling, "greedy", False):
        options.append("--greedy")
    # a text with a quote or a line end can't be typed on a magic's line
    options += [f'--stop "{stop}"' for stop in getattr(sampling, "stop", ()) if not set(stop) & set('"\n\r')]
    return f"%%llm_generate {' '.join(options)}\n{prompt}"


class GeneratePanel(anywidget.AnyWidget):
    """The widget of one session's sampling; `show_generate` makes, registers and displays it.

    Messages to the page: `snapshot` and `state` (settings, what is going on, numbers), `begin` and `text` (a piece of
    the sampling numbered `job`), `cell`. Messages from the page: `snapshot`, `alive`, and `do` with `settings`,
    `sample`, `stop` or `cell`.
    """

    _esm = source.module("generate")
    _css = source.style()

    def __init__(self, session: Any, *, prompt: str = "") -> None:
        super().__init__()
        self.session = session
        self.prompt = prompt
        self.text = ""
        self.face = Face()
        self._lock = threading.RLock()  # never held while waiting for the session's
        self._wake = threading.Event()
        self._closed = False
        self._job = 0
        self._wanted = False
        self._pending: dict[str, Any] = {}
        self._doing = "idle"
        self._facts: dict[str, Any] = {}
        self._error: str | None = None
        self._worker: threading.Thread | None = None
        self.on_msg(self._receive)

    def start(self) -> None:
        """Shows the static face and begins to listen."""
        self.face.show(*self._as_face())
        self.session.observe(self._moved, "sampling")
        self._worker = threading.Thread(target=self._work, name="nbllm-panel-sampling", daemon=True)
        self._worker.start()

    def settle(self) -> None:
        """Brings the static face up to date."""
        if not self._closed and self._doing == "idle":
            self.face.update(*self._as_face())

    def close(self) -> None:
        """Cancels what is under way and removes the panel from the page; the static face stays."""
        if self._closed:
            return
        self._closed = True
        registry.leave(self)
        self._wake.set()
        with contextlib.suppress(ValueError):
            self.session.unobserve(self._moved, "sampling")
        super().close()

    # sampling, on the panel's thread

    def _work(self) -> None:
        stale_face = False
        while not self._closed:
            if not self._wake.wait(_FACE_S if stale_face else None):
                self.settle()
                stale_face = False
                continue
            self._wake.clear()
            with self._lock:
                job, wanted, self._wanted = self._job, self._wanted, False
            if self._closed:
                return
            try:
                self._take_settings()
                if wanted:
                    self._sample(job)
            except Exception as error:  # shown in the panel: nobody sees a traceback of this thread
                self._say("idle", error=_one_line(error))
            stale_face = True

    def _take_settings(self) -> None:
        with self._lock:
            changed, self._pending = self._pending, {}
        if not changed:
            return
        with self._session_lock():
            if "temperature" in changed and getattr(self.session.sampling, "greedy", False):
                changed["greedy"] = False
            self.session.sampling = dataclasses.replace(self.session.sampling, **changed)

    def _sample(self, job: int) -> None:
        with self._session_lock():
            if self._cancelled(job):
                return
            with self._lock:
                self.text, self._facts = "", {}
                self.send({"kind": "begin", "job": job, "prompt": self.prompt})
            self._say("sampling")
            stream = _Stream(self, job)
            generation = self.session.generate(
                self.prompt, on_text=stream.push, should_stop=lambda: self._cancelled(job), n=1
            )
            stream.flush()
        if self._cancelled(job):
            return
        with self._lock:
            self._facts = {
                "first_token_ms": generation.first_token_ms,
                "tokens_per_s": generation.tokens_per_s,
                "stop_reason": str(generation.stop_reason),
                "tokens": len(generation.tokens),
            }
        self._say("idle")

    @contextlib.contextmanager
    def _session_lock(self) -> Any:
        if not self.session.lock.acquire(blocking=False):
            self._say("waiting")  # a cell is at the model
            self.session.lock.acquire()
        try:
            yield
        finally:
            self.session.lock.release()

    def _cancelled(self, job: int) -> bool:
        return self._closed or self._job != job

    def piece(self, job: int, piece: str) -> None:
        """Takes in a piece of the text of sampling `job`, and sends it on."""
        with self._lock:
            if not self._cancelled(job):
                self.text += piece
                self.send({"kind": "text", "job": job, "text": piece})

    # talking to the page

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        try:
            if content.get("ask") == "snapshot":
                self._send_snapshot(str(content.get("view")))
            elif "do" in content:
                self._obey(str(content["do"]), content)
        except Exception as error:  # shown in the panel
            self._say(self._doing, error=_one_line(error))

    def _obey(self, command: str, content: dict[str, Any]) -> None:
        if "prompt" in content:
            self.prompt = str(content["prompt"])
        if command == "settings":
            changed = {name: _setting(name, value) for name, value in dict(content["value"]).items()}
            with self._lock:
                self._pending.update(changed)
            self._again(sample=bool(content.get("sample", True)))
        elif command == "sample":
            self._again(sample=True)
        elif command == "stop":
            self._again(sample=False)
            self._say("idle")
        elif command == "cell":
            cell = as_cell(self.prompt, self.session.sampling)
            self.send({"kind": "cell", "view": content.get("view"), "text": cell})
        else:
            raise UsageError("The panel doesn't know this command", received=command)

    def _again(self, *, sample: bool) -> None:
        with self._lock:
            self._job += 1  # what is under way sees that it is out of date
            self._wanted = sample
            self._wake.set()

    def _moved(self, _change: object) -> None:
        self._say(self._doing)

    def _say(self, doing: str, *, error: str | None = None) -> None:
        with self._lock:
            self._doing, self._error = doing, error
            if not self._closed:
                self.send({"kind": "state", **self._state()})

    def _state(self) -> dict[str, Any]:
        return {
            "settings": {name: getattr(self.session.sampling, name) for name in SETTINGS},
            "greedy": bool(getattr(self.session.sampling, "greedy", False)),
            "doing": self._doing,
            "facts": self._facts,
            "error": self._error,
            "model": _model(self.session),
            "job": self._job,
        }

    def _send_snapshot(self, view: str) -> None:
        with self._lock:
            content = {"kind": "snapshot", "view": view, "prompt": self.prompt, "text": self.text, "face": self.face.id}
            self.send({**content, **self._state()})

    def _as_face(self) -> tuple[str, str]:
        with self._lock:
            sampling, facts = self.session.sampling, _facts(self._facts)
            settings = " · ".join(f"{name.replace('_', ' ')} {_typed(getattr(sampling, name))}" for name in SETTINGS)
            model = _model(self.session)
            body = (
                f'<div class="nbllm-head"><strong>Sampling</strong>'
                f'<span class="nbllm-chip">{html.escape(model)}</span>'
                f'<span class="nbllm-dim">{html.escape(facts)}</span></div>'
                f'<div class="nbllm-body"><div class="nbllm-label">{html.escape(settings)}</div>'
                f'<div class="nbllm-mono"><span class="nbllm-dim">{html.escape(self.prompt)}</span>'
                f"{html.escape(self.text)}</div>"
                f'<div class="nbllm-label nbllm-gap">live again with <code>%llm_panel generate</code></div></div>'
            )
            plain = f"Sampling ({model}; {settings})\n{self.prompt}{self.text}"
            return body, plain


class _Stream:
    """Gathers the pieces of a sampling, so that a fast model doesn't send a message a token."""

    def __init__(self, panel: GeneratePanel, job: int) -> None:
        self._panel, self._job = panel, job
        self._held = ""
        self._flushed = 0.0

    def push(self, _sample: int, piece: str) -> None:
        self._held += piece
        if time.monotonic() - self._flushed > _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._panel.piece(self._job, self._held)
        self._held, self._flushed = "", time.monotonic()


def _setting(name: str, value: Any) -> int | float:
    if name not in SETTINGS:
        raise UsageError("The panel doesn't know this setting", received=name)
    try:
        return SETTINGS[name](value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name.replace('_', ' ')} must be a number", received=value) from error


def _typed(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _facts(facts: dict[str, Any]) -> str:
    if not facts:
        return ""
    parts = [f"first token {facts['first_token_ms']:.0f} ms"] if facts.get("first_token_ms") is not None else []
    if facts.get("tokens_per_s"):
        parts.append(f"{text.count(facts['tokens_per_s'])} tokens/s")
    return " · ".join([*parts, f"{facts['tokens']} tokens", f"ended by {facts['stop_reason']}"])


def _model(session: Any) -> str:
    model = session.model
    if model is None:
        return "no model yet"
    name = str(getattr(model, "source", model)).rstrip("/").rsplit("/", 1)[-1]
    step = getattr(model, "checkpoint", None)
    return " · ".join([name, *([f"step {step}"] if step is not None else []), f"adapter {session.adapter or 'off'}"])


def _one_line(error: Exception) -> str:
    return str(error) if isinstance(error, NbllmError) else f"{type(error).__name__}: {' '.join(str(error).split())}"
