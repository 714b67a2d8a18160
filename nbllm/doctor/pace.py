"""Short measurements of a model's decoding: this way and that in turns, so that a machine whose speed swings swings for
both.

Greedy, without text and without an end, over keys and values of its own. Knows sampling's loop, no findings.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nbllm.sample.decode import DecodeLoop
from nbllm.sample.forward import Forward
from nbllm.sample.parameters import SamplingParameters

TOKENS = 16
"""Tokens of one measurement."""
PROMPT = 64
"""Ids of the text that a measurement begins with, at most."""
_MOST_S = 0.8
_ROUNDS = 3
WORTH = 1.15
"""How many times as fast a remedy has to be. The same path measured twice in turns differed by up to 3 % on a quiet
machine and by up to 15 % while other programs ran, so less than that says nothing."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What a remedy gave."""

    before: float
    """Tokens a second as it was: the median."""
    after: float
    """Tokens a second with the remedy: the median."""
    sure: bool
    """Whether the remedy was faster in every round than the other way in any."""
    same: int
    """Greedy tokens that are equal, from the first on."""
    compared: int
    """How many both ways made."""

    @property
    def factor(self) -> float:
        """How many times as fast."""
        return self.after / self.before if self.before > 0 else 0.0

    @property
    def worth(self) -> bool:
        """Whether it is more than chance."""
        return self.sure and self.factor >= WORTH

    def __str__(self) -> str:
        return f"{self.before:.3g} tokens/s now, {self.after:.3g} with the remedy ({self.factor:.1f}×), measured"


def pace(model: Any, ids: Sequence[int], *, compiled: bool = False, tokens: int = TOKENS) -> tuple[float, list[int]]:
    """Tokens a second after the first, and the tokens; stops after 0.8 seconds.

    Args:
        model: a causal language model of transformers.
        ids: the text that it continues; its newest are taken.
        compiled: take the compiled step, which has to be on disk.
        tokens: how many, at most.
    """
    runtime = Forward(model)
    context = runtime.context or PROMPT + TOKENS
    prompt = list(ids)[-max(1, min(PROMPT, context - TOKENS)) :]
    if not compiled:
        runtime.compiled.switch_off()
    elif runtime.compiled.wait(10.0):  # its first step is compared with the plain one
        _decode(runtime, prompt, 3)
    return _decode(runtime, prompt, tokens)


def in_turns(
    ids: Sequence[int],
    before: Callable[[], Any],
    after: Callable[[], Any],
    *,
    compiled: bool = False,
) -> Gain:
    """Measures two ways in turns, the one that begins changing, after a run of each that doesn't count.

    Args:
        ids: the text.
        before, after: give the model, ready to be run that way.
        compiled: the second way takes the compiled step.
    """
    ways = before, after
    speeds: tuple[list[float], list[float]] = [], []
    tokens: list[list[int]] = [[], []]
    for number in range(_ROUNDS + 1):
        for way in (0, 1) if number % 2 else (1, 0):
            speed, tokens[way] = pace(ways[way](), ids, compiled=compiled and way == 1, tokens=TOKENS if number else 2)
            if number:
                speeds[way].append(speed)
    compared = min(map(len, tokens))
    same = next((i for i in range(compared) if tokens[0][i] != tokens[1][i]), compared)
    return Gain(
        before=statistics.median(speeds[0]),
        after=statistics.median(speeds[1]),
        sure=min(speeds[1]) > max(speeds[0]),
        same=same,
        compared=compared,
    )


def _decode(runtime: Forward, prompt: list[int], count: int) -> tuple[float, list[int]]:
    runtime.prefixes.clear()
    loop = DecodeLoop(runtime, runtime.rows(), [prompt], SamplingParameters(greedy=True))
    tokens = [loop.step()[0].token]
    started = time.perf_counter()
    while len(tokens) < count + 1 and time.perf_counter() - started < _MOST_S:
        tokens.append(loop.step()[0].token)
    return (len(tokens) - 1) / (time.perf_counter() - started), tokens
