"""Adapters through peft (LoRA, DoRA, IA3, virtual tokens) and ours: made on a model, attached from a folder, taken off.

A model carries at most one adapter; attaching another replaces it without touching the base weights, so that nothing
of an older one stays behind. The model keeps its class: peft's layers are put inside it. The folders are peft's own
(`adapter_model.safetensors`, `adapter_config.json`) and load in any tool that reads them.
Sources: LoRA (Hu et al. 2021, https://arxiv.org/abs/2106.09685), DoRA (Liu et al. 2024,
https://arxiv.org/abs/2402.09353), IA3 (Liu et al. 2022, https://arxiv.org/abs/2205.05638).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nbllm.adapters import bottleneck, four_bit, virtual
from nbllm.errors import NotFoundError, UsageError, did_you_mean
from nbllm.model.load import is_adapter_folder
from nbllm.model.structure import find_blocks

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_NAME = "default"
_SLOT = "_nbllm_adapter"
_KEYS_AND_VALUES = ("k_proj", "v_proj", "c_attn", "key", "value", "qkv_proj", "query_key_value")
_FEED_FORWARD_ENDS = ("down_proj", "c_proj", "fc2", "dense_4h_to_h", "wo", "w2")
_VIRTUAL = ("PROMPT_TUNING", "PREFIX_TUNING")
_ATTACHED = ("ours", *_VIRTUAL)
_OURS = (bottleneck.Tuner, virtual.Tuner)
_PREFIX = "base_model.model."  # peft's files are written from a wrapper that holds the model under this name


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter on a model."""

    folder: Path | None
    """Where it was read from; None for one being trained."""
    hash: str
    """SHA-256 of its weights and config as read, for caches; empty for one being trained."""
    config: Any
    """peft's config."""
    tuner: Any
    """peft's tuner (or ours), which holds the model and can undo what it did to it."""
    scale: float = 1.0
    """How strongly it acts: 0 as if it weren't there, 1 as it was trained; see `set_scale`."""

    @property
    def plain_lora(self) -> bool:
        """Whether it is a low-rank update that can be added to each layer's weight."""
        return getattr(self.config, "peft_type", None) == "LORA" and not self.config.use_dora

    @property
    def virtual_tokens(self) -> int:
        """How many positions it takes before every text."""
        return self.tuner.count if isinstance(self.tuner, virtual.Tuner) else 0


def attached(model: nn.Module) -> Adapter | None:
    """The adapter that the model carries, if any."""
    return cast("Adapter | None", getattr(model, _SLOT, None))


