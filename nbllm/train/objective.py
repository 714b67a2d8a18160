"""What a model learns to predict: the next token (`clm`) or hidden ones (`mlm`), and what that needs of a tokenizer.

A model's architecture decides; asking for the other one is a mistake that is said at once. Imports no torch, so that a
session can ask before it starts a run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nbllm.errors import UsageError
from nbllm.files import read_json
from nbllm.model.masked import is_masked
from nbllm.model.presets import PRESETS
from nbllm.shards import Masking

if TYPE_CHECKING:
    from nbllm.tokenizer import Tokenizer

Objective = Literal["clm", "mlm"]
_MASK_TOKENS = ("[MASK]", "<mask>", "<|mask|>")


def choose(wanted: str, model: Any) -> Objective:
    """The objective of a model.

    Args:
        wanted: `auto`, `clm` or `mlm`.
        model: the model itself, a preset's name, or a folder's; of any other name, only what is asked is known.

    Raises:
        UsageError: the other objective was asked for.
    """
    masked = _is_masked(model)
    if masked is None:
        return "mlm" if wanted == "mlm" else "clm"
    if wanted == "clm" and masked:
        raise UsageError(f"{_name(model)} predicts hidden tokens, not the next one", next="Use --objective mlm")
    if wanted == "mlm" and not masked:
        raise UsageError(
            f"{_name(model)} predicts the next token, and can't be trained on hidden ones",
            next="Use --model bert-nano, or --objective clm",
        )
    return "mlm" if masked else "clm"


def check_parallel(parallel: str, model: Any) -> None:
    """Raises UsageError for a plan that isn't proven for masked models and mixtures of experts.

    Args:
        parallel: a name of `nbllm.train.parallel.PLANS`.
        model: as for `choose`.
    """
    if parallel == "ddp":
        return
    what = "masked models" if _is_masked(model) else "mixtures of experts" if _has_experts(model) else None
    if what:
        raise UsageError(f"--parallel {parallel} isn't proven for {what}", next="Use --parallel ddp")


def make_masking(tokenizer: Tokenizer, *, seed: int) -> Masking:
    """The masking of a run.

    Raises:
        UsageError: the tokenizer has no mask token.
    """
    return Masking(
        mask_id=mask_token_id(tokenizer),
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_tokens.values(),
        seed=seed,
    )


def mask_token_id(tokenizer: Tokenizer) -> int:
    """The id of the token that stands for a hidden one; raises UsageError where there is none."""
    for token in (tokenizer.config.get("mask_token"), *_MASK_TOKENS):
        if isinstance(token, str) and token in tokenizer.special_tokens:
            return tokenizer.special_tokens[token]
    raise UsageError(
        f"A masked model needs a mask token, and the tokenizer {tokenizer.name!r} has none",
        next='Make one with %llm_tokenizer train --special "[MASK]"',
    )


def _is_masked(model: Any) -> bool | None:
    if not isinstance(model, (str, Path)):
        return is_masked(model)
    if str(model) in PRESETS:
        return PRESETS[str(model)].masked
    config = _stored_config(model)
    if config is None:
        return None
    return any(name.endswith("ForMaskedLM") for name in config.get("architectures") or ())


def _has_experts(model: Any) -> bool:
    if str(model) in PRESETS:
        return PRESETS[str(model)].experts > 0
    config = (_stored_config(model) or {}) if isinstance(model, (str, Path)) else vars(model.config)
    return any(config.get(name) for name in ("num_local_experts", "num_experts"))


def _stored_config(model: str | Path) -> dict[str, Any] | None:
    config = Path(model).expanduser() / "config.json"
    return read_json(config) if config.is_file() else None


def _name(model: Any) -> str:
    return str(model) if isinstance(model, (str, Path)) else type(model).__name__
