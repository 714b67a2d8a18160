"""`normalize [form=NFC]`: one spelling for the same text.

Unicode normalisation form (UAX #15), line ends as \\n, no control characters but tab and newline, no spaces at the ends
of lines, no empty lines at both ends. An inner U+FEFF stays: it is a character there, not a byte-order mark.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import pyarrow as pa

from nbllm.corpus.stage import Outcome, Stage, argument, scores_of
from nbllm.errors import UsageError

_FORMS = ("NFC", "NFKC", "NFD", "NFKD")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class Normalize(Stage):
    """Edits; drops nothing (a document left empty is dropped as `empty` by the engine)."""

    NAME: ClassVar = "normalize"
    SUMMARY: ClassVar = "Unicode form, line ends, control characters, spaces at the ends of lines"
    form: str = argument("NFC", "Unicode normalisation form", choices=_FORMS, parse=str.upper)

    def __post_init__(self) -> None:
        if self.form not in _FORMS:
            raise UsageError("form is NFC, NFKC, NFD or NFKD", received=self.form)

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        texts = [self.normalise(text) for text in batch["text"].to_pylist()]
        return Outcome(scores_of(len(batch)), pa.array(texts, pa.string()))

    def normalise(self, text: str) -> str:
        """One text in this form."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        form = cast(Literal["NFC", "NFKC", "NFD", "NFKD"], self.form)
        text = unicodedata.normalize(form, _CONTROL.sub("", text))
        text = "\n".join([line.rstrip(" \t") for line in text.split("\n")])
        return text.lstrip("\n").rstrip()
