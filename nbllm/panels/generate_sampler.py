"""What the sampling panel does with its session: one thread that assigns what was moved and samples what is wished.

A newer wish cancels the one under way. The sampling runs under the session's lock, so that it waits for a cell that
uses the model, and no callback waits for it. Knows no widget: it tells a `Page` what happens.

Knows the session only as an object with `lock`, `sampling`, `model` and `adapter` (observable), `generate()`,
`checkpoints()`, `adapters()`, `use_adapter()` and `prompt_text()`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from nbllm.errors import NbllmError, NotFoundError, UsageError
from nbllm.panels.generate_settings import Source, as_cell, one_text
from nbllm.panels.generate_tokens import Stream, Token
from nbllm.panels.generate_tree import Branch, Tree

MOST_TOKENS = 4000
"""At most so many tokens after a prompt are shown."""
_QUIET_S = 1.0
_TRAITS = ["sampling", "model", "adapter"]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A sampling that somebody asked for; as it stands, the text that is shown once more."""

    fork: tuple[int, int, int] | None = None
    """The branch, the place of a token in it, and the id of the alternative to go on from."""
    from_prompt: bool = False
    """Continue the prompt, whatever branch is shown."""


class Page(Protocol):
    """Who is told what happens; called on the sampler's thread and others, mostly with the sampler's lock held."""

    def began(self, job: int, branch: Branch, keep: int) -> None:
        """Sampling `job` goes on after `keep` tokens of the text shown; what `branch` has beyond is new."""

    def more(self, job: int, at: int, tokens: list[Token]) -> None:
        """Tokens of sampling `job` from place `at` on."""

    def changed(self) -> None:
        """Settings, numbers or what is going on."""

    def tree_changed(self) -> None:
        """The list of texts."""

    def quiet(self) -> None:
        """Nothing has happened for a second, since something did."""


