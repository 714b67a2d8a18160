"""Which of a run's ops are Triton's kernels, and which layers of its model use them.

Chooses, patches the model and says what is active and why; whether the loss makes logits is the loss model's own
matter. Doesn't measure: `%llm_bench --ops` does, and what it found faster on this GPU is what `auto` takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from nbllm import ops
from nbllm.errors import UsageError
from nbllm.model import patch

_PLANS = ("ddp", "fsdp")
"""Plans that leave the tensors inside a block whole while it computes, of those the kernels were checked under."""


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """What a run took."""

    loss: bool
    """Whether the loss, where it is made without logits, runs in Triton."""
    layers: tuple[str, ...]
    """Ops that the layers use, such as `swiglu in 30 LlamaMLP`; none: the model's own code."""
    why: str
    """Why, in a few words."""

    def event(self, form: str, why: str) -> dict[str, Any]:
        """The fields of the run's start line.

        Args:
            form: how the loss is made, `torch` or `off`.
            why: why so.
        """
        form = "triton" if self.loss and form == "torch" else form
        loss = {"off": "all logits", "torch": "loss without logits in PyTorch"}.get(
            form, "loss without logits in Triton"
        )
        layers = f"{', '.join(self.layers)} in Triton" if self.layers else "layers the model's own"
        return {
            "fused": form,
            "fused_why": why,
            "fused_layers": list(self.layers),
            "kernels_why": self.why,
            "fused_summary": f"{loss} ({why}), {layers} ({self.why})",
        }


def choose(model: nn.Module, *, fused: str, parallel: str = "ddp") -> Kernels:
    """Chooses the process's kernels and patches the model.

    Args:
        model: the bare model on its device, before any plan wraps it.
        fused: `auto`, `triton`, `torch` or `off`, as in the config.
        parallel: the plan's name.

    Raises:
        UsageError: `triton` was asked for and can't be had; says why.
    """
    ops.use_triton(())
    if fused in ("off", "torch"):
        return Kernels(loss=False, layers=(), why="asked for")
    device = _device(model)
    problem = ops.triton_problem() if device == "cuda" else "no GPU" if device == "cpu" else f"no kernels for {device}"
    if problem is None and parallel not in _PLANS:
        problem = f"they aren't proven under --parallel {parallel}"
    if problem and fused == "triton":
        raise UsageError(f"Triton's kernels can't be used: {problem}", received=fused, next="Use --fused auto")
    if problem:
        return Kernels(loss=False, layers=(), why=problem)
    wanted = frozenset(ops.KERNELS) if fused == "triton" else ops.faster_here()
    if wanted is None:
        return Kernels(loss=False, layers=(), why="not yet measured on this GPU: %llm_bench --ops")
    if not wanted:
        return Kernels(loss=False, layers=(), why="%llm_bench --ops found none faster on this GPU")
    ops.use_triton(wanted)
    found = patch(model, ops=sorted(wanted - {"linear_loss"}))
    left = "; ".join(f"{kind} left alone: {reason}" for kind, reason in found.left.items())
    why = "asked for" if fused == "triton" else "measured as faster on this GPU"
    layers = tuple(f"{taken.op} in {taken.modules} {taken.kind}" for taken in found.taken)
    return Kernels(loss="linear_loss" in wanted, layers=layers, why=f"{why}; {left}" if left else why)


def _device(model: nn.Module) -> str:
    return next(model.parameters()).device.type
