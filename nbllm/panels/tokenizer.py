"""The tokenizer panel: text is typed and its tokens follow; details of a token; the vocabulary; several side by side.

The tokenizer is the session's, and follows it; more from the store can be put beside it. Strips travel as typed arrays
(`tokenizer_data`). The static face is the strip as `inspect` shows it.
"""

from __future__ import annotations

import threading
from html import escape
from typing import Any

import anywidget

from nbllm.errors import NotFoundError, UsageError
from nbllm.panels import place, registry, source
from nbllm.panels.face import Face
from nbllm.panels.tokenizer_data import encode_segments, encode_strip, names, search, tree_rows

FIRST_TEXT = "Tokenization of CH3COOH splits: 😀 and naïve  spaces\ndef f(x): return 1234567"
MOST_CHARACTERS = 100_000
"""The longest text that is encoded while one types."""
_MOST_ROWS = 400


def show_tokenizer(session: Any, *, text: str = "") -> None:
    """Displays the tokenizer panel of a session, and the static face that stays in the saved notebook.

    Args:
        session: the session whose tokenizer it looks into.
        text: what stands in the text field at first; by default what stood in this session's panel before.

    Raises:
        NotFoundError: the session has no tokenizer.
        UsageError: outside a Jupyter kernel.
    """
    if session.tokenizer is None:
        raise NotFoundError("There is no tokenizer yet", next="Make one with %llm_tokenizer train")
    if not registry.has_kernel():
        raise UsageError("This panel needs a Jupyter notebook", next='Type %llm_tokenizer inspect "text" here')
    before = [panel for panel in registry.live("tokenizer") if panel.session is session]
    panel = TokenizerPanel(session, text=text or (before[-1].text if before else FIRST_TEXT))
    registry.enter("tokenizer", f"{id(session)}", panel)
    place.present(panel)
    panel.start()


