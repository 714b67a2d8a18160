"""Getting ready to train: processes, data, tokenizer and model, and proof that what was asked for is what is active.

Launchers fall back silently (one process where two were asked for, fp32 where bf16 was): each such wish is compared
with what can be observed, and a difference is an error. Knows the config; takes no step.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbllm import adapters
from nbllm.errors import DataError, NotFoundError, RunError, StoreError, UsageError
from nbllm.model import (
    PRESETS,
    build,
    find_blocks,
    is_adapter_folder,
    is_masked,
    load,
    separate_documents,
)
from nbllm.shards import Shards
from nbllm.store import Store
from nbllm.train import precision
from nbllm.train.checkpoint import Checkpoint
from nbllm.train.config import TrainConfig
from nbllm.train.loss_model import LossModel

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from nbllm.tokenizer import Tokenizer

_COLLECTIVE_TIMEOUT = datetime.timedelta(hours=1)  # others wait while one process writes a checkpoint
_TRACKER_EXTRAS = {"tensorboard": "track", "wandb": "wandb"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""What products are taken in under each precision."""


def make_accelerator(config: TrainConfig, folder: Path) -> Accelerator:
    """Joins the processes of the run.

    Raises:
        RunError: another number of processes, or another precision, is active than was asked for.
        UsageError: a precision that this device hasn't, or a tracker that isn't installed.
    """
    from accelerate import Accelerator, PartialState

    for tracker, extra in _TRACKER_EXTRAS.items():
        if tracker in config.log_with and importlib.util.find_spec(tracker) is None:
            raise UsageError(f"--log-with {tracker} needs an extra", next=f'pip install "nbllm[{extra}]"')
    # the launcher's word for the CPU; without it accelerate starts no process group where it sees no GPU
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("1", "true")
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    state = PartialState(cpu=on_cpu, **({"timeout": _COLLECTIVE_TIMEOUT} if several else {}))
    wanted = precision.choose(config.precision, state.device.type)
    accelerator = Accelerator(
        cpu=on_cpu,
        mixed_precision="no" if wanted == "fp32" else wanted,
        log_with=list(config.log_with) or None,
        project_dir=str(folder),
    )
    asked = int(os.environ.get("WORLD_SIZE", "1"))
    for count in {
        asked,
        accelerator.num_processes if config.processes == "auto" else config.processes * config.machines,
    }:
        if accelerator.num_processes != count:
            raise RunError(f"{count} processes were asked for, but {accelerator.num_processes} joined")
    if active_precision(accelerator) != wanted:
        raise RunError(f"{wanted} was asked for, but {active_precision(accelerator)} is active")
    return accelerator


def start_trackers(accelerator: Accelerator, config: TrainConfig, folder: Path) -> None:
    """Opens the trackers of the config in the run's folder; nothing leaves the machine unless the user says so.

    TensorBoard's files go to `nbllm/`, W&B's to `wandb/`, to be sent later by `wandb sync`.
    """
    os.environ.setdefault("WANDB_MODE", "offline")
    wandb = {"name": folder.name, "dir": str(folder)}
    # TensorBoard takes plain values only
    plain = {
        key: value if isinstance(value, (int, float, str)) else str(value) for key, value in config.as_json().items()
    }
    accelerator.init_trackers("nbllm", config=plain, init_kwargs={"wandb": wandb})


def active_precision(accelerator: Accelerator) -> str:
    """`fp32`, `bf16` or `fp16`, as accelerate has it."""
    return "fp32" if accelerator.mixed_precision == "no" else str(accelerator.mixed_precision)


def load_shards(config: TrainConfig, *, verify: bool = False) -> tuple[Store, Shards]:
    """The store and the shards that the config names; raises NotFoundError.

    Args:
        config: the run's.
        verify: read all of them, and raise StoreError where they aren't what was written; a run that begins has just
            made them or had them compared.
    """
    store = Store(config.store_root)
    shards = Shards.load(store, config.shards)
    if verify and shards.manifest is not None:
        try:
            store.verify(shards.manifest)
        except StoreError as error:
            raise StoreError(
                error.what,
                next="The line that began the run makes them again with --dry-run; then resume it",
            ) from error
    return store, shards


