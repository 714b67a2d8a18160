"""Findings about what belongs together: tokenizer and weights, chat template and prompt, text and context.

Compares numbers; runs no model.
"""

from __future__ import annotations

from typing import Any

from nbllm.doctor.finding import Finding
from nbllm.doctor.text import command
from nbllm.sample import Generation
from nbllm.sample.prompt import chat_prompt
from nbllm.tokenizer import Tokenizer

_UNUSED_SHARE = 0.03
"""Rows of an embedding are padded to round numbers: fewer than this share without a token say nothing."""
_OWN = "Save the tokenizer that the weights were trained with into their folder"
_SAVE = "from nbllm.tokenizer import load; load(nbllm.session().store, 'ITS TOKENIZER').save('MODEL FOLDER')"


def tokenizer_findings(model: Any, tokenizer: Tokenizer) -> list[Finding]:
    """A vocabulary that isn't the embedding's; ids of special tokens that the model's config has elsewhere."""
    rows, size = len(model.get_input_embeddings().weight), tokenizer.vocab_size
    found = []
    numbers = f"the tokenizer has {size:,} ids, the embedding {rows:,} rows"
    if size > rows:
        found.append(
            Finding(
                name="the tokenizer is larger than the model",
                severity="serious",
                evidence=f"{numbers}: {size - rows:,} ids have none",
                remedy=_OWN,
                command=_SAVE,
            )
        )
    elif rows - size > _UNUSED_SHARE * rows:
        found.append(
            Finding(
                name="the tokenizer is smaller than the model",
                severity="warning",
                evidence=f"{numbers}: {1 - size / rows:.0%} of them stand for nothing",
                remedy=_OWN,
                command=_SAVE,
            )
        )
    config = model.config.get_text_config()
    for role, own in (("eos", tokenizer.eos_id), ("bos", tokenizer.bos_id)):
        named = getattr(config, f"{role}_token_id", None)
        ids = [named] if isinstance(named, int) else list(named or ())
        if own is not None and ids and own not in ids:
            found.append(
                Finding(
                    name=f"the model's {role} token is another",
                    severity="warning",
                    evidence=f"the config says {', '.join(map(str, ids))}, the tokenizer {own}",
                    remedy="Take the tokenizer's, if the tokenizer is the right one",
                    command=f"nbllm.session().load_model()[0].config.{role}_token_id = {own}",
                )
            )
    return found


def chat_findings(tokenizer: Tokenizer, generation: Generation) -> list[Finding]:
    """A chat model whose prompt wasn't in its template."""
    if not tokenizer.chat_template:
        return []
    marks = (set(chat_prompt(tokenizer, "x")) & set(tokenizer.special_tokens.values())) - {tokenizer.bos_id}
    asked = set(chat_prompt(tokenizer, "x")) & set(tokenizer.special_tokens.values())
    marks = marks or asked
    if not marks or marks & set(generation.prompt_tokens):
        return []
    names = ", ".join(tokenizer.token(id) for id in sorted(marks))
    return [
        Finding(
            name="a chat model without its template",
            severity="hint" if generation.stop_reason == "eos" else "warning",
            evidence=f"none of the prompt's {len(generation.prompt_tokens)} tokens is one of the template's ({names}); "
            f"the text ended by {generation.stop_reason}",
            remedy="Put the prompt into the template, if it is a question rather than a text to continue",
            command=command(generation, "chat=True"),
        )
    ]


def context_findings(model: Any, generation: Generation) -> list[Finding]:
    """A text that filled the context, or could have."""
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    prompt, new = len(generation.prompt_tokens), generation.parameters.max_new_tokens
    if context is None or generation.parameters.sliding:
        return []
    full = any(sample.stop_reason == "context" for sample in generation.samples)
    if not full and prompt + new <= context:
        return []
    return [
        Finding(
            name="the context is full" if full else "the context may not be enough",
            severity="warning" if full else "hint",
            evidence=f"{prompt:,} tokens of prompt and {new:,} new ones are {prompt + new:,}, the context has "
            f"{context:,}",
            remedy=f"Let it slide, or ask for at most {max(context - prompt, 0):,} new tokens",
            command=command(generation, "sliding=True"),
        )
    ]
