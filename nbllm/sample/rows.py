"""A batch being decoded in torch: ids, positions, padding, keys and values of rows that grow by a token at a time.

Prompts of different lengths are padded on the left, so that the last position is everyone's newest; padding is masked
and positions are counted without it, so that a row doesn't depend on its neighbours. A prompt that begins like an
earlier one takes its keys and values from there. No sampling in here.

Legend: P prompts, n samples a prompt, B rows (row r is sample r % n of prompt r // n), T padded prompt length, S ids
so far, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from nbllm.errors import UsageError
from nbllm.sample.forward import Forward, can_select
from nbllm.sample.slots import Slots

_CHUNK = 1024
"""Ids of a long prompt that are run at once, which bounds the memory of attention masks."""


class TorchRows:
    """The rows of one batch.

    Args:
        forward: the model.
        use_cache: keep keys and values; without, every step computes everything again (slow, for checking).
        sliding: where the context is full, go on with the newer half of the text instead of failing.
        keep: take from earlier calls and leave to later ones what the weights make possible: the keys and values of a
            prompt, and a compiled step. False for weights that are being trained.
    """

    def __init__(self, forward: Forward, *, use_cache: bool = True, sliding: bool = False, keep: bool = True) -> None:
        self._forward = forward
        self._cache: Any | None = forward.new_cache() if use_cache else None
        self._sliding = sliding and forward.context is not None
        self._keep = keep
        self._weights: Hashable = None
        self._pooled = False  # whether `keep` gives anything away
        self._end_logits: dict[int, Tensor] = {}
        self.reused = 0
        """How many of the prompt's ids came from an earlier call."""
        self.compiled_steps = 0
        """Steps that the compiled model made."""
        self._ids = torch.empty(0, 0, dtype=torch.int64)  # [B, S] with room for more
        self._length = 0  # S
        self._mask: Tensor | None = None  # int64 [B, S]; None: no padding
        self._next = torch.empty(0, dtype=torch.int64)  # position of the next id, int64 [B]

    def start(self, prompts: Sequence[Sequence[int]], n: int) -> Tensor:
        """Runs the prompts, once each however many samples they get. Returns logits, float32 [P * n, V]."""
        self._weights = self._forward.weights if self._keep else None
        if self._sliding:
            prompts = [self._newer_half(prompt) for prompt in prompts]
        lengths = [len(prompt) for prompt in prompts]
        longest, device = max(lengths), self._forward.device
        # on the host first: one transfer, not one a prompt
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - length) + [1] * length for length in lengths])
        self._ids, self._length = ids.to(device), longest
        self._mask = mask.to(device) if min(lengths) < longest else None
        self._next = torch.tensor(lengths).to(device)
        if self._cache is not None and not can_select(self._cache):
            self._repeat(n)
            return self._run(ids.to(device).repeat_interleave(n, 0), self._positions())
        self._pooled = self._keep and len(prompts) == 1 and isinstance(self._cache, Slots)
        logits = self._prefill(list(prompts[0])) if self._pooled else self._run(self._ids, self._positions())
        if n > 1:
            self._repeat(n)
            logits = logits.repeat_interleave(n, 0)
            if self._cache is not None:
                places = torch.arange(len(prompts), device=device).repeat_interleave(n)
                _select(self._cache, places)
        return logits

    def advance(self, tokens: Tensor) -> Tensor:
        """Appends a token to every row, int64 [B]. Returns logits, float32 [B, V]."""
        self._append(tokens[:, None])
        context = self._forward.context
        if self._sliding and context is not None and self._length > context:
            return self._slide()
        positions = self._next[:, None]
        if context is not None:  # rows that ended but can't be dropped must not run past the table
            positions = positions.clamp(max=context - 1)
        self._next = self._next + 1
        if self._cache is None:
            return self._run(self._ids[:, : self._length], self._positions())
        if self._keep and isinstance(self._cache, Slots) and self._mask is None:
            logits = self._forward.compiled.step(self._forward, self._weights, tokens, self._cache)
            if logits is not None:
                self.compiled_steps += 1
                return logits
        return self._run(tokens[:, None], positions)

    def verify(self, tokens: Tensor) -> Tensor:
        """Appends several tokens to the only row, int64 [1, T]; logits after each of them, float32 [T, V].

        `cut_back` takes those that turn out wrong away again.
        """
        positions = self._next[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        self._append(tokens)
        self._next = self._next + tokens.shape[1]
        return self._forward(tokens, positions=positions, mask=None, cache=self._cache, last=tokens.shape[1])[0]

    def cut_back(self, count: int) -> None:
        """Takes the newest so many ids away. Only where `can_cut_back`."""
        assert isinstance(self._cache, Slots)
        self._length -= count
        self._cache.length -= count
        self._next = self._next - count

    @property
    def can_cut_back(self) -> bool:
        """Whether `verify` and `cut_back` can be used."""
        return isinstance(self._cache, Slots)

    def select(self, places: Tensor) -> None:
        """Keeps these rows in this order; a row may come more than once. int64 [B']."""
        self._ids, self._next = self._ids[places], self._next[places]
        self._mask = None if self._mask is None else self._mask[places]
        if self._cache is not None:
            _select(self._cache, places)

    @property
    def can_select(self) -> bool:
        """Whether rows can be dropped and repeated; where there is a recurrent state they can't."""
        return self._cache is None or can_select(self._cache)

    def keep(self) -> None:
        """Gives keys and values of the only row to the calls to come."""
        if not self._pooled or not isinstance(self._cache, Slots) or len(self._ids) != 1:
            return
        ids = self._ids[0, : self._cache.length].tolist()
        logits = {place: found for place, found in self._end_logits.items() if place <= len(ids)}
        self._forward.prefixes.put(self._weights, ids, self._cache, logits)

    def _prefill(self, prompt: list[int]) -> Tensor:
        """Runs what isn't known of one prompt. Returns logits [1, V]."""
        slots, logits = self._forward.prefixes.take(self._weights, prompt)
        if slots is not None:
            self._cache, self.reused = slots, slots.length
        if logits is None:
            logits = self._run(self._ids[:, self.reused :], self._positions()[:, self.reused :])
            self._forward.prefixes.put(self._weights, prompt, self._cache, {len(prompt): logits})  # type: ignore[arg-type]
        self._end_logits = {len(prompt): logits}
        return logits

    def _run(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Runs new ids [B, T]. Returns logits [B, V]."""
        if self._cache is not None and ids.shape[1] > _CHUNK and self._mask is None:
            for start in range(0, ids.shape[1], _CHUNK):
                piece = slice(start, start + _CHUNK)
                logits = self._forward(ids[:, piece], positions=positions[:, piece], mask=None, cache=self._cache)
            return logits[:, -1]
        return self._forward(ids, positions=positions, mask=self._mask, cache=self._cache)[:, -1]

    def _positions(self) -> Tensor:
        """Of every id, without padding. int64 [B, S]."""
        if self._mask is None:
            return torch.arange(self._length, device=self._forward.device).expand(len(self._ids), -1)
        return (self._mask.cumsum(-1) - 1).clamp(min=0)

    def _append(self, tokens: Tensor) -> None:
        end = self._length + tokens.shape[1]
        if end > self._ids.shape[1]:
            room = torch.zeros(len(self._ids), max(256, end), dtype=torch.int64, device=self._ids.device)
            self._ids = torch.cat([self._ids[:, : self._length], room], 1)
        self._ids[:, self._length : end] = tokens
        self._length = end
        if self._mask is not None:
            self._mask = torch.cat([self._mask, torch.ones_like(tokens)], 1)

    def _repeat(self, n: int) -> None:
        """From a row a prompt to a row a sample."""
        self._ids, self._next = self._ids.repeat_interleave(n, 0), self._next.repeat_interleave(n, 0)
        self._mask = None if self._mask is None else self._mask.repeat_interleave(n, 0)

    def _newer_half(self, prompt: Sequence[int]) -> Sequence[int]:
        context = self._forward.context
        assert context is not None
        return prompt if len(prompt) <= context else prompt[-max(1, context // 2) :]

    def _slide(self) -> Tensor:
        """Begins again with the newer half of the context."""
        if self._mask is not None:
            raise UsageError("Several prompts at once can't slide", next="Sample them one by one")
        half = max(1, self._forward.context // 2)  # type: ignore[operator]
        self._ids = self._ids[:, self._length - half : self._length].clone()
        self._length = half
        self._next = torch.full_like(self._next, half)
        self._cache = None if self._cache is None else self._forward.new_cache()
        self._pooled = False  # its positions aren't those of the whole text
        return self._run(self._ids, self._positions())


def _select(cache: Any, places: Tensor) -> None:
    if isinstance(cache, Slots):
        cache.select(places)
    else:
        cache.batch_select_indices(places)
