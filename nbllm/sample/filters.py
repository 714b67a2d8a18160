"""What is done to the logits before a token is drawn: pure functions on [B, V], in the order of `pipeline`.

A token that is left out gets -inf. Where tokens tie, those with the lower id come first. Sources: top-k (Fan et al.
2018), top-p (Holtzman et al. 2019, https://arxiv.org/abs/1904.09751), min-p (Nguyen et al. 2024,
https://arxiv.org/abs/2407.01082), repetition penalty (Keskar et al. 2019, https://arxiv.org/abs/1909.05858, with the
sign handled, which the paper's formula gets wrong for negative logits).

Legend: B rows, V tokens of the vocabulary. Logits are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nbllm.sample.parameters import SamplingParameters

Filter = Callable[[Tensor], Tensor]
_TOLERANCE = 1e-7
"""Of a probability: what rounding in float32 logits can't tell apart."""
_FEW = 1024


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divides positive logits of tokens that were seen by the penalty, multiplies negative ones.

    Args:
        logits: [B, V].
        seen: whether a token stands in the row's prompt or text, bool [B, V].
        penalty: above 1 makes repetition less probable, below 1 more.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def scale_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Logits divided by a temperature above 0, after the largest is made 0, so that no temperature overflows."""
    return (logits - logits.amax(-1, keepdim=True)) / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keeps the k largest logits, exactly k of them; among equals at the border those with the lowest ids."""
    if k >= logits.shape[-1]:
        return logits
    return _keep_largest(logits, logits.topk(k, dim=-1).values, torch.full_like(logits[..., :1], k, dtype=torch.int64))


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the smallest set of most probable tokens whose probability reaches p; never fewer than one token."""
    total = logits.to(_exact(logits)).logsumexp(-1, keepdim=True)
    if logits.device.type == "cpu" and logits.shape[-1] > _FEW:
        # A few tokens nearly always have it all, and sorting everything costs ten times the rest. (On a GPU sorting is
        # cheap, and looking whether they have would wait for the device.)
        largest = logits.topk(_FEW, dim=-1).values
        if bool(((largest - total).exp().sum(-1) >= p).all()):
            return _keep_largest(logits, largest, _nucleus(largest, total, p))
    largest = logits.sort(dim=-1, descending=True).values
    return _keep_largest(logits, largest, _nucleus(largest, total, p))


def _nucleus(largest: Tensor, total: Tensor, p: float) -> Tensor:
    """How many of each row's largest logits have probability p together. int64 [B, 1]."""
    probabilities = (largest - total).exp()  # in the dtype of `total`
    before = probabilities.cumsum(-1) - probabilities
    return (before < p - _TOLERANCE).sum(-1, keepdim=True).clamp(min=1)


def _keep_largest(logits: Tensor, largest: Tensor, count: Tensor) -> Tensor:
    """Keeps so many of each row's largest logits; among equals at the border those with the lowest ids.

    Args:
        logits: [B, V].
        largest: at least so many of each row's largest, in descending order.
        count: int64 [B, 1].
    """
    border = largest.gather(-1, count - 1)
    equal = logits == border
    room = count - (largest > border).sum(-1, keepdim=True)
    return logits.masked_fill(~((logits > border) | (equal & (equal.cumsum(-1) <= room))), -math.inf)


def keep_min_p(logits: Tensor, min_p: float) -> Tensor:
    """Keeps tokens with at least min_p times the probability of the most probable one."""
    exact = logits.to(_exact(logits))
    border = exact.amax(-1, keepdim=True) + math.log(min_p) - _TOLERANCE
    return logits.masked_fill(exact < border, -math.inf)


def pipeline(parameters: SamplingParameters, seen: Tensor | None) -> list[tuple[str, Filter]]:
    """The filters that these settings switch on, by name, in their order.

    Args:
        parameters: the settings.
        seen: what `penalise_repetition` needs, where the penalty isn't 1.
    """
    filters: list[tuple[str, Filter]] = []
    penalty = parameters.repetition_penalty
    if penalty != 1 and seen is not None:
        filters.append(("repetition_penalty", lambda logits: penalise_repetition(logits, seen, penalty)))
    if parameters.is_greedy:
        return filters
    if parameters.temperature != 1:
        filters.append(("temperature", lambda logits: scale_temperature(logits, parameters.temperature)))
    if parameters.top_k:
        filters.append(("top_k", lambda logits: keep_top_k(logits, parameters.top_k)))
    if parameters.top_p < 1:
        filters.append(("top_p", lambda logits: keep_top_p(logits, parameters.top_p)))
    if parameters.min_p:
        filters.append(("min_p", lambda logits: keep_min_p(logits, parameters.min_p)))
    return filters


def _exact(logits: Tensor) -> torch.dtype:
    """float64 where the device has it: sums over 10^5 probabilities lose the border in float32."""
    return torch.float32 if logits.device.type == "mps" else torch.float64
