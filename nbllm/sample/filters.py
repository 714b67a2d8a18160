"""What is done to the logits before a token is drawn: pure functions on [B, V], in the order of `pipeline`.

The order: penalties (repetition, presence, frequency), temperature, top-k, top-p, min-p, typical-p. Penalties change
what the model says, so they come first and also count where the most probable token is taken; then the temperature,
so that sets of a probability are those of what is drawn from; then the filters that leave tokens out, each over what
the one before left, as transformers has them.

A token that is left out gets -inf. Where tokens tie, those with the lower id come first. Sources: top-k (Fan et al.
2018), top-p (Holtzman et al. 2019, https://arxiv.org/abs/1904.09751), min-p (Nguyen et al. 2024,
https://arxiv.org/abs/2407.01082), typical-p (Meister et al. 2022, https://arxiv.org/abs/2202.00666), repetition penalty
(Keskar et al. 2019, https://arxiv.org/abs/1909.05858, with the sign handled, which the paper's formula gets wrong for
negative logits), presence and frequency penalty (OpenAI's API: of the new text alone).

Legend: P prompts, B rows, V tokens of the vocabulary. Logits are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nbllm.sample.parameters import SamplingParameters

Filter = Callable[[Tensor], Tensor]
_TOLERANCE = 1e-7
"""Of a probability: what rounding in float32 logits can't tell apart."""
_FEW = 1024
_STEPS = 2.0**20
"""Steps a nat: what rounding in float32 logits can't tell apart counts as equally surprising."""
_FARTHEST = 2.0**40
"""In such steps: of a token that is left out already."""


def count_tokens(rows: Sequence[Sequence[int]], vocab_size: int, device: torch.device) -> Tensor:
    """How often each token is in each row.

    Args:
        rows: ids, of any lengths, from 0 to V - 1.
        vocab_size: V.
        device: where the result goes.

    Returns:
        int64 [B, V].
    """
    counts = torch.zeros(len(rows), vocab_size, dtype=torch.int64)
    for count, ids in zip(counts, rows, strict=True):
        if len(ids):
            count += torch.tensor(ids).bincount(minlength=vocab_size)
    return counts.to(device)


@dataclass(kw_only=True, eq=False)
class Counts:
    """How often each token was there, for the penalties; grows with the rows."""

    all: Tensor
    """In prompt and text, int64 [B, V]."""
    text: Tensor
    """In the new text alone, int64 [B, V]."""

    @classmethod
    def start(cls, prompts: Sequence[Sequence[int]], n: int, vocab_size: int, device: torch.device) -> Counts:
        """Of texts that have no new token yet.

        Args:
            prompts: ids of each prompt, without padding.
            n: rows a prompt: row r is sample r % n of prompt r // n.
            vocab_size: V.
            device: where the counts are kept.
        """
        counts = count_tokens(prompts, vocab_size, device).repeat_interleave(n, 0)
        return cls(all=counts, text=torch.zeros_like(counts))

    def add(self, tokens: Tensor) -> None:
        """Counts a new token of every row, int64 [B]."""
        for counts in (self.all, self.text):
            counts.scatter_add_(1, tokens[:, None], torch.ones_like(tokens)[:, None])

    def select(self, places: Tensor) -> None:
        """Keeps these rows in this order; a row may come more than once. int64 [B']."""
        self.all, self.text = self.all[places], self.text[places]


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divides positive logits of tokens that were seen by the penalty, multiplies negative ones.

    Args:
        logits: [B, V].
        seen: whether a token stands in the row's prompt or text, bool [B, V].
        penalty: above 1 makes repetition less probable, below 1 more.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def penalise_presence(logits: Tensor, counts: Tensor, penalty: float) -> Tensor:
    """Takes the penalty off the logits of tokens that are in the new text.

    Args:
        logits: [B, V].
        counts: how often a token is in the row's new text, int64 [B, V].
        penalty: above 0 makes repetition less probable, below 0 more.
    """
    return logits - penalty * (counts > 0).to(logits.dtype)


def penalise_frequency(logits: Tensor, counts: Tensor, penalty: float) -> Tensor:
    """Takes the penalty off a token's logit for each time that it is in the new text; see `penalise_presence`."""
    return logits - penalty * counts.to(logits.dtype)


def scale_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Logits divided by a temperature above 0, after the largest is made 0, so that no temperature overflows; one that
    float32 can't hold counts as the smallest that it can."""
    return (logits - logits.amax(-1, keepdim=True)) / max(temperature, torch.finfo(torch.float32).tiny)


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


def keep_typical_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the most typical tokens until their probability reaches p; never fewer than one token.

    The most typical are those whose surprise, -log of the probability, is nearest to the entropy, which is the
    surprise to be expected.
    """
    logprobs = logits.to(_exact(logits)).log_softmax(-1)
    probabilities = logprobs.exp()
    entropy = torch.special.entr(probabilities).sum(-1, keepdim=True)
    distance = ((logprobs + entropy).abs() * _STEPS).round().clamp(max=_FARTHEST).long()
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    rank = distance * logits.shape[-1] + tokens  # no two alike
    if logits.device.type == "cpu" and logits.shape[-1] > _FEW:  # as for top-p
        order = rank.topk(_FEW, dim=-1, largest=False).indices
        if bool((probabilities.gather(-1, order).sum(-1) >= p).all()):
            return _keep_typical(logits, probabilities, order, p)
    return _keep_typical(logits, probabilities, rank.sort(dim=-1).indices, p)


def _keep_typical(logits: Tensor, probabilities: Tensor, order: Tensor, p: float) -> Tensor:
    """Keeps the first tokens of each row's order until their probability reaches p."""
    ranked = probabilities.gather(-1, order)
    keep = ranked.cumsum(-1) - ranked < p - _TOLERANCE
    keep[..., 0] = True
    return logits.masked_fill(~torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, keep), -math.inf)


def pipeline(parameters: SamplingParameters, counts: Counts | None) -> list[tuple[str, Filter]]:
    """The filters that these settings switch on, by name, in their order.

    Args:
        parameters: the settings.
        counts: what the penalties need, where one is on.
    """
    filters: list[tuple[str, Filter]] = []
    if counts is not None:
        filters.extend(_penalties(parameters, counts))
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
    if parameters.typical_p < 1:
        filters.append(("typical_p", lambda logits: keep_typical_p(logits, parameters.typical_p)))
    return filters


def _penalties(parameters: SamplingParameters, counts: Counts) -> list[tuple[str, Filter]]:
    filters: list[tuple[str, Filter]] = []
    repetition, presence = parameters.repetition_penalty, parameters.presence_penalty
    if repetition != 1:
        filters.append(("repetition_penalty", lambda logits: penalise_repetition(logits, counts.all > 0, repetition)))
    if presence:
        filters.append(("presence_penalty", lambda logits: penalise_presence(logits, counts.text, presence)))
    if frequency := parameters.frequency_penalty:
        filters.append(("frequency_penalty", lambda logits: penalise_frequency(logits, counts.text, frequency)))
    return filters


def _exact(logits: Tensor) -> torch.dtype:
    """float64 where the device has it: sums over 10^5 probabilities lose the border in float32."""
    return torch.float32 if logits.device.type == "mps" else torch.float64
