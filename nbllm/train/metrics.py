"""Reading what a run writes while it trains: `metrics.jsonl`, one JSON object a line, appended by rank 0.

A reader keeps a byte offset, leaves a torn last line for the next look and skips a line that is no JSON. A run that
was started again begins a new generation with a `start` event that names the step it goes on from; what the older
generation did after that step no longer counts. Knows nothing of processes or checkpoints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa

METRICS = "metrics.jsonl"
COLUMNS = {
    "step": "int64",
    "loss": "float64",
    "eval_loss": "float64",
    "bits_per_byte": "float64",
    "lr": "float64",
    "grad_norm": "float64",
    "tokens": "int64",
    "tokens_per_s": "float64",
    "seconds": "float64",
}
"""Columns of `History.table` and their Arrow types: losses in nats a token, tokens and seconds (of training) since the
run's first step."""

_NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_TEXT_KINDS = ("sample",)
_CHUNK_BYTES = 1 << 22
_TAIL_BYTES = 1 << 16


class MetricsReader:
    """Follows one file of metrics from its beginning.

    Args:
        path: the file; it needn't exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        """Bytes read so far, always at the start of a line."""
        self.skipped = 0
        """Complete lines that were no JSON object."""

    @property
    def unread(self) -> int:
        """Bytes that the next `poll` would find."""
        try:
            return max(0, self.path.stat().st_size - self.offset)
        except FileNotFoundError:
            return 0

    def skim(self, lines: int = 1500) -> list[dict[str, Any]]:
        """A preview of a long file in a moment: its first line, lines at even distances, and its last ones, in order.

        Doesn't count as read. What lies between is passed over, evaluations and restarts too.
        """
        picked: dict[int, bytes] = {}
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, 2)
                tail = max(0, end - _TAIL_BYTES)
                picked[0] = _whole_line(file, 0)
                for number in range(1, lines):
                    start = tail * number // lines
                    file.seek(start)
                    start += len(file.readline())  # the rest of a line
                    picked.setdefault(start, _whole_line(file, start))
                file.seek(tail)
                start = tail + (len(file.readline()) if tail else 0)
                for line in file.read().split(b"\n")[:-1]:
                    picked[start] = line
                    start += len(line) + 1
        except FileNotFoundError:
            return []
        skipped = self.skipped
        events = [event for place in sorted(picked) if (event := self._parse(picked[place])) is not None]
        self.skipped = skipped
        return events

    def poll(self, most_bytes: int | None = None) -> list[dict[str, Any]]:
        """The events written since the last look, in order, non-finite numbers as floats.

        Args:
            most_bytes: read about that much and leave the rest for the next look; None: all.

        A `start` event whose `generation` is above 0 means: drop what you have of steps above its `step`.
        A file that has become shorter is read again from its beginning.
        """
        events = []
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self.offset:
                    self.offset = 0
                file.seek(self.offset)
                pending, stop = b"", self.offset + (most_bytes or sys.maxsize)
                while self.offset < stop and (chunk := file.read(_CHUNK_BYTES)):
                    *lines, pending = (pending + chunk).split(b"\n")
                    for line in lines:
                        self.offset += len(line) + 1
                        if (event := self._parse(line)) is not None:
                            events.append(event)
        except FileNotFoundError:
            self.offset = 0
        return events

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self.skipped += 1
            return None
        if event.get("kind") in _TEXT_KINDS:
            return event
        return {key: _NON_FINITE.get(value, value) if isinstance(value, str) else value for key, value in event.items()}


def _whole_line(file: BinaryIO, start: int) -> bytes:
    """The line that begins there; empty where its end isn't written yet."""
    file.seek(start)
    line = file.readline()
    return line[:-1] if line.endswith(b"\n") else b""


class History:
    """The events of a run that count, whatever generations it took to write them."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []

    def add(self, events: Iterable[dict[str, Any]]) -> None:
        """Takes in what `MetricsReader.poll` gave."""
        for event in events:
            if event.get("kind") == "start" and self._events:
                begin = event.get("step", 0)
                self._events = [old for old in self._events if _stays(old, begin)]
            self._events.append(event)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The events of a kind (`step`, `eval`, `checkpoint`, `sample`, `start`, `end`), or all, oldest first."""
        return [event for event in self._events if kind is None or event.get("kind") == kind]

    def last(self, kind: str) -> dict[str, Any] | None:
        """The newest event of a kind."""
        return next((event for event in reversed(self._events) if event.get("kind") == kind), None)

    def table(self) -> pa.Table:
        """One row a step with the columns of `COLUMNS`; what wasn't measured at a step is null."""
        import pyarrow as pa  # here, so that a supervisor stays small

        rows: dict[int, dict[str, Any]] = {}
        for event in self._events:
            if event.get("kind") in ("step", "eval") and isinstance(event.get("step"), int):
                rows.setdefault(event["step"], {}).update(event)
        steps = sorted(rows)
        return pa.table(
            {
                name: pa.array([_number(rows[step].get(name), whole=kind == "int64") for step in steps], kind)
                for name, kind in COLUMNS.items()
            }
        )


def trim_torn_line(path: Path) -> None:
    """Cuts a last line that a killed writer left half written, so that the next one starts on a line of its own."""
    try:
        with path.open("r+b") as file:
            end = file.seek(0, 2)
            position = end
            while position > 0:
                start = max(0, position - _CHUNK_BYTES)
                file.seek(start)
                found = file.read(position - start).rfind(b"\n")
                if found >= 0:
                    position = start + found + 1
                    break
                position = start
            if position < end:
                file.truncate(position)
    except FileNotFoundError:
        return


def _stays(event: dict[str, Any], begin: int) -> bool:
    """Whether an older generation's event still counts once a new one goes on after step `begin`."""
    return event.get("kind") != "end" and event.get("step", 0) <= begin


def _number(value: object, *, whole: bool) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if whole else float(value)
