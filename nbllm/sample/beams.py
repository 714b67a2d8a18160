"""Beam search: the continuations that the model finds most probable as a whole, a few of them kept side by side.

Each step every beam is continued by every token, and the best `beams` of all these go on. A beam ends at a token that
ends a text, or where it is full; it is ranked by the sum of its scores over the number of its new tokens (the prompt
isn't counted) to the power of `length_penalty`. The search ends when `beams` have ended and the best of those that go
on, ranked as it stands, is no better than the worst of them: the rule of transformers' `early_stopping=False`, whose
results these are. What ties is taken in the order of the beams, then by the lower token id.

Nothing is drawn: the penalties count (as in transformers they change the logarithms of the probabilities, which aren't
made to sum up to 1 again); temperature, top-k, top-p, min-p, typical-p, `greedy` and the seed have no effect, and
prompt lookup neither. Knows ids only: stop texts end no beam, whoever has the tokenizer cuts there.

Legend: B beams that go on, V tokens of the vocabulary, K candidates a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nbllm.errors import DataError
from nbllm.sample.filters import Counts, pipeline
from nbllm.sample.parameters import SamplingParameters
from nbllm.sample.runtime import Rows


@dataclass(frozen=True, kw_only=True)
class Beam:
    """One continuation."""

    tokens: tuple[int, ...]
    """The new tokens, with the one that ended the text."""
    logprobs: tuple[float, ...]
    """For each token the logarithm (natural) of its probability under the model, before any penalty."""
    score: float
    """What it is ranked by: the sum of the logprobs, penalties included, over the length's power; 0 without tokens."""
    stop_reason: str
    """`eos`, `length` (of `max_new_tokens`) or `context`; `interrupted` for all of a search that was."""


OnProgress = Callable[[int, Beam], None]
"""Called with the number of steps that are done and the best beam so far, ended or not."""


