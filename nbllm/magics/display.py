"""How results show in IPython: panels for runs, nothing twice.

A magic returns its result, so that it can be assigned; what the magic has shown already (a panel, streamed text) must
not show again as the cell's `Out`. Results know nothing of IPython: formatters registered here look at a set of what
this cell has shown.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from nbllm.commands import Command
from nbllm.commands.attention import AttentionRequest
from nbllm.commands.lens import LensRequest
from nbllm.commands.options import Arguments
from nbllm.commands.panel import PanelRequest
from nbllm.plain import harmless, plain

_REFRESH_S = 0.1
_TYPES = (
    ("nbllm.train.run", "Run"),
    ("nbllm.sample.generation", "Generation"),
    ("nbllm.inspect.attention", "AttentionMaps"),
    ("nbllm.tokenizer.strip", "TokenStrip"),
    ("nbllm.inspect.lens", "LogitLens"),
    ("nbllm.inspect.architecture", "ModelSummary"),
    ("nbllm.sessions.run_comparison", "RunComparison"),
)


class Stream:
    """One text that grows where it is: a single output that is replaced a few times a second, so that a saved notebook
    and its static page hold the whole text once."""

    def __init__(self) -> None:
        self._text = ""
        self._shown = ""
        self._handle: Any = None
        self._last = 0.0

    def write(self, text: str) -> None:
        """Adds text; shows it at once, or with what follows within the next tenth of a second."""
        self._text += plain(text)
        if time.monotonic() - self._last >= _REFRESH_S:
            self.flush()

    def flush(self) -> None:
        """Shows what has been written and isn't shown yet."""
        from IPython.display import display

        if self._text == self._shown:
            return
        data = {"text/plain": self._text.rstrip("\n")}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
        self._shown, self._last = self._text, time.monotonic()