class Sampler:
    """The wishes, the texts and the thread of one panel.

    Args:
        session: whose model and settings it uses.
        prompt: what the first sampling continues.
        page: who is told.
    """

    def __init__(self, session: Any, prompt: str, page: Page) -> None:
        self.session = session
        self.prompt = prompt
        self.tree = Tree()
        self.job = 0
        """Counts the wishes: whatever belongs to an older one is out of date."""
        self.doing = "idle"
        """`idle`, `waiting` (for a cell that uses the model) or `sampling`."""
        self.error: str | None = None
        self.choices: dict[str, list[Any]] = {"checkpoints": [], "adapters": []}
        """The steps of the model's checkpoints, oldest first, and the names of the adapters."""
        self.lock = threading.RLock()
        """Guards all of this; never held while waiting for the session's."""
        self._page = page
        self._wake = threading.Event()
        self._closed = False
        self._wish: Wish | None = None
        self._settings: dict[str, Any] = {}
        self._source: dict[str, Any] = {}

    def start(self) -> None:
        """Begins to listen to the session and to wishes."""
        self.look_for_choices()
        self.session.observe(self._moved, _TRAITS)
        threading.Thread(target=self._work, name="nbllm-panel-sampling", daemon=True).start()

    def close(self) -> None:
        """Cancels what is under way and ends the thread."""
        self._closed = True
        self._wake.set()
        with contextlib.suppress(ValueError):
            self.session.unobserve(self._moved, _TRAITS)

    def assign(self, settings: dict[str, Any], **source: Any) -> None:
        """Keeps settings, `checkpoint` and `adapter` for the thread to assign to the session."""
        with self.lock:
            self._settings.update(settings)
            self._source.update(source)
        self.touch()

    def touch(self) -> None:
        """Lets the page hear when it is quiet again."""
        self._wake.set()

    def wish(self, wish: Wish | None) -> None:
        """Cancels what is under way, and samples this next (None: nothing)."""
        with self.lock:
            self.job += 1
            if not (wish == Wish() and self._wish is not None):  # a moved slider doesn't undo a branch asked for before
                self._wish = wish
        self.touch()

    def go(self, id: int) -> Branch:
        """Cancels what is under way and makes a kept text the one shown."""
        with self.lock:
            branch = self.tree.get(id)
            if branch is None:
                raise NotFoundError("This text is gone")
            self.wish(None)
            self.tree.current, self.prompt = branch, branch.prompt
            return branch

    def say(self, doing: str, *, error: str | None = None) -> None:
        """Notes what is going on, and tells the page."""
        with self.lock:
            self.doing, self.error = doing, error
            if not self._closed:
                self._page.changed()

    def source(self) -> Source:
        """The model that would be used now."""
        model, adapter = self.session.model, self.session.adapter
        if model is None:
            return Source(model=None, checkpoint=None, chosen=None, adapter=None)
        steps = self.choices["checkpoints"]
        newest = steps[-1] if steps else None
        chosen = getattr(model, "checkpoint", None)
        name = str(getattr(model, "source", model))
        return Source(model=name, checkpoint=newest if chosen is None else chosen, chosen=chosen, adapter=adapter)

    def look_for_choices(self) -> None:
        """Reads which checkpoints and adapters there are."""
        found: dict[str, list[Any]] = {"checkpoints": [], "adapters": []}
        with contextlib.suppress(NbllmError):  # sampling says what is wrong
            found["checkpoints"] = list(self.session.checkpoints())
            found["adapters"] = [manifest.name for manifest in self.session.adapters()]
        self.choices = found

    def cell(self) -> str:
        """The cell that samples again what is shown."""
        branch = self.tree.current
        if branch is None or branch.sampling is None or branch.source is None:
            return as_cell(self.prompt, self.session.sampling, self.source())
        ids = branch.input_ids
        prompt = branch.prompt if ids is None else (self.session.prompt_text(ids) or ids)
        return as_cell(prompt, branch.sampling, branch.source)

    # the thread

    def _work(self) -> None:
        stale = False
        while not self._closed:
            if not self._wake.wait(_QUIET_S if stale else None):
                self._page.quiet()
                stale = False
                continue
            self._wake.clear()
            with self.lock:
                job, wish, self._wish = self.job, self._wish, None
            if self._closed:
                return
            try:
                self._assign()
                if wish is not None:
                    self._sample(job, wish)
                elif self.doing == "waiting":
                    self.say("idle")
            except Exception as error:  # shown in the panel: nobody sees a traceback of this thread
                self.say("idle", error=one_line(error))
            stale = True

    def _assign(self) -> None:
        with self.lock:
            moved, self._settings = self._settings, {}
            other, self._source = self._source, {}
        if not moved and not other:
            return
        with self._session_lock():
            if "adapter" in other:
                self.session.use_adapter(other["adapter"])
            if "checkpoint" in other and self.session.model.checkpoint != other["checkpoint"]:
                self.session.model = dataclasses.replace(self.session.model, checkpoint=other["checkpoint"])
            if moved:
                if "temperature" in moved and getattr(self.session.sampling, "greedy", False):
                    moved.setdefault("greedy", False)
                self.session.sampling = dataclasses.replace(self.session.sampling, **moved)

    def _sample(self, job: int, wish: Wish) -> None:
        with self._session_lock():
            if self._cancelled(job):
                return
            branch = self._begin(job, wish)
            self.say("sampling")
            room = MOST_TOKENS - len(branch.prefix)
            if room < 1:
                raise UsageError(f"The panel shows at most {MOST_TOKENS:,} tokens")
            stream = Stream(lambda tokens: self._more(job, branch, tokens))
            generation = self.session.generate(
                branch.input_ids or branch.prompt,
                on_text=stream.text,
                on_step=stream.step,
                should_stop=lambda: self._cancelled(job),
                **one_text(branch.sampling),
                max_new_tokens=min(room, branch.sampling.max_new_tokens),
            )
            stream.flush()
        with self.lock:
            if branch.prompt_tokens is None:
                branch.prompt_tokens = tuple(generation.prompt_tokens)
            branch.facts = {
                "first_token_ms": generation.first_token_ms,
                "tokens_per_s": generation.tokens_per_s,
                "reused": generation.prompt_tokens_reused,
                "compiled": generation.compiled,
                "stop_reason": str(generation.stop_reason),
                "tokens": len(generation.tokens),
            }
            if self._wish is not None:  # it goes on at once
                return
        self.look_for_choices()
        self._page.tree_changed()
        self.say("idle")

    def _begin(self, job: int, wish: Wish) -> Branch:
        """Makes the branch that a wish is about current and empty, and tells the page."""
        with self.lock:
            shown = self.tree.current
            if wish.fork is not None:
                branch = self._forked(*wish.fork)
            elif wish.from_prompt or shown is None or shown.prompt != self.prompt:
                branch = self.tree.from_prompt(self.prompt)
            else:
                branch = self.tree.again(shown)
            branch.sampling, branch.source = self.session.sampling, self.source()
            self._page.began(job, branch, len(branch.prefix) - (wish.fork is not None))
            self._page.tree_changed()
            return branch

    def _forked(self, id: int, at: int, alternative: int) -> Branch:
        parent = self.tree.get(id)
        if parent is None or not 0 <= at < len(parent.tokens) or parent.prompt_tokens is None:
            raise NotFoundError("The text to branch from is gone", next="Press Sample")
        token = parent.tokens[at].instead(alternative)
        if token is None:
            raise NotFoundError("The panel doesn't keep this alternative", received=alternative)
        return self.tree.fork(parent, at, token)

    def _more(self, job: int, branch: Branch, tokens: list[Token]) -> None:
        with self.lock:
            if not self._cancelled(job):
                at = len(branch.prefix) + len(branch.own)
                branch.own += tokens
                self._page.more(job, at, tokens)

    @contextlib.contextmanager
    def _session_lock(self) -> Iterator[None]:
        if not self.session.lock.acquire(blocking=False):
            self.say("waiting")
            self.session.lock.acquire()
        try:
            yield
        finally:
            self.session.lock.release()

    def _cancelled(self, job: int) -> bool:
        return self._closed or self.job != job

    def _moved(self, change: Any) -> None:
        if change["name"] != "sampling":
            self.look_for_choices()
        self.say(self.doing)


def one_line(error: Exception) -> str:
    """An error as the panel shows it."""
    return str(error) if isinstance(error, NbllmError) else f"{type(error).__name__}: {' '.join(str(error).split())}"
