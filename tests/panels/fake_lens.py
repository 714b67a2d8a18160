"""A logit lens of random numbers, and a session that hands one out."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np

from nbllm.errors import UsageError
from nbllm.inspect.lens import LogitLens

HOSTILE = '<img src=x onerror="window.hacked=1">'


def lens(tokens=7, rows=5, model="tiny", seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 9, (rows, tokens, 3)).astype(np.int32)
    ids[-2:, :, 0] = 4
    chances = -np.sort(-rng.dirichlet(np.ones(4), (rows, tokens)).astype(np.float32)[..., :3], axis=-1)
    names = np.array([*"abcdefg", HOSTILE, "␣h"], dtype=object)
    ranks = rng.integers(1, 9, (rows, tokens)).astype(np.int32)
    ranks[:, -1] = 0
    return LogitLens(
        model=model, tokens=tuple(names[np.arange(tokens) % 9]), token_ids=tuple(range(tokens)),
        rows=("embedding", *map(str, range(rows - 1))), predicts="next", top_ids=ids, top_texts=names[ids],
        top_probabilities=chances, final_probability=chances[..., 0], final_rank=ranks,
        actual_probability=chances[..., 1], actual_rank=ranks,
    )  # fmt: skip


class Session:
    model = SimpleNamespace(source="tiny")
    lock = threading.RLock()

    def __init__(self):
        self.asked = []

    def checkpoints(self):
        return [100, 200]

    def logit_lens(self, text, **wanted):
        self.asked.append((text, wanted))
        if wanted.get("checkpoint") == 5:
            raise UsageError("There is no such checkpoint")
        return lens(seed=1)
