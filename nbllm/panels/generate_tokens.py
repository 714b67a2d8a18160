"""The tokens of a sampled text as the sampling panel keeps and sends them: small, and with their alternatives.

A token's numbers are packed when it comes, so that thousands of tokens stay cheap in the kernel and travel as one
binary buffer. Knows a step of a sampling only by its attributes; nothing of widgets.
"""

from __future__ import annotations

import math
import re
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

ALTERNATIVES = 10
"""K: at most so many alternatives of a token are kept."""
HEAD, EACH = 7, 4
STRIDE = HEAD + EACH * ALTERNATIVES
"""float32 numbers of a token: `HEAD` of its own (id, probability, final, rank, entropy, final entropy, how many
alternatives), then `EACH` of every alternative (id, before filters, after them, which filter dropped it: 0 for none,
else one more than its place in `FILTERS`). An id is exact in a float32 up to 16 million."""
FILTERS = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "temperature", "top_k", "top_p", "min_p",
    "typical_p",
)  # fmt: skip
_FLUSH_S = 0.05
_BACK = {"␣": " ", "↵": "\n", "⇥": "\t", "␍": "\r", "⍽": "\xa0"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One token of a text."""

    id: int
    text: str
    """What it adds to the text; empty where it ends inside a character, or is no text."""
    name: str
    """The token made visible: ␣item."""
    probability: float
    """The model's own, before filters."""
    rank: int
    """1: the model's most probable."""
    entropy: float
    """Of the model's distribution, nats."""
    numbers: bytes
    """float32 [STRIDE]."""
    names: tuple[str, ...]
    """The alternatives made visible, the most probable first."""

    @property
    def packed(self) -> array[float]:
        """`numbers` as an array."""
        found = array("f")
        found.frombytes(self.numbers)
        return found

    def instead(self, id: int) -> Token | None:
        """One of the alternatives in this token's place; None where it isn't among those that were kept."""
        numbers = self.packed
        for place, name in enumerate(self.names):
            other, before, after, _ = numbers[HEAD + EACH * place : HEAD + EACH * (place + 1)]
            if int(other) == id:
                numbers[:4] = array("f", [id, before, after, place + 1])
                return replace(
                    self,
                    id=id,
                    text=_read_back(name),
                    name=name,
                    probability=before,
                    rank=place + 1,
                    numbers=numbers.tobytes(),
                )
        return None


def token_of(step: Any, text: str) -> Token:
    """Packs a step of a sampling.

    Args:
        step: with `token`, `text` (made visible), `probability`, `final`, `rank`, `entropy`, `final_entropy` and
            `alternatives`: dicts with `token`, `text`, `model`, one number a filter, `final`.
        text: what the token adds to the text.
    """
    kept = list(step.alternatives)[:ALTERNATIVES]
    numbers = [step.token, step.probability, step.final, step.rank, step.entropy, step.final_entropy, len(kept)]
    for row in kept:
        numbers += [row["token"], row["model"], row["final"], _dropped_by(row)]
    numbers += [0.0] * (STRIDE - len(numbers))
    return Token(
        id=int(step.token),
        text=text,
        name=sys.intern(str(step.text)),
        probability=float(step.probability),
        rank=int(step.rank),
        entropy=float(step.entropy),
        numbers=array("f", numbers).tobytes(),
        names=tuple(sys.intern(str(row["text"])) for row in kept),
    )


def encode(tokens: Sequence[Token]) -> tuple[dict[str, Any], bytes]:
    """Tokens for a message: what each adds to the text and the visible names by id, and float32 [tokens, STRIDE]."""
    names: dict[str, str] = {}
    for token in tokens:
        names[str(token.id)] = token.name
        numbers = token.packed
        for place, name in enumerate(token.names):
            names[str(int(numbers[HEAD + EACH * place]))] = name
    return {"texts": [token.text for token in tokens], "names": names}, b"".join(token.numbers for token in tokens)


def mean_logprob(tokens: Sequence[Token]) -> float | None:
    """The mean natural logarithm of the tokens' probabilities; None for no token."""
    if not tokens:
        return None
    return sum(math.log(max(token.probability, 1e-45)) for token in tokens) / len(tokens)


class Stream:
    """Takes the steps of a sampling and passes tokens on: the first at once, the others a few at a time.

    Args:
        send: called with the tokens that are new.
    """

    def __init__(self, send: Callable[[list[Token]], None]) -> None:
        self._send = send
        self._open: Any = None  # the newest step, whose text may still come
        self._text = ""
        self._held: list[Token] = []
        self._sent_at = -math.inf

    def step(self, _sample: int, step: Any) -> None:
        """A token, before its piece of the text; it may have none."""
        self._close()
        self._open = step
        self._flush_in_time()

    def text(self, _sample: int, piece: str) -> None:
        """A piece of the text: it belongs to the newest token."""
        self._text += piece
        self._close()
        self._flush_in_time()

    def flush(self) -> None:
        """Passes on what is held."""
        self._close()
        self._pass_on()

    def _close(self) -> None:
        if self._open is not None:
            self._held.append(token_of(self._open, self._text))
            self._open, self._text = None, ""

    def _flush_in_time(self) -> None:
        if time.monotonic() - self._sent_at > _FLUSH_S:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._send(held)
            self._sent_at = time.monotonic()


def _dropped_by(row: dict[str, Any]) -> int:
    """Which filter took this alternative's last probability: its place in `FILTERS` plus one, 0 for none."""
    for place, name in enumerate(FILTERS, 1):
        if name in row and row[name] == 0 and row["model"] > 0:
            return place
    return 0


def _read_back(name: str) -> str:
    """A visible name as text again; bytes that are no character stay as they are written."""
    return re.sub(f"[{''.join(_BACK)}]", lambda found: _BACK[found[0]], name)
