"""The loss of each target from its logits, in plain PyTorch: the definition that the fused form is checked against.

One row, with z the logits, l = logsumexp z, n = l - z_y, q = 1 - e^-n, e the smoothing, g the focal exponent, c the
weight of the z-loss: loss = (1 - e) q^g n + e (l - mean z) + c l^2; cross-entropy is g = e = c = 0.
Sources: focal loss (Lin et al. 2017, https://arxiv.org/abs/1708.02002), label smoothing (Szegedy et al. 2016,
https://arxiv.org/abs/1512.00567), z-loss (PaLM, https://arxiv.org/abs/2204.02311).

Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

IGNORED = -100
"""The target of a position that is not to be predicted."""

TINY = 1e-12
"""The least q that is raised to a power: the slope of q^g at q = 0 isn't finite for g < 1."""


def token_losses(
    logits: Tensor,
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    focal_gamma: float = 0.0,
    z_loss: float = 0.0,
    ignore_index: int = IGNORED,
) -> Tensor:
    """The loss of each row in nats; 0 with zero gradients where the target is ignored.

    Args:
        logits: [N, V], any floating dtype.
        targets: [N] int64.
        label_smoothing: share e of the target spread over the vocabulary.
        focal_gamma: exponent g of the focal loss.
        z_loss: weight c of the squared log-partition.
        ignore_index: the target of rows that don't count.

    Returns:
        [N] in fp32 (float64 stays float64).
    """
    rows = logits if logits.dtype == torch.float64 else logits.float()
    valid = targets != ignore_index
    partition = rows.logsumexp(-1)  # [N]
    nats = partition - rows.gather(-1, torch.where(valid, targets, 0)[:, None])[:, 0]
    weight = (-torch.expm1(-nats)).clamp(min=TINY) ** focal_gamma if focal_gamma else 1.0
    loss = (1 - label_smoothing) * weight * nats
    if label_smoothing:
        loss = loss + label_smoothing * (partition - rows.mean(-1))
    if z_loss:
        loss = loss + z_loss * partition**2
    return torch.where(valid, loss, 0.0)
