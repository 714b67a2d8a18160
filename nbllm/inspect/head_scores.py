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
        self._ids = torch.tensor(list(token_ids))
        first: dict[int, int] = {}
        before = [at - first.setdefault(id, at) for at, id in enumerate(token_ids)]  # to the earliest occurrence
        count = len(before)
        # queries that have such a place; what follows the token just before is the token itself
        having = [count - 1, count - 1, sum(far > 0 for far in before), sum(far > 1 for far in before)]
        # a head's distance is a mean over all queries
        self._shares = torch.tensor([1 / queries if queries else torch.nan for queries in (*having, count)])
        self._columns: dict[tuple[int, int, int], Tensor] = {}

    def scores(self, weights: Tensor, entropies: Tensor, rows: slice, keys: slice) -> Tensor:
        """What a strip of maps adds to its heads' scores.

        Args:
            weights: float32 [h, q, k]; keys outside have none.
            entropies: float32 [h], nats, summed over the queries.
            rows, keys: where the strip lies in the maps.

        Returns:
            float32 [h, 6]: the four kinds, entropy (nats, mean over queries) and distance (tokens).
        """
        place = rows.start, keys.start, keys.stop
        if place not in self._columns:
            self._columns[place] = self._strip(rows, keys)
        found = (weights.flatten(1) @ self._columns[place]) * self._shares  # [h, 5]
        return torch.cat([found[:, :4], entropies[:, None] / len(self._ids), found[:, 4:]], dim=1)

    def _strip(self, rows: slice, keys: slice) -> Tensor:
        """Where each kind looks, and the distance, within a strip: float32 [q * k, 5]."""
        query, key = (torch.arange(part.start, part.stop) for part in (rows, keys))
        apart = query[:, None] - key[None, :]
        ids = self._ids[query][:, None]
        same = (ids == self._ids[key]) & (apart > 0)  # an earlier occurrence
        followed = (ids == self._ids[(key - 1).clamp(min=0)]) & (key > 0) & (apart > 0)
        first = (query[:, None] > 0) & (key == 0)
        columns = [apart == 1, first, same, followed, apart.abs()]
        return torch.stack([column.float().flatten() for column in columns], dim=1)


def entropy(weights: Tensor) -> Tensor:
    """Of maps [..., T, T]: the entropy of each query's row in nats, [..., T]."""
    return -torch.special.xlogy(weights, weights).sum(-1)
