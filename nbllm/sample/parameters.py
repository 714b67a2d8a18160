"""The settings of a sampling. Knows neither torch nor models, so that a card and completion can read it for free."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbllm.errors import UsageError

_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """How the next token is chosen, and when to end. Filters apply in the order of the fields below.

    Raises:
        UsageError: a value out of range, named with what was received.
    """

    max_new_tokens: int = 100
    """At most so many new tokens a sample."""
    greedy: bool = False
    """Always the most probable token (after the repetition penalty)."""
    repetition_penalty: float = 1.0
    """Logits of tokens that were there are divided by it where positive, multiplied where negative; 1 is off."""
    temperature: float = 0.8
    """Divides the logits; 0 is greedy."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 0.95
    """Keep the smallest set of most probable tokens whose probability reaches it; 0 is greedy, 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the most probable one's probability; 0 keeps all."""
    stop: tuple[str, ...] = ()
    """End before the first of these texts."""
    seed: int = 0
    """Of the random numbers: the same seed and settings give the same text."""
    n: int = 1
    """Samples of each prompt."""

    def __post_init__(self) -> None:
        self._whole("max_new_tokens", 1, None)
        self._number("repetition_penalty", 0.0, None, above=True)
        self._number("temperature", 0.0, None)
        self._whole("top_k", 0, None)
        self._number("top_p", 0.0, 1.0)
        self._number("min_p", 0.0, 1.0)
        self._whole("seed", 0, _LARGEST_SEED)
        self._whole("n", 1, None)
        if not isinstance(self.greedy, bool):
            raise UsageError("greedy is True or False", received=self.greedy)
        stop: Any = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, Sequence) or not all(isinstance(text, str) and text for text in stop):
            raise UsageError("stop takes texts that aren't empty", received=self.stop)
        object.__setattr__(self, "stop", tuple(stop))

    @property
    def is_greedy(self) -> bool:
        """Whether no random number is drawn: `greedy`, temperature 0 or top-p 0."""
        return self.greedy or self.temperature == 0 or self.top_p == 0

    def _whole(self, name: str, least: int, most: int | None) -> None:
        value = getattr(self, name)
        try:
            if isinstance(value, bool):
                raise TypeError
            number = operator.index(value)
        except TypeError:
            raise UsageError(f"{name} is a whole number", received=value) from None
        if number < least or (most is not None and number > most):
            limits = f"at least {least}" if most is None else f"from {least} to {most}"
            raise UsageError(f"{name} is {limits}", received=value)
        object.__setattr__(self, name, number)

    def _number(self, name: str, least: float, most: float | None, *, above: bool = False) -> None:
        value = getattr(self, name)
        try:
            if isinstance(value, (bool, str)):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError):
            raise UsageError(f"{name} is a number", received=value) from None
        outside = number < least or (above and number == least) or (most is not None and number > most)
        if not math.isfinite(number) or outside:
            lower = f"above {least:g}" if above else f"at least {least:g}"
            limits = lower if most is None else f"from {least:g} to {most:g}"
            raise UsageError(f"{name} is {limits}", received=value)
        object.__setattr__(self, name, number)
