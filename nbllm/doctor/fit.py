"""Findings about what belongs together: tokenizer and weights, tokenizer and prompt, chat template and prompt, text and
context.

Compares numbers; runs no model.
"""

from __future__ import annotations

import json
import re
from typing import Any

from nbllm.doctor.asked import Asked, quoted
from nbllm.findings import Finding
from nbllm.sample import Generation
from nbllm.sample.prompt import chat_prompt
from nbllm.tokenizer import Tokenizer

_UNUSED_SHARE = 0.03
"""Rows of an embedding are padded to round numbers: fewer than this share without a token say nothing."""
_NAMED = 6
_ASKS = re.compile(
    r"[?？؟]$|^(who|whom|whose|what|which|when|where|why|how|can|could|would|please|write|explain|describe|list|name|"
    r"tell|give|translate|summari[sz]e|compare|suggest|help)\b",
    re.IGNORECASE,
)
_OWN = "Save the tokenizer that the weights were trained with into their folder"
_SAVE = "from nbllm.tokenizer import load; load(nbllm.session().store, 'ITS TOKENIZER').save('MODEL FOLDER')"


def tokenizer_findings(model: Any, tokenizer: Tokenizer, asked: Asked) -> list[Finding]:
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
                    command=f"{asked.loading()}[0].config.{role}_token_id = {own}",
                )
            )
    return found


def prompt_findings(tokenizer: Tokenizer, generation: Generation, asked: Asked) -> list[Finding]:
    """A prompt that the tokenizer doesn't give back: unknown tokens, letters or spaces that it changes."""
    unknown, prompt = unknown_id(tokenizer), asked.prompt
    inspect = quoted(prompt) if prompt else None
    command = f"%llm_tokenizer inspect {inspect}" if inspect else "%llm_tokenizer report"
    count = generation.prompt_tokens.count(unknown) if unknown is not None else 0
    if count:
        pieces: list[str] = []
        if prompt is not None:
            ids, places = tokenizer.encode_with_offsets(prompt)
            pieces = [prompt[a:b] for id, (a, b) in zip(ids, places, strict=True) if id == unknown]
        named = f": {', '.join(map(repr, dict.fromkeys(pieces[:_NAMED])))}" if pieces else ""
        return [
            Finding(
                name="the prompt has unknown tokens",
                severity="warning",
                evidence=f"{count:,} of the prompt's {len(generation.prompt_tokens):,} tokens "
                f"{'is' if count == 1 else 'are'} {tokenizer.token(int(unknown or 0))}{named}; the model never sees "
                "what stood there",
                remedy="Spell it with known characters; a byte-level tokenizer knows every text",
                command=command,
            )
        ]
    if not prompt or tokenizer.lossless:
        return []
    back = tokenizer.decode(tokenizer.encode(prompt), skip_special=False)
    wanted = prompt.removeprefix(" ") if tokenizer.drops_first_space else prompt
    if back in (prompt, wanted):
        return []
    place = next((i for i, (a, b) in enumerate(zip(wanted, back, strict=False)) if a != b), min(len(wanted), len(back)))
    near = slice(max(0, place - 8), place + 12)
    return [
        Finding(
            name="the tokenizer changes the prompt",
            severity="hint",
            evidence=f"from character {place + 1:,} on, {wanted[near]!r} comes back as {back[near]!r}: what the model "
            "was given isn't what was typed",
            remedy="See which step changes it; a model trained with it may still be right",
            command=command,
        )
    ]


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """The token that stands for what the vocabulary doesn't have; None where there is none."""
    model = json.loads(tokenizer.definition)["model"]
    if model.get("type") == "Unigram":
        found = model.get("unk_id")
        return None if found is None else int(found)
    named = tokenizer.config.get("unk_token") or model.get("unk_token")
    if tokenizer.byte_level or not isinstance(named, str):  # a byte-level one may name a token that it never uses
        return None
    known = tokenizer.special_tokens.get(named, (model.get("vocab") or {}).get(named))
    return None if known is None else int(known)


def no_template(tokenizer: Tokenizer, generation: Generation, asked: Asked) -> Finding:
    """`--chat` for a tokenizer that has no template."""
    return Finding(
        name="--chat without a chat template",
        severity="serious",
        evidence=f"the tokenizer {tokenizer.name!r} comes with no template, so the prompt was continued as a text",
        remedy="Leave --chat out, or take a chat model",
        command=asked.line(generation, options={"chat": False}),
    )


def chat_findings(tokenizer: Tokenizer, generation: Generation, asked: Asked) -> list[Finding]:
    """A question to a chat model that wasn't put into its template, and that it didn't come to the end of.

    A text to continue is no fault, so a prompt has to look like a question: it ends with a question mark, or begins
    with one of the words that requests begin with in English; other languages' requests aren't known.
    """
    if not tokenizer.chat_template or asked.given.get("chat") or generation.stop_reason == "eos":
        return []
    template = set(chat_prompt(tokenizer, "x")) & set(tokenizer.special_tokens.values())
    marks = template - {tokenizer.bos_id} or template
    if not marks or marks & set(generation.prompt_tokens) or not _ASKS.search(generation.prompt.strip()):
        return []
    names = ", ".join(tokenizer.token(id) for id in sorted(marks))
    return [
        Finding(
            name="a chat model without its template",
            severity="warning",
            evidence=f"the prompt is a question, and none of its {len(generation.prompt_tokens)} tokens is one of the "
            f"template's ({names}); the text ended by {generation.stop_reason}, not by the model",
            remedy="Put the prompt into the template",
            command=asked.line(generation, options={"chat": True}),
        )
    ]


def context_findings(model: Any, generation: Generation, asked: Asked) -> list[Finding]:
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
            command=asked.line(generation, sliding=True),
        )
    ]
