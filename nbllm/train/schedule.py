"""The learning rate over a run, as a plain function of the step: nothing to save, so nothing to restore wrongly.

Sources: cosine decay (Loshchilov and Hutter 2016, https://arxiv.org/abs/1608.03983), warm-up, stable, decay (Hu et al.
2024, https://arxiv.org/abs/2404.06395).
"""

from __future__ import annotations

import math

_DECAY_SHARE = 0.2  # of the run, at the end of `wsd`


def lr_share(step: int, *, total_steps: int, warmup: int, schedule: str, min_ratio: float = 0.0) -> float:
    """The learning rate of a step as a share of the peak, in 0 to 1.

    Args:
        step: steps already taken, from 0; the rate returned is the one for the next step.
        total_steps: steps of the whole run.
        warmup: steps of linear rise; the first step takes 1 / warmup of the peak.
        schedule: `cosine`, `linear`, `wsd` or `constant`.
        min_ratio: the share that the end comes down to (`constant` doesn't come down).
    """
    warmup = min(warmup, total_steps)
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    start = max(warmup, total_steps - math.ceil(_DECAY_SHARE * total_steps)) if schedule == "wsd" else warmup
    if step < start:
        return 1.0
    done = min(1.0, (step - start + 1) / (total_steps - start + 1))
    fall = 0.5 * (1 + math.cos(math.pi * done)) if schedule == "cosine" else 1 - done
    return min_ratio + (1 - min_ratio) * fall
