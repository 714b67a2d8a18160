"""The settings of a sampling. Knows neither torch nor models, so that a card and completion can read it for free."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbllm.errors import UsageError

_LARGEST_SEED = 2**63 - 1
_LARGEST_PENALTY = 2.0  # presence and frequency, as OpenAI and vLLM have it
_LARGEST_FACTOR = 1000.0  # a repetition penalty beyond it, or below its inverse, may leave what a float16 holds
_LARGEST_POWER = 10.0  # a length to a larger one may leave what a float holds


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """How the next token is chosen, and when to end. Filters apply in the order of the fields below.

    With several beams nothing is drawn: the penalties count, and what belongs to drawing (`greedy`, `temperature`,
    `top_k`, `top_p`, `min_p`, `typical_p`, `seed`) has no effect, so that a session's defaults may stay as they are.

    Raises:
        UsageError: a value out of range, named with what was received.
    """

    max_new_tokens: int = 100
    """At most so many new tokens a sample."""
    greedy: bool = False
    """Always the most probable token (after the penalties)."""
    repetition_penalty: float = 1.0
    """Logits of tokens that were there are divided by it where positive, multiplied where negative; 1 is off."""
    presence_penalty: float = 0.0
    """Taken off the logits of tokens that are in the new text; below 0 it makes them more probable, 0 is off."""
    frequency_penalty: float = 0.0
    """Taken off a token's logit for each time that it is in the new text; 0 is off."""
    temperature: float = 0.8
    """Divides the logits; 0 is greedy."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 0.95
    """Keep the smallest set of most probable tokens whose probability reaches it; 0 is greedy, 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the most probable one's probability; 0 keeps all."""
    typical_p: float = 1.0
    """Keep the smallest set of tokens with this probability whose surprise is nearest to the expected one; 1 keeps
    all."""
    beams: int = 1
    """How many continuations beam search keeps; 1 draws or is greedy."""
    length_penalty: float = 1.0
    """Beams are ranked by the sum of their logprobs over the number of new tokens to this power: 0 likes short ones."""
    prompt_lookup: int = 0
    """Tokens proposed a step by looking up the newest ones in the text so far; only speed changes. 0 is off."""
    sliding: bool = False
    """Go on where the context is full, and drop the oldest text."""
    stop: tuple[str, ...] = ()
    """End before the first of these texts."""
    seed: int = 0
    """Of the random numbers: the same seed and settings give the same text."""
    n: int = 1
    """Samples of each prompt; with several beams the best n of them."""

    def __post_init__(self) -> None:
        self._whole("max_new_tokens", 1, None)
        self._number("repetition_penalty", 1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
        self._number("presence_penalty", -_LARGEST_PENALTY, _LARGEST_PENALTY)
        self._number("frequency_penalty", -_LARGEST_PENALTY, _LARGEST_PENALTY)
        self._number("temperature", 0.0, None)
        self._whole("top_k", 0, None)
        self._number("top_p", 0.0, 1.0)
        self._number("min_p", 0.0, 1.0)
        self._number("typical_p", 0.0, 1.0)
        self._whole("beams", 1, None)
        self._number("length_penalty", -_LARGEST_POWER, _LARGEST_POWER)
        self._whole("prompt_lookup", 0, None)
        self._whole("seed", 0, _LARGEST_SEED)
        self._whole("n", 1, None)
        if self.beams > 1 and self.n > self.beams:
            raise UsageError(f"n is at most the number of beams, {self.beams}", received=self.n)
        for name in ("greedy", "sliding"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} is True or False", received=getattr(self, name))
        stop: Any = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, Sequence) or not all(isinstance(text, str) and text for text in stop):
            raise UsageError("stop takes texts that aren't empty", received=self.stop)
        object.__setattr__(self, "stop", tuple(stop))

    @property
    def is_greedy(self) -> bool:
        """Whether no random number is drawn: `greedy`, temperature 0, top-p 0 or several beams."""
        return self.greedy or self.temperature == 0 or self.top_p == 0 or self.beams > 1

    @property
    def penalises(self) -> bool:
        """Whether a penalty is on, which needs to know how often each token was there."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

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

    def _number(self, name: str, least: float, most: float | None) -> None:
        value = getattr(self, name)
        try:
            if isinstance(value, (bool, str)):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"{name} is a number", received=value) from None
        outside = number < least or (most is not None and number > most)
        if not math.isfinite(number) or outside:
            limits = f"at least {least:g}" if most is None else f"from {least:g} to {most:g}"
            raise UsageError(f"{name} is {limits}", received=value)
        object.__setattr__(self, name, number)
