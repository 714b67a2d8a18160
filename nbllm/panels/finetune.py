"""The fine-tuning panel: base and adapters side by side on one prompt, each with a slider for its weight.

All columns draw the same random numbers, and what differs from the base is marked. Moving a weight samples only its own
column again. Below, what an adapter changed: norms by layer and module, and the tokens that moved most. A thread does
the work, and a newer wish ends what is under way. Sampling settings are the session's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
from collections.abc import Callable, Iterator
from typing import Any

import anywidget

from nbllm.errors import NbllmError, NotFoundError, UsageError
from nbllm.panels import place, registry, source
from nbllm.panels.face import Face
from nbllm.panels.generate_settings import setting
from nbllm.panels.wishes import Wishes
from nbllm.sessions import adapter_report, comparison

MOST_ADAPTERS = 3
HIGHEST_SCALE = 2.0
"""The slider's end; more can be typed."""
_SETTINGS = ("temperature", "top_p", "max_new_tokens", "seed")
_PROMPT = "What is a list?"


def show_finetune(session: Any, *, prompt: str = "") -> None:
    """Displays the fine-tuning panel of a session, and the static face that stays in the saved notebook.

    Args:
        session: whose adapters are compared.
        prompt: what is continued at first; by default what stood in this session's panel before.

    Raises:
        UsageError: outside a Jupyter kernel, where nothing could be moved.
        NotFoundError: there is no adapter yet.
    """
    if not registry.has_kernel():
        raise UsageError(
            "A panel with sliders needs a Jupyter notebook", next='Type %llm_adapter compare NAME "a prompt" here'
        )
    chosen = session.adapters_to_compare()
    before = [panel for panel in registry.live("finetune") if panel.session is session]
    panel = FinetunePanel(session, chosen, prompt=prompt or (before[-1].prompt if before else _PROMPT))
    registry.enter("finetune", f"{id(session)}", panel)
    place.present(panel)
    panel.start()


