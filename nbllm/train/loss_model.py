"""A language model and the loss of its targets in one module, so that the logits needn't exist.

Called as one module, so that whatever wraps it (autocast, DistributedDataParallel, sharding, compile) sees the head's
weight used inside its forward pass. The fused form takes the decoder's hidden states and the head's weight (a masked
model's: those of the hidden tokens alone); it is used only where a small batch proves that this gives the model's own
loss. Knows nothing of optimizers or data.

Shapes: B rows, T positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nbllm.errors import UsageError
from nbllm.model import head_transform, is_masked
from nbllm.ops import IGNORED, linear_cross_entropy
from nbllm.train import attention
from nbllm.train.compiled import uncompiled
from nbllm.train.experts import ExpertBalance
from nbllm.train.losses import loss_sum

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOLERANCE = 1e-3
_PROOF_SHAPE = (2, 8)


class LossModel(nn.Module):
    """`(input ids, targets, positions) -> loss in nats, summed over the targets`.

    Args:
        model: the bare model, on its device or not.
        fused: `auto`, `torch` or `off`, as in the config.
        settings: `focal_gamma`, `label_smoothing` and `z_loss` of the training loss.

    Raises:
        UsageError: `torch` was asked for, and this model can't be trained so; says why.
    """

    def __init__(self, model: PreTrainedModel, *, fused: str, settings: dict[str, float]) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.balance = ExpertBalance(model)
        """What balances a mixture of experts; its loss is added in training."""
        self.softcap: float | None = getattr(model.config, "final_logit_softcapping", None)
        self.masked = is_masked(model)
        """Whether hidden tokens are predicted."""
        self._flattens = attention.flattens(model)
        self.compiled_for: tuple[int, int] | None = None
        """The shape (B, T) of the micro-batches that the blocks are compiled for; None: nothing is compiled."""
        self.fused = "off"
        """What is active: `torch` (the chunked linear loss) or `off` (all logits)."""
        self.why = "asked for"
        """Why."""
        if fused == "off":
            return
        problem = _head_problem(model) or self._difference()
        if problem and fused != "auto":
            raise UsageError(f"The fused loss can't be used: {problem}", received=fused, next="Use --fused auto")
        self.fused = "off" if problem else "torch"
        self.why = problem or ("asked for" if fused != "auto" else "the head is a linear layer, and the loss is equal")

    @property
    def linear_head(self) -> bool:
        """Whether the head looks like one whose loss needs no logits; a small batch hasn't proven it."""
        return _head_problem(self.model) is None

    def forward(
        self, input_ids: Tensor, targets: Tensor, positions: Tensor, factor: Tensor | None = None, plain: bool = False
    ) -> Tensor:
        """The loss of a batch, a scalar in fp32.

        Args:
            input_ids: [B, T] int64.
            targets: [B, T] int64, shifted already.
            positions: [B, T] int64.
            factor: scalar that the loss is multiplied by, inside the op, which spares a copy of the head's gradient.
            plain: cross-entropy, whatever the settings.
        """
        settings: dict[str, float] = {} if plain else self.settings
        usual = torch.is_grad_enabled() and input_ids.shape == self.compiled_for
        if self._flattens:  # [1, B * T]
            input_ids, targets, positions = (part.reshape(1, -1) for part in (input_ids, targets, positions))
        with uncompiled(self.compiled_for is not None and not usual), self.balance.watching():
            nats = self._nats(input_ids, targets, positions, factor, settings)
        balancing = None if plain else self.balance.loss_sum(targets != IGNORED)
        if balancing is None:
            return nats
        return nats + (balancing if factor is None else balancing * factor)

    def _nats(
        self, input_ids: Tensor, targets: Tensor, positions: Tensor, factor: Tensor | None, settings: dict[str, float]
    ) -> Tensor:
        """The loss of the targets alone."""
        if self.fused == "off":
            logits = self.model(input_ids=input_ids, position_ids=positions, use_cache=False).logits
            nats = loss_sum(logits, targets, **settings)
            return nats if factor is None else nats * factor
        if not self.masked:
            decoder = self.model.get_decoder()
            hidden = decoder(input_ids=input_ids, position_ids=positions, use_cache=False).last_hidden_state
            return self.from_hidden(hidden, targets, factor, settings)
        hidden = self.model.base_model(input_ids=input_ids, position_ids=positions).last_hidden_state  # [B, T, D]
        asked = targets != IGNORED  # about one row in seven: the others' part of the head is spared
        transform = head_transform(self.model)
        assert transform is not None
        return self.from_hidden(transform(hidden[asked]), targets[asked], factor, settings)

    def from_hidden(
        self, hidden: Tensor, targets: Tensor, factor: Tensor | None, settings: Mapping[str, float]
    ) -> Tensor:
        """The same, from the decoder's hidden states [B, T, D] on, without logits."""
        head = self.model.get_output_embeddings()
        weights = None if factor is None else factor.expand(targets.shape)
        return linear_cross_entropy(
            hidden,
            head.weight,
            targets,
            bias=head.bias,
            softcap=self.softcap,
            token_weights=weights,
            label_smoothing=settings.get("label_smoothing", 0.0),
            focal_gamma=settings.get("focal_gamma", 0.0),
            z_loss=settings.get("z_loss", 0.0),
        ).loss

    def _difference(self) -> str | None:
        """None where a small batch has the same loss both ways, else what is different."""
        device = next(self.model.parameters()).device
        vocabulary = int(self.model.get_input_embeddings().weight.shape[0])
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(vocabulary, _PROOF_SHAPE, generator=generator).to(device)
        positions = torch.arange(ids.shape[1], device=device).expand(ids.shape)
        training = self.model.training
        self.model.eval()
        found: dict[str, Any] = {}
        try:
            with torch.no_grad(), attention.everywhere(self.model):
                for self.fused in ("off", "torch"):
                    found[self.fused] = float(self(ids, ids.roll(-1, 1), positions))
        finally:
            self.fused = "off"
            self.model.train(training)
        if abs(found["torch"] - found["off"]) <= _TOLERANCE * abs(found["off"]):
            return None
        return "the model does more with its hidden states than a linear head"


def _head_problem(model: PreTrainedModel) -> str | None:
    """Why the head's weight can't be used alone; None where it can."""
    if is_masked(model) and head_transform(model) is None:
        return "what a masked model of this kind does before its last linear layer isn't known"
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        kind = type(head).__name__
        return f"the head is a {kind} with weights of its own (an adapter or a quantised layer), not a linear layer"
    if (model.base_model if is_masked(model) else model.get_decoder()) is model:
        return "the model has no decoder apart from its head"
    return None
