"""What a large cleaning will take, told before it starts: time by step, memory and disk.

The first documents are measured by the stages themselves, and what they take is extended to all documents, whose number
follows from the bytes of the sources. A guess: texts further on may be longer, or of another language, and what early
stages drop is taken to be as frequent everywhere. Knows nothing of readers.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus import keyed
from nbllm.corpus.engine import pass_names, passes
from nbllm.corpus.progress import time_text
from nbllm.corpus.settling import SpilledTexts
from nbllm.corpus.stage import GlobalStage, Stage
from nbllm.corpus.steps import run_chain
from nbllm.errors import NbllmError

LARGE_BYTES = 50_000_000
"""Of sources: below that a cleaning is over before an estimate would help."""
SAMPLE = 256
"""Documents that are measured."""
_ON_DISK_BYTES_PER_S = 150e6
"""Documents are written twice, hashed and flushed."""
_BASE_BYTES = 110e6
_PER_DOCUMENT_BYTES = 80
"""Of a global stage: priorities, copies, groups and split keys."""
_PER_KEY_BYTES = 40
_PER_CHARACTER_BYTES = 20
"""Of a batch while it is measured."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a cleaning will take."""

    documents: int
    seconds: tuple[tuple[str, float], ...]
    """By step, as progress names them."""
    memory_bytes: int
    """Of this process; each further worker takes about as much as one batch."""
    disk_bytes: int
    """At the most, while it runs; about a third stays."""
    free_bytes: int
    """On that disk now."""

    def __str__(self) -> str:
        seconds = sum(value for _, value in self.seconds)
        text = (
            f"About {self.documents:,} documents: some {time_text(max(1, seconds))}, {self.memory_bytes / 1e9:.1f} GB "
            f"of memory and up to {self.disk_bytes / 1e9:.1f} GB of disk"
        )
        if self.disk_bytes > self.free_bytes:
            text += f", of which only {self.free_bytes / 1e9:.1f} GB are free"
        return text


def estimate(
    sample: pa.RecordBatch, stages: Sequence[Stage], total_bytes: int, folder: Path, workers: int = 1
) -> Estimate:
    """Measures the stages on a sample.

    Args:
        sample: the first documents.
        stages: of the cleaning.
        total_bytes: of all documents' texts.
        folder: on the disk that will hold them.
        workers: processes that share local stages.
    """
    sample_bytes = max(1, pc.sum(pc.binary_length(sample["text"])).as_py() or 0)
    times = total_bytes / sample_bytes
    documents = round(len(sample) * times)
    found: list[float] = []
    batch, kept_bytes = sample, 0
    settled_s = 0.0
    for chain, following in passes(stages):
        started = time.perf_counter()
        batch, steps = run_chain(chain, batch)
        kept_bytes += sum(step.scores.nbytes for step in steps) + batch.nbytes
        keys = following.keys(batch) if following is not None and len(batch) else None
        found.append(settled_s + (time.perf_counter() - started) * times / workers)
        settled_s = 0.0
        if keys is not None:
            kept_bytes += keys.nbytes
            started = time.perf_counter()
            assert isinstance(following, GlobalStage)
            with contextlib.suppress(NbllmError):  # a mix may find no document of a source among the first ones
                following.settle(pa.Table.from_batches([keys]), SpilledTexts([batch]))
            settled_s = (time.perf_counter() - started) * times
    found[-1] += settled_s
    disk = 2 * total_bytes + kept_bytes * times
    memory = _BASE_BYTES + _PER_CHARACTER_BYTES * min(total_bytes, 8e6, 1024 * sample_bytes / max(1, len(sample)))
    if any(isinstance(stage, GlobalStage) for stage in stages):
        memory += documents * _PER_DOCUMENT_BYTES + min(documents, keyed.AT_ONCE) * _PER_KEY_BYTES
    names = pass_names(stages)
    return Estimate(
        documents=documents,
        seconds=(*zip(names, found, strict=True), ("files", disk / _ON_DISK_BYTES_PER_S)),
        memory_bytes=round(memory),
        disk_bytes=round(disk),
        free_bytes=shutil.disk_usage(folder).free,
    )