class Display:
    """The display side of the extension.

    Args:
        shell: the running InteractiveShell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._shown: set[int] = set()
        formatter = shell.display_formatter.ipython_display_formatter
        formatter.for_type_by_name(*_TYPES[0], self._run_again)
        formatter.for_type_by_name(*_TYPES[1], self._text_again)
        formatter.for_type_by_name(*_TYPES[2], self._attention_again)
        formatter.for_type_by_name("nbllm.inspect.lens", "LogitLens", self._lens_again)
        formatter.for_type_by_name("nbllm.inspect.architecture", "ModelSummary", self._model_again)
        formatter.for_type_by_name(*_TYPES[3], self._text_again)
        formatter.for_type_by_name("nbllm.sessions.run_comparison", "RunComparison", self._comparison_again)
        self._format = shell.display_formatter.format
        shell.display_formatter.format = self._harmless_format
        shell.events.register("pre_run_cell", self._new_cell)

    def remove(self) -> None:
        """Takes the formatters away again, and closes the panels."""
        from nbllm.panels import close_all

        close_all()
        with contextlib.suppress(AttributeError):
            del self._shell.display_formatter.format  # the class's own shows again
        formatter = self._shell.display_formatter.ipython_display_formatter
        for module, name in _TYPES:
            formatter.deferred_printers.pop((module, name), None)
            for known in list(formatter.type_printers):
                if (known.__module__, known.__name__) == (module, name):
                    formatter.type_printers.pop(known)
        with contextlib.suppress(ValueError):
            self._shell.events.unregister("pre_run_cell", self._new_cell)

    @contextlib.contextmanager
    def watch(self, session: Any) -> Iterator[None]:
        """Shows the panel of a run as soon as the session has it, also while a `--wait` blocks the cell."""

        def started(change: Any) -> None:
            if change["new"] is not None:
                self._show_run(change["new"])

        if not self.live:
            yield
            return
        session.observe(started, "run")
        try:
            yield
        finally:
            session.unobserve(started, "run")

    def show(self, command: Command, result: Any, arguments: Arguments, session: Any) -> Any:
        """Shows what a command returned where the cell's `Out` wouldn't; returns what the magic should."""
        if isinstance(result, PanelRequest):
            self._panel(result.name, session)
            return None
        if isinstance(result, AttentionRequest):
            self._attention(result, session)
            return result.maps
        if isinstance(result, LensRequest):
            self._lens(result.lens, session, text=result.text, wanted=result.source)
            return result.lens
        kind = (type(result).__module__, type(result).__name__)
        if kind == ("nbllm.inspect.architecture", "ModelSummary"):
            self._model_again(result)
        if kind == ("nbllm.sessions.run_comparison", "RunComparison"):
            self._comparison_again(result)
        if kind == _TYPES[0] and id(result) not in self._shown:
            self._show_run(result)
        if kind == _TYPES[3]:
            if not self.live:
                return result
            from nbllm.panels import show_tokenizer

            show_tokenizer(session, text=result.text)
        if kind in _TYPES:
            self._shown.add(id(result))
        return result

    @property
    def live(self) -> bool:
        """Whether there is a front end that shows more than text."""
        return hasattr(self._shell, "kernel")

    def _harmless_format(self, value: Any, *given: Any, **named: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a front end gets of a value; of our results no text from data that steers or is typeset."""
        data, metadata = self._format(value, *given, **named)
        return harmless(data) if _is_ours(value) else data, metadata

    def _show_run(self, run: Any) -> None:
        import nbllm
        from nbllm.panels import show_run

        self._shown.add(id(run))
        show_run(run, reference_bits_per_byte=nbllm.session().compressed_reference(run).get("xz"))

    def _panel(self, name: str | None, session: Any) -> None:
        from IPython.display import display

        shows: dict[str, Callable[[], None]] = {
            "clean": lambda: panels.show_clean(session),
            "tokenizer": lambda: panels.show_tokenizer(session),
            "train": lambda: self._current_run(session),
            "finetune": lambda: panels.show_finetune(session),
            "generate": lambda: panels.show_generate(session),
            "attention": lambda: panels.show_attention(session),
        }
        if name == "session" or (name is None and not self.live):
            display(session.card())
            return
        from nbllm import panels

        if name is None:
            panels.show_tabs(session, shows)
        else:
            shows[name]()

    def _current_run(self, session: Any) -> None:
        from nbllm.errors import NotFoundError

        if session.run is None:
            raise NotFoundError("There is no run yet", next="Start one with %llm_train")
        self._show_run(session.run)

    def _attention(self, request: AttentionRequest, session: Any) -> None:
        from nbllm.panels import show_attention
        from nbllm.panels.attention_view import Wanted

        self._shown.add(id(request.maps))
        other = None
        if request.other is not None:
            other = Wanted(text=request.other_text, **request.source), request.other
        wanted = Wanted(text=request.text, **request.source)
        show_attention(session, wanted=wanted, maps=request.maps, other=other, layer=request.layer, head=request.head)

    def _attention_again(self, maps: Any) -> None:
        import nbllm
        from nbllm.panels import show_attention
        from nbllm.panels.attention_view import Wanted

        if id(maps) not in self._shown:
            self._shown.add(id(maps))
            show_attention(nbllm.session(), wanted=Wanted(text="".join(maps.tokens)), maps=maps)

    def _lens(self, lens: Any, session: Any, *, text: str, wanted: dict[str, Any] | None = None) -> None:
        from nbllm.panels import show_lens

        self._shown.add(id(lens))
        show_lens(session, lens, text=text, wanted=wanted)

    def _model_again(self, summary: Any) -> None:
        import nbllm
        from nbllm.panels import show_model

        if id(summary) not in self._shown:
            self._shown.add(id(summary))
            show_model(nbllm.session(), summary)

    def _comparison_again(self, comparison: Any) -> None:
        from nbllm.panels import show_comparison

        if id(comparison) not in self._shown:
            self._shown.add(id(comparison))
            show_comparison(comparison)

    def _lens_again(self, lens: Any) -> None:
        import nbllm

        if id(lens) not in self._shown:
            self._lens(lens, nbllm.session(), text="".join(lens.tokens))

    def _new_cell(self, *_: Any) -> None:
        self._shown.clear()

    def _run_again(self, run: Any) -> None:
        if id(run) not in self._shown:
            self._show_run(run)

    def _text_again(self, result: Any) -> None:
        from IPython.display import publish_display_data

        if id(result) not in self._shown:
            data = {"text/plain": str(result)}
            if hasattr(result, "_repr_html_"):
                data["text/html"] = result._repr_html_()
            publish_display_data(harmless(data))


def _is_ours(value: Any) -> bool:
    """Whether a result is nbllm's, or a list of such."""
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return type(first).__module__.partition(".")[0] == "nbllm"
