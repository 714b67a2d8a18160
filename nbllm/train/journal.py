"""Writing `metrics.jsonl`: one JSON object a line, by rank 0, each line in one write and flushed.

Numbers that aren't finite become the strings "NaN", "Infinity" and "-Infinity", so that any JSON parser reads the file.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from nbllm.train.metrics import METRICS, trim_torn_line


class Journal:
    """Appends events; a line that a killed process left torn is cut first.

    Args:
        folder: the run's folder.
        generation: which start of the run this is, written into every event.
    """

    def __init__(self, folder: Path, *, generation: int) -> None:
        path = folder / METRICS
        trim_torn_line(path)
        self.generation = generation
        self._file = path.open("ab", buffering=0)

    def write(self, kind: str, **fields: Any) -> None:
        """Appends one event."""
        event = {"kind": kind, "generation": self.generation, **fields}
        line = json.dumps(portable(event), ensure_ascii=False, allow_nan=False) + "\n"
        self._file.write(line.encode())

    def sync(self) -> None:
        """Flushes to disk what was written so far."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flushes and closes."""
        self.sync()
        self._file.close()


def portable(value: Any) -> Any:
    """The same JSON value with strings in the place of numbers that aren't finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(item) for item in value]
    return value
