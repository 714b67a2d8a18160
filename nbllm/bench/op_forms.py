"""The fused ops and what stands in their place elsewhere: the same computation in several forms, on the same inputs.

Forms: the models' own code (`eager`), the same under `torch.compile`, PyTorch's own op where it has one, ours as its
definition and in Triton, Liger's where it is installed and there is a GPU. Times nothing.

Shapes: N rows, D width, I width of the feed-forward, V vocabulary, H heads, K key heads, C head size, b bytes a number.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nbllm import ops


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """How large the inputs are."""

    rows: int
    loss_rows: int | None = None
    """Of the linear loss, whose products take long without a GPU; as many as the others by default."""
    width: int = 576
    inner: int = 1536
    vocabulary: int = 49_152
    heads: int = 9
    key_heads: int = 3
    head_size: int = 64

    @classmethod
    def of(cls, config: Any | None, *, device: str) -> Shapes:
        """A model's (None: SmolLM2-135M's), with as many rows as the device measures within about a minute.

        What a configuration doesn't name is SmolLM2-135M's too.
        """
        gpu = device.startswith("cuda")
        rows = {"rows": 16_384} if gpu else {"rows": 4096, "loss_rows": 512}
        if config is None:
            return cls(**rows)
        width = int(getattr(config, "hidden_size", cls.width))
        heads = int(getattr(config, "num_attention_heads", cls.heads))
        return cls(
            **rows,
            width=width,
            inner=int(getattr(config, "intermediate_size", None) or 4 * width),
            vocabulary=int(getattr(config, "vocab_size", cls.vocabulary)),
            heads=heads,
            key_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_size=int(getattr(config, "head_dim", None) or 2 * (width // heads // 2)),
        )


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way to compute an op."""

    name: str
    """`eager`, `compiled`, `PyTorch`, `nbllm`, `nbllm Triton`, `Liger`."""
    call: Callable[..., Any]
    """From the op's inputs, and what is fixed, to one tensor or several."""
    error: str | None = None
    """Why it can't be had here."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """One computation, forward and backward."""

    name: str
    """As in `nbllm.ops.KERNELS`, and `add_rms_norm`."""
    title: str
    inputs: tuple[Tensor, ...]
    """Those that get a gradient."""
    fixed: tuple[Tensor, ...] = ()
    """Those that get none: targets, or cos and sin."""
    rows_at: tuple[int | None, ...]
    """Which dimension of each of these counts rows; None: none does."""
    forms: tuple[Form, ...]
    bytes_moved: float
    """Forward and backward together, at least; 0 where the products count."""
    operations: float
    """Of its products; 0 where there are none."""
    shape: str


def make(shapes: Shapes, *, device: str, dtype: torch.dtype, compile: bool, only: Sequence[str] = ()) -> Iterator[Op]:
    """Makes the ops one after another, so that only one's inputs are held."""
    generator = torch.Generator().manual_seed(0)
    n, d, i, v = shapes.rows, shapes.width, shapes.inner, shapes.vocabulary
    size = torch.empty(0, dtype=dtype).element_size()

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        made = (torch.randn(*shape, generator=generator) * scale).to(device, dtype)
        return made.requires_grad_()

    gpu = device.startswith("cuda")
    for name in only or ("linear_loss", "add_rms_norm", "rms_norm", "swiglu", "rope"):
        if name == "linear_loss":
            m = shapes.loss_rows or n
            yield Op(
                name=name, title="linear layer + cross-entropy", inputs=(random(m, d), random(v, d, scale=d**-0.5)),
                fixed=(torch.randint(v, (m,), generator=generator).to(device),), rows_at=(0, None, 0),
                forms=_loss_forms(gpu, compile), bytes_moved=0.0, operations=6.0 * m * d * v,
                shape=f"{m:,} x {d:,}, vocabulary {v:,}",
            )  # fmt: skip
        elif name == "add_rms_norm":
            yield Op(
                name=name, title="residual add + RMSNorm", inputs=(random(n, d), random(n, d), random(d)),
                rows_at=(0, 0, None), forms=_add_norm_forms(gpu, compile), bytes_moved=8.0 * n * d * size,
                operations=0.0, shape=f"{n:,} x {d:,}",
            )  # fmt: skip
        elif name == "rms_norm":
            yield Op(
                name=name, title="RMSNorm", inputs=(random(n, d), random(d)), rows_at=(0, None),
                forms=_norm_forms(gpu, compile), bytes_moved=5.0 * n * d * size, operations=0.0,
                shape=f"{n:,} x {d:,}",
            )  # fmt: skip
        elif name == "swiglu":
            yield Op(
                name=name, title="SwiGLU", inputs=(random(n, i), random(n, i)), rows_at=(0, 0),
                forms=_gate_forms(gpu, compile), bytes_moved=8.0 * n * i * size, operations=0.0,
                shape=f"{n:,} x {i:,}",
            )  # fmt: skip
        else:
            h, k, c = shapes.heads, shapes.key_heads, shapes.head_size
            angles = torch.arange(n)[:, None] / 10_000 ** (torch.arange(c // 2) * 2 / c)
            both = torch.cat((angles, angles), -1)[None]
            yield Op(
                name=name, title="rotary positions", inputs=(random(1, h, n, c), random(1, k, n, c)),
                fixed=(both.cos().to(device, dtype), both.sin().to(device, dtype)), rows_at=(2, 2, 1, 1),
                forms=_turn_forms(gpu, compile), bytes_moved=4.0 * n * (h + k) * c * size, operations=0.0,
                shape=f"{n:,} x ({h} + {k}) x {c}",
            )  # fmt: skip


def _common(
    kernel: str, eager: Callable[..., Any], ours: Callable[..., Any], own: Callable[..., Any] | None, gpu: bool,
    compile: bool,
) -> list[Form]:  # fmt: skip
    forms = [Form(name="eager", call=eager)]
    if compile:
        forms.append(Form(name="compiled", call=torch.compile(eager, dynamic=False)))
    if own is not None:
        forms.append(Form(name="PyTorch", call=own))
    forms.append(Form(name="nbllm", call=_in(ours, ())))
    if gpu:
        forms.append(Form(name="nbllm Triton", call=_in(ours, (kernel,)), error=ops.triton_problem()))
    return forms


def _in(call: Callable[..., Any], kernels: tuple[str, ...]) -> Callable[..., Any]:
    """The call with just these kernels in Triton."""

    def chosen(*inputs: Tensor) -> Any:
        ops.use_triton(kernels)
        return call(*inputs)

    return chosen


def _liger(gpu: bool) -> bool:
    return gpu and importlib.util.find_spec("liger_kernel") is not None


def _loss_forms(gpu: bool, compile: bool) -> tuple[Form, ...]:
    def eager(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        logits = F.linear(hidden, weight)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(logits, targets, reduction="sum")

    def ours(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return ops.linear_cross_entropy(hidden, weight, targets).loss

    own = None
    if hasattr(F, "linear_cross_entropy"):

        def chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
            options = torch.nn.LinearCrossEntropyOptions()
            return F.linear_cross_entropy(hidden, weight, targets, reduction="sum", options=options)

        own = chunked
    forms = _common("linear_loss", eager, ours, own, gpu, compile)
    if _liger(gpu):
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss(reduction="sum")
        forms.append(Form(name="Liger", call=lambda hidden, weight, targets: liger(weight, hidden, targets)))
    return tuple(forms)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.to(torch.float32 if x.dtype != torch.float64 else x.dtype)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def _norm_forms(gpu: bool, compile: bool) -> tuple[Form, ...]:
    def own(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, 1e-6)

    forms = _common("rms_norm", _norm, ops.rms_norm, own, gpu, compile)
    if _liger(gpu):
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        forms.append(
            Form(name="Liger", call=lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False, None))
        )
    return tuple(forms)


def _add_norm_forms(gpu: bool, compile: bool) -> tuple[Form, ...]:
    def eager(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return _norm(total, weight), total

    def own(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return F.rms_norm(total, weight.shape, weight, 1e-6), total

    forms = _common("rms_norm", eager, ops.add_rms_norm, own, gpu, compile)
    if _liger(gpu):
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

        forms.append(
            Form(
                name="Liger",
                call=lambda x, r, w: LigerFusedAddRMSNormFunction.apply(x, r, w, 1e-6, 0.0, "llama", False),
            )
        )
    return tuple(forms)


def _gate_forms(gpu: bool, compile: bool) -> tuple[Form, ...]:
    def eager(gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    forms = _common("swiglu", eager, ops.swiglu, None, gpu, compile)
    if _liger(gpu):
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        forms.append(Form(name="Liger", call=LigerSiLUMulFunction.apply))
    return tuple(forms)


def _turn_forms(gpu: bool, compile: bool) -> tuple[Form, ...]:
    def half_turned(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)

    def eager(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        c, s = cos[:, None], sin[:, None]
        return q * c + half_turned(q) * s, k * c + half_turned(k) * s

    forms = _common("rope", eager, ops.rope, None, gpu, compile)
    if _liger(gpu):
        from liger_kernel.transformers.rope import liger_rotary_pos_emb

        # it turns its inputs where they lie, so that it gets copies, as it would keep a caller from using them again
        forms.append(Form(name="Liger", call=lambda q, k, c, s: liger_rotary_pos_emb(q.clone(), k.clone(), c, s)))
    return tuple(forms)
