"""The sampling panel: a prompt and sliders; moving one samples again with the same random numbers.

The settings are the session's: a slider assigns `session.sampling`, and an assignment made elsewhere moves the sliders.
Tokens stream to the page as they come, with their alternatives; another one in a token's place makes a branch; texts
can be pinned beside each other. What is done with the session is in `generate_sampler`.
"""

from __future__ import annotations

from typing import Any

import anywidget

from nbllm.errors import NotFoundError, UsageError
from nbllm.panels import generate_face, place, registry, source
from nbllm.panels.face import Face
from nbllm.panels.generate_sampler import Sampler, Wish, one_line
from nbllm.panels.generate_settings import setting, values
from nbllm.panels.generate_tokens import Token, encode
from nbllm.panels.generate_tree import Branch, Pin

MOST_PINS = 4
_PARTS = (
    "generate_scale", "generate_tokens", "generate_popover", "generate_settings", "generate_branches", "generate_pins",
)  # fmt: skip


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
    before = [panel for panel in registry.live("generate") if panel.session is session]
    panel = GeneratePanel(session, prompt=prompt or (before[-1].sampler.prompt if before else ""))
    registry.enter("generate", f"{id(session)}", panel)
    place.present(panel)
    panel.start()


class GeneratePanel(anywidget.AnyWidget):
    """The widget of one session's sampling; `show_generate` makes, registers and displays it.

    Messages to the page: `snapshot` (everything, for one view) and `state` (settings, what is going on, numbers);
    `begin` (sampling `job` goes on after `keep` tokens of the text shown) and `tokens` (more of it, from place `at`,
    with one buffer of float32); `shown` (all tokens of another text); `tree`; `pins` (a buffer each); `cell`.
    Messages from the page: `snapshot`, `choices`, `alive`, and `do` with `settings`, `source`, `sample`, `stop`,
    `fork`, `go`, `pin`, `unpin`, `restore`, `colour` or `cell`.
    """

    _esm = source.module("generate", *_PARTS)
    _css = source.style()

    def __init__(self, session: Any, *, prompt: str = "") -> None:
        super().__init__()
        self.session = session
        self.sampler = Sampler(session, prompt, self)
        self.pins: list[Pin] = []
        self.colour = generate_face.COLOURS[0]
        self.face = Face()
        self._closed = False
        self._pinned = 0
        self.on_msg(self._receive)

    def start(self) -> None:
        """Shows the static face and begins to listen."""
        self.sampler.start()
        self.face.show(*self._as_face())

    def settle(self) -> None:
        """Brings the static face up to date."""
        if not self._closed and self.sampler.doing == "idle":
            self.face.update(*self._as_face())

    def close(self) -> None:
        """Cancels what is under way and removes the panel from the page; the static face stays."""
        if self._closed:
            return
        self._closed = True
        registry.leave(self)
        self.sampler.close()
        super().close()

    # what the sampler tells

    def began(self, job: int, branch: Branch, keep: int) -> None:
        """Tells the page that a text begins, or begins again."""
        self.send({"kind": "begin", "job": job, "prompt": branch.prompt, "branch": branch.id, "keep": keep})
        self.more(job, keep, list(branch.prefix[keep:]))

    def more(self, job: int, at: int, tokens: list[Token]) -> None:
        """Sends tokens."""
        if tokens and not self._closed:
            header, numbers = encode(tokens)
            self.send({"kind": "tokens", "job": job, "at": at, **header}, [numbers])

    def changed(self) -> None:
        """Sends settings, numbers and what is going on."""
        self.send({"kind": "state", **self._state()})

    def tree_changed(self) -> None:
        """Sends the list of texts."""
        with self.sampler.lock:
            if not self._closed:
                self.send({"kind": "tree", "rows": self.sampler.tree.rows()})

    def quiet(self) -> None:
        """Brings the static face up to date."""
        self.settle()

    # what the page asks for

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        try:
            if content.get("ask") == "snapshot":
                self._send_snapshot(str(content.get("view")))
            elif content.get("ask") == "choices":
                self.sampler.look_for_choices()
                self.changed()
            elif "do" in content:
                self._obey(str(content["do"]), content)
        except Exception as error:  # shown in the panel
            self.sampler.say(self.sampler.doing, error=one_line(error))

    def _obey(self, command: str, content: dict[str, Any]) -> None:
        value = content.get("value")
        sampler, again = self.sampler, Wish() if content.get("sample", True) else None
        if "prompt" in content:
            sampler.prompt = str(content["prompt"])
        if command == "settings":
            sampler.assign({name: setting(name, number) for name, number in dict(value or {}).items()})
            sampler.wish(again)
        elif command == "source":
            sampler.assign({}, **_source(dict(value or {})))
            sampler.wish(again)
        elif command == "sample":
            sampler.wish(Wish(from_prompt=True))
        elif command == "fork":
            sampler.wish(Wish(fork=(int(content["branch"]), int(content["at"]), int(content["id"]))))
        elif command == "stop":
            sampler.wish(None)
            sampler.say("idle")
        elif command == "go":
            self._show(sampler.go(int(content["branch"])))
        elif command == "pin":
            self._pin()
        elif command == "unpin":
            self._set_pins([pin for pin in self.pins if pin.id != int(content["pin"])])
        elif command == "restore":
            self._restore(int(content["pin"]))
        elif command == "colour":
            self.colour = value if value in generate_face.COLOURS else self.colour
            sampler.touch()  # the face follows
            self.changed()
        elif command == "cell":
            self.send({"kind": "cell", "view": content.get("view"), "text": sampler.cell()})
        else:
            raise UsageError("The panel doesn't know this command", received=command)

    def _show(self, branch: Branch) -> None:
        with self.sampler.lock:
            header, numbers = encode(branch.tokens)
            content = {"kind": "shown", "job": self.sampler.job, "prompt": branch.prompt, "branch": branch.id}
            self.send({**content, **header}, [numbers])
            self.tree_changed()
            self.sampler.say("idle")

    def _pin(self) -> None:
        with self.sampler.lock:
            branch = self.sampler.tree.current
            if branch is None or not branch.tokens:
                raise UsageError("There is no text to pin yet", next="Press Sample")
            if len(self.pins) >= MOST_PINS:
                raise UsageError(f"{MOST_PINS} texts are pinned, and no more fit", next="Remove one")
            self._pinned += 1
            self._set_pins([*self.pins, Pin.of(branch, self._pinned)])

    def _set_pins(self, pins: list[Pin]) -> None:
        with self.sampler.lock:
            self.pins = pins
            headers, buffers = self._encoded_pins()
            self.send({"kind": "pins", "pins": headers}, buffers)
            self.sampler.say(self.sampler.doing)
        self.sampler.touch()  # the face follows

    def _restore(self, id: int) -> None:
        pin = next((pin for pin in self.pins if pin.id == id), None)
        if pin is None:
            raise NotFoundError("This pinned text is gone")
        settings = {**values(pin.sampling), "greedy": bool(getattr(pin.sampling, "greedy", False))}
        origin: dict[str, Any] = {}
        if pin.source is not None and pin.source.model == self.sampler.source().model:
            origin = {"adapter": pin.source.adapter}
            origin |= {"checkpoint": pin.source.chosen} if pin.source.checkpoint is not None else {}
        self.sampler.assign(settings, **origin)
        self.sampler.wish(Wish())

    # what the page is told

    def _state(self) -> dict[str, Any]:
        sampler, branch, now = self.sampler, self.sampler.tree.current, self.sampler.source()
        return {
            "settings": values(self.session.sampling),
            "greedy": bool(getattr(self.session.sampling, "greedy", False)),
            "doing": sampler.doing,
            "facts": branch.facts if branch else {},
            "seen": values(branch.sampling) if branch and branch.sampling else None,
            "error": sampler.error,
            "model": now.label,
            "seen_model": branch.source.label if branch and branch.source else None,
            "source": {**sampler.choices, "checkpoint": now.chosen, "adapter": now.adapter},
            "colour": self.colour,
            "job": sampler.job,
        }

    def _send_snapshot(self, view: str) -> None:
        with self.sampler.lock:
            branch = self.sampler.tree.current
            header, numbers = encode(branch.tokens if branch else [])
            pins, buffers = self._encoded_pins()
            content = {
                "kind": "snapshot",
                "view": view,
                "typed": self.sampler.prompt,
                "prompt": branch.prompt if branch else "",
                "branch": branch.id if branch else None,
                "face": self.face.id,
                "pins": pins,
                "rows": self.sampler.tree.rows(),
            }
            self.send({**content, **header, **self._state()}, [numbers, *buffers])

    def _encoded_pins(self) -> tuple[list[dict[str, Any]], list[bytes]]:
        """For each pinned text what is said of it, and its tokens' numbers."""
        headers, buffers = [], []
        for pin in self.pins:
            header, numbers = encode(pin.tokens)
            about = {"id": pin.id, "prompt": pin.prompt, "settings": values(pin.sampling)}
            headers.append({**about, "model": pin.source.label if pin.source else "", **header})
            buffers.append(numbers)
        return headers, buffers

    def _as_face(self) -> tuple[str, str]:
        with self.sampler.lock:
            parts: dict[str, Any] = {
                "prompt": self.sampler.prompt,
                "branch": self.sampler.tree.current,
                "sampling": self.session.sampling,
                "source": self.sampler.source(),
                "pins": self.pins,
            }
            return generate_face.as_html(**parts, colour=self.colour), generate_face.as_text(**parts)


def _source(value: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint and the adapter that the page chose, as far as it chose."""
    chosen: dict[str, Any] = {}
    if "checkpoint" in value:
        chosen["checkpoint"] = None if value["checkpoint"] is None else int(value["checkpoint"])
    if "adapter" in value:
        chosen["adapter"] = None if value["adapter"] is None else str(value["adapter"])
    return chosen
