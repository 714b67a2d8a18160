"""Dynamic masking for masked language models: which tokens of a row are hidden, drawn anew every epoch.

A row's masks depend on seed, epoch and row only, so that neither batch size nor number of processes changes them, and
a resumed run draws the same. Of the chosen tokens 80 % become the mask token, 10 % a random one and 10 % stay (Devlin
et al. 2019, https://arxiv.org/abs/1810.04805, section 3.1; drawn anew: Liu et al. 2019,
https://arxiv.org/abs/1907.11692). Knows ids; no tokenizer, no stream, no torch.

Legend: T inputs a row.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from nbllm.errors import UsageError

Int64 = NDArray[np.int64]
SHARE = 0.15
"""Share of the tokens that are to be predicted."""
_MASKED, _RANDOM = 0.8, 0.1
_TRAIN, _FIXED = 0, 1  # an evaluation's masks come from numbers of their own


class Masking:
    """How the tokens of a row are hidden.

    Args:
        mask_id: id of the mask token.
        vocab_size: V; random tokens are below it.
        special_ids: ids that are never hidden and never put in another's place.
        seed: of all draws.
        share: share of the tokens that are to be predicted, above 0 and at most 1.

    Raises:
        UsageError: a share out of its range, or nothing but special tokens.
    """

    def __init__(
        self, *, mask_id: int, vocab_size: int, special_ids: Iterable[int], seed: int = 0, share: float = SHARE
    ) -> None:
        if not 0 < share <= 1:
            raise UsageError("The share of masked tokens is above 0 and at most 1", received=share)
        self.mask_id = mask_id
        self.seed = seed
        self.share = share
        self._ordinary = np.ones(vocab_size, dtype=bool)
        self._ordinary[[*special_ids, mask_id]] = False
        self._ids = np.flatnonzero(self._ordinary)
        if not len(self._ids):
            raise UsageError("A vocabulary of nothing but special tokens can't be masked", received=vocab_size)

    def chosen(self, ids: Int64, *, row: int, epoch: int | None) -> NDArray[np.bool_]:
        """Which tokens of a row are to be predicted: each with probability `share`, and at least one where any may be.

        Args:
            ids: the row's ids, int64 [T].
            row: its number in the stream.
            epoch: the pass that it is in; None: the fixed masks of an evaluation.

        Returns:
            bool [T].
        """
        return self._chosen(ids, self._generator(row, epoch))

    def hide(self, ids: Int64, *, row: int, epoch: int | None) -> tuple[Int64, NDArray[np.bool_]]:
        """The row as the model reads it, int64 [T], and which tokens it is to predict, bool [T]."""
        generator = self._generator(row, epoch)
        chosen = self._chosen(ids, generator)
        places = np.flatnonzero(chosen)
        draws = generator.random(len(places))
        hidden = ids.copy()
        hidden[places[draws < _MASKED]] = self.mask_id
        swapped = places[(draws >= _MASKED) & (draws < _MASKED + _RANDOM)]
        hidden[swapped] = generator.choice(self._ids, size=len(swapped))
        return hidden, chosen

    def _generator(self, row: int, epoch: int | None) -> np.random.Generator:
        kind = (_FIXED, 0) if epoch is None else (_TRAIN, epoch)
        return np.random.Generator(np.random.PCG64([self.seed, *kind, row]))

    def _chosen(self, ids: Int64, generator: np.random.Generator) -> NDArray[np.bool_]:
        may = self._ordinary[ids]
        draws = generator.random(len(ids))
        chosen = may & (draws < self.share)
        if not chosen.any() and may.any():
            chosen[np.argmin(np.where(may, draws, np.inf))] = True
        return chosen