def load_tokenizer(config: TrainConfig, store: Store, shards: Shards) -> Tokenizer:
    """The tokenizer that made the shards, so that checkpoints carry it.

    Raises:
        NotFoundError: the shards name none, and the config neither.
        DataError: it is another one than the shards were made with.
    """
    from nbllm import tokenizer as room

    name = config.tokenizer
    if name is None:
        parents = shards.manifest.parents if shards.manifest else ()
        name = next((parent.name for parent in parents if parent.kind == "tokenizer"), None)
    if name is None:
        raise NotFoundError(f"The shards {shards.name} don't name their tokenizer", next="Train again from the corpus")
    tokenizer = room.load(store, name)
    if tokenizer.hash != shards.train.meta["tokenizer_hash"]:
        raise DataError(
            f"The shards {shards.name} were made with another tokenizer than {name}", next="Train again from the corpus"
        )
    return tokenizer


def make_model(
    config: TrainConfig, shards: Shards, checkpoint: Checkpoint | None, *, attention: str | None
) -> PreTrainedModel:
    """The model to train, in fp32 on the CPU: built, loaded, or as the checkpoint has it; with its adapter if one is
    trained.

    Args:
        config: the run's.
        shards: its data.
        checkpoint: to go on from.
        attention: transformers' name of the attention implementation; None: its choice.

    Raises:
        UsageError: a model that the data or the config doesn't fit.
    """
    meta = shards.train.meta
    if config.adapter is None and checkpoint is not None:
        model = load(checkpoint.path, attention=attention)
    elif config.model in PRESETS:
        model = build(
            config.model,
            vocab_size=meta["vocab_size"],
            max_length=config.seq_len + _virtual_tokens(config),
            bos_id=meta["bos_id"],
            eos_id=meta["eos_id"],
            pad_id=meta["pad_id"],
            seed=config.seed,
            attention=attention,
        )
    else:
        if is_adapter_folder(config.model):
            raise UsageError(
                "An adapter can't be trained on", received=config.model, next="Merge it first: %llm_adapter merge NAME"
            )
        model = load(config.model, attention=attention)
    _check_fit(model, config, meta)
    if config.adapter is not None:
        wanted = config.adapter
        adapters.create(
            model,
            r=wanted.r,
            alpha=wanted.alpha,
            dropout=wanted.dropout,
            targets=wanted.targets,
            method=wanted.method,
            width=wanted.width,
            virtual_tokens=wanted.virtual_tokens,
            seed=config.seed,
            base=_absolute(config.model),
        )
        if checkpoint is not None:
            adapters.load_weights(model, checkpoint.path)
    if is_masked(model):
        separate_documents(model)
    return model.train()


def _check_fit(model: PreTrainedModel, config: TrainConfig, meta: dict[str, Any]) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if meta["vocab_size"] > rows:
        raise UsageError(
            f"The tokenizer has {meta['vocab_size']:,} tokens, the model embeds {rows:,}",
            next="Use the model's own tokenizer",
        )
    longest = getattr(model.config, "max_position_embeddings", None)
    virtual = _virtual_tokens(config)
    if longest is not None and config.seq_len + virtual > longest:
        also = f", of which {virtual} are virtual" if virtual else ""
        raise UsageError(
            f"The model reads {longest:,} tokens at most{also}",
            received=config.seq_len,
            next=f"Use --seq-len {longest - virtual}",
        )


def _virtual_tokens(config: TrainConfig) -> int:
    """Positions before every text that an adapter takes."""
    adapter = config.adapter
    return adapter.virtual_tokens if adapter is not None and adapter.method in adapters.VIRTUAL else 0


def _absolute(model: str) -> str:
    path = Path(model).expanduser()
    return str(path.absolute()) if path.is_dir() else model


def check_precision(inner: LossModel, evaluated: nn.Module, accelerator: Accelerator) -> None:
    """Makes sure of the number format that the blocks compute in. A collective call.

    Raises:
        RunError: it isn't what was asked for.
    """
    bare = inner.model
    seen: set[torch.dtype] = set()  # virtual tokens may run through the blocks before the text does
    inside = [layer for _, layer in find_blocks(bare)[1].named_modules() if hasattr(layer, "weight")]
    # DeepSpeed leaves a weight that is elsewhere without a shape, and notes what it was
    watched = next(layer for layer in inside if len(getattr(layer.weight, "ds_shape", layer.weight.shape)) == 2)
    handle = watched.register_forward_hook(lambda _, __, output: seen.add(output.dtype))
    training = bare.training
    bare.eval()
    try:
        with torch.no_grad():
            ids = torch.ones(1, 2, dtype=torch.int64, device=accelerator.device)
            evaluated(ids, ids, torch.arange(2, device=accelerator.device)[None])
    finally:
        handle.remove()
        bare.train(training)
    expected = DTYPES[active_precision(accelerator)]
    if seen != {expected}:
        raise RunError(f"The blocks compute in {sorted(map(str, seen))}, where {expected} was asked for")
