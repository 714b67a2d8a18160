"""`mix web:0.67,code:0.045 tokens=1B`: so much of each source that the shares are right, counted in tokens.

A tokenizer is trained later, so tokens are estimated from bytes: 4 bytes of UTF-8 a token is what English prose needs
with some 32,000 entries; `bytes_per_token` says otherwise. Which documents of a source go first is decided by a hash of
their ids, so that a larger budget holds the smaller one, and another source changes nothing. A source of which more is
wanted than there is comes again as a whole, pass after pass (epochs); copies keep their id and their side of the split.

Source: up to four epochs are nearly as good as new text (Muennighoff et al. 2023, arXiv 2305.16264).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.stage import GlobalStage, Rules, Settled, Texts, argument
from nbllm.errors import DataError, NotFoundError, UsageError, did_you_mean

_NUMBER = re.compile(r"(\d[\d_]*(?:\.\d+)?)([kKmMbBtT]?)")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def token_count(typed: str) -> int:
    """`1B`, `500M`, `20k`, `1_000_000` as a number; raises ValueError."""
    match = _NUMBER.fullmatch(typed)
    if not match:
        raise ValueError(typed)
    return round(float(match[1].replace("_", "")) * _UNITS[match[2].lower()])


def _pairs(typed: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in typed.split(",") if part.strip())


@dataclass(frozen=True, kw_only=True)
class Mix(GlobalStage):
    """Score: `copies`, how often the document is in the corpus; 0 where its source has enough without it.

    The table `shares` keeps for each source: `weight` (asked, of 1), `available` and `tokens` (there were, taken).
    """

    NAME: ClassVar = "mix"
    SUMMARY: ClassVar = "so much of each source that the shares of tokens are right"
    weights: tuple[str, ...] = argument(MISSING, "SOURCE:WEIGHT, separated by commas", positional=True, parse=_pairs)
    tokens: int | None = argument(
        None, "how many, such as 1B; by default as many as there are without a copy", parse=token_count
    )
    bytes_per_token: float = argument(4.0, "bytes of UTF-8 text counted as one token", parse=float)

    def __post_init__(self) -> None:
        if not self.by_source or sum(self.by_source.values()) <= 0:
            raise UsageError("mix needs weights, at least one of them above 0", next="Type for example mix web:0.7")
        if self.tokens is not None and self.tokens < 1:
            raise UsageError("tokens is 1 or more", received=self.tokens)
        if not (math.isfinite(self.bytes_per_token) and self.bytes_per_token > 0):
            raise UsageError("bytes_per_token is above 0", received=self.bytes_per_token)

    @cached_property
    def by_source(self) -> dict[str, float]:
        """The weights as they were typed."""
        found: dict[str, float] = {}
        for pair in self.weights:
            source, colon, typed = pair.rpartition(":")
            try:
                weight = float(typed)
            except ValueError:
                weight = -1
            if not colon or not source or not 0 <= weight < math.inf:
                raise UsageError("a weight is SOURCE:NUMBER", received=pair, next="Type for example mix web:0.7,code:1")
            if source in found:
                raise UsageError(f"mix has {source} twice", received=",".join(self.weights))
            found[source] = weight
        return found

    def check(self, sources: Sequence[str]) -> None:
        """Refuses names that aren't sources, and sources without a weight.

        Raises:
            NotFoundError, UsageError: with the name.
        """
        for name in self.by_source:
            if name not in sources:
                hint = did_you_mean(name, sources) or f"There is {', '.join(sources)}"
                raise NotFoundError(f"The mix names {name!r}, which is no source", next=hint)
        for name in sources:
            if name not in self.by_source:
                raise UsageError(f"The mix has no weight for {name}", next=f"Write {name}=0 to leave it out")

    def keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        order = [
            int.from_bytes(hashlib.blake2b(one.encode(), digest_size=8).digest(), "big")
            for one in batch["id"].to_pylist()
        ]
        return pa.record_batch(
            {
                "row": batch["row"],
                "source": batch["source"],
                "bytes": pc.binary_length(batch["text"]).cast(pa.int64()),
                "order": pa.array(order, pa.uint64()),
            }
        )

    def settle(self, keys: pa.Table, texts: Texts) -> Settled:
        places = _places(keys["source"])
        self.check(sorted({*self.by_source, *places}) if set(places) <= set(self.by_source) else sorted(places))
        total = sum(self.by_source.values())
        weights = {name: weight / total for name, weight in self.by_source.items()}
        sizes = keys["bytes"].to_numpy() / self.bytes_per_token
        available = {name: float(sizes[places[name]].sum()) if name in places else 0.0 for name in weights}
        for name, weight in weights.items():
            if weight and not available[name]:
                raise DataError(
                    f"The mix wants {weight:.1%} of {name}, of which no document is left",
                    next=f"Write {name}=0, or take laxer stages for it",
                )
        budget = self.tokens or min(available[name] / weight for name, weight in weights.items() if weight)
        order, row = keys["order"].to_numpy(), keys["row"].to_numpy()
        copies = np.zeros(len(sizes), np.int64)
        for name, weight in weights.items():
            if weight:
                mine = places[name]
                ordered = mine[np.lexsort((row[mine], order[mine]))]
                copies[ordered] = _copies(sizes[ordered], weight * budget)
        shares = pa.table(
            {
                "source": pa.array(list(weights), pa.string()),
                "weight": pa.array(list(weights.values()), pa.float64()),
                "available": pa.array([available[name] for name in weights], pa.float64()),
                "tokens": pa.array(
                    [float((sizes * copies)[places[name]].sum()) if name in places else 0.0 for name in weights],
                    pa.float64(),
                ),
            }
        )
        return Settled(pa.table({"copies": copies}), tables={"shares": shares}, copies=copies)

    def rules(self, scores: pa.RecordBatch) -> Rules:
        return [(pc.equal(scores["copies"], 0), "beyond its source's share")]


def mix_line(weights: str | Mapping[str, float], tokens: int | str | None, bytes_per_token: float | None = None) -> str:
    """The stage line for `--mix web=0.67,code=0.045 --tokens 1B`.

    Args:
        weights: as typed, or by source.
        tokens: a number, also as `1B`.
        bytes_per_token: the stage's default for None.
    """
    pairs = weights.split(",") if isinstance(weights, str) else [f"{name}={one}" for name, one in weights.items()]
    found = []
    for pair in pairs:
        source, equals, weight = pair.strip().rpartition("=")
        if not equals or not source:
            raise UsageError("A mix is NAME=WEIGHT, separated by commas", received=pair, next="--mix web=0.7,code=0.3")
        if any(character.isspace() or character == "," for character in source):
            raise UsageError("A source in a mix has a name without spaces", received=source, next="Label it: web=PATH")
        found.append(f"{source}:{weight}")
    line = f"mix {','.join(found)}"
    if tokens is not None:
        line += f" tokens={tokens}"
    return line if bytes_per_token is None else f"{line} bytes_per_token={bytes_per_token}"


def _places(sources: pa.ChunkedArray) -> dict[str, NDArray[np.int64]]:
    """The positions of each source's documents."""
    coded = sources.combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    indices = coded.indices.to_numpy()
    return {name: np.flatnonzero(indices == index) for index, name in enumerate(coded.dictionary.to_pylist())}


def _copies(sizes: NDArray[np.float64], wanted: float) -> NDArray[np.int64]:
    """How often each document is taken, those in front once more than those behind."""
    whole = float(sizes.sum())
    passes = math.floor(wanted / whole + 1e-9)
    rest = wanted - passes * whole
    before = np.cumsum(sizes) - sizes
    # one more is taken while that comes closer to what is wanted
    return passes + (before + sizes / 2 <= rest + 1e-9).astype(np.int64)
