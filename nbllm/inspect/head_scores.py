"""What kind a head is of: how much of its attention goes where well-known kinds of heads look.

Previous-token, duplicate-token and induction heads: Elhage et al. 2021 (https://transformer-circuits.pub/2021/framework)
and Olsson et al. 2022 (https://arxiv.org/abs/2209.11895); attention to the first token: Xiao et al. 2023
(https://arxiv.org/abs/2309.17453). Knows arrays only.

Legend: T tokens (queries in rows, keys in columns), h heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KINDS = ("previous_token", "first_token", "duplicate_token", "induction")
"""The kinds, in the order of the columns."""


class Patterns:
    """Where each kind of head looks, for one text.

    previous_token: the token before. first_token: the text's first token, from every later one. duplicate_token:
    earlier occurrences of the same token. induction: tokens that followed earlier occurrences. The last two are means
    over those tokens that have such a place; NaN where none has.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        ids = torch.tensor(list(token_ids))
        count = len(ids)
        place = torch.arange(count)
        apart = place[:, None] - place[None, :]
        same = (ids[:, None] == ids[None, :]) & (apart > 0)  # an earlier occurrence
        followed = torch.zeros_like(same)
        followed[:, 1:] = same[:, :-1] & (apart[:, 1:] > 0)  # what came after it, but not the token itself
        first = (place[:, None] > 0) & (place[None, :] == 0)
        patterns = [self._mean(pattern) for pattern in (apart == 1, first, same, followed)]
        # a head's distance is a mean over all queries
        self._columns = torch.stack([*patterns, apart.abs().float() / max(count, 1)]).flatten(1)  # [5, T*T]

    @staticmethod
    def _mean(pattern: Tensor) -> Tensor:
        """Weights whose product with a map is the mean, over the queries that have such a place, of what goes there."""
        queries = int(pattern.any(dim=1).sum())
        return pattern.float() / queries if queries else torch.full(pattern.shape, torch.nan)

    def scores(self, weights: Tensor) -> Tensor:
        """Of maps float32 [h, T, T]: float32 [h, 6], the four kinds, entropy (nats, mean over queries) and distance
        (tokens)."""
        found = weights.flatten(1) @ self._columns.T  # [h, 5]
        return torch.cat([found[:, :4], entropy(weights).mean(-1, keepdim=True), found[:, 4:]], dim=1)


def entropy(weights: Tensor) -> Tensor:
    """Of maps [..., T, T]: the entropy of each query's row in nats, [..., T]."""
    return -torch.special.xlogy(weights, weights).sum(-1)
