"""`html [precision=yes]`: documents that are HTML become their main text; others stay as they are.

A document counts as HTML where a doctype or one of the tags `html`, `body`, `div`, `p` stands in it as markup does.
Extraction is in `html_text.py`. A page without a main text is dropped as `empty`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from nbllm.corpus.html_text import html_text
from nbllm.corpus.stage import Outcome, Stage, argument, scores_of

_MARKUP = re.compile(r"<(?:!doctype\s+html|html|body)[\s>]|</(?:div|p|body|html)>", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Html(Stage):
    """Edits. Score: `html`, whether the document was HTML."""

    NAME: ClassVar = "html"
    SUMMARY: ClassVar = "the main text of HTML pages"
    precision: str = argument("yes", "whether to leave out what is doubtful", choices=("yes", "no"))

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        texts = batch["text"].to_pylist()
        pages = [bool(_MARKUP.search(text)) for text in texts]
        edited = [
            html_text(text, precision=self.precision == "yes") if page else text
            for text, page in zip(texts, pages, strict=True)
        ]
        return Outcome(scores_of(len(batch), html=pa.array(pages, pa.bool_())), pa.array(edited, pa.string()))
