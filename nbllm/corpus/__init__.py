"""Documents: read, cleaned by stages, deduplicated, counted, and kept as Arrow files. Without torch."""

from __future__ import annotations

from nbllm.corpus.clean import clean
from nbllm.corpus.corpus import Corpus
from nbllm.corpus.examples import Example, Examples
from nbllm.corpus.recipe import RECIPES
from nbllm.corpus.report import Amount, CorpusReport, ReportRow, StageReport
from nbllm.corpus.stages import STAGES, parse_stages
from nbllm.corpus.thresholds import WouldDrop

__all__ = [
    "RECIPES",
    "STAGES",
    "Amount",
    "Corpus",
    "CorpusReport",
    "Example",
    "Examples",
    "ReportRow",
    "StageReport",
    "WouldDrop",
    "clean",
    "parse_stages",
]
