"""A byte-level BPE tokenizer as GGUF metadata: tokens, their kinds, merges, and the name of how text is cut.

A GGUF file doesn't hold the expression that cuts text; it names one of those that llama.cpp knows. So a tokenizer is
written only where llama.cpp has a name for exactly its cutting; the table is that of llama.cpp's llama-vocab.cpp.
llama.cpp doesn't normalise text: a tokenizer that composes it first (NFC) is written without that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nbllm.errors import UsageError

if TYPE_CHECKING:
    from nbllm.tokenizer import Tokenizer

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TRIPLE = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_SINGLE = rf"{_WORDS}|\p{{N}}|{_REST}"
_NAMES: dict[tuple[str, ...], str] = {
    (_GPT2,): "gpt-2",
    ("digits", _GPT2): "smollm",
    # llama-bpe cuts alike, but takes a piece that is a token as a whole, without its merges, and adds a beginning
    (_TRIPLE,): "dbrx",
    (_SINGLE,): "qwen2",
}
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # gguf.TokenType


def pre_tokenizer(tokenizer: Tokenizer) -> str:
    """llama.cpp's name for how the tokenizer cuts text.

    Raises:
        UsageError: it isn't a byte-level BPE, changes text first, or cuts in a way that llama.cpp has no name for.
    """
    definition = _definition(tokenizer)
    model = definition["model"]
    if model["type"] != "BPE" or not tokenizer.byte_level:
        raise UsageError(f"GGUF is written only with a byte-level BPE tokenizer, and {tokenizer.name!r} isn't one")
    normalizer = (definition.get("normalizer") or {}).get("type")
    if normalizer not in (None, "NFC"):
        raise UsageError(f"llama.cpp doesn't change text as the tokenizer {tokenizer.name!r} does ({normalizer})")
    cuts = _cuts(definition.get("pre_tokenizer") or {})
    name = _NAMES.get(cuts)
    if name is None:
        raise UsageError(
            f"llama.cpp has no name for how the tokenizer {tokenizer.name!r} cuts text",
            next="Export --to hf or onnx, or train one with --pattern gpt2, gpt4 or llama3 and their own --digits",
        )
    return "llama-bpe" if name == "dbrx" and model.get("ignore_merges") else name


def add_tokenizer(writer: Any, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Adds the tokenizer's metadata to a `gguf.GGUFWriter`.

    Args:
        writer: where it goes.
        tokenizer: the model's.
        vocab_size: V, rows of the model's embedding; those without a token are named `[PAD…]`.

    Raises:
        UsageError: see `pre_tokenizer`; or it has more tokens than the model.
    """
    if tokenizer.vocab_size > vocab_size:
        raise UsageError(
            f"The tokenizer {tokenizer.name!r} has {tokenizer.vocab_size:,} tokens, and the model {vocab_size:,}",
            next="Load the tokenizer that the model was trained with",
        )
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer(tokenizer))
    definition = _definition(tokenizer)
    added = {token["id"]: token["content"] for token in definition.get("added_tokens") or ()}
    special = frozenset(tokenizer.special_tokens.values())
    tokens, kinds = [], []
    for id in range(vocab_size):
        token = added.get(id) or (tokenizer.token(id) if id < tokenizer.vocab_size else "")
        tokens.append(token or f"[PAD{id}]")
        if not token:
            kinds.append(_UNUSED)
        elif id in special:
            kinds.append(_CONTROL)
        else:
            kinds.append(_USER_DEFINED if id in added else _NORMAL)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = definition["model"].get("merges") or ()
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    roles = (
        (writer.add_bos_token_id, tokenizer.bos_id),
        (writer.add_eos_token_id, tokenizer.eos_id),
        (writer.add_pad_token_id, tokenizer.pad_id),
    )
    for add, role_id in roles:
        if role_id is not None:
            add(role_id)
    writer.add_add_bos_token(_adds_bos(tokenizer))
    writer.add_add_eos_token(False)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)


def _definition(tokenizer: Tokenizer) -> dict[str, Any]:
    definition: dict[str, Any] = json.loads(tokenizer.definition)
    return definition


def _adds_bos(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer.json itself puts the beginning-of-text token in front of every text."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(tokenizer.definition)
    ids = backend.encode("a", add_special_tokens=True).ids
    return len(ids) > 1 and ids[0] == tokenizer.bos_id


def _cuts(pre: dict[str, Any]) -> tuple[str, ...]:
    """The steps that cut text, one after the other: expressions, and `digits` for every digit by itself."""
    steps = pre.get("pretokenizers") if pre.get("type") == "Sequence" else [pre]
    cuts: list[str] = []
    for step in steps or ():
        match step.get("type"):
            case "Split" if step.get("behavior") == "Isolated" and not step.get("invert"):
                cuts.append((step.get("pattern") or {}).get("Regex") or "?")
            case "Digits" if step.get("individual_digits"):
                cuts.append("digits")
            case "ByteLevel" if not step.get("add_prefix_space"):
                cuts += [_GPT2] if step.get("use_regex", True) else []
            case other:
                cuts.append(f"? {other}")
    return tuple(cuts)
