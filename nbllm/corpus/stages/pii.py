"""`pii mask|drop [kinds=…]`: e-mail and IP addresses, phone, card and account numbers, national identity numbers.

Found in one pass over the text, so that no replacement sees another. What has check digits is found only where they are
right (`pii_checks.py`); phone numbers only in the international form with a plus and in the North American one.
`git@host:` is no e-mail address; four numbers with dots are an IP address only where `ipaddress` takes them for a
public one and the words before don't say that it is a version.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.stage import Outcome, Rules, Stage, argument, scores_of
from nbllm.corpus.stages.pii_checks import NATIONAL_IDS, is_card, is_iban, is_national_id, is_phone
from nbllm.errors import UsageError, did_you_mean

_MASKS = {kind: f"<{kind}>" for kind in ("email", "ip", "iban", "id", "card", "phone")}
"""Where two could begin at the same place the first is tried."""
_REASONS = (
    ("card", "card number"),
    ("iban", "account number"),
    ("id", "identity number"),
    ("phone", "phone number"),
    ("email", "e-mail address"),
    ("ip", "IP address"),
)
_MODES = ("mask", "drop")
_PATTERNS = {
    "email": r"(?<![\w.+%-])[A-Za-z0-9](?:[\w.+%-]{0,62}[\w+%-])?"
    r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.)+[A-Za-z]{2,24}(?![\w-]|:\S)",
    "ip": r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)|(?<![\w:.])(?:[0-9A-Fa-f]{1,4}:){2,7}"
    r"(?::|[0-9A-Fa-f]{1,4}|:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,5})(?![\w:.])",
    "iban": r"(?<![\w-])[A-Z]{2}\d{2}(?: ?[0-9A-Z]{4}){2,7}(?: ?[0-9A-Z]{1,3})?(?![\w-])",
    "id": NATIONAL_IDS,
    "phone": r"(?<![\w+.])\+[1-9]\d{0,2}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d(?:[ .-]?\d){5,13}(?![\w-])"
    r"|(?<![\w.(-])(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[-.])[2-9]\d{2}[-.]\d{4}(?![\w-]|\.\d)",
    "card": r"(?<![\w.-])[2-6]\d{3}(?:[ -]?\d){9,15}(?![\w-]|\.\d)",
}
_HINTS = {
    "email": re.compile("@"),
    "ip": re.compile(r"\d\.\d{1,3}\.\d|[0-9A-Fa-f]:[0-9A-Fa-f]{0,4}:", re.ASCII),
    "iban": re.compile(r"[A-Z]{2}\d{2} ?[0-9A-Z]{4}", re.ASCII),
    "id": re.compile(
        r"\d{3}-\d{2}-\d{4}|\d{3}\.\d{3}\.\d|\d{7}-?[A-Z]|\d{13}|[A-Z]{2} ?\d{2} ?\d{2} ?\d{2} ?[A-D]|"
        r"[12] ?\d{2} \d{2} ",
        re.ASCII,
    ),
    "phone": re.compile(r"\+[1-9]\d|\d{3}\)? ?[-.]?\d{3}[-.]\d{4}", re.ASCII),
    "card": re.compile(r"[2-6]\d{3}(?:[ -]?\d){9}", re.ASCII),
}
"""Quick looks that tell which patterns are worth their time; most texts hold none of these."""
_VERSION = re.compile(r"(?:\bv|\bver(?:sion)?|\brelease|\bbuild|==?|>=|\bfirmware|\bsection|§)[\s.:=]*$", re.IGNORECASE)
_CONTEXT_CHARACTERS = 24


def _kinds(typed: str) -> tuple[str, ...]:
    named = {kind.strip().lower() for kind in typed.split(",") if kind.strip()}
    return (*(kind for kind in _MASKS if kind in named), *sorted(named - set(_MASKS)))


@dataclass(frozen=True, kw_only=True)
class Pii(Stage):
    """Scores: how many of each kind a text holds: `emails`, `ips`, `ibans`, `ids`, `cards`, `phones`."""

    NAME: ClassVar = "pii"
    SUMMARY: ClassVar = "masks or drops texts with e-mail and IP addresses, phone, card, account and identity numbers"
    VERSION: ClassVar = 2
    mode: str = argument("mask", "mask what is found, or drop the document", positional=True, choices=_MODES)
    kinds: tuple[str, ...] = argument(tuple(_MASKS), "what is looked for", parse=_kinds)

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in _MASKS:
                raise UsageError(f"pii knows no kind {kind!r}", next=did_you_mean(kind, _MASKS))

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        counts: list[dict[str, int]] = []
        masked = []
        for text in batch["text"].to_pylist():
            found = dict.fromkeys(_MASKS, 0)
            masked.append(_mask(text, found, self.kinds))
            counts.append(found)
        scores = scores_of(
            len(batch), **{f"{kind}s": pa.array([one[kind] for one in counts], pa.int32()) for kind in _MASKS}
        )
        return Outcome(scores, pa.array(masked, pa.string()) if self.mode == "mask" else None)

    def rules(self, scores: pa.RecordBatch) -> Rules:
        if self.mode == "mask":
            return []
        return [(pc.greater(scores[f"{kind}s"], 0), reason) for kind, reason in _REASONS]


def _mask(text: str, found: dict[str, int], wanted: tuple[str, ...]) -> str:
    def replace(match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        value = match[0]
        before = text[max(0, match.start() - _CONTEXT_CHARACTERS) : match.start()]
        if not (_is_public(value, before) if kind == "ip" else _CHECKS.get(kind, bool)(value)):
            return value
        found[kind] += 1
        return _MASKS[kind]

    kinds = tuple(kind for kind in wanted if _HINTS[kind].search(text))
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


_CHECKS = {"card": is_card, "iban": is_iban, "id": is_national_id, "phone": is_phone}
