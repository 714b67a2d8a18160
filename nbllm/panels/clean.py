"""The cleaning panel: where documents went, thresholds that move with examples, dropped documents one by one.

The corpus is the session's, and follows it. A moved threshold is decided from stored scores and only tells; `Apply`
cleans again from the sources with the moved thresholds and the documents that were marked to be kept. Texts travel as
pieces, marked or not, and become text nodes in the page.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import anywidget
import numpy as np

from nbllm.errors import NotFoundError, UsageError
from nbllm.panels import place, registry, source
from nbllm.panels.clean_face import as_html, as_text, pieces, printable
from nbllm.panels.face import Face

_EXAMPLES = 3
_PROGRESS_S = 0.2


def show_clean(session: Any) -> None:
    """Displays the cleaning panel of a session's corpus, and the static face that stays in the saved notebook.

    Raises:
        NotFoundError: the session has no corpus.
    """
    if session.corpus is None:
        raise NotFoundError("There is no corpus yet", next="Make one with %%llm_clean builtin:pydocs")
    if not registry.has_kernel():
        print(as_text(session.corpus))
        return
    panel = CleanPanel(session)
    registry.enter("clean", f"{id(session)}", panel)
    place.present(panel)
    panel.start()


class CleanPanel(anywidget.AnyWidget):
    """The widget; `show_clean` makes, registers and displays it.

    Messages to the page: `snapshot` (the report), `stage` (handles; buffers: edges as float64 and documents as int32 of
    each, then the overlap as int32), `counted`, `examples`, `document`, `progress`, `applied`, `error`.
    Messages from the page: `snapshot`, and `do` with `stage`, `move`, `document`, `keep`, `apply`, `reset`.
    """

    _esm = source.module("clean", "chart", "clean_histogram")
    _css = source.style()

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session = session
        self.face = Face()
        self.moved: dict[int, dict[str, Any]] = {}
        """Thresholds by the number of their stage."""
        self.keep: dict[str, bool] = {}
        """Ids of documents to keep, in the order they were marked."""
        self.number = 0
        self._closed = False
        self._busy = False
        self._on_face: str | None = None
        self._begin()
        self.on_msg(self._receive)

    @property
    def corpus(self) -> Any:
        """The session's corpus."""
        return self.session.corpus

    def start(self) -> None:
        """Shows the static face and begins to follow the session's corpus."""
        self.session.observe(self._follow, "corpus")
        self.face.show(as_html(self.corpus, self.number), as_text(self.corpus))
        self._on_face = self.corpus.manifest.hash

    def settle(self) -> None:
        """Brings the static face up to date."""
        if not self._closed and self.corpus is not None and self.corpus.manifest.hash != self._on_face:
            self.face.update(as_html(self.corpus, self.number), as_text(self.corpus))
            self._on_face = self.corpus.manifest.hash

    def close(self) -> None:
        """Removes the panel from the page; the static face stays."""
        if self._closed:
            return
        self._closed = True
        self.session.unobserve(self._follow, "corpus")
        registry.leave(self)
        super().close()

    def _begin(self) -> None:
        """Forgets what was moved; begins with the stage that dropped most among those that can move."""
        self.moved = {}
        parameters = self.corpus.manifest.parameters
        self.keep = dict.fromkeys(parameters.get("keep", []), True)
        stages = self.corpus.report.stages
        self._movable = [number for number in range(1, len(stages)) if self._can_move(number)]
        among = self._movable or range(len(stages))
        self.number = max(among, key=lambda number: (stages[number].dropped.documents, -number))

    def _can_move(self, number: int) -> bool:
        try:
            return bool(self.corpus.moving(number).histograms)
        except UsageError:
            return False

    def _follow(self, _change: object) -> None:
        if not self._closed and self.corpus is not None:
            self._begin()
            self._send_all(None)

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        try:
            if content.get("ask") == "snapshot":
                self._send_all(str(content.get("view")))
            elif "do" in content:
                self._obey(str(content["do"]), content)
        except Exception as error:  # shown in the panel
            self.send({"kind": "error", "text": " ".join(str(error).split()) or type(error).__name__})

    def _obey(self, command: str, content: dict[str, Any]) -> None:
        if command == "stage":
            self.number = int(content["number"])
            self._send_stage()
        elif command == "move":
            self._move(content)
        elif command == "document":
            self._document(str(content.get("reason") or ""), int(content["at"]))
        elif command == "keep":
            self.keep.pop(str(content["id"]), None)
            if content["on"]:
                self.keep[str(content["id"])] = True
            self._send_waiting()
        elif command == "reset":
            self._begin()
            self._send_all(None)
        elif command == "apply":
            self._apply()
        else:
            raise UsageError("The panel doesn't know this command", received=command)

    # What is sent --------------------------------------------------------------------------------------------------

    def _send_all(self, view: str | None) -> None:
        corpus = self.corpus
        report = corpus.report
        stages = []
        for number, stage in enumerate(report.stages):
            if number == 0 and not stage.reasons:
                continue
            reasons = [[why, amount.documents, amount.bytes] for why, amount in stage.reasons.items()]
            stages.append(
                {"number": number, "name": stage.name, "line": printable(stage.line),
                 "movable": number in self._movable, "in": [stage.came_in.documents, stage.came_in.bytes],
                 "out": [stage.went_out.documents, stage.went_out.bytes],
                 "dropped": [stage.dropped.documents, stage.dropped.bytes], "reasons": reasons}
            )  # fmt: skip
        sources = [
            [printable(name), *(amounts[kind].documents for kind in ("in", "dropped", "out")), amounts["out"].bytes]
            for name, amounts in corpus.by_source.items()
        ]
        languages = [
            [name, counts["in"], counts["in"] - counts["out"], counts["out"],
             ", ".join(f"{stage} −{gone:,}" for stage, gone in counts.items() if stage not in ("in", "out"))]
            for name, counts in list(corpus.by_language.items())[:30]
        ]  # fmt: skip
        self.send(
            {"kind": "snapshot", "view": view, "face": self.face.id, "name": corpus.name, "recipe": report.recipe,
             "in": [report.came_in.documents, report.came_in.bytes],
             "out": [report.went_out.documents, report.went_out.bytes], "stages": stages, "sources": sources,
             "languages": languages, "warnings": [printable(note) for note in corpus.warnings], "number": self.number}
        )  # fmt: skip
        self._send_stage()

    def _send_stage(self) -> None:
        number = self.number
        handles: list[dict[str, Any]] = []
        buffers: list[bytes] = []
        overlap: list[str] = []
        if number in self._movable:
            moving = self.corpus.moving(number)
            arguments = moving.stage.arguments()
            thresholds = self.moved.get(number, {})
            for found in moving.histograms:
                argument = found.handle.argument
                handles.append(
                    {"score": found.handle.score, "argument": argument, "least": found.handle.least,
                     "limit": thresholds.get(argument, found.limit), "was": found.limit, "whole": found.whole,
                     "summary": arguments[argument].summary}
                )  # fmt: skip
                buffers += [found.edges.astype("<f8").tobytes(), found.documents.astype("<i4").tobytes()]
            matrix = moving.overlap(thresholds)
            overlap = list(matrix.reasons)
            buffers.append(np.column_stack([matrix.documents, matrix.alone]).astype("<i4").tobytes())
        self.send({"kind": "stage", "number": number, "handles": handles, "overlap": overlap}, buffers)
        if handles:
            self._count(0)
            first = max(range(len(handles)), key=lambda index: self._hits(handles[index]))
            self._examples(first, 0)
        self._send_waiting()
        self._document("", 0)

    def _hits(self, handle: dict[str, Any]) -> int:
        """How many documents one handle's rule alone would drop."""
        if handle["limit"] is None:
            return -1
        values = self.corpus.moving(self.number).values(handle["score"])
        return int(np.count_nonzero(values < handle["limit"] if handle["least"] else values > handle["limit"]))

    def _send_waiting(self) -> None:
        """What `Apply` would do."""
        stored = list(self.corpus.manifest.parameters.get("keep", []))
        lines = self._lines()
        changed = [line for line, before in zip(lines, self.corpus.lines, strict=True) if line != before]
        self.send(
            {"kind": "waiting", "lines": [printable(line) for line in changed], "keep": len(self.keep),
             "changed": bool(changed) or sorted(stored) != sorted(self.keep)}
        )  # fmt: skip

    def _move(self, content: dict[str, Any]) -> None:
        number = int(content["number"])
        moving = self.corpus.moving(number)
        found = moving.histograms[int(content["handle"])]
        value: Any = content["value"]
        if value is not None:
            value = round(float(value)) if found.whole else float(value)
        thresholds = {**self.moved.get(number, {}), found.handle.argument: value}
        if value == found.limit:
            del thresholds[found.handle.argument]
        moving.count(thresholds)  # refuses what the stage doesn't take, before it is remembered
        self.moved[number] = thresholds
        self._count(int(content.get("turn", 0)))
        if content.get("rest"):
            # the pointer rests: what takes longer than counting
            self._examples(int(content["handle"]), int(content.get("turn", 0)))
            self._send_waiting()

    def _count(self, turn: int) -> None:
        found = self.corpus.moving(self.number).count(self.moved.get(self.number, {}))
        self.send(
            {"kind": "counted", "number": self.number, "turn": turn, "in": found.came_in,
             "documents": found.documents, "bytes": found.bytes, "before": [found.documents_before, found.bytes_before],
             "reasons": list(found.reasons.items())}
        )  # fmt: skip

    def _examples(self, index: int, turn: int) -> None:
        moving = self.corpus.moving(self.number)
        handle = moving.histograms[index].handle
        limit = {**self.moved.get(self.number, {})}.get(handle.argument, moving.histograms[index].limit)
        sides: list[list[dict[str, Any]]] = [[], []]
        if limit is not None:
            values = dict(zip(moving.rows.tolist(), moving.values(handle.score).tolist(), strict=True))
            reason = next((why for why, score in moving.stage.EVIDENCE.items() if score == handle.score), "")
            for side, rows in zip(sides, moving.beside(handle, float(limit), _EXAMPLES), strict=True):
                for document in self.corpus.texts_of(rows):
                    side.append(
                        {"id": printable(document["id"]), "value": values[document["row"]],
                         "pieces": pieces(reason, document["text"])}
                    )  # fmt: skip
        self.send(
            {"kind": "examples", "number": self.number, "handle": index, "turn": turn, "dropped": sides[0],
             "kept": sides[1]}
        )  # fmt: skip

    def _document(self, reason: str, at: int) -> None:
        """One of the documents that the stage dropped, for one reason or any."""
        found = self.corpus.dropped_one(self.number, at, reason or None)
        if found is None:
            self.send({"kind": "document", "number": self.number, "at": 0, "of": 0})
            return
        example, place, total, pair = found
        self.send(
            {"kind": "document", "number": self.number, "at": place, "of": total, "id": example.id,
             "shown": printable(example.id), "source": printable(example.source), "why": printable(example.why),
             "keep": example.id in self.keep,
             "pieces": pieces(example.reason, example.text) if pair is None else
             [[kind, printable(text)] for kind, text in pair.shown()],
             "like": None if pair is None else printable(pair.kept_id)}
        )  # fmt: skip

    # Applying ------------------------------------------------------------------------------------------------------

    def _lines(self) -> list[str]:
        """The stages with the moved thresholds, as they are typed."""
        found: Sequence[str] = self.corpus.lines
        return [
            self.corpus.with_thresholds(number, self.moved[number]) if self.moved.get(number) else line
            for number, line in enumerate(found, 1)
        ]

    def _apply(self) -> None:
        if self._busy:
            return
        corpus, lines, keep = self.corpus, self._lines(), list(self.keep)
        sources, options = corpus.asked_again()
        # the stages already hold the mix
        options = {key: value for key, value in options.items() if key not in ("mix", "tokens", "bytes_per_token")}
        options = {**options, "stages": lines, "keep": keep, "name": corpus.name, "overwrite": True}
        self._busy = True
        last = 0.0

        def progress(stage: str, done: int, total: int | None) -> None:
            nonlocal last
            if time.monotonic() - last > _PROGRESS_S:
                last = time.monotonic()
                self.send({"kind": "progress", "stage": stage, "done": done, "total": total})

        def work() -> None:
            try:
                self.session.clean(*sources, progress=progress, **options)
                self.send({"kind": "applied", "text": f"{corpus.name} was cleaned again"})
                self.settle()
            except Exception as error:  # shown in the panel
                self.send({"kind": "error", "text": " ".join(str(error).split()) or type(error).__name__})
            finally:
                self._busy = False

        self.worker = threading.Thread(target=work, daemon=True)
        self.worker.start()
