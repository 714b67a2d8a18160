"""`pii mask|drop`: e-mail addresses, public IP addresses and card numbers.

Found in one pass over the text, so that no replacement sees another. `git@host:` is no e-mail address; four numbers
with dots are an IP address only where `ipaddress` takes them for a public one and the words before don't say that it
is a version; a card number has 13 to 19 digits, a known first digit and a right check digit (Luhn, ISO/IEC 7812-1).
"""

from __future__ import annotations

import functools
import ipaddress
import re
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.stage import Outcome, Stage, argument, reasons, scores_of

_MASKS = {"email": "<email>", "ip": "<ip>", "card": "<card>"}
_MODES = ("mask", "drop")
_PATTERNS = {
    "email": r"(?<![\w.+%-])[A-Za-z0-9](?:[\w.+%-]{0,62}[\w+%-])?"
    r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.)+[A-Za-z]{2,24}(?![\w-]|:\S)",
    "ip": r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)|(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:){2,7}"
    r"(?::|[0-9A-Fa-f]{1,4}|:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,5})(?![\w:.])",
    "card": r"(?<![\w.-])[2-6]\d{3}(?:[ -]?\d){9,15}(?![\w-]|\.\d)",
}
_HINTS = {
    "email": re.compile("@"),
    "ip": re.compile(r"\d\.\d{1,3}\.\d|[0-9A-Fa-f]:[0-9A-Fa-f]{0,4}:", re.ASCII),
    "card": re.compile(r"[2-6]\d{3}(?:[ -]?\d){9}", re.ASCII),
}
"""Quick looks that tell which patterns are worth their time; most texts hold none of these."""
_VERSION = re.compile(r"(?:\bv|\bver(?:sion)?|\brelease|\bbuild|==?|>=|\bfirmware|\bsection|§)[\s.:=]*$", re.IGNORECASE)
_CONTEXT_CHARACTERS = 24


@dataclass(frozen=True, kw_only=True)
class Pii(Stage):
    """Scores: how many e-mail addresses (`emails`), IP addresses (`ips`) and card numbers (`cards`) a text holds."""

    NAME: ClassVar = "pii"
    SUMMARY: ClassVar = "masks or drops texts with e-mail addresses, IP addresses, card numbers"
    mode: str = argument("mask", "mask what is found, or drop the document", positional=True, choices=_MODES)

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        counts: list[dict[str, int]] = []
        masked = []
        for text in batch["text"].to_pylist():
            found = dict.fromkeys(_MASKS, 0)
            masked.append(_mask(text, found))
            counts.append(found)
        scores = scores_of(
            len(batch), **{f"{kind}s": pa.array([one[kind] for one in counts], pa.int32()) for kind in _MASKS}
        )
        return Outcome(scores, pa.array(masked, pa.string()) if self.mode == "mask" else None)

    def decide(self, scores: pa.RecordBatch) -> pa.Array:
        if self.mode == "mask":
            return super().decide(scores)
        return reasons(
            len(scores),
            (pc.greater(scores["cards"], 0), "card number"),
            (pc.greater(scores["emails"], 0), "e-mail address"),
            (pc.greater(scores["ips"], 0), "IP address"),
        )


def _mask(text: str, found: dict[str, int]) -> str:
    def replace(match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        value = match[0]
        if (
            kind == "ip" and not _is_public(value, text[max(0, match.start() - _CONTEXT_CHARACTERS) : match.start()])
        ) or (kind == "card" and not _is_card(value)):
            return value
        found[kind] += 1
        return _MASKS[kind]

    kinds = tuple(kind for kind, hint in _HINTS.items() if hint.search(text))
    return _pattern(kinds).sub(replace, text) if kinds else text


@functools.cache
def _pattern(kinds: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{kind}>{_PATTERNS[kind]})" for kind in kinds), re.ASCII)


def _is_public(value: str, before: str) -> bool:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return False
    return address.is_global and not _VERSION.search(before)


def _is_card(value: str) -> bool:
    digits = [int(character) for character in value if character.isdigit()]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and (doubled + sum(digits[::-2])) % 10 == 0
