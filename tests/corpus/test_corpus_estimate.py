"""What a large cleaning will take, and how much time all its steps still take."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nbllm.corpus import clean
from nbllm.corpus.documents import batches
from nbllm.corpus.estimate import Estimate, estimate
from nbllm.corpus.progress import CalmProgress
from nbllm.corpus.stages import parse_stages
from nbllm.store import Store

TEXTS = [f"The text of the number {number}, and it has a few words of its own. " * 4 for number in range(200)]


def test_an_estimate_extends_a_sample(tmp_path: Path) -> None:
    sample = next(iter(batches((text, f"d{number}", "s") for number, text in enumerate(TEXTS))))
    text_bytes = sum(map(len, TEXTS))
    stages = parse_stages(["normalize", "dedup exact", "length min=100", "dedup minhash"])
    small, large = (estimate(sample, stages, times * text_bytes, tmp_path) for times in (1, 1000))
    assert (small.documents, large.documents) == (200, 200_000)
    assert [name for name, _ in large.seconds] == [
        "read, normalize",
        "dedup exact, length",
        "dedup minhash",
        "files",
    ]
    assert all(seconds > 0 for _, seconds in large.seconds)
    # the texts are there twice and more, the keys of two stages once
    assert 3 * text_bytes < small.disk_bytes < 12 * text_bytes
    assert large.disk_bytes == pytest.approx(1000 * small.disk_bytes, rel=0.01)
    assert large.memory_bytes > small.memory_bytes + 200_000 * 100
    assert str(large).startswith("About 200,000 documents: some ")
    full = Estimate(documents=5, seconds=(("read", 100.0),), memory_bytes=10**9, disk_bytes=9 * 10**9, free_bytes=10**9)
    assert str(full) == (
        "About 5 documents: some 2 min, 1.0 GB of memory and up to 9.0 GB of disk, of which only 1.0 GB are free"
    )


def test_it_is_told_before_a_large_cleaning_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    told: list[Estimate] = []
    store = Store(tmp_path / ".nbllm")
    clean(store, [path], stages=["normalize"], name="one", estimated=told.append)
    assert told == []
    monkeypatch.setattr(sys.modules["nbllm.corpus.clean"], "LARGE_BYTES", 1000)
    clean(store, [path], stages=["normalize", "dedup exact"], name="two", estimated=told.append)
    assert len(told) == 1
    assert told[0].documents == pytest.approx(200, rel=0.2)


def test_time_left_of_all_steps() -> None:
    now = [0.0]
    said: list[str] = []
    progress = CalmProgress(said.append, clock=lambda: now[0])
    progress.expect([("read", 50.0), ("dedup", 100.0), ("files", 10.0)])
    for done in range(11):
        now[0] = done * 10.0
        progress("read", done * 10, 100)
    # twice as slow as was expected: half of it is left, and 110 s are expected to take 220
    assert said[4] == "read: 50 of 100 documents, 1/s, about 50 s left of this step, 4 min of all"
    now[0] = 120.0
    progress("dedup", 0, 100)
    now[0] = 140.0
    progress("dedup", 10, 100)
    assert said[-1].startswith("dedup: 10 of 100 documents, 0/s, about 3 min left of this step, ")
