"""The decode loop: prefill the prompts once, then one token a row and step, on the device.

It deals in ids only; text, stop texts and streaming are the caller's (`engine`), who says which rows have ended.
Prompts of different lengths are padded on the left, so that the last position is everyone's newest; padding is masked
and positions are counted without it, so that a row doesn't depend on its neighbours. One transfer to the host a step.

Legend: P prompts, n samples a prompt, B rows still going (row r is sample r % n of prompt r // n), T padded prompt
length, S ids so far, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nbllm.errors import DataError
from nbllm.sample.filters import Counts, pipeline
from nbllm.sample.forward import Forward, can_select
from nbllm.sample.noise import gumbel, sample_keys
from nbllm.sample.parameters import SamplingParameters
from nbllm.sample.trace import Recorder


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A token that was chosen."""

    row: int
    """For which row."""
    token: int
    """Its id."""
    logprob: float
    """Logarithm of its probability under the model, before any filter."""


class DecodeLoop:
    """Decoding of a batch: call `step`, then `drop` the rows that ended, until `rows` is empty.

    Args:
        forward: the model.
        prompts: ids of each prompt, at least one.
        parameters: the settings; how many tokens are made is up to the caller.
        use_cache: keep keys and values; without, every step computes everything again (slow, for checking).
        recorder: takes each step's alternatives, if they are wanted.
    """

    def __init__(
        self,
        forward: Forward,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters,
        *,
        use_cache: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        self._forward = forward
        self._parameters = parameters
        self._recorder = recorder
        self._cache = forward.new_cache() if use_cache and forward.caches else None
        self.rows: list[int] = list(range(len(prompts) * parameters.n))
        """The rows still going, in the order they have in the batch."""
        self._running: list[int] = self.rows  # rows of the tensors: some may have ended where a cache can't drop them
        self._tokens: Tensor | None = None  # the last step's, int64 [B]
        lengths = [len(prompt) for prompt in prompts]
        longest, device = max(lengths), forward.device
        # on the host first: one transfer, not one a prompt
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - length) + [1] * length for length in lengths])
        self._ids = ids.to(device)  # int64 [P, T], later [B, S]
        self._mask = mask.to(device) if min(lengths) < longest else None  # int64, as ids
        self._positions = (mask.cumsum(-1) - 1).clamp_(min=0).to(device)  # int64, as ids
        # place of the next token in its own text, int64 [B]
        self._next = torch.tensor(lengths).repeat_interleave(parameters.n).to(device)
        samples = torch.arange(parameters.n).repeat(len(prompts)).to(device)
        self._keys = sample_keys(parameters.seed, samples)  # int64 [B]
        self._counts: Counts | None = None
        if parameters.penalises:
            self._counts = Counts.start(prompts, parameters.n, forward.vocab_size, device)

    @torch.no_grad()
    def step(self) -> list[Choice]:
        """Chooses the next token of every row that is still going.

        Raises:
            DataError: the model's logits aren't numbers.
        """
        logits = self._prefill() if self._tokens is None else self._advance(self._tokens)  # [B, V]
        tokens, filtered = self._choose(logits)
        logprobs = (logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)).clamp(max=0.0)  # NaN stays NaN
        self._tokens = tokens
        # ids and the bits of the floats in one transfer, the only one of this step
        packed = torch.stack([tokens, logprobs.view(torch.int32).long()]).cpu().numpy()
        numbers = packed[1].astype(np.int32).view(np.float32).tolist()
        if not all(math.isfinite(number) for number in numbers):
            raise DataError("The model's logits aren't finite numbers", next="Load it as fp32, or an older checkpoint")
        if self._recorder is not None:
            self._recorder.add(self._running, logits, filtered, tokens)
        going = set(self.rows)
        return [
            Choice(row=row, token=token, logprob=number)
            for row, token, number in zip(self._running, packed[0].tolist(), numbers, strict=True)
            if row in going
        ]

    def drop(self, ended: Collection[int]) -> None:
        """Takes rows out of the batch."""
        if not ended:
            return
        self.rows = [row for row in self.rows if row not in ended]
        if not self.rows or self._tokens is None or (self._cache is not None and not can_select(self._cache)):
            return
        left = [place for place, row in enumerate(self._running) if row not in ended]
        self._running = [self._running[place] for place in left]
        places = torch.tensor(left).to(self._forward.device)
        self._tokens, self._keys, self._next = self._tokens[places], self._keys[places], self._next[places]
        self._ids, self._positions = self._ids[places], self._positions[places]
        self._mask = None if self._mask is None else self._mask[places]
        if self._counts is not None:
            self._counts.select(places)
        if self._cache is not None:
            self._cache.batch_select_indices(places)

    def _prefill(self) -> Tensor:
        """Runs the prompts, once each however many samples they get. Returns logits [B, V]."""
        shared = self._cache is None or can_select(self._cache)
        if not shared:
            self._repeat()
        logits = self._forward(self._ids, positions=self._positions, mask=self._mask, cache=self._cache)
        if shared and self._parameters.n > 1:
            self._repeat()
            logits = logits.repeat_interleave(self._parameters.n, 0)
            if self._cache is not None:
                self._cache.batch_repeat_interleave(self._parameters.n)
        return logits

    def _repeat(self) -> None:
        """From a row a prompt to a row a sample."""
        self._ids = self._ids.repeat_interleave(self._parameters.n, 0)
        self._positions = self._positions.repeat_interleave(self._parameters.n, 0)
        self._mask = None if self._mask is None else self._mask.repeat_interleave(self._parameters.n, 0)

    def _advance(self, tokens: Tensor) -> Tensor:
        """Runs the tokens of the last step [B]. Returns logits [B, V]."""
        new, positions = tokens[:, None], self._next[:, None]
        if self._forward.context is not None:  # rows that ended but can't be dropped must not run past the table
            positions = positions.clamp(max=self._forward.context - 1)
        self._next = self._next + 1
        if self._counts is not None:
            self._counts.add(tokens)
        if self._mask is not None:
            self._mask = torch.cat([self._mask, torch.ones_like(new)], 1)
        if self._cache is not None:
            return self._forward(new, positions=positions, mask=self._mask, cache=self._cache)
        self._ids = torch.cat([self._ids, new], 1)
        self._positions = torch.cat([self._positions, positions], 1)
        return self._forward(self._ids, positions=self._positions, mask=self._mask, cache=None)

    def _choose(self, logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The next tokens [B], and the logits after each filter [B, V]."""
        after: dict[str, Tensor] = {}
        filtered = logits
        for name, function in pipeline(self._parameters, self._counts):
            filtered = function(filtered)
            after[name] = filtered
        if not self._parameters.is_greedy:
            filtered = filtered + gumbel(self._keys, self._next, logits.shape[-1])
        return filtered.argmax(-1), after  # the lowest id among equals
