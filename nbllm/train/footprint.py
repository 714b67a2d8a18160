"""What a training run will hold in memory on each device, by kind, worked out without running it.

Activations are found, not guessed: the forward pass runs on tensors that have shapes but no numbers (torch's fake
tensors), and what autograd keeps for the backward pass is added up. A model whose forward pass looks at numbers (a
router of experts) runs one real row instead. Weights, gradients and optimizer state are counted. Plans over processes
are divided as their files say; those sums are worked out, not yet measured on a GPU.

Shapes: B rows, T positions, D width, V vocabulary.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nbllm.model import PRESETS, build, find_blocks, head_transform, is_masked
from nbllm.shards import SHARE
from nbllm.train.config import TrainConfig
from nbllm.train.forecast import Memory
from nbllm.train.loss_model import LossModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FP32 = 4  # bytes of a weight, and of a gradient
_CHUNK_ELEMENTS, _CHUNK_ROWS = 2**24, 2048  # of the loss without logits
_ADAMW_STATE, _MUON_STATE = 8, 4  # bytes a weight
_REST_SHARE = 0.4  # of activations and logits, on a CPU: freed pieces that stay in the heap, as measured here
_TENSOR_PARTS = 2  # of the plan fsdp,tp


def empty_model(config: TrainConfig, meta: dict[str, Any]) -> PreTrainedModel:
    """The run's model as it is built or loaded, without numbers where it is made under fake tensors."""
    attention = None if config.attention in ("auto", "flash", "flex") else config.attention
    if config.model in PRESETS:
        return build(
            config.model,
            vocab_size=meta["vocab_size"],
            max_length=config.seq_len,
            bos_id=meta["bos_id"],
            eos_id=meta["eos_id"],
            pad_id=meta["pad_id"],
            seed=config.seed,
            attention=attention,
        )
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    shape = AutoConfig.from_pretrained(config.model)
    kind = AutoModelForMaskedLM if is_masked(shape) else AutoModelForCausalLM
    extra = {"attn_implementation": attention} if attention else {}
    made: PreTrainedModel = kind.from_config(shape, dtype=torch.float32, **extra)
    return made