class FinetunePanel(anywidget.AnyWidget):
    """The widget of one session's adapters; `show_finetune` makes, registers and displays it.

    Messages to the page: `snapshot` and `news`, with `state`, `columns` (of each `adapter`, `facts` and
    `runs`: pieces of text and whether they differ) and `report`, where there are some; `begin` and `piece` (more of a
    column's text).
    Messages from the page: `snapshot`, and `do` with `sample`, `scale`, `choose`, `settings`, `stop` or `changes`.
    """

    _esm = source.module("finetune", "generate_settings", "finetune_changes")
    _css = source.style() + comparison.STYLE + adapter_report.STYLE

    def __init__(self, session: Any, chosen: tuple[str, ...], *, prompt: str) -> None:
        super().__init__()
        self.session, self.chosen, self.prompt = session, chosen, prompt
        self.chat: bool | None = None
        self.scales: dict[str, float] = {}
        self.shown: Any = None
        """The comparison that is shown."""
        self.report: Any = None
        """What the adapter that was last asked for changed."""
        self.face = Face()
        self.doing, self.error = "idle", ""
        self._columns: dict[Any, Any] = {}
        self._wishes: Wishes[str] = Wishes("finetune", self._do, rest=self.settle)
        self._closed = self._stale = False
        self.on_msg(self._receive)

    def start(self) -> None:
        """Shows the static face and begins to listen."""
        self.face.show(*self._as_face())
        self.session.observe(self._moved, ["sampling", "adapter"])
        self._wishes.start()

    def settle(self) -> None:
        """Brings the static face up to date."""
        if self._stale and not self._closed and self.doing == "idle":
            self._stale = False
            self.face.update(*self._as_face())

    def close(self) -> None:
        """Ends what is under way and removes the panel from the page; the static face stays."""
        if self._closed:
            return
        self._closed = True
        registry.leave(self)
        with contextlib.suppress(ValueError):
            self.session.unobserve(self._moved, ["sampling", "adapter"])
        self._wishes.end()
        super().close()

    # what the page asks for

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        try:
            if content.get("ask") == "snapshot":
                head = {"kind": "snapshot", "view": str(content.get("view")), "face": self.face.id}
                self.send({**head, **self._everything()})
            elif "do" in content:
                self._obey(str(content["do"]), content)
        except Exception as error:  # shown in the panel
            self._say(self.doing, error=_one_line(error))

    def _obey(self, command: str, content: dict[str, Any]) -> None:
        value = content.get("value")
        if "prompt" in content:
            self.prompt = str(content["prompt"])
        if "chat" in content:
            self.chat = bool(content["chat"])
        if command == "sample":
            self._wishes.want("sample")
        elif command == "scale":
            self.scales[str(content["adapter"])] = _scale(value)
            self._wishes.want("sample")
        elif command == "choose":
            self.chosen = self.session.adapters_to_compare([str(name) for name in value or ()])
            self._wishes.want("sample")
        elif command == "settings":
            moved = {name: setting(name, number) for name, number in dict(value or {}).items() if name in _SETTINGS}
            self.session.sampling = dataclasses.replace(self.session.sampling, **moved)
            self._wishes.want("sample")
        elif command == "changes":
            self._wishes.want(f"changes {value}")
        elif command == "stop":
            self._wishes.want(None)
        else:
            raise UsageError("The panel doesn't know this command", received=command)

    # the thread

    def _do(self, wish: str, outdated: Callable[[], bool]) -> None:
        try:
            with self._session_lock():
                if wish == "sample":
                    self._sample(outdated)
                else:
                    self._look(wish.partition(" ")[2])
            self._say("idle")
        except Exception as error:  # shown in the panel: nobody sees a traceback of this thread
            self._say("idle", error=_one_line(error))
        self._stale = True

    def _sample(self, outdated: Callable[[], bool]) -> None:
        chosen, prompt, chat = self.chosen, self.prompt, self.chat
        parameters = dataclasses.replace(self.session.sampling, n=1, beams=1)
        self._say("sampling")
        found: list[Any] = []
        kept: dict[Any, Any] = {}
        for number, name in enumerate([None, *chosen]):
            scale = 1.0 if name is None else self.scales.get(name, 1.0)
            key = (name, scale, prompt, chat, chosen, parameters)
            column = self._columns.get(key)
            if column is None:
                self._tell({"kind": "begin", "column": number})
                column = self.session.adapter_column(
                    name,
                    chosen,
                    prompt,
                    scale=scale,
                    chat=chat,
                    parameters=parameters,
                    on_text=lambda text, number=number: self._tell({"kind": "piece", "column": number, "text": text}),
                    should_stop=outdated,
                )
            if column.stop_reason == "interrupted":
                return
            kept[key] = column
            found.append(column)
        self._columns = kept
        self.shown = self.session.comparison(chosen, prompt, parameters, found)

    def _look(self, adapter: str) -> None:
        if adapter not in self.chosen:
            raise NotFoundError("This adapter isn't shown", received=adapter)
        self._say("looking at what changed")
        self.report = self.session.adapter_report(adapter)

    @contextlib.contextmanager
    def _session_lock(self) -> Iterator[None]:
        if not self.session.lock.acquire(blocking=False):
            self._say("waiting for a cell")
            self.session.lock.acquire()
        try:
            yield
        finally:
            self.session.lock.release()

    # what the page is told

    def _say(self, doing: str, *, error: str = "") -> None:
        self.doing, self.error = doing, error
        self._tell({"kind": "news", **self._everything()})

    def _tell(self, content: dict[str, Any]) -> None:
        if not self._closed:
            self.send(content)

    def _moved(self, _change: object) -> None:
        self._tell({"kind": "news", **self._everything()})

    def _everything(self) -> dict[str, Any]:
        found: dict[str, Any] = {"state": self._state()}
        if self.shown is not None:
            columns = [
                {
                    "title": one.title,
                    "adapter": one.adapter,
                    "facts": one.facts,
                    "runs": [list(run) for run in one.runs],
                }
                for one in self.shown.columns
            ]
            found |= {"columns": columns, "prompt": self.shown.prompt, "summary": self.shown.summary}
        if self.report is not None:
            found["report"] = _report(self.report)
        return found

    def _state(self) -> dict[str, Any]:
        sampling = self.session.sampling
        names = [str(manifest.name) for manifest in self.session.adapters()]
        chat = self.chat if self.chat is not None else any(map(self.session.trained_on_chat, self.chosen))
        return {
            "model": self.session.models.base_of(self.chosen[0], self.session.model).name,
            "prompt": self.prompt,
            "chat": chat,
            "adapters": list(dict.fromkeys([*self.chosen, *names])),
            "chosen": list(self.chosen),
            "most": MOST_ADAPTERS,
            "scales": {name: self.scales.get(name, 1.0) for name in self.chosen},
            "highest": HIGHEST_SCALE,
            "settings": {name: getattr(sampling, name) for name in _SETTINGS},
            "doing": "" if self.doing == "idle" else self.doing,
            "error": self.error,
        }

    def _as_face(self) -> tuple[str, str]:
        """The static face as HTML and as text."""
        state = self._state()
        head = (
            f'<div class="nbllm-head"><strong>Fine-tuning</strong>'
            f'<span class="nbllm-chip">{html.escape(state["model"])} · {html.escape(", ".join(self.chosen))}</span>'
            f'<span class="nbllm-dim">{html.escape(self.shown.summary if self.shown else "")}</span></div>'
        )
        text = [f"Fine-tuning: {state['model']} · {', '.join(self.chosen)}"]
        body = ""
        if self.shown is not None:
            label = f'<div class="nbllm-label">{html.escape(self.shown.settings)}</div>'
            body += f"<style>{comparison.STYLE}</style>{label}{self.shown.columns_html()}"
            text.append(str(self.shown))
        if self.report is not None:
            label = f"what {self.report.adapter} changed: {self.report.summary}"
            label = f'<div class="nbllm-label nbllm-gap">{html.escape(label)}</div>'
            body += f"<style>{adapter_report.STYLE}</style>{label}{self.report.body_html()}"
            text.append(str(self.report))
        again = '<div class="nbllm-label nbllm-gap">live again with <code>%llm_panel finetune</code></div>'
        return f'{head}<div class="nbllm-body">{body}{again}</div>', "\n\n".join(text)


def _report(report: Any) -> dict[str, Any]:
    """A report's numbers for the page."""
    shares = any(one.share is not None for one in report.changes)
    return {
        "adapter": report.adapter,
        "summary": report.summary,
        "what": "change / weight" if shares else "norm",
        "on": report.on,
        "changes": [[one.layer, one.module, one.norm if one.share is None else one.share] for one in report.changes],
        "moved": [dataclasses.asdict(one) for one in report.moved],
    }


def _scale(value: Any) -> float:
    try:
        scale = float(value)
    except (TypeError, ValueError) as error:
        raise UsageError("A weight must be a number", received=value) from error
    if not 0 <= scale <= 100:
        raise UsageError("A weight is from 0 (the base) on; 1 is as trained", received=value)
    return scale


def _one_line(error: Exception) -> str:
    return str(error) if isinstance(error, NbllmError) else f"{type(error).__name__}: {' '.join(str(error).split())}"
