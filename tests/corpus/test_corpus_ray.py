"""Cleaning on Ray gives the corpus that this process gives, byte for byte."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from nbllm.corpus import clean
from nbllm.errors import DataError, UsageError
from nbllm.store import Store

with_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray isn't installed")
STAGES = ["normalize", "language en", "python shout", "dedup exact", "quality gopher min_words=20", "dedup minhash",
          "dedup paragraph", "pii mask"]  # fmt: skip


def texts() -> list[str]:
    found = [f"This is the text number {index} of the corpus, and it has a few words of its own: {index * 7919}. "
             f"Write to user{index}@example.com with questions.\n\nA paragraph that all share.\n" * (1 + index % 3)
             for index in range(300)]  # fmt: skip
    return [*found, *found[:20], "", "   "]


@pytest.mark.slow
@with_ray
def test_ray_gives_the_same_corpus(tmp_path: Path) -> None:
    import ray

    def shout(text: str) -> str | None:
        return text.replace("few", "FEW")

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        hashes = {}
        for engine, workers, batch in (("local", 1, 100), ("local", 2, 10_000), ("ray", 1, 100), ("ray", 2, 10_000)):
            options: dict[str, Any] = {"engine": engine, "workers": workers, "batch_documents": batch}
            store = Store(tmp_path / f"{engine}-{workers}")
            made = clean(store, texts=texts(), stages=STAGES, functions={"shout": shout}, name="one", **options)
            hashes[engine, workers] = made.manifest.hash
        assert len(set(hashes.values())) == 1, hashes
        assert ray.is_initialized()

        def fails(text: str) -> str:
            return str(1 / 0)

        with pytest.raises(DataError, match="python fails failed on document texts:1: ZeroDivisionError"):
            clean(store, texts=["a"], stages=["python fails"], functions={"fails": fails}, engine="ray")
    finally:
        ray.shutdown()


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it weren't installed
    with pytest.raises(UsageError, match=r'needs Ray\. pip install "nbllm\[ray\]"'):
        clean(Store(tmp_path), texts=["a text"], stages=[], engine="ray")


def test_mistakes_about_engines(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no engine 'rai'. Did you mean ray"):
        clean(Store(tmp_path), texts=["a text"], stages=[], engine="rai")
    with pytest.raises(UsageError, match="Add --engine ray"):
        clean(Store(tmp_path), texts=["a text"], stages=[], ray_address="auto")
