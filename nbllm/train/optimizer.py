"""The optimizers of a run: AdamW, or Muon for the matrices inside the blocks with AdamW for the rest.

Experts whose matrices lie in one stack are among the rest, decayed as matrices are: torch's Muon takes single ones.
Muon's update is scaled to the root mean square of AdamW's ("Muon is scalable for LLM training", Liu et al. 2025,
https://arxiv.org/abs/2502.16982), so that one learning rate serves both. Muon: Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon/.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from nbllm.errors import UsageError
from nbllm.model import block_parameters
from nbllm.train.parallel.clip import kind_of

_BETAS = (0.9, 0.95)


class Optimizers:
    """One or two optimizers that step together.

    Args:
        model: the bare model, not wrapped; only parameters that require a gradient are taken.
        kind: `muon` or `adamw`.
        weight_decay: decoupled decay of the matrices inside the blocks; everything else isn't decayed.

    Raises:
        UsageError: nothing to train.
    """

    def __init__(self, model: nn.Module, *, kind: str, weight_decay: float) -> None:
        blocks = block_parameters(model)
        self.names: dict[int, str] = {}
        matrices: list[nn.Parameter] = []
        stacks: list[nn.Parameter] = []  # of matrices, one an expert: Muon takes single ones only
        rest: list[nn.Parameter] = []
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                self.names[id(weight)] = name
                inside = id(weight) in blocks and weight.ndim in (2, 3)
                (rest if not inside else matrices if weight.ndim == 2 else stacks).append(weight)
        if not self.names:
            raise UsageError("This model has no weights to train", received=type(model).__name__)
        self.members: dict[str, torch.optim.Optimizer] = {}
        groups = _alike(rest, 0.0)
        if matrices and kind == "muon":
            self.members["muon"] = torch.optim.Muon(
                matrices, lr=0.0, weight_decay=weight_decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"
            )
        else:
            stacks = matrices + stacks
        groups += _alike(stacks, weight_decay)
        if groups:
            fused = all(weight.device.type in ("cpu", "cuda") for weight in (*matrices, *stacks, *rest))
            self.members["adamw"] = torch.optim.AdamW(groups, lr=0.0, betas=_BETAS, fused=fused)

    def __iter__(self) -> Iterator[torch.optim.Optimizer]:
        return iter(self.members.values())

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Every parameter that is trained."""
        return [weight for member in self for group in member.param_groups for weight in group["params"]]

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate of the next step."""
        for member in self:
            for group in member.param_groups:
                group["lr"] = lr

    def zero_grad(self) -> None:
        """Drops all gradients."""
        for member in self:
            member.zero_grad(set_to_none=True)


def _alike(weights: list[nn.Parameter], weight_decay: float) -> list[dict[str, object]]:
    """Groups that one fused step can take: ordinary tensors don't mix with cut ones."""
    kinds: dict[object, list[nn.Parameter]] = {}
    for weight in weights:
        kinds.setdefault(kind_of(weight), []).append(weight)
    return [{"params": group, "weight_decay": weight_decay} for group in kinds.values()]


def choose(wanted: str, *, fresh: bool, parallel: str) -> str:
    """`muon` or `adamw` for `auto`, else what was wanted: Muon for new models whose matrices no plan cuts."""
    if wanted != "auto":
        return wanted
    return "muon" if fresh and parallel == "ddp" else "adamw"


def default_lr(*, kind: str, width: int, adapter: bool, trained: bool, virtual: bool = False) -> float:
    """A peak learning rate that works where none was given.

    From experience on small models, carried to wider ones as 1 / width (Yang et al. 2022,
    https://arxiv.org/abs/2203.03466): 0.01 for Muon and 0.003 for AdamW at width 128 to 256.

    Args:
        kind: `muon` or `adamw`.
        width: D of the model.
        adapter: only an adapter is trained.
        trained: the model has been trained before.
        virtual: the adapter is virtual tokens, few numbers that every gradient goes through: ten times as much.
    """
    peak = (0.01 if kind == "muon" else 0.003) * min(1.0, 256 / width)
    if adapter:
        return 10 * peak if virtual else peak
    return peak / 10 if trained else peak
