"""The loss of next-token prediction, as a sum over targets, in plain PyTorch.

Sums, because the caller divides by the number of targets of the whole global batch: a mean a micro-batch would weigh
targets by where they happen to fall. The formula of one target stands in `nbllm.ops.token_losses`.

Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nbllm.ops import IGNORED, token_losses


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
    return token_losses(
        rows, flat, focal_gamma=focal_gamma, label_smoothing=label_smoothing, z_loss=z_loss, ignore_index=IGNORED
    ).sum()


def target_count(targets: Tensor) -> int:
    """How many positions of [B, T] are to be predicted."""
    return int((targets != IGNORED).sum())
