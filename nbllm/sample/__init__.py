"""Sampling: text from a model, token by token, with every choice on record where asked for.

Importing this room loads neither torch nor transformers, since the settings are needed for completion and the
session's card; `generate` and the like are loaded when first used. It doesn't know how models are trained.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nbllm.sample.generation import Generation, Sample
from nbllm.sample.parameters import SamplingParameters

if TYPE_CHECKING:
    from nbllm.sample.answers import Answer, Answers
    from nbllm.sample.engine import generate, generate_batch
    from nbllm.sample.many import generate_many
    from nbllm.sample.prompt import chat_prompt
    from nbllm.sample.score import Score
    from nbllm.sample.trace import Step, Trace

_LATER = {
    "Answer": "answers",
    "Answers": "answers",
    "generate": "engine",
    "generate_batch": "engine",
    "generate_many": "many",
    "chat_prompt": "prompt",
    "Score": "score",
    "Step": "trace",
    "Trace": "trace",
}

__all__ = [
    "Answer",
    "Answers",
    "Generation",
    "Sample",
    "SamplingParameters",
    "Score",
    "Step",
    "Trace",
    "chat_prompt",
    "generate",
    "generate_batch",
    "generate_many",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
