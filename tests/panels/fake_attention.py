"""Attention that only seems to be: heads of known kinds over words, and a session that hands it out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from traitlets import Any as AnyTrait
from traitlets import HasTraits

from nbllm.errors import NotFoundError, UsageError

KINDS = ("previous", "first", "duplicate", "induction", "diffuse", "local")
HOSTILE = "<img src=x onerror=window.hacked=1>"
TEXT = f"The cat jumped on the table because it was light and the cat jumped on {HOSTILE} the table"


@dataclass(frozen=True, kw_only=True)
class NextToken:
    token_id: int
    text: str
    probability: float
    without: float


class FakeMaps:
    """Head (l, h) is of kind `KINDS[(l + h) % 6]`, sharper in later layers and at later checkpoints."""

    def __init__(self, text: str, *, layers: int = 6, heads: int = 8, model: str = "tiny", sharp: float = 1.0) -> None:
        words = text.split() or [""]
        self.tokens = tuple(word if i == 0 else f"␣{word}" for i, word in enumerate(words))
        known = {word: number for number, word in enumerate(dict.fromkeys(words))}
        self.token_ids = tuple(known[word] for word in words)
        self.layers, self.heads, self.model, self.sharp = layers, heads, model, sharp
        self.layer_indices = tuple(range(layers))
        self.made: list[tuple[int, int]] = []

    def weights(self, layer: int, head: int) -> np.ndarray:
        self.made.append((layer, head))
        count = len(self.tokens)
        ids = np.array(self.token_ids)
        at = np.arange(count)
        distance = at[:, None] - at[None, :]
        logits = np.random.default_rng(layer * 100 + head).normal(size=(count, count)).astype(np.float32)
        kind = KINDS[(layer + head) % len(KINDS)]
        strength = (3 + layer) * self.sharp
        if kind == "previous":
            logits += strength * (distance == 1)
        elif kind == "first":
            logits += strength * (at[None, :] == 0)
        elif kind == "duplicate":
            logits += strength * ((ids[:, None] == ids[None, :]) & (distance > 0))
        elif kind == "induction":
            before = np.concatenate([[-1], ids[:-1]])
            logits += strength * ((before[None, :] == ids[:, None]) & (distance > 0))
        elif kind == "local":
            logits -= np.abs(distance) / 3
        logits[distance < 0] = -np.inf
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        return (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)

    def layer(self, layer: int) -> np.ndarray:
        return np.stack([self.weights(layer, head) for head in range(self.heads)])

    def thumbnails(self, size: int = 64) -> np.ndarray:
        found = np.zeros((self.layers, self.heads, size, size), dtype=np.uint8)
        count = len(self.tokens)
        places = np.arange(size) * count // size
        for layer in range(self.layers):
            for head in range(self.heads):
                weights = self.weights(layer, head)
                if count > size:
                    starts = np.unique(places)
                    small = np.maximum.reduceat(np.maximum.reduceat(weights, starts, axis=0), starts, axis=1)
                else:
                    small = weights[np.ix_(places, places)]
                found[layer, head] = np.round(255 * small / small.max())
        return found

    def entropy(self, layer: int, head: int) -> np.ndarray:
        weights = self.weights(layer, head)
        return -np.sum(weights * np.log(np.maximum(weights, 1e-30)), axis=1)

    @property
    def scores(self) -> pa.Table:
        rows = []
        for layer in range(self.layers):
            for head in range(self.heads):
                kind = KINDS[(layer + head) % len(KINDS)]
                high = 0.5 + 0.05 * layer + 0.01 * head
                rows.append(
                    {
                        "layer": layer,
                        "head": head,
                        **{
                            name: high if kind == name.split("_")[0] else 0.05
                            for name in ("previous_token", "first_token", "duplicate_token", "induction")
                        },
                        "entropy": float(self.entropy(layer, head).mean()),
                        "distance": 3.0 + layer,
                    }
                )
        return pa.Table.from_pylist(rows)

    def rollout(self, *, until: int | None = None) -> np.ndarray:
        last = self.layers - 1 if until is None else until
        joint = np.eye(len(self.tokens), dtype=np.float32)
        for layer in range(last + 1):
            joint = (0.5 * self.layer(layer).mean(axis=0) + 0.5 * np.eye(len(self.tokens))) @ joint
        return joint.astype(np.float32)

    def next_tokens(self, *, without: Sequence[tuple[int, int]] = (), top: int = 10) -> list[NextToken]:
        shares = np.array([0.4 / 2**i for i in range(top)])
        other = shares * (1 - 0.1 * len(without))
        words = ["␣was", HOSTILE, *(f"␣word{i}" for i in range(2, top))]
        return [
            NextToken(token_id=i, text=words[i], probability=float(shares[i]), without=float(other[i]))
            for i in range(top)
        ]


class FakeLooking(HasTraits):
    """A session that knows how to look."""

    model = AnyTrait()
    adapter = AnyTrait(None)

    def __init__(self, *, layers: int = 6, heads: int = 8) -> None:
        super().__init__()
        self.layers, self.heads = layers, heads
        self.model = SimpleNamespace(source="pydocs-nano", checkpoint=None, kind="run")
        self.lock = threading.RLock()
        self.looked: list[dict[str, Any]] = []

    def checkpoints(self) -> list[int]:
        return [200, 400, 600]

    def adapters(self) -> list[Any]:
        return [SimpleNamespace(name="pirate"), SimpleNamespace(name="<i>terse</i>")]

    def attention(self, text: str, *, model=None, checkpoint=None, adapter=None, chat=False) -> FakeMaps:
        if not text:
            raise UsageError("There is no text to look at")
        if checkpoint is not None and checkpoint not in self.checkpoints():
            raise NotFoundError("There is no such checkpoint", received=checkpoint)
        self.looked.append({"text": text, "model": model, "checkpoint": checkpoint, "adapter": adapter})
        name = " · ".join([model or "pydocs-nano", f"step {checkpoint or 600}", f"adapter {adapter or 'off'}"])
        sharp = (checkpoint or 600) / 600
        return FakeMaps(text, layers=self.layers, heads=self.heads, model=name, sharp=sharp)