def content_hash(folder: str | Path) -> str:
    """SHA-256 over an adapter's config (which holds its scale) and weights, as hex; what caches are keyed by.

    Raises:
        NotFoundError: the folder holds no adapter in safetensors.
    """
    path = Path(folder)
    if not is_adapter_folder(path) or not (path / WEIGHTS).is_file():
        raise NotFoundError(f"{path} holds no adapter: it needs {CONFIG} and {WEIGHTS}")
    digest = hashlib.sha256((path / CONFIG).read_bytes())
    with (path / WEIGHTS).open("rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def find_targets(model: nn.Module) -> tuple[str, ...]:
    """Names of all linear layers inside the blocks (also GPT-2's transposed ones), as peft's `target_modules`.

    Short names (`q_proj`) where they mean only layers inside the blocks, else full ones.
    """
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    prefix, blocks = find_blocks(model)
    inside = {
        f"{prefix}.{name}": name.rpartition(".")[2]
        for name, module in blocks.named_modules()
        if isinstance(module, (nn.Linear, Conv1D))
    }
    if not inside:
        raise UsageError("The blocks of this model have no linear layers", received=type(model).__name__)
    outside = {name.rpartition(".")[2] for name, _ in model.named_modules() if name and name not in inside}
    return tuple(dict.fromkeys(name if short in outside else short for name, short in inside.items()))


def create(
    model: PreTrainedModel,
    *,
    r: int,
    alpha: float,
    dropout: float = 0.0,
    targets: str | Sequence[str] = "auto",
    method: str = "lora",
    width: int = 32,
    virtual_tokens: int = 20,
    seed: int = 0,
    base: str | None = None,
) -> Adapter:
    """Puts a fresh adapter on the model, for training: only its weights require gradients.

    It starts as nothing; virtual tokens start as tokens drawn from the vocabulary.

    An adapter that was there is taken off first.

    Args:
        model: the base, changed in place.
        r: rank.
        alpha: the update is scaled by alpha / r.
        dropout: share of the adapter's inputs dropped in training.
        targets: names of linear layers, or `auto`: all inside the blocks; for ia3 keys, values and what leaves the
            feed-forward.
        method: `lora`, `qlora` (which puts the blocks' weights into 4 bits first), `dora`, `ia3`, `adapter`, `prompt`
            or `prefix`.
        width: of a bottleneck (`adapter`).
        virtual_tokens: how many of them (`prompt`, `prefix`).
        seed: of the weights; the global random state is left as it was.
        base: the folder or hub name that the config will name as its base.

    Raises:
        UsageError: a target that isn't there or isn't linear, or an unknown method.
    """
    import torch

    detach(model)
    if method == "qlora" and model.get_input_embeddings().weight.device.type != "meta":
        four_bit.quantize_base(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if method == "adapter":
            config: Any = bottleneck.Config(width=width, dropout=dropout, base_model_name_or_path=base)
            return _record(model, bottleneck.Tuner(model, config), config)
        if method in virtual.METHODS:
            config = virtual.make_config(model, method, virtual_tokens)
            config.base_model_name_or_path = base
            return _record(model, virtual.Tuner(model, config, fresh=True), config)
        config = _peft_config(model, method, targets, r=r, alpha=alpha, dropout=dropout)
        config.base_model_name_or_path = base
        return _put_on(model, config, folder=None, digest="")


def _peft_config(
    model: nn.Module, method: str, targets: str | Sequence[str], *, r: int, alpha: float, dropout: float
) -> Any:
    from peft import IA3Config, LoraConfig
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    if method not in ("lora", "qlora", "dora", "ia3"):
        raise UsageError("Unknown adapter method", received=method, next="Use --method lora")
    linear = {name: module for name, module in model.named_modules() if isinstance(module, (nn.Linear, Conv1D))}
    names = find_targets(model) if targets == "auto" else tuple([targets] if isinstance(targets, str) else targets)
    ends = tuple(name for name in names if name.rpartition(".")[2] in _FEED_FORWARD_ENDS)
    if method == "ia3" and targets == "auto":
        names = tuple(name for name in names if name.rpartition(".")[2] in _KEYS_AND_VALUES) + ends
        if len(names) == len(ends):
            raise UsageError("The layers that IA3 scales can't be told in this model", next="Name them by --targets")
    chosen = []
    for target in names:
        matching = [module for name, module in linear.items() if name == target or name.endswith(f".{target}")]
        if not matching:
            known = {name.rpartition(".")[2] for name in linear}
            raise UsageError(
                "No linear layer of this model has that name", received=target, next=did_you_mean(target, known)
            )
        chosen += matching
    transposed = {isinstance(module, Conv1D) for module in chosen}
    if len(transposed) > 1:
        raise UsageError("Targets mix two kinds of linear layer", received=names, next="Use --targets auto")
    shared: dict[str, Any] = {
        "target_modules": list(names),
        "fan_in_fan_out": transposed.pop(),
        "task_type": "CAUSAL_LM",
    }
    if method == "ia3":
        return IA3Config(feedforward_modules=[name for name in names if name in ends], **shared)
    return LoraConfig(r=r, lora_alpha=alpha, lora_dropout=dropout, use_dora=method == "dora", **shared)


def attach(model: PreTrainedModel, folder: str | Path) -> Adapter:
    """Puts the adapter of a folder on the model, in place of one that was there; the base isn't loaded again.

    Raises:
        NotFoundError: no adapter in the folder.
        UsageError: it doesn't fit this model, or was trained on a base in 4 bits and this is none (`prepare_base`).
    """
    import torch
    from peft import PeftConfig

    path = Path(folder)
    digest = content_hash(path)
    ours = bottleneck.Config.read(path / CONFIG)
    config: Any = ours or PeftConfig.from_pretrained(str(path))
    if four_bit.wanted_base(path) is not None and four_bit.base_of(model) is None:
        raise UsageError(f"The adapter in {path} was trained on a base in 4 bits", next="Prepare the base first")
    kind = "ours" if ours is not None else str(config.peft_type.value)
    if kind not in _ATTACHED and (config.is_prompt_learning or config.is_adaption_prompt):
        raise UsageError("That method can't be attached to a model here", received=kind)
    detach(model)
    try:
        with torch.random.fork_rng(devices=[]):
            if ours is not None:
                adapter = _record(model, bottleneck.Tuner(model, ours), ours, folder=path, digest=digest)
            elif kind in _VIRTUAL:
                tuner = virtual.Tuner(model, config, fresh=False)
                adapter = _record(model, tuner, config, folder=path, digest=digest)
            else:
                adapter = _put_on(model, config, folder=path, digest=digest)
        load_weights(model, path)
    except (ValueError, RuntimeError, KeyError) as error:
        detach(model)
        said = " ".join(str(error).split())[:300]
        raise UsageError(
            f"The adapter in {path} doesn't fit this model: {said}",
            next=f"It was trained on {config.base_model_name_or_path}",
        ) from error
    model.eval()
    return adapter


def load_weights(model: nn.Module, folder: str | Path) -> None:
    """Reads an adapter's weights into the one that the model carries; raises ValueError where they don't fit."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    adapter = attached(model)
    if adapter is not None and isinstance(adapter.tuner, _OURS):
        adapter.tuner.load(load_file(Path(folder) / WEIGHTS))
        return
    state = {key.removeprefix(_PREFIX): value for key, value in load_file(Path(folder) / WEIGHTS).items()}
    result = set_peft_model_state_dict(model, state, adapter_name=_NAME)
    missing = [key for key in result.missing_keys if f".{_NAME}" in key or "modules_to_save" in key]
    if result.unexpected_keys or missing:
        raise ValueError(f"{len(result.unexpected_keys)} weights too many, {len(missing)} missing")


def detach(model: nn.Module) -> None:
    """Takes the adapter off, so that the model is its base again, weight by weight; without one, does nothing."""
    adapter = attached(model)
    if adapter is None:
        return
    adapter.tuner.unload()
    forget(model)


def forget(model: nn.Module) -> None:
    """Drops the record of an adapter whose layers are gone from the model, and peft's own."""
    for name in (_SLOT, "peft_config"):
        if name in vars(model):
            delattr(model, name)
    for weight in model.parameters():
        weight.requires_grad_(weight.is_floating_point())  # 4 bits lie in whole numbers


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The attached adapter's weights under the names that its file has."""
    from peft import get_peft_model_state_dict

    adapter = attached(model)
    if adapter is not None and isinstance(adapter.tuner, _OURS):
        return adapter.tuner.weights()
    state = get_peft_model_state_dict(model, adapter_name=_NAME, save_embedding_layers=False)
    return {_PREFIX + name: value.detach().cpu().contiguous() for name, value in state.items()}


def save(model: nn.Module, folder: str | Path) -> Path:
    """Writes the attached adapter as a folder that peft loads.

    Raises:
        UsageError: the model carries none.
    """
    from safetensors.torch import save_file

    adapter = attached(model)
    if adapter is None:
        raise UsageError("This model carries no adapter", next="Attach one with %llm_adapter use NAME")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    save_file(weights(model), path / WEIGHTS, metadata={"format": "pt"})
    adapter.config.save_pretrained(str(path))
    four_bit.note_base(model, path)
    return path


def _put_on(model: PreTrainedModel, config: Any, *, folder: Path | None, digest: str) -> Adapter:
    from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING

    from nbllm.adapters.lean import make_lean

    tuner = PEFT_TYPE_TO_TUNER_MAPPING[config.peft_type](model, config, adapter_name=_NAME)
    make_lean(model)
    return _record(model, tuner, config, folder=folder, digest=digest)


def _record(model: nn.Module, tuner: Any, config: Any, *, folder: Path | None = None, digest: str = "") -> Adapter:
    return record(model, Adapter(folder=folder, hash=digest, config=config, tuner=tuner))


def record(model: nn.Module, adapter: Adapter) -> Adapter:
    """Notes on the model what adapter it carries."""
    setattr(model, _SLOT, adapter)
    return adapter