class Footprint:
    """The memory of one config, and of that config with other batches, checkpointing or plans.

    Args:
        config: the run's.
        meta: of the shards: `vocab_size` and the special ids.
        precision: `fp32`, `bf16` or `fp16`, settled.
        optimizer: `adamw` or `muon`, settled.
        processes: of all machines.
        base_bytes: what a process holds before it has a model.
        device_type: `cpu`, `cuda` or `mps`.
    """

    def __init__(
        self,
        config: TrainConfig,
        meta: dict[str, Any],
        *,
        precision: str,
        optimizer: str,
        processes: int,
        base_bytes: int,
        device_type: str,
    ) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.meta, self.optimizer, self.processes = meta, optimizer, processes
        self.base_bytes, self.device_type = base_bytes, device_type
        self.rest_share = _REST_SHARE if device_type == "cpu" else 0.0
        """What the allocator holds besides, as a share of activations and logits."""
        self._kept: dict[tuple[str, bool, bool, int], int] = {}
        self._fake = FakeTensorMode()
        with self._fake:
            model = empty_model(config, meta)
        blocks = find_blocks(model)[1]
        inside = {id(weight): weight for weight in blocks.parameters()}
        self.parameters = sum(weight.numel() for weight in model.parameters())
        self.embedded = model.get_input_embeddings().weight.numel()
        self.width = int(model.get_input_embeddings().weight.shape[1])
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self.layers = len(blocks)
        self.inside = sum(weight.numel() for weight in inside.values())
        self.matrices = sum(weight.numel() for weight in inside.values() if weight.ndim == 2)
        self.fused = LossModel(model, fused="off", settings={}).linear_head
        self._model = model
        self.precision = precision

    def memory(self, config: TrainConfig) -> Memory:
        """What each device holds with that config; its model and optimizer are this footprint's.

        Args:
            config: may differ in batch, accumulation, checkpointing, precision and plan.
        """
        precision = self.precision if config.precision == "auto" else config.precision
        fused = config.fused != "off" and self.fused
        kept, block = self._activations(config, precision, fused=fused)
        weights, gradients, state = self._state(config, self.processes)
        logits = self._logits(config, precision, fused=fused)
        rows = config.batch_size
        if config.parallel == "pp":
            # micro-batches wait for their backward pass: as many as there are stages, of all rows of the step
            count = max(config.grad_accum, self.processes)
            rows = math.ceil(config.batch_size * config.grad_accum / count) * min(self.processes, count)
            kept = kept * math.ceil(self.layers / self.processes) // self.layers
        activations = kept * rows + (block * rows if config.checkpointing else 0)
        return Memory(
            base=self.base_bytes,
            weights=weights,
            gradients=gradients,
            optimizer=state,
            activations=activations,
            logits=logits,
            rest=int(self.rest_share * (activations + logits)),
            # one micro-step alone makes its gradients while the activations go
            gradients_first=config.grad_accum > 1,
        )

    def learn_rest(self, config: TrainConfig, held_bytes: int) -> None:
        """Takes what one process truly held in a few plain steps of one micro-step each for what isn't counted."""
        self.rest_share = 0.0
        alone = replace(config, parallel="ddp", processes=1, machines=1, rank=0, main=None, grad_accum=1)
        weights, _, state = self._state(alone, 1)
        found = self.memory(alone)
        counted = self.base_bytes + weights + state + found.activations + found.logits
        self.rest_share = max(0.0, held_bytes - counted) / (found.activations + found.logits)

    def flops(self, config: TrainConfig) -> float:
        """Of one micro-step's forward and backward pass: 6 operations a weight and token, and attention's."""
        tokens = config.batch_size * config.seq_len
        head = self._model.get_output_embeddings()
        looked_up = head is not None and head.weight is not self._model.get_input_embeddings().weight
        active = self.parameters - (self.embedded if looked_up else 0)
        return tokens * (6.0 * active + 12.0 * self.layers * config.seq_len * self.width / 2)

    def _state(self, config: TrainConfig, parts: int) -> tuple[int, int, int]:
        """Bytes of weights, gradients and optimizer state on the fullest device."""
        outside = self.parameters - self.inside
        if config.parallel == "ddp":
            muon = self.matrices if self.optimizer == "muon" else 0
            state = _MUON_STATE * muon + _ADAMW_STATE * (self.parameters - muon)
            # the buckets in which gradients are exchanged are as large again
            return _FP32 * self.parameters, _FP32 * self.parameters * (2 if parts > 1 else 1), state
        if config.parallel == "zero2":
            state = 0 if config.offload else (_FP32 + _ADAMW_STATE) * self.parameters // parts  # with its own weights
            return _FP32 * self.parameters, _FP32 * self.parameters // parts, state
        if config.parallel == "tp":
            held = outside + self.inside - self.matrices + self.matrices // parts
            return _FP32 * held, _FP32 * held, _ADAMW_STATE * held
        if config.parallel == "pp":
            held = math.ceil(self.layers / parts) * (self.inside // self.layers) + outside
            return _FP32 * held, _FP32 * held, _ADAMW_STATE * held
        held, gathered = self.parameters / parts, outside + 2 * self.inside / self.layers
        if config.parallel == "fsdp,tp":
            gathered = outside + 2 * self.inside / self.layers / _TENSOR_PARTS
        return (
            int(_FP32 * (held + gathered)),
            int(_FP32 * (held + self.inside / self.layers + outside)),
            0 if config.offload else int(_ADAMW_STATE * held),
        )

    def _logits(self, config: TrainConfig, precision: str, *, fused: bool) -> int:
        rows = config.batch_size * config.seq_len
        if not fused:
            return 3 * _FP32 * rows * self.vocabulary  # log-probabilities, and two gradients of them
        chunk = max(1, min(_CHUNK_ROWS, _CHUNK_ELEMENTS // self.vocabulary, rows)) * self.vocabulary
        if precision == "fp32":
            return _FP32 * chunk
        return (_FP32 + 2) * chunk + 2 * self.vocabulary * self.width

    def _activations(self, config: TrainConfig, precision: str, *, fused: bool) -> tuple[int, int]:
        """Bytes a row that are kept for the backward pass, and those of one block that are made again there."""
        whole = self._row_bytes(config, precision, fused=fused, checkpointing=False)
        if not config.checkpointing:
            return whole, 0
        kept = self._row_bytes(config, precision, fused=fused, checkpointing=True)
        return kept, (whole - kept) // self.layers

    def _row_bytes(self, config: TrainConfig, precision: str, *, fused: bool, checkpointing: bool) -> int:
        small, large = (
            self._bytes(config, precision, fused=fused, checkpointing=checkpointing, rows=n) for n in (2, 6)
        )
        slope = (large - small) // 4
        # what doesn't grow with the rows (weights in bf16, the head's gradient) is spread over them
        return slope + (small - 2 * slope) // max(1, config.batch_size)

    def _bytes(self, config: TrainConfig, precision: str, *, fused: bool, checkpointing: bool, rows: int) -> int:
        key = (precision, fused, checkpointing, rows)
        if key in self._kept:
            return self._kept[key]
        model = self._model
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        try:
            try:
                with self._fake:
                    found = kept_bytes(model, rows, config.seq_len, precision, self.device_type, fused=fused)
            except Exception:  # whatever the model does with numbers that aren't there: then with numbers
                real = empty_model(replace(config, batch_size=1), self.meta).train()
                if checkpointing:
                    real.gradient_checkpointing_enable({"use_reentrant": False})
                found = kept_bytes(real, rows, config.seq_len, precision, self.device_type, fused=fused)
        finally:
            if checkpointing:
                model.gradient_checkpointing_disable()
        self._kept[key] = found
        return found


def kept_bytes(model: PreTrainedModel, rows: int, length: int, precision: str, device_type: str, *, fused: bool) -> int:
    """Bytes that autograd keeps of one forward pass with loss over [rows, length], parameters left out.

    Logits of a loss that needs all of them are left out too: they are a kind of their own.
    """
    model.train()
    own = {weight.untyped_storage()._cdata for weight in model.parameters()}
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        is_logits = tensor.ndim >= 2 and tensor.shape[-1] == vocabulary and tensor.numel() == rows * length * vocabulary
        if storage._cdata not in own and not is_logits:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.bfloat16)
    ids = torch.zeros(rows, length, dtype=torch.int64)
    with (
        _whole_mask(model, rows, length),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype, enabled=precision != "fp32"),
    ):
        loss = _loss(model, ids, fused=fused)
        found = sum(kept.values())
    del loss
    return found


def _loss(model: PreTrainedModel, ids: Tensor, *, fused: bool) -> Tensor:
    whole = LossModel(model, fused="off", settings={})
    if not fused:
        return whole(ids, ids, ids, torch.ones(()))
    if not is_masked(model):
        whole.fused = "torch"
        return whole(ids, ids, ids, torch.ones(()))
    # how many tokens are hidden is a number, which fake tensors don't have
    hidden = model.base_model(input_ids=ids, position_ids=ids).last_hidden_state  # [B, T, D]
    asked = math.ceil(SHARE * ids.numel())
    transform = head_transform(model)
    assert transform is not None
    rows = transform(hidden.reshape(-1, hidden.shape[-1])[:asked])
    return whole.from_hidden(rows, ids.reshape(-1)[:asked], torch.ones(()), {})


@contextlib.contextmanager
def _whole_mask(model: PreTrainedModel, rows: int, length: int) -> Iterator[None]:
    """The mask of packed rows given ready made, since making it looks at the positions' numbers."""
    eager = model.config._attn_implementation == "eager"
    mask = torch.zeros(rows, 1, length, length, dtype=torch.float32 if eager else torch.bool)

    def give(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**kwargs, "attention_mask": mask}

    handle = model.base_model.register_forward_pre_hook(give, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
