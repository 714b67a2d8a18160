"""A loaded model as lm-eval wants it: log probabilities of continuations and of whole texts, and greedy answers.

What is asked and how it is scored is lm-eval's; texts become ids, windows and batches as in lm-eval's own `HFLM`, so
that the scores are the same. Needs lm-eval; knows nothing of tasks.

Legend: B rows, T inputs a row, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from nbllm.errors import UsageError
from nbllm.sample import SamplingParameters, generate_many
from nbllm.sample.reading import evaluating, window_length
from nbllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOGITS = 2**26
"""Numbers in one batch of logits: 256 MiB in float32."""
_MAX_NEW_TOKENS = 256
"""Where a task doesn't say how long an answer may be; lm-eval's own number."""


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A continuation after its context."""

    ids: list[int]
    """Inputs and, one longer, their targets."""
    scored: int
    """How many targets at the end count."""


class LoadedModel(TemplateLM):  # type: ignore[misc,unused-ignore]
    """A model for lm-eval.

    Args:
        model: a causal language model of transformers.
        tokenizer: the model's.
        progress: called with requests done and in all.

    Raises:
        UsageError: the tokenizer has no token that ends a text.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: Tokenizer, progress: Callable[[int, int], None] | None = None
    ) -> None:
        super().__init__()
        self._model, self._own, self._progress = model, tokenizer, progress
        self._length = window_length(model)
        if tokenizer.eos_id is None:
            raise UsageError(f"The tokenizer {tokenizer.name!r} has no token that ends a text, which tasks need")

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return int(self._own.eos_id or 0)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that stands alone."""
        return self._own.bos_id if self._own.bos_id is not None else self.eot_token_id

    @property
    def max_length(self) -> int:
        """The most tokens that are read at once."""
        return self._length

    @property
    def tokenizer_name(self) -> str:
        """For lm-eval's cache."""
        return str(self._own.name)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """None: examples are asked as plain text."""
        return None

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text, without a token before it; special tokens in it count as such, as in lm-eval."""
        return list(self._own.encode(string, allow_special=True))

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """Sum of logprobs of each continuation, and whether greedy decoding would say it.

        Args:
            requests: texts, ids of the context, ids of the continuation.
        """
        pieces = [
            # the context loses its beginning where both are too long
            _Piece(ids=[*context, *continuation][-self._length - 1 :], scored=min(len(continuation), self._length))
            for _, context, continuation in requests
        ]
        found: list[tuple[float, bool]] = [(0.0, True)] * len(pieces)
        device = self._model.get_input_embeddings().weight.device
        done = 0
        with evaluating(self._model):
            for batch in self._batches(pieces):
                width = max(len(pieces[place].ids) for place in batch) - 1
                ids = torch.zeros(len(batch), width, dtype=torch.long)  # [B, T]; padding on the right is never seen
                for row, place in enumerate(batch):
                    ids[row, : len(pieces[place].ids) - 1] = torch.tensor(pieces[place].ids[:-1])
                logits = self._model(input_ids=ids.to(device), use_cache=False).logits  # [B, T, V]
                for row, place in enumerate(batch):
                    piece, end = pieces[place], len(pieces[place].ids) - 1
                    targets = torch.tensor(piece.ids[end + 1 - piece.scored :], device=logits.device)
                    scores = logits[row, end - piece.scored : end].float()
                    logprobs = scores.log_softmax(-1).gather(1, targets[:, None])
                    greedy = bool((scores.argmax(-1) == targets).all())
                    found[place] = (float(logprobs.double().sum()), greedy)
                done += len(batch)
                if self._progress is not None:
                    self._progress(done, len(pieces))
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Sum of logprobs of each whole text, in windows as lm-eval cuts them."""
        texts = [request.args[0] for request in requests]
        windows: list[tuple[Any, list[int], list[int]]] = []
        whose: list[int] = []
        for place, text in enumerate(texts):
            cut = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self._length, 1)
            for context, continuation in map(make_disjoint_window, cut):
                windows.append((None, context, continuation))
                whose.append(place)
        sums = [0.0] * len(texts)
        for place, (nats, _) in zip(whose, self._loglikelihood_tokens(windows), strict=True):
            sums[place] += nats
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The answers, up to where each request says that they end."""
        answers = [""] * len(requests)
        groups: dict[SamplingParameters, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(_settings(dict(request.args[1])), []).append(place)
        done = 0
        for settings, places in groups.items():
            room = self._length - settings.max_new_tokens
            if room < 1:
                raise UsageError(
                    f"A task asks for {settings.max_new_tokens} new tokens, and the model's context is {self._length}"
                )
            prompts = [self.tok_encode(requests[place].args[0])[-room:] or [self.prefix_token_id] for place in places]

            def report(count: int, _total: int, _speed: float, before: int = done) -> None:
                if self._progress is not None:
                    self._progress(before + count, len(requests))

            found = generate_many(self._model, self._own, prompts, settings, progress=report)
            if found.interrupted:
                raise KeyboardInterrupt
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer.text
            done += len(places)
        return answers

    def _batches(self, pieces: list[_Piece]) -> Iterator[list[int]]:
        """Places of pieces of like length together, the longest first, as many as keep the logits small."""
        vocab_size = self._model.config.get_text_config().vocab_size
        batch: list[int] = []
        for place in sorted(range(len(pieces)), key=lambda i: -len(pieces[i].ids)):
            if batch and (len(batch) + 1) * len(pieces[batch[0]].ids) * vocab_size > _LOGITS:
                yield batch
                batch = []
            batch.append(place)
        if batch:
            yield batch


def _settings(given: dict[str, Any]) -> SamplingParameters:
    """lm-eval's generation settings as ours: greedy unless a task draws."""
    until = given.get("until") or []
    stop = tuple(text for text in ([until] if isinstance(until, str) else until) if text)
    most = given.get("max_gen_toks", given.get("max_new_tokens", _MAX_NEW_TOKENS))
    if not given.get("do_sample", False):
        return SamplingParameters(greedy=True, max_new_tokens=int(most), stop=stop)
    return SamplingParameters(
        temperature=float(given.get("temperature", 1.0)),
        top_p=float(given.get("top_p", 1.0)),
        top_k=int(given.get("top_k", 0)),
        max_new_tokens=int(most),
        stop=stop,
    )
