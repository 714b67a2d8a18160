"""The loss of next-token prediction, as a sum over targets, in plain PyTorch.

Sums, because the caller divides by the number of targets of the whole global batch: a mean a micro-batch would weigh
targets by where they happen to fall. One row, with z the logits, n = logsumexp z - z_y, q = 1 - e^-n:
loss = (1 - e) q^g n + e (logsumexp z - mean z) + c logsumexp(z)^2; cross-entropy is g = 0. Sources: focal loss (Lin et
al. 2017, https://arxiv.org/abs/1708.02002), z-loss (PaLM, https://arxiv.org/abs/2204.02311).

Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""The target of a position that is not to be predicted."""

_TINY = 1e-12  # below it, the slope of q^g at q = 0 isn't finite for g < 1


def loss_sum(
    logits: Tensor, targets: Tensor, *, focal_gamma: float = 0.0, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Tensor:
    """The loss in nats, summed over the targets that aren't ignored; 0 with zero gradients where all are.

    Args:
        logits: [B, T, V], any floating dtype; the sum is taken in fp32 (float64 stays float64).
        targets: [B, T] int64; already shifted, so that `targets[b, t]` is predicted by `logits[b, t]`.
        focal_gamma: exponent g of the focal loss; 0 is cross-entropy.
        label_smoothing: share e of the target spread over the vocabulary.
        z_loss: weight c of the squared log-partition.

    Returns:
        A scalar in fp32 (or float64).
    """
    rows = logits.reshape(-1, logits.shape[-1])  # [B*T, V]
    rows = rows if rows.dtype == torch.float64 else rows.float()
    flat = targets.reshape(-1)  # [B*T]
    if focal_gamma == 0 and z_loss == 0:
        return F.cross_entropy(rows, flat, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing)
    valid = flat != IGNORED
    partition = rows.logsumexp(-1)  # [B*T]
    nats = partition - rows.gather(-1, flat.clamp(min=0)[:, None])[:, 0]
    weight = (-torch.expm1(-nats)).clamp(min=_TINY) ** focal_gamma if focal_gamma else 1.0
    loss = (1 - label_smoothing) * weight * nats
    if label_smoothing:
        loss = loss + label_smoothing * (partition - rows.mean(-1))
    if z_loss:
        loss = loss + z_loss * partition**2
    return torch.where(valid, loss, 0.0).sum()


def target_count(targets: Tensor) -> int:
    """How many positions of [B, T] are to be predicted."""
    return int((targets != IGNORED).sum())
