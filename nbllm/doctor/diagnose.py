"""Every group of findings about one generation, in one call."""

from __future__ import annotations

from typing import Any

from nbllm.doctor.diagnosis import Diagnosis
from nbllm.doctor.fit import chat_findings, context_findings, tokenizer_findings
from nbllm.doctor.text import text_findings
from nbllm.sample import Generation
from nbllm.tokenizer import Tokenizer


def diagnose(model: Any, tokenizer: Tokenizer, generation: Generation) -> Diagnosis:
    """What is wrong with a generation, or with what made it.

    Args:
        model: the transformers model that made it.
        tokenizer: the model's.
        generation: with a trace where ranks and entropy are to be looked at.
    """
    checked = ["loops", *(["ranks and entropy"] if generation.trace is not None else [])]
    return Diagnosis(
        findings=(
            *text_findings(model, tokenizer, generation),
            *tokenizer_findings(model, tokenizer),
            *chat_findings(tokenizer, generation),
            *context_findings(model, generation),
        ),
        checked=(*checked, "vocabulary and special tokens", "chat template", "context"),
    )
