"""A session that only seems to sample: words drawn by seed, position and temperature, at a chosen pace."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from traitlets import Any as AnyTrait
from traitlets import HasTraits

from nbllm.errors import NotFoundError, UsageError

WORDS = [
    *("the", "iterator", "returns", "an", "item", "of", "a", "queue", "when", "it", "is", "not", "empty"),
    *("and", "raises", "<b>StopIteration</b>", "otherwise", "<b>or</b>", "<img src=x onerror=alert(1)>", "\n"),
]
CHARACTERS = 10_000
"""An id from here on is a character of a prompt."""


@dataclass(frozen=True, kw_only=True)
class FakeSampling:
    max_new_tokens: int = 40
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    greedy: bool = False
    stop: tuple[str, ...] = ()
    seed: int = 0
    n: int = 1
    beams: int = 1
    sliding: bool = False

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise UsageError("temperature must be 0 or more", received=self.temperature)


@dataclass(frozen=True)
class FakeModel:
    source: str = "pydocs-nano"
    checkpoint: int | None = None


@dataclass(frozen=True)
class FakeStep:
    step: int
    token: int
    text: str
    probability: float
    final: float
    rank: int
    entropy: float
    final_entropy: float
    alternatives: list[dict[str, Any]]


@dataclass(kw_only=True)
class FakeGeneration:
    prompt_tokens: tuple[int, ...]
    text: str
    tokens: list[int]
    stop_reason: str
    tokens_per_s: float = 96.0
    first_token_ms: float = 41.0
    prompt_tokens_reused: int = 12
    compiled: bool = False


def word(token: int) -> str:
    """What a token adds to the text."""
    return WORDS[token] if WORDS[token] == "\n" else f" {WORDS[token]}"


def visible(token: int) -> str:
    """A token made visible."""
    return word(token).replace(" ", "␣").replace("\n", "↵")


def step(position: int, token: int, top_p: float, noise: random.Random) -> FakeStep:
    """A step that chose `token`, among alternatives whose last ones top-p drops."""
    others = noise.sample([other for other in range(len(WORDS)) if other != token], 9)
    place = noise.choice([0, 0, 0, 0, 1, 1, 2, 4])
    tokens = [*others[:place], token, *others[place:]]
    raw = [noise.random() ** 3 + 0.02 for _ in tokens]
    model = [value / sum(raw) for value in sorted(raw, reverse=True)]
    kept = max(place + 1, 1 + sum(sum(model[: i + 1]) < top_p for i in range(len(model))))
    final = [value / sum(model[:kept]) if i < kept else 0.0 for i, value in enumerate(model)]
    rows = [
        {"token": other, "text": visible(other), "chosen": other == token, "model": before, "top_p": after}
        | {"temperature": before, "final": after}
        for other, before, after in zip(tokens, model, final, strict=True)
    ]
    return FakeStep(
        step=position,
        token=token,
        text=visible(token),
        probability=model[place],
        final=final[place],
        rank=place + 1,
        entropy=noise.random() * 4,
        final_entropy=noise.random(),
        alternatives=rows,
    )


class FakeSession(HasTraits):
    sampling = AnyTrait()
    adapter = AnyTrait(None)
    model = AnyTrait(None)

    def __init__(self, token_s: float = 0.005) -> None:
        super().__init__()
        self.sampling = FakeSampling()
        self.model = FakeModel()
        self.lock = threading.RLock()
        self.token_s = token_s
        self.calls: list[dict[str, Any]] = []
        self.fail_next: Exception | None = None
        self.exact = True

    def checkpoints(self) -> list[int]:
        return [200, 400, 600]

    def adapters(self) -> list[Any]:
        return [SimpleNamespace(name="pirate"), SimpleNamespace(name="<i>terse</i>")]

    def use_adapter(self, name: str | None) -> None:
        if name is not None and name not in [manifest.name for manifest in self.adapters()]:
            raise NotFoundError(f"No adapter is named {name!r}")
        self.adapter = name

    def prompt_text(self, tokens: Sequence[int]) -> str | None:
        return "".join(chr(token - CHARACTERS) if token >= CHARACTERS else word(token) for token in tokens) * self.exact

    def generate(
        self, prompt: str | Sequence[int], *, on_text: Any, on_step: Any, should_stop: Any, **changed: Any
    ) -> FakeGeneration:
        with self.lock:
            if self.fail_next is not None:
                error, self.fail_next = self.fail_next, None
                raise error
            sampling = replace(self.sampling, **changed)
            self.calls.append({"prompt": prompt, "sampling": sampling, "stopped": False, "adapter": self.adapter})
            ids = tuple(CHARACTERS + ord(letter) for letter in prompt) if isinstance(prompt, str) else tuple(prompt)
            text, tokens, reason = "", [], "length"
            for position in range(len(ids), len(ids) + sampling.max_new_tokens):
                if should_stop():
                    self.calls[-1]["stopped"], reason = True, "interrupted"
                    break
                time.sleep(self.token_s)
                # keyed by seed and position, and by what stands before; the first ten words whatever the temperature
                noise = random.Random(f"{sampling.seed} {position} {sum(ids[-1:] + tuple(tokens))}")
                draw = noise.random() * 1000 * (1 if len(tokens) < 10 else 1 + sampling.temperature)
                token = int(draw) % len(WORDS)
                text += word(token)
                tokens.append(token)
                on_step(0, step(len(tokens) - 1, token, sampling.top_p, noise))
                on_text(0, word(token))
            return FakeGeneration(prompt_tokens=ids, text=text, tokens=tokens, stop_reason=reason)