class TokenizerPanel(anywidget.AnyWidget):
    """The widget; `show_tokenizer` makes, registers and displays it.

    Messages to the page: `snapshot` and `strip` (headers of `encode_strip`, its buffers, then the segments' one),
    `details` (one token), `found` (ids of a search, a buffer), `rows` (texts of ids), `counted`, `error`.
    Messages from the page: `snapshot`, and `do` with `text`, `details`, `add`, `remove`, `search`, `rows`, `count`.
    """

    _esm = source.module("tokenizer", "tokenizer_strip", "tokenizer_vocabulary")
    _css = source.style()

    def __init__(self, session: Any, *, text: str) -> None:
        super().__init__()
        self.session = session
        self.text = text[:MOST_CHARACTERS]
        self.beside: list[Any] = []
        self.face = Face()
        self.counts: dict[str, Any] = {}
        self._turn = 0
        self._on_face: tuple[str, list[str]] | None = None
        self._closed = False
        self.on_msg(self._receive)

    @property
    def tokenizers(self) -> list[Any]:
        """The session's tokenizer, then those beside it."""
        return [self.session.tokenizer, *self.beside] if self.session.tokenizer is not None else list(self.beside)

    def start(self) -> None:
        """Shows the static face and begins to follow the session's tokenizer."""
        self.session.observe(self._follow, "tokenizer")
        self.face.show(*self._as_face())

    def settle(self) -> None:
        """Brings the static face up to date."""
        shown = (self.text, [tokenizer.hash for tokenizer in self.tokenizers])
        if not self._closed and self.tokenizers and shown != self._on_face:
            self.face.update(*self._as_face())
            self._on_face = shown

    def close(self) -> None:
        """Removes the panel from the page; the static face stays."""
        if self._closed:
            return
        self._closed = True
        self.session.unobserve(self._follow, "tokenizer")
        registry.leave(self)
        super().close()

    def _follow(self, _change: object) -> None:
        if not self._closed and self.tokenizers:
            self._send_strips("strip")

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        try:
            if content.get("ask") == "snapshot":
                self._send_strips("snapshot", view=str(content.get("view")), face=self.face.id)
            elif "do" in content:
                self._obey(str(content["do"]), content)
        except Exception as error:  # shown in the panel
            self.send({"kind": "error", "text": " ".join(str(error).split()) or type(error).__name__})

    def _obey(self, command: str, content: dict[str, Any]) -> None:
        if command == "text":
            self.text, self._turn = str(content["text"])[:MOST_CHARACTERS], int(content.get("turn", 0))
            self._send_strips("strip", cut=len(str(content["text"])) > MOST_CHARACTERS)
        elif command == "details":
            self._details(int(content["which"]), int(content["id"]))
        elif command == "add":
            self._add(str(content["name"]))
        elif command == "remove":
            del self.beside[int(content["which"]) - 1]
            self._send_strips("strip")
        elif command == "search":
            found = search(
                self.tokenizers[0],
                str(content["query"])[:200],
                order="length" if content.get("by") == "length" else "id",
            )
            self.send(
                {"kind": "found", "turn": content.get("turn"), "of": self.tokenizers[0].vocab_size}, [found.tobytes()]
            )
        elif command == "rows":
            ids = [int(id) for id in content["ids"]][:_MOST_ROWS]
            self.send({"kind": "rows", "ids": ids, "rows": names(self.tokenizers[0], ids)})
        elif command == "count":
            self._count(int(content["which"]))
        else:
            raise UsageError("The panel doesn't know this command", received=command)

    def _add(self, name: str) -> None:
        from nbllm.tokenizer.align import MOST
        from nbllm.tokenizer.load import load

        if len(self.tokenizers) >= MOST:
            raise UsageError(f"Side by side stand up to {MOST} tokenizers", next="Remove one")
        self.beside.append(load(self.session.store, name))
        self._send_strips("strip")

    def _details(self, which: int, id: int) -> None:
        tokenizer = self.tokenizers[which]
        details = tokenizer.details(id, self.counts.get(tokenizer.hash))
        rows = [[label, value] for label, value in details.rows()]
        self.send({"kind": "details", "which": which, "id": id, "rows": rows, "tree": tree_rows(details)})

    def _count(self, which: int) -> None:
        """Counts the corpus's tokens on a thread of its own, so that the panel goes on."""
        tokenizer, corpus = self.tokenizers[which], self.session.corpus
        if corpus is None:
            raise NotFoundError("There is no corpus to count in", next="Make one with %llm_clean builtin:pydocs")

        def work() -> None:
            try:
                self.counts[tokenizer.hash] = tokenizer.report(corpus.texts()).counts
                message = {"kind": "counted", "which": which}
            except Exception as error:  # shown in the panel
                message = {"kind": "error", "text": " ".join(str(error).split())}
            if not self._closed:
                self.send(message)

        threading.Thread(target=work, name="nbllm-count", daemon=True).start()

    def _send_strips(self, kind: str, *, cut: bool = False, **more: Any) -> None:
        from nbllm.tokenizer.align import align

        alignment = align(self.tokenizers, self.text)
        strips, buffers = [], []
        for tokenizer, name, strip in zip(self.tokenizers, alignment.names, alignment.strips, strict=True):
            header, numbers = encode_strip(strip)
            about = {"name": name, "algorithm": tokenizer.algorithm, "vocab_size": tokenizer.vocab_size}
            strips.append({**about, **header})
            buffers.append(numbers)
        notes = alignment.strips[0].notes
        if cut:
            notes = [f"Only the first {MOST_CHARACTERS:,} characters are shown", *notes]
        content = {"kind": kind, "turn": self._turn, "strips": strips, "notes": notes, "text": self.text}
        content["choices"] = self.session.store.names("tokenizer")
        content["corpus"] = self.session.corpus is not None
        self.send({**content, **more}, [*buffers, encode_segments(alignment)])

    def _as_face(self) -> tuple[str, str]:
        strips = [tokenizer.inspect(self.text) for tokenizer in self.tokenizers]
        head = "<div class='nbllm-head'><strong>Tokenizer</strong></div>"
        if len(strips) == 1:
            body, text = strips[0]._repr_html_(), str(strips[0])
        else:  # a long strip each would be too much for a saved notebook
            short = [tokenizer.inspect(self.text[:1000]) for tokenizer in self.tokenizers]
            body, text = "".join(strip._repr_html_() for strip in short), "\n\n".join(map(str, short))
            if len(self.text) > 1000:
                body += f"<div class='nbllm-dim'>{escape('Side by side: only the first 1,000 characters')}</div>"
        return f"{head}<div class='nbllm-body'>{body}</div>", text
