"""Several tokens a step: they are guessed, run at once, and each is kept as long as it is what would have been chosen.

The noise of every position is known beforehand (`noise`), so that a choice is a function of the logits alone: a guess
that agrees with it is the token that decoding one by one would have given, and the text is the same, not only its
distribution. Guesses come from the text so far (prompt lookup) or from a smaller model that draws with the same noise.

Legend: T tokens run at once, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from nbllm.errors import UsageError
from nbllm.sample.decode import Choice, DecodeLoop, to_choices
from nbllm.sample.forward import Forward
from nbllm.sample.noise import add_noise, sample_keys
from nbllm.sample.parameters import SamplingParameters
from nbllm.sample.rows import TorchRows
from nbllm.sample.trace import Recorder

Propose = Callable[[list[int], int], list[int]]
"""From the ids so far and how many are wanted at most: guesses at the next ones."""
_LONGEST_MATCH = 3
DRAFT_TOKENS = 4
"""How many a draft model guesses a step."""


class SpeculativeLoop(DecodeLoop):
    """Decoding of one prompt's only sample with guesses; each `step` gives one token, as in `DecodeLoop`.

    Args:
        forward: the model.
        batch: an empty batch of it that can be cut back.
        prompt: its ids.
        parameters: the settings.
        propose: what guesses.
        most: guesses a step.
        recorder: takes each token's alternatives, if they are wanted.
    """

    def __init__(
        self,
        forward: Forward,
        batch: TorchRows,
        prompt: Sequence[int],
        parameters: SamplingParameters,
        *,
        propose: Propose,
        most: int,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(forward, batch, [prompt], parameters, recorder=recorder)
        self._rows, self._propose, self._most, self._context = batch, propose, most, forward.context
        self._text = list(prompt)
        self._ready: deque[tuple[Tensor, Tensor, dict[str, Tensor]]] = deque()
        self.guessed = 0
        """Tokens that were guessed."""
        self.agreed = 0
        """Guesses that were right."""

    @torch.no_grad()
    def step(self) -> list[Choice]:
        """The next token; the model runs where none is left of the last run.

        Raises:
            DataError: the model's logits aren't numbers.
        """
        if not self._ready:
            self._run()
        logits, token, filtered = self._ready.popleft()
        choices = to_choices(self.running, token, logits)
        if self._recorder is not None:
            self._recorder.add(self.running, logits, filtered, token)
        return choices

    def drop(self, ended: Collection[int]) -> None:
        """The only row has ended."""
        self.rows = [row for row in self.rows if row not in ended]

    def _run(self) -> None:
        guesses: list[int] = []
        if self._tokens is None:
            logits = self._batch.start(self._prompts, 1)
        else:
            room = self._most if self._context is None else min(self._most, self._context - len(self._text))
            guesses = self._propose(self._text, room)[: max(0, room)]
            logits = self._rows.verify(torch.tensor([[self._text[-1], *guesses]], device=self._device))
        self.guessed += len(guesses)
        for place, guess in enumerate([*guesses, None]):
            token, filtered = self._choose(logits[place : place + 1])
            self._tokens = token
            self._next = self._next + 1
            if self._counts is not None:
                self._counts.add(token)
            self._ready.append((logits[place : place + 1], token, filtered))
            self._text.append(int(token))
            if int(token) != guess:
                self._rows.cut_back(len(guesses) - place)
                return
            self.agreed += 1


def prompt_lookup(text: list[int], most: int) -> list[int]:
    """What followed the last time that the newest three (else two, else one) ids stood in the text.

    Source: Saxena, "Prompt Lookup Decoding", 2023.
    """
    for size in range(min(_LONGEST_MATCH, len(text) - 1), 0, -1):
        newest = text[-size:]
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == newest:
                return text[start + size : start + size + most]
    return []


class Draft:
    """A smaller model that guesses, with the same noise and vocabulary.

    Args:
        forward: the smaller model.
        target: the model that it guesses for.
        parameters: the settings: seed and temperature.

    Raises:
        UsageError: their vocabularies differ in size, or the smaller model's state can't be cut back.
    """

    def __init__(self, forward: Forward, target: Forward, parameters: SamplingParameters) -> None:
        if forward.vocab_size != target.vocab_size:
            raise UsageError(
                f"The draft model has {forward.vocab_size:,} tokens, the model {target.vocab_size:,}",
                next="Take a draft model with the same tokenizer",
            )
        self._rows = forward.rows()
        if not self._rows.can_cut_back:
            raise UsageError("This model can't draft: its state can't be cut back", next="Leave --draft out")
        self._context, self._parameters = forward.context, parameters
        self._known: list[int] = []
        self._key = sample_keys(parameters.seed, torch.zeros(1, dtype=torch.int64, device=forward.device))
        self._device = forward.device

    @torch.no_grad()
    def __call__(self, text: list[int], most: int) -> list[int]:
        """Guesses at the ids that follow `text`."""
        if self._context is not None:
            most = min(most, self._context - len(text))
        if most <= 0:
            return []
        if not self._known:
            logits = self._rows.start([text], 1)
        else:
            common = next((i for i, (a, b) in enumerate(zip(self._known, text, strict=False)) if a != b), None)
            common = min(len(self._known), len(text) - 1) if common is None else common
            self._rows.cut_back(len(self._known) - common)
            logits = self._rows.verify(torch.tensor([text[common:]], device=self._device))[-1:]
        guesses: list[int] = []
        while True:
            guesses.append(self._choose(logits, len(text) + len(guesses)))
            if len(guesses) == most:
                break
            logits = self._rows.advance(torch.tensor(guesses[-1:], device=self._device))
        self._known = [*text, *guesses[:-1]]
        return guesses

    def _choose(self, logits: Tensor, position: int) -> int:
        if self._parameters.is_greedy:
            return int(logits.argmax(-1))
        place = torch.tensor([position], device=self._device)
        return int(add_noise(logits / self._parameters.temperature, self._key, place).argmax(-1))
