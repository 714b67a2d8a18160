"""Findings about a text: it loops, or it falls apart. Each is shown by sampling again with saner settings, same seed.

Knows sampling; not where the model comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbllm.doctor.asked import Asked
from nbllm.findings import Finding
from nbllm.sample import Generation, SamplingParameters, generate
from nbllm.tokenizer import Tokenizer

_GRAM = 4
_LEAST = 24
"""Tokens below which nothing is said."""
_LOOPING = 0.5
"""Half of the 4-grams: prose repeats names and phrases, code and lists more, but hardly every second one. These limits
found nothing in 20 texts of up to 100 tokens by SmolLM2-135M-Instruct (12 answers, 8 continuations) at temperature
0.8 and top-p 0.95."""
_TAIL_REPEATS = 3
"""Twice the same may be meant."""
_FAR_RANK = 100
_FAR_SHARE = 0.1
"""A tenth: top-p 0.95 leaves ranks beyond 100 only where the model itself doesn't know how to go on."""
_AGAIN = 64
"""Tokens that are sampled again."""


def repeated_share(tokens: Sequence[int]) -> float:
    """The share of 4-grams that stood there before."""
    grams = [tuple(tokens[i : i + _GRAM]) for i in range(len(tokens) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def tail_period(tokens: Sequence[int]) -> tuple[int, int]:
    """Length of what repeats at the end and the tokens that it covers, for the period that covers most; (0, 0): none
    stands there three times."""
    best = (0, 0)
    for period in range(1, len(tokens) // _TAIL_REPEATS + 1):
        place = len(tokens) - 1
        while place >= period and tokens[place] == tokens[place - period]:
            place -= 1
        covered = len(tokens) - 1 - place + period
        if covered >= _TAIL_REPEATS * period and covered > best[1]:
            best = (period, covered)
    return best


def text_findings(model: Any, tokenizer: Tokenizer, generation: Generation, asked: Asked) -> list[Finding]:
    """A text that loops; a text whose tokens the model itself finds improbable (needs a trace)."""
    tokens = generation.tokens
    if len(tokens) < _LEAST:
        return []
    share, (period, covered) = repeated_share(tokens), tail_period(tokens)
    if share >= _LOOPING or covered >= max(_LEAST, len(tokens) // 2):
        return [_loops(model, tokenizer, generation, asked, share, period, covered)]
    if generation.trace is None:
        return []
    far = _far(generation)
    return [_falls_apart(model, tokenizer, generation, asked, far)] if far >= _FAR_SHARE else []


def _loops(
    model: Any, tokenizer: Tokenizer, generation: Generation, asked: Asked, share: float, period: int, covered: int
) -> Finding:
    old = generation.parameters
    penalty = 1.3 if old.repetition_penalty >= 1.1 else 1.1
    settings: dict[str, Any] = {"greedy": False, "beams": 1, "top_p": 0.95, "repetition_penalty": penalty}
    settings["temperature"] = 0.8 if old.is_greedy else max(0.8, old.temperature)
    again = _again(model, tokenizer, generation, settings)
    before, after = repeated_share(generation.tokens[:_AGAIN]), repeated_share(again.tokens)
    tail = f"; {period} token{'' if period == 1 else 's'} fill the last {covered} over and over" if period else ""
    return Finding(
        name="the text loops",
        severity="serious" if share >= 0.7 else "warning",
        evidence=f"{share:.0%} of the 4-grams of {len(generation.tokens)} tokens stood there before{tail}; sampled "
        f"again with these settings and the same seed, {after:.0%} instead of {before:.0%} in the first {_AGAIN}",
        remedy="Draw with a penalty" if after < before else "Settings alone don't mend it; the least bad",
        command=asked.line(generation, **settings),
    )


def _falls_apart(model: Any, tokenizer: Tokenizer, generation: Generation, asked: Asked, far: float) -> Finding:
    old = generation.parameters
    settings: dict[str, Any] = {"temperature": min(old.temperature, 0.7), "top_p": min(old.top_p, 0.9)}
    again = _again(model, tokenizer, generation, settings)
    after, entropy, entropy_after = _far(again), _entropy(generation), _entropy(again)
    return Finding(
        name="the text falls apart",
        severity="serious" if far >= 0.25 else "warning",
        evidence=f"{far:.0%} of the tokens have a rank over {_FAR_RANK}, entropy {entropy:.2f} nats a token, at "
        f"temperature {old.temperature:g}; sampled again with these settings and the same seed, {after:.0%} and "
        f"{entropy_after:.2f} nats",
        remedy="Draw closer to the model" if after < far else "Settings alone don't mend it; the least bad",
        command=asked.line(generation, **settings),
    )


def _again(model: Any, tokenizer: Tokenizer, generation: Generation, settings: dict[str, Any]) -> Generation:
    count = min(_AGAIN, generation.parameters.max_new_tokens)
    parameters: SamplingParameters = replace(generation.parameters, **settings, n=1, max_new_tokens=count)
    return generate(model, tokenizer, generation.prompt_tokens, parameters, trace=True)


def _far(generation: Generation) -> float:
    assert generation.trace is not None
    ranks = _first(generation, "rank")
    return float((ranks > _FAR_RANK).mean()) if len(ranks) else 0.0


def _entropy(generation: Generation) -> float:
    found = _first(generation, "entropy")
    return float(found.mean()) if len(found) else 0.0


def _first(generation: Generation, column: str) -> Any:
    """A column of the first sample's steps."""
    assert generation.trace is not None
    steps = generation.trace.steps
    return np.asarray(steps[column])[np.asarray(steps["sample"]) == 0]