@dataclass(frozen=True, kw_only=True)
class _Path:
    """A beam while it grows."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    total: float = 0.0
    """Sum of the logprobs, penalties included."""
    place: int = 0
    """Which row of the batch it continues."""
    stop_reason: str | None = None

    def score(self, length_penalty: float) -> float:
        return self.total / len(self.tokens) ** length_penalty if self.tokens else 0.0


@torch.no_grad()
def beam_search(
    rows: Rows,
    prompt_ids: Sequence[int],
    parameters: SamplingParameters,
    eos_ids: Collection[int],
    context: int | None,
    on_progress: OnProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[Beam]:
    """The best continuations of a prompt.

    An interrupt ends it and keeps the best so far; it is for the caller to raise it again.

    Args:
        rows: an empty batch of a model.
        prompt_ids: the prompt, at least one id.
        parameters: the settings: `beams`, `n` of which come back, `length_penalty`, `max_new_tokens` and the penalties.
        eos_ids: tokens that end a text.
        context: the most tokens that prompt and text may have together; None: no limit.
        on_progress: called after every step.
        should_stop: asked before every step; True ends it as an interrupt does.

    Returns:
        The best first: `n` of them, or fewer where the search was interrupted before there were so many, or the
        vocabulary has too few tokens for them.

    Raises:
        DataError: the model's logits aren't numbers.
    """
    search = _Search(rows, prompt_ids, parameters, frozenset(eos_ids), context)
    interrupted = False
    try:
        while search.goes_on and not interrupted:
            if should_stop is not None and should_stop():
                interrupted = True
            else:
                search.step()
                if on_progress is not None:
                    on_progress(search.steps, search.best(1)[0])
    except KeyboardInterrupt:
        interrupted = True
    found = search.best(parameters.n)
    return [replace(beam, stop_reason="interrupted") for beam in found] if interrupted else found


class _Search:
    """The state of a search; between two steps it is whole, so that an interrupt loses one step at most."""

    def __init__(
        self,
        rows: Rows,
        prompt_ids: Sequence[int],
        parameters: SamplingParameters,
        eos_ids: frozenset[int],
        context: int | None,
    ) -> None:
        self._rows = rows
        self._prompt = prompt_ids
        self._parameters = parameters
        self._settings = replace(parameters, greedy=True)  # the penalties alone
        self._eos_ids = eos_ids
        self._room = math.inf if context is None else context - len(prompt_ids)
        self._counts: Counts | None = None
        full = self._room <= 0
        # those that go on, by their sums, and those that have ended, by their scores: the best first, `beams` at most
        self._running: tuple[_Path, ...] = () if full else (_Path(),)
        self._ended: tuple[_Path, ...] = (_Path(stop_reason="context"),) if full else ()
        self._batch, self._device = 0, torch.device("cpu")  # of the last step's logits
        self.steps = 0

    @property
    def goes_on(self) -> bool:
        """Whether a beam that goes on may still beat one that has ended."""
        if not self._running or len(self._ended) < self._parameters.beams:
            return bool(self._running)
        return self._score(self._running[0]) > self._score(self._ended[-1])

    def step(self) -> None:
        """Continues every beam by a token."""
        beams = self._parameters.beams
        candidates = self._candidates(self._logits())
        # those beyond the best `beams` are there only to go on in the place of ended ones
        ended = [path for path in candidates[:beams] if path.stop_reason is not None]
        running = tuple(path for path in candidates if path.stop_reason is None)[:beams]
        best = tuple(sorted([*self._ended, *ended], key=self._score, reverse=True)[:beams])  # stable: the older first
        self._running, self._ended, self.steps = running, best, self.steps + 1

    def best(self, count: int) -> list[Beam]:
        """The best beams: of those that have ended, once no other can win; until then of all."""
        paths = [*self._ended, *self._running] if self.goes_on else self._ended
        found = sorted(paths, key=self._score, reverse=True)[:count]
        return [
            Beam(
                tokens=path.tokens,
                logprobs=path.logprobs,
                score=self._score(path),
                stop_reason=path.stop_reason or "interrupted",
            )
            for path in found
        ]

    def _score(self, path: _Path) -> float:
        return path.score(self._parameters.length_penalty)

    def _logits(self) -> Tensor:
        """Of the next token of every beam that goes on, [B, V]."""
        if not self.steps:
            logits = self._rows.start([self._prompt], 1)
            if self._parameters.penalises:
                self._counts = Counts.start([self._prompt], 1, logits.shape[-1], logits.device)
            return logits
        device = self._device
        places = [path.place for path in self._running]
        if places != list(range(self._batch)):
            where = torch.tensor(places, device=device)
            self._rows.select(where)
            if self._counts is not None:
                self._counts.select(where)
        tokens = torch.tensor([path.tokens[-1] for path in self._running], device=device)
        if self._counts is not None:
            self._counts.add(tokens)
        return self._rows.advance(tokens)

    def _candidates(self, logits: Tensor) -> list[_Path]:
        """The K best continuations of all beams, the best first."""
        self._batch, self._device = logits.shape[0], logits.device
        own = logits.float().log_softmax(-1)
        scores = own
        for _, function in pipeline(self._settings, self._counts):
            scores = function(scores)
        totals = torch.tensor([path.total for path in self._running], dtype=torch.float32, device=logits.device)
        flat = (scores + totals[:, None]).flatten()
        # a beam has an end of text for each of its ids at most: so many that `beams` of the rest are among them
        count = max(2, 1 + len(self._eos_ids)) * self._parameters.beams
        largest = flat.topk(min(count, len(flat))).values
        if not math.isfinite(float(largest[0])):  # a single NaN would come first
            raise DataError("The model's logits aren't finite numbers", next="Load it as fp32, or an older checkpoint")
        places = (flat >= largest[-1]).nonzero()[:, 0]  # in order, so that a stable sort settles ties
        places = places[flat[places].sort(descending=True, stable=True).indices[:count]]
        numbers = torch.stack([flat[places], own.flatten()[places]]).tolist()
        found = []
        for place, total, logprob in zip(places.tolist(), *numbers, strict=True):
            if math.isfinite(total):  # not a token that the model forbids
                row, token = divmod(place, logits.shape[-1])
                found.append(self._continued(self._running[row], row, token, logprob, total))
        return found

    def _continued(self, path: _Path, row: int, token: int, logprob: float, total: float) -> _Path:
        length = len(path.tokens) + 1
        reason = None
        if token in self._eos_ids:
            reason = "eos"
        elif length >= self._parameters.max_new_tokens:
            reason = "length"
        elif length >= self._room:
            reason = "context"
        return _Path(
            tokens=(*path.tokens, token),
            logprobs=(*path.logprobs, logprob),
            total=total,
            place=row,
            stop_reason=reason,
        )
