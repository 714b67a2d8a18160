"""Every group of findings about one generation, in one call."""

from __future__ import annotations

from typing import Any

from nbllm.doctor.asked import Asked
from nbllm.doctor.diagnosis import Diagnosis
from nbllm.doctor.fit import chat_findings, context_findings, prompt_findings, tokenizer_findings
from nbllm.doctor.memory import memory_findings
from nbllm.doctor.slow import slow_findings
from nbllm.doctor.text import text_findings
from nbllm.findings import Finding
from nbllm.sample import Generation
from nbllm.tokenizer import Tokenizer


def diagnose(
    model: Any,
    tokenizer: Tokenizer,
    generation: Generation,
    asked: Asked | None = None,
    *,
    more: tuple[Finding, ...] = (),
) -> Diagnosis:
    """What is wrong with a generation, or with what made it.

    Args:
        model: the transformers model that made it.
        tokenizer: the model's.
        generation: with a trace where ranks and entropy are to be looked at.
        asked: how it was asked for, so that the lines to type ask for the same.
        more: what was found before there was a generation.
    """
    asked = asked or Asked()
    checked = ["loops", *(["ranks and entropy"] if generation.trace is not None else [])]
    return Diagnosis(
        findings=(
            *more,
            *text_findings(model, tokenizer, generation, asked),
            *tokenizer_findings(model, tokenizer, asked),
            *prompt_findings(tokenizer, generation, asked),
            *chat_findings(tokenizer, generation, asked),
            *context_findings(model, generation, asked),
            *memory_findings(model, generation, asked),
            *slow_findings(model, generation, asked),
        ),
        checked=(
            *checked, "vocabulary and special tokens", "unknown tokens", "chat template", "context", "memory",
            "attention, dtype, threads and compiled step",
        ),
    )  # fmt: skip
