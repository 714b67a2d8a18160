"""The decode loop: run the prompts once, then one token a row and step, on the device.

It deals in ids only; text, stop texts and streaming are the caller's (`engine`), who says which rows have ended.
What the model keeps is in its `Rows`; here are filters, noise and the choice. One transfer to the host a step.

Legend: P prompts, n samples a prompt, B rows still going (row r is sample r % n of prompt r // n), V tokens of the
vocabulary.
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
from nbllm.sample.noise import add_noise, sample_keys
from nbllm.sample.parameters import SamplingParameters
from nbllm.sample.runtime import Rows, Runtime
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
        runtime: the model.
        batch: an empty batch of it.
        prompts: ids of each prompt, at least one.
        parameters: the settings; how many tokens are made is up to the caller.
        recorder: takes each step's alternatives, if they are wanted.
    """

    def __init__(
        self,
        runtime: Runtime,
        batch: Rows,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters,
        *,
        recorder: Recorder | None = None,
    ) -> None:
        self._batch, self._prompts, self._parameters, self._recorder = batch, prompts, parameters, recorder
        self._device = runtime.device
        self.rows: list[int] = list(range(len(prompts) * parameters.n))
        """The rows still going, in the order they have in the batch."""
        self.running: list[int] = self.rows
        """The rows of the last step's tensors: some may have ended where a cache can't drop them."""
        self._tokens: Tensor | None = None  # the last step's, int64 [B]
        # place of the next token in its own text, int64 [B]
        self._next = torch.tensor([len(prompt) for prompt in prompts]).repeat_interleave(parameters.n).to(self._device)
        samples = torch.arange(parameters.n).repeat(len(prompts)).to(self._device)
        self._keys = sample_keys(parameters.seed, samples)  # int64 [B]
        self._counts: Counts | None = None
        if parameters.penalises:
            self._counts = Counts.start(prompts, parameters.n, runtime.vocab_size, self._device)

    @torch.no_grad()
    def step(self) -> list[Choice]:
        """Chooses the next token of every row that is still going.

        Raises:
            DataError: the model's logits aren't numbers.
        """
        if self._tokens is None:
            logits = self._batch.start(self._prompts, self._parameters.n)  # [B, V]
        else:
            logits = self._batch.advance(self._tokens)
            self._next = self._next + 1
            if self._counts is not None:
                self._counts.add(self._tokens)
        tokens, filtered = self._choose(logits)
        self._tokens = tokens
        choices = to_choices(self.running, tokens, logits)
        if self._recorder is not None:
            self._recorder.add(self.running, logits, filtered, tokens)
        going = set(self.rows)
        return [choice for choice in choices if choice.row in going]

    def drop(self, ended: Collection[int]) -> None:
        """Takes rows out of the batch."""
        if not ended:
            return
        self.rows = [row for row in self.rows if row not in ended]
        if not self.rows or self._tokens is None or not getattr(self._batch, "can_select", True):
            return
        left = [place for place, row in enumerate(self.running) if row not in ended]
        self.running = [self.running[place] for place in left]
        places = torch.tensor(left).to(self._device)
        self._tokens, self._keys, self._next = self._tokens[places], self._keys[places], self._next[places]
        if self._counts is not None:
            self._counts.select(places)
        self._batch.select(places)

    def _choose(self, logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The next tokens [B], and the logits after each filter [B, V]."""
        after: dict[str, Tensor] = {}
        filtered = logits
        for name, function in pipeline(self._parameters, self._counts):
            filtered = function(filtered)
            after[name] = filtered
        if not self._parameters.is_greedy:
            filtered = add_noise(filtered, self._keys, self._next)
        return filtered.argmax(-1), after  # the lowest id among equals


def to_choices(rows: Sequence[int], tokens: Tensor, logits: Tensor) -> list[Choice]:
    """What was chosen, on the host after one transfer.

    Args:
        rows: which row each is.
        tokens: int64 [B].
        logits: the model's, float32 [B, V].

    Raises:
        DataError: the logits aren't numbers.
    """
    logprobs = (logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)).clamp(max=0.0)  # NaN stays NaN
    # ids and the bits of the floats together
    packed = torch.stack([tokens, logprobs.view(torch.int32).long()]).cpu().numpy()
    numbers = packed[1].astype(np.int32).view(np.float32).tolist()
    if not all(math.isfinite(number) for number in numbers):
        raise DataError("The model's logits aren't finite numbers", next="Load it as fp32, or an older checkpoint")
    return [
        Choice(row=row, token=token, logprob=number)
        for row, token, number in zip(rows, packed[0].tolist(), numbers, strict=True)
    ]
