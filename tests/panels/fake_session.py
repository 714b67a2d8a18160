"""A session that only seems to sample: words drawn by seed and temperature, at a chosen pace."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from traitlets import Any as AnyTrait
from traitlets import HasTraits

from nbllm.errors import UsageError

WORDS = [
    *("the", "iterator", "returns", "an", "item", "of", "a", "queue", "when", "it", "is", "not", "empty"),
    *("and", "raises", "<b>StopIteration</b>", "otherwise", "<b>or</b>", "<img src=x onerror=alert(1)>"),
]


@dataclass(frozen=True, kw_only=True)
class FakeSampling:
    max_new_tokens: int = 40
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    greedy: bool = False
    stop: tuple[str, ...] = ()
    seed: int = 0
    n: int = 1

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise UsageError("temperature must be 0 or more", received=self.temperature)


@dataclass
class FakeModel:
    source: str = "pydocs-nano"
    checkpoint: int | None = 600


@dataclass
class FakeGeneration:
    text: str
    tokens: list[int]
    stop_reason: str
    tokens_per_s: float = 96.0
    first_token_ms: float = 41.0


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

    def generate(self, prompt: str, *, on_text: Any, should_stop: Any, **changed: Any) -> FakeGeneration:
        with self.lock:
            if self.fail_next is not None:
                error, self.fail_next = self.fail_next, None
                raise error
            sampling = replace(self.sampling, **changed)
            self.calls.append({"prompt": prompt, "sampling": sampling, "stopped": False})
            noise, text, tokens = random.Random(sampling.seed), "", []
            for position in range(sampling.max_new_tokens):
                if should_stop():
                    self.calls[-1]["stopped"] = True
                    return FakeGeneration(text, tokens, "interrupted")
                time.sleep(self.token_s)
                draw = noise.random()
                # the first ten words don't depend on the temperature
                pick = int(draw * 1000) if position < 10 else int(draw * 1000 * (1 + sampling.temperature))
                piece = " " + WORDS[pick % len(WORDS)]
                text += piece
                tokens.append(pick)
                on_text(0, piece)
            return FakeGeneration(text, tokens, "length")
