"""Mixtures of experts in training: the loss that keeps the router from always taking the same ones, and what it takes.

The balancing loss of a layer is E / k * sum over experts of f * p, with f the share of tokens' choices that go to an
expert, times k, and p the mean of the router's probability; it is 1 where all experts are used alike (Fedus et al.
2021, https://arxiv.org/abs/2101.03961, equations 4 to 6). The mean over the layers is weighed as the model's config
says (`router_aux_loss_coef`). Only tokens with a target count, so that padding doesn't.

Legend: N tokens of a batch, E experts, k experts a token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class ExpertBalance:
    """Watches the routers of one model, by hooks on its modules.

    Args:
        model: a model of transformers.
    """

    def __init__(self, model: nn.Module) -> None:
        routers = [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
        self.coefficient = float(getattr(model.config, "router_aux_loss_coef", 0.0) or 0.0) if routers else 0.0
        """Weight of the balancing loss; 0 for a model without experts."""
        self.experts = int(routers[0].num_experts) if routers else 0  # type: ignore[arg-type]
        """E, 0 for a model without experts."""
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._watching = False
        self._total: list[Tensor] = []
        for router in routers:
            router.register_forward_hook(self._watch)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Keeps what the routers say during one forward pass, and not what a backward pass computes again."""
        self._seen.clear()
        self._watching = self.experts > 0
        try:
            yield
        finally:
            self._watching = False

    def loss_sum(self, valid: Tensor) -> Tensor | None:
        """The weighed balancing loss of what was just watched, times the number of tokens that count; None without
        experts.

        Args:
            valid: bool [B, T], which tokens count.
        """
        if not self._seen:
            return None
        weights = valid.reshape(-1, 1).float()  # [N, 1]
        count = weights.sum().clamp(min=1.0)
        losses, shares = [], []
        for logits, indices in self._seen:
            k = indices.shape[-1]
            chosen = torch.zeros_like(logits, dtype=torch.float32).scatter_(1, indices, 1.0)  # [N, E]
            share = (chosen * weights).sum(0) / count / k  # [E], sums to 1
            probability = (logits.float().softmax(-1) * weights).sum(0) / count  # [E]
            losses.append(self.experts * (share * probability).sum())
            shares.append(share)
        self._seen.clear()
        loss = torch.stack(losses).mean() * self.coefficient * weights.sum()
        with torch.no_grad():
            summed = torch.stack(shares).mean(0) * weights.sum()
            self._total.append(torch.cat([loss.detach()[None], summed, weights.sum()[None]]))
        return loss

    def take(self) -> Tensor | None:
        """Since the last call: weighed loss, tokens of each expert and tokens, float [E + 2]; None without experts.

        A sum, to be added up over the processes.
        """
        if not self._total:
            return None
        total = torch.stack(self._total).sum(0)
        self._total.clear()
        return total

    def _watch(self, _: nn.Module, __: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
        if self._watching:
            logits, _scores, indices = output
            self._seen.append((logits, indices))
