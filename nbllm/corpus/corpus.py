"""A cleaned corpus in the store: its documents, its report, and what was dropped and why.

Documents are memory-mapped; a corpus of many gigabytes opens at once. Knows nothing of tokenizers or training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.report import Amount
from nbllm.corpus.trail import Trail
from nbllm.errors import UsageError
from nbllm.files import read_json
from nbllm.store import Manifest, Store

Part = Literal["train", "held-out", "all"]
_COLUMNS = ("text", "id", "source")


class Corpus(Trail):
    """A corpus of the store.

    Args:
        store: where it is.
        manifest: which one.
        reused: whether `clean` found it made already.
    """

    def __init__(self, store: Store, manifest: Manifest, *, reused: bool = False) -> None:
        super().__init__(store, manifest)
        self.reused = reused
        self.asked: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    @classmethod
    def load(cls, store: Store, name: str) -> Corpus:
        """The corpus of that name; raises NotFoundError with the nearest one."""
        return cls(store, store.get("corpus", name))

    @cached_property
    def dataset(self) -> pa.Table:
        """The documents, memory-mapped: text, id, source (strings), split_key (float64 in [0, 1))."""
        return self._rows.select(["text", "id", "source", "split_key"])

    @property
    def by_source(self) -> dict[str, dict[str, Amount]]:
        """By source: the amounts `in`, `dropped` and `out`."""
        return self.report.by_source

    @property
    def aside(self) -> list[dict[str, Any]]:
        """Rows and files that couldn't be read, the first 10,000: `file`, `row` (None for a whole file), `why` and
        `content`, the beginning of the row."""
        path = self.folder / "aside.json"
        return list(read_json(path)["left_out"]) if path.exists() else []

    def __len__(self) -> int:
        return int(self.dataset.num_rows)

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Documents as dicts with `text`, `id` and `source`."""
        for batch in self.dataset.select(_COLUMNS).to_batches():
            yield from batch.to_pylist()

    def texts(self, part: Part = "all", held_out: float = 0.05) -> Iterator[str]:
        """The texts of one part of the corpus.

        Args:
            part: `train`, `held-out` or `all`.
            held_out: the share of documents that is held out, 0 to 1: those whose split key is below it.
        """
        for batch in self._part(part, held_out):
            yield from batch["text"].to_pylist()

    def text_bytes(self, part: Part = "all", held_out: float = 0.05) -> int:
        """UTF-8 bytes of the texts of one part."""
        return sum(pc.sum(pc.binary_length(batch["text"])).as_py() or 0 for batch in self._part(part, held_out))

    def asked_again(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The sources and options that this corpus was asked for with.

        Raises:
            UsageError: they were objects of a notebook whose kernel is gone.
        """
        if self.asked is not None:
            return self.asked
        call = self.manifest.call or {}
        sources, options = call.get("sources", []), dict(call.get("arguments", {}))
        if (not sources and not options.get("texts")) or '"object":' in json.dumps([sources, options.get("texts")]):
            raise UsageError(
                f"{self.name} was made from values of a notebook that is closed", next="Run its %%llm_clean cell again"
            )
        return tuple(sources), options

    def __repr__(self) -> str:
        out = self.report.went_out
        return f"Corpus {self.name}: {out.documents:,} documents, {out.characters:,} characters, {out.bytes:,} bytes"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def _part(self, part: str, held_out: float) -> Iterator[pa.RecordBatch]:
        if part not in ("train", "held-out", "all"):
            raise UsageError("A part is train, held-out or all", received=part)
        if not 0 <= held_out < 1:
            raise UsageError("held_out is a share of the documents, 0 or more and below 1", received=held_out)
        for batch in self.dataset.select(["text", "split_key"]).to_batches():
            if part == "all":
                yield batch
            else:
                held = pc.less(batch["split_key"], held_out)
                yield batch.filter(held if part == "held-out" else pc.invert(held))
