"""Merging an adapter into its base: an ordinary transformers folder whose logits are those of base plus adapter.

Done in fp32 and checked on a probe before the folder gets its name. An adapter of a base in 4 bits is merged into the
numbers that these stand for. A weight that the base shares (a head tied to the
embedding) is separated first where the adapter changes only one of its uses. Knows the adapter's room and loading.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.adapters.four_bit import prepare_base
from nbllm.adapters.lora import attach, forget
from nbllm.errors import RunError, StoreError, UsageError
from nbllm.files import replace_folder, writing
from nbllm.model.load import adapter_base, load, quiet

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)


def merge(
    base: str | Path | None,
    adapter_folder: str | Path,
    to: str | Path,
    *,
    dtype: str = "fp32",
    overwrite: bool = False,
) -> Path:
    """Writes base plus adapter as one model, with the tokenizer files of the adapter's folder or of the base's.

    Args:
        base: the model it was trained on, a folder or a hub name; None: the one that the adapter's config names.
        adapter_folder: the adapter.
        to: the new folder.
        dtype: of the weights written; they are merged in fp32.
        overwrite: replace the folder if it is there.

    Returns:
        `to`.

    Raises:
        StoreError: the folder exists and `overwrite` is False.
        UsageError: an adapter of a kind that can't be merged.
        RunError: the merged model's logits aren't those of base plus adapter.
    """
    import torch

    from nbllm.model.load import torch_dtype

    target = Path(to)
    wanted = torch_dtype(dtype)
    if target.exists() and not overwrite:
        raise StoreError(f"{target} is there already", next="Add --overwrite to replace it")
    source = base if base is not None else adapter_base(adapter_folder)
    model = load(source)
    prepare_base(model, adapter_folder, dense=True)
    adapter = attach(model, adapter_folder)
    if unmergeable := getattr(adapter.tuner, "unmergeable", None):
        raise UsageError(unmergeable, next="Use it beside its base: %llm_adapter use NAME")
    ids = torch.arange(16)[None] * 7919 % model.config.vocab_size
    with torch.no_grad():
        before = model(input_ids=ids).logits
        _untie(model)
        adapter.tuner.merge_and_unload()
    forget(model)
    _settle_tying(model)
    model = model.to(wanted)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.parent / f".{uuid.uuid4().hex}"
    try:
        with quiet(), writing(target.parent):
            model.save_pretrained(draft)
        for folder in (Path(source), Path(adapter_folder)):
            for name in _TOKENIZER_FILES:
                if (folder / name).is_file():
                    shutil.copyfile(folder / name, draft / name)
        _check(draft, ids, before, exact=wanted == torch.float32)
        replace_folder(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _untie(model: PreTrainedModel) -> None:
    """Gives every adapted layer whose weight has another user a weight of its own, so that only its use changes."""
    from torch import nn

    users: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            users.setdefault(id(weight), []).append(module)
    for module in model.modules():
        base = getattr(module, "base_layer", None)
        if isinstance(base, nn.Module) and len(users.get(id(base.weight), [])) > 1:
            base.weight = nn.Parameter(base.get_parameter("weight").detach().clone())


def _settle_tying(model: PreTrainedModel) -> None:
    """Writes into the config what is true of the weights now, so that loading doesn't tie them again."""
    embedding: nn.Module = model.get_input_embeddings()
    head: nn.Module | None = model.get_output_embeddings()
    if head is not None and getattr(model.config, "tie_word_embeddings", False) and head.weight is not embedding.weight:
        model.config.tie_word_embeddings = False


def _check(folder: Path, ids: Tensor, before: Tensor, *, exact: bool) -> None:
    import torch

    with torch.no_grad():
        merged: Any = load(folder)
        after = merged(input_ids=ids).logits
    allowed = (1e-4 if exact else 0.05) * float(before.abs().max().clamp(min=1.0))
    error = float((after - before).abs().max())
    if not error <= allowed:
        raise RunError(f"Merging changed the logits by up to {error:.2g}, where {allowed:.2g} is allowed")
