"""What a training run is asked to do: one frozen dataclass, written as `config.json` in the run's folder.

Holds wishes (`auto`, None) as well as choices: the worker, who sees the device and the data, turns wishes into numbers
and writes what it chose into the run's first metrics line. Knows neither torch nor the store.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from nbllm.errors import UsageError, did_you_mean
from nbllm.train import attention
from nbllm.train.parallel.names import check_machines, check_plan

_CHOICES: dict[str, tuple[str, ...]] = {
    "objective": ("auto", "clm", "mlm"),
    "loss": ("ce", "focal"),
    "optimizer": ("auto", "adamw", "muon"),
    "schedule": ("cosine", "wsd", "linear", "constant"),
    "precision": ("auto", "fp32", "fp16", "bf16"),
    "attention": attention.KINDS,
    "fused": ("auto", "triton", "torch", "off"),
}
_TRACKERS = ("tensorboard", "wandb")


ADAPTER_METHODS = ("lora", "qlora", "dora", "ia3", "adapter", "prompt", "prefix")


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """The adapter that a fine-tuning trains in place of all weights."""

    method: str = "lora"
    """`lora`, `qlora` (on a base in 4 bits), `dora`, `ia3`, `adapter` (a bottleneck after each feed-forward), `prompt`
    or `prefix` (virtual tokens)."""
    r: int = 8
    """Rank of the update."""
    alpha: float = 16
    """The update is scaled by alpha / r."""
    dropout: float = 0.05
    """Share of the adapter's inputs that are dropped in training, 0 to 1 (1 excluded)."""
    targets: str | tuple[str, ...] = "auto"
    """Names of the linear layers that get an update; `auto`: all linear layers of the blocks."""

    width: int = 32
    """Of a bottleneck; read only with method `adapter`."""
    virtual_tokens: int = 20
    """How many; read only with methods `prompt` and `prefix`."""

    def __post_init__(self) -> None:
        if self.method not in ADAPTER_METHODS:
            near = did_you_mean(self.method, ADAPTER_METHODS) or f"It is one of {', '.join(ADAPTER_METHODS)}"
            raise UsageError("Unknown adapter method", received=self.method, next=near)
        _whole("width", self.width, least=1)
        _whole("virtual_tokens", self.virtual_tokens, least=1)
        _whole("r", self.r, least=1)
        if not self.alpha > 0 or not math.isfinite(self.alpha):
            raise UsageError("alpha must be above 0", received=self.alpha)
        if not 0 <= self.dropout < 1:
            raise UsageError("dropout must be from 0 to below 1", received=self.dropout)
        if isinstance(self.targets, list):
            object.__setattr__(self, "targets", tuple(self.targets))
        if isinstance(self.targets, str) and self.targets != "auto":
            names = tuple(name.strip() for name in self.targets.split(",") if name.strip())
            object.__setattr__(self, "targets", names)
        if not self.targets:
            raise UsageError("An adapter needs at least one target", next="Use --targets auto")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides what a run computes, and where its data is."""

    shards: str
    """Name of the token shards in the store."""
    store_root: str
    """The store's directory, absolute."""
    model: str = "llama-nano"
    """A preset, a folder with a transformers model, or a name on the hub."""
    tokenizer: str | None = None
    """Tokenizer of the shards: a name in the store or a folder; None: the one named in the shards' parents."""
    objective: Literal["auto", "clm", "mlm"] = "auto"
    """What is predicted: `clm`, the next token; `mlm`, hidden tokens; `auto`: as the model's architecture does."""
    loss: Literal["ce", "focal"] = "ce"
    """Cross-entropy, or focal loss (Lin et al. 2017, https://arxiv.org/abs/1708.02002)."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over the vocabulary, 0 to 1 (1 excluded)."""
    focal_gamma: float = 2.0
    """Exponent of the focal loss; read only with loss `focal`."""
    z_loss: float = 0.0
    """Weight of the squared log-partition (PaLM, https://arxiv.org/abs/2204.02311)."""
    steps: int | None = None
    """Optimizer steps. At most one of steps, epochs and tokens; none: one pass within about two minutes."""
    epochs: float | None = None
    """Passes over the training part."""
    tokens: int | None = None
    """Training tokens, rounded up to whole steps."""
    seq_len: int = 256
    """Tokens a row."""
    batch_size: int = 8
    """Rows a data-parallel rank and micro-step."""
    grad_accum: int = 1
    """Micro-steps an optimizer step."""
    optimizer: Literal["auto", "adamw", "muon"] = "auto"
    """`auto`: Muon for the matrices inside the blocks with AdamW for the rest; AdamW for adapters and for models
    that were trained before."""
    lr: float | None = None
    """Peak learning rate; None: by optimizer and width."""
    warmup: int | None = None
    """Steps of linear warm-up; None: a twentieth of the steps, 10 to 500."""
    schedule: Literal["cosine", "wsd", "linear", "constant"] = "cosine"
    """What follows the warm-up; wsd: constant, then down over the last fifth."""
    min_lr_ratio: float = 0.0
    """The schedule's end as a share of the peak, 0 to 1."""
    weight_decay: float = 0.1
    """Decoupled decay of the matrices inside the blocks (never of embeddings, norms, biases or adapters)."""
    precision: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    """`auto`: bf16 autocast where the device computes in it, else fp32."""
    processes: int | Literal["auto"] = "auto"
    """Processes, one a device; `auto`: every visible GPU, one on a CPU."""
    machines: int = 1
    """Machines that train one model; `processes` counts those of one machine."""
    rank: int = 0
    """Which of the machines this is, from 0."""
    main: str | None = None
    """HOST:PORT of the first machine, where all meet."""
    max_restarts: int = 0
    """How often a killed or failed process brings all of them back from the last checkpoint."""
    parallel: str = "ddp"
    """How processes share the work: a name of `nbllm.train.parallel.PLANS`."""
    offload: bool = False
    """With `zero2` and `zero3` on GPUs: optimizer state, and with 3 the weights, in the host's memory."""
    clip: float | None = 1.0
    """Largest global gradient norm; None or 0: not clipped."""
    held_out: float = 0.05
    """Share of the documents that the shards hold out; here for the record."""
    eval_every: int | None = None
    """Steps between held-out evaluations; None: about eight over the run; 0: only at the end."""
    save_every: int | None = None
    """Steps between checkpoints; None: about four over the run; 0: only at the end."""
    early_stop: int | None = None
    """Stop after that many evaluations without a better held-out loss."""
    log_with: tuple[str, ...] = ()
    """Trackers besides metrics.jsonl: `tensorboard`, `wandb` (offline unless WANDB_MODE says otherwise)."""
    seed: int = 0
    """Of the initial weights, the order of rows and the dropout."""
    compile: bool = False
    """Compile the blocks with torch.compile; evaluations and short batches run as they are."""
    checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    attention: Literal["auto", "sdpa", "flash", "flex", "eager"] = "auto"
    """Attention implementation; `auto`: sdpa where the model has it; `flash` and `flex` train on GPUs only."""
    fused: Literal["auto", "triton", "torch", "off"] = "auto"
    """Fused ops. `torch`: the loss without logits, in chunks of PyTorch; `triton`: that and the layers' norms, gates
    and rotary positions in Triton's kernels, on a GPU; `auto`: the first where the model has a plain linear head, the
    kernels where `%llm_bench --ops` found them faster on this GPU; `off`: all logits."""
    adapter: AdapterConfig | None = None
    """Train this adapter instead of all weights."""
    adapter_name: str | None = None
    """Name of the adapter in the store; None: the run's name."""
    keep: int = 3
    """Newest checkpoints kept; the best one stays besides."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise UsageError(
                    f"--{name} is one of {', '.join(choices)}", received=value, next=did_you_mean(str(value), choices)
                )
        for name in ("seq_len", "batch_size", "grad_accum", "keep"):
            _whole(name, getattr(self, name), least=1)
        for name in ("steps", "tokens", "early_stop"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), least=1)
        for name in ("warmup", "eval_every", "save_every"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), least=0)
        _whole("seed", self.seed, least=0)
        _whole("max_restarts", self.max_restarts, least=0)
        if self.processes != "auto":
            _whole("processes", self.processes, least=1)
        _whole("machines", self.machines, least=1)
        _whole("rank", self.rank, least=0)
        if isinstance(self.adapter, Mapping):
            object.__setattr__(self, "adapter", AdapterConfig(**self.adapter))
        check_machines(self.machines, self.rank, self.main)
        check_plan(
            self.parallel,
            optimizer=self.optimizer,
            precision=self.precision,
            compiled=self.compile,
            processes="auto" if self.processes == "auto" else self.processes * self.machines,
            adapter=None if self.adapter is None else self.adapter.method,
            offload=self.offload,
        )
        if self.seq_len < 2:
            raise UsageError("--seq-len must be at least 2", received=self.seq_len)
        given = [name for name in ("steps", "epochs", "tokens") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(
                "The length of a run is given once",
                received=" and ".join(f"--{name}" for name in given),
                next=f"Keep one, for example --{given[0]} {getattr(self, given[0])}",
            )
        if self.epochs is not None and not (self.epochs > 0 and math.isfinite(self.epochs)):
            raise UsageError("--epochs must be above 0", received=self.epochs)
        if self.lr is not None and not (self.lr > 0 and math.isfinite(self.lr)):
            raise UsageError("--lr must be above 0", received=self.lr, next="For example --lr 0.003")
        for name, low, high in (("label_smoothing", 0, 1), ("held_out", 0, 1)):
            if not low <= getattr(self, name) < high:
                raise UsageError(f"--{name.replace('_', '-')} must be from 0 to below 1", received=getattr(self, name))
        if not 0 <= self.min_lr_ratio <= 1:
            raise UsageError("--min-lr-ratio must be from 0 to 1", received=self.min_lr_ratio)
        for name in ("focal_gamma", "z_loss", "weight_decay", "clip"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise UsageError(f"--{name.replace('_', '-')} must be 0 or above", received=value)
        if isinstance(self.log_with, str):
            object.__setattr__(
                self, "log_with", tuple(part.strip() for part in self.log_with.split(",") if part.strip())
            )
        object.__setattr__(self, "log_with", tuple(self.log_with))
        for tracker in self.log_with:
            if tracker not in _TRACKERS:
                raise UsageError(
                    f"--log-with is one of {', '.join(_TRACKERS)}",
                    received=tracker,
                    next=did_you_mean(tracker, _TRACKERS),
                )

    def moved_to(self, root: Path) -> TrainConfig:
        """The same config for a store that lies at `root` now: paths that were below its old place are below the new
        one, so that a run goes on after its store was moved, renamed or handed over."""
        old = Path(self.store_root)
        if old == root:
            return self
        model = Path(self.model)
        inside = model.is_absolute() and model.is_relative_to(old)
        return replace(self, store_root=str(root), model=str(root / model.relative_to(old)) if inside else self.model)

    def as_json(self) -> dict[str, Any]:
        """The config as JSON values; `hash_value` of it is the content hash of a run."""
        value = asdict(self)
        value["log_with"] = list(self.log_with)
        if self.adapter is not None and not isinstance(self.adapter.targets, str):
            value["adapter"]["targets"] = list(self.adapter.targets)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TrainConfig:
        """The config that `as_json` wrote; raises UsageError for a field that this version doesn't know."""
        known = {item.name for item in fields(cls)}
        for name in value:
            if name not in known:
                raise UsageError(
                    "A training option that doesn't exist", received=name, next=did_you_mean(str(name), known)
                )
        for name in ("shards", "store_root"):
            if name not in value:
                raise UsageError(f"A training config without {name}")
        return cls(**value)


def _whole(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"--{name.replace('_', '-')} must be a whole number from {least}", received=value)
