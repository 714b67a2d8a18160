"""Many prompts at once over transformers' continuous batching: paged keys and values, rows that come and go.

transformers schedules, keeps the cache and runs the model; which token comes next is ours, the same filters and the
same Gumbel noise as in `decode`, so that a prompt gets the tokens it would get alone (up to rounding in the logits,
which depends on how the model's sums are split). Two logits processors do it: transformers hands each the requests that
get a token, and each turns them into one number a row, its sample and its position. With these in tensors the choice
depends on nothing of the host, and asynchronous batches and CUDA graphs stay possible; penalties need the tokens so
far, and switch both off. Knows neither texts nor files.

Legend: B rows that get a token, R rows of the batch (those after B are padding), V tokens of the vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)

from nbllm.adapters import attached
from nbllm.errors import DataError, RunError
from nbllm.sample.filters import Counts, count_tokens, pipeline
from nbllm.sample.noise import add_noise, sample_keys
from nbllm.sample.parameters import SamplingParameters

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PAGE = 64
_PREFILL = 1024
"""Tokens of one step at most, where the CPU runs it: prompts longer than that take several steps."""
_CACHED = 2**15
"""Tokens of keys and values kept at most, where the CPU runs it, unless one prompt needs more."""
_STOP_S = 60.0


class PagedUnsupported(Exception):
    """This model can't run over paged keys and values; says why."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where one row is."""

    key: str
    """Which row: what `PagedBatch.add` was given."""
    tokens: list[int]
    """Everything it has said so far."""
    done: bool
    """Whether it has ended, by an end of text or at its most tokens."""


class PagedBatch:
    """A running batch, to be used as a context manager: `add` rows at any time, `take` what they say.

    Args:
        model: a causal language model of transformers.
        parameters: the settings; `stop` is up to the caller.
        eos: tokens that end a text.
        rows: how many rows run at once; more may wait.
        longest: tokens of the longest row, prompt and text.

    Raises:
        PagedUnsupported: the model's attention isn't made for it.
    """

    def __init__(
        self, model: PreTrainedModel, parameters: SamplingParameters, *, eos: frozenset[int], rows: int, longest: int
    ) -> None:
        self._model = model
        self._eos = sorted(eos) or -1
        self._training = model.training
        self._rows: dict[str, _Row] = {}
        device = model.get_input_embeddings().weight.device
        config = ContinuousBatchingConfig(
            max_requests_per_batch=rows,
            # a different kernel on a GPU would be another model than the one that is loaded
            auto_switch_to_flash=device.type == "cuda",
        )
        if device.type == "cpu":  # transformers would take most of the memory there is
            pages = max(math.ceil(min(rows * longest, max(_CACHED, longest)) / _PAGE), 1) + rows
            config.page_size, config.num_blocks, config.max_batch_tokens = _PAGE, pages, max(_PREFILL, rows)
        if parameters.penalises:
            config.use_async_batching, config.use_cuda_graph = False, False
        if parameters.beams > 1 or parameters.sliding:
            raise PagedUnsupported("beams and sliding need rows of their own")
        adapter = attached(model)
        if adapter is not None and adapter.virtual_tokens:
            raise PagedUnsupported("virtual tokens are attended to by the plain step")
        if not hasattr(model, "init_continuous_batching"):
            raise PagedUnsupported(f"{type(model).__name__} has no continuous batching")
        options = GenerationConfig(do_sample=False, eos_token_id=self._eos)
        try:
            self._manager: Any = model.init_continuous_batching(
                generation_config=options, continuous_batching_config=config
            )
        except (ValueError, AttributeError) as error:
            raise PagedUnsupported(str(error)) from error
        samples = _Samples(self._rows)
        self._choice = _Choice(parameters, samples, self._rows, device)
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([samples, self._choice]))
        processors.tensors_required = 2
        self._manager.logit_processor = processors

    def __enter__(self) -> PagedBatch:
        # its own report of a failed step is a page long, and `take` raises what failed
        self._level = _LOGGER.level
        _LOGGER.setLevel(logging.CRITICAL)
        self._manager.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._manager.stop(block=True, timeout=_STOP_S, hard_stop=True)
            self._manager.destroy()
        finally:
            _LOGGER.setLevel(self._level)
            if self._training:
                self._model.train()

    @property
    def tokens(self) -> int:
        """New tokens of all rows so far, without the newest step's."""
        return self._choice.tokens

    def add(self, key: str, prompt: Sequence[int], *, sample: int, max_new_tokens: int, every_token: bool) -> None:
        """Adds a row.

        Args:
            key: its name in `Progress`, another one for each row.
            prompt: ids, at least one.
            sample: its number among the samples of its prompt, for the noise.
            max_new_tokens: at least 1.
            every_token: report each new token, not only the end.
        """
        self._rows[key] = _Row(sample=sample, prompt_tokens=len(prompt))
        self._manager.add_request(
            list(prompt), request_id=key, max_new_tokens=max_new_tokens, streaming=every_token, eos_token_id=self._eos
        )

    def cancel(self, key: str) -> None:
        """Ends a row before its time; what it still says is for the caller to ignore."""
        self._manager.cancel_request(key)

    def take(self, timeout_s: float) -> Progress | None:
        """What some row has said; None where nothing came within the time.

        Raises:
            PagedUnsupported: the model's very first step failed.
            RunError: a later one did, such as for want of memory.
            DataError: the model's logits aren't numbers.
        """
        result = self._manager.get_result(timeout=timeout_s)
        if result is None:
            if not self._manager.is_running():
                self._fail("The generation has stopped")
            return None
        if result.error is not None:
            self._fail(result.error)
        if not self._choice.finite:
            raise DataError("The model's logits aren't finite numbers", next="Load it as fp32, or an older checkpoint")
        done = bool(result.is_finished())
        if done:
            self._rows.pop(result.request_id, None)
        return Progress(key=result.request_id, tokens=list(result.generated_tokens), done=done)

    def _fail(self, reason: str) -> None:
        if not self._choice.tokens:
            raise PagedUnsupported(reason)
        raise RunError(f"Sampling failed: {reason}", next="Try fewer tokens, or free memory with %llm_session free")


@dataclass(frozen=True, kw_only=True)
class _Row:
    sample: int
    prompt_tokens: int


_LOGGER = logging.getLogger("ContinuousBatchingLogger")


class _Samples(ContinuousBatchingLogitsProcessor):  # type: ignore[misc,unused-ignore]
    """Carries each row's sample number; changes nothing."""

    supported_kwargs: dict[str, type] = {}  # noqa: RUF012 (the base class has it so)
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, known: dict[str, _Row]) -> None:
        self._known = known
        self.rows: Tensor | None = None
        """int32 [R]"""

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
        numbers = [self._known[request.state.request_id].sample for request in requests_with_new_token]
        return torch.tensor(numbers, dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        self.rows = tensor_arg
        return scores


class _Choice(ContinuousBatchingLogitsProcessor):  # type: ignore[misc,unused-ignore]
    """Filters and noise; carries each row's position. What is largest afterwards is the next token."""

    supported_kwargs: dict[str, type] = {}  # noqa: RUF012 (the base class has it so)
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(
        self, parameters: SamplingParameters, samples: _Samples, known: dict[str, _Row], device: torch.device
    ) -> None:
        self._parameters, self._samples, self._known = parameters, samples, known
        self._keys = sample_keys(parameters.seed, torch.arange(parameters.n, device=device))  # int64 [n]
        self._broken = torch.zeros((), dtype=torch.bool, device=device)
        self._whole: list[list[int]] = []
        self._said: list[list[int]] = []
        self._pending = 0
        self.tokens = 0
        """New tokens of all rows so far, without the step that is being run."""

    @property
    def finite(self) -> bool:
        """Whether every row had a number as its largest logit, so far."""
        return not bool(self._broken)

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Tensor:
        states = [request.state for request in requests_with_new_token]
        self.tokens, self._pending = self.tokens + self._pending, len(states)
        if self._parameters.penalises:
            self._whole = [[*state.initial_tokens, *state.generated_tokens] for state in states]
            # a row that had to make room begins again, with its text as part of its prompt
            lengths = [self._known[state.request_id].prompt_tokens for state in states]
            self._said = [ids[length:] for ids, length in zip(self._whole, lengths, strict=True)]
        # how many ids have been run is the place of the next one in its text
        return torch.tensor([state.position_offset for state in states], dtype=torch.int32)

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        rows = scores.shape[0]
        self._broken.logical_or_(scores.amax(-1).isfinite().all().logical_not())
        counts = self._counts(scores) if self._parameters.penalises else None
        for _, function in pipeline(self._parameters, counts):
            scores = function(scores)
        if self._parameters.is_greedy:
            return scores
        assert self._samples.rows is not None  # the carrier runs first
        keys = self._keys[self._samples.rows[:rows].long()]
        return add_noise(scores, keys, tensor_arg[:rows].long())

    def _counts(self, scores: Tensor) -> Counts:
        """How often each token stands in each row's prompt and text."""
        rows, vocab_size = scores.shape
        padding: list[list[int]] = [[]] * (rows - len(self._said))
        return Counts(
            all=count_tokens([*self._whole, *padding], vocab_size, scores.device),
            text=count_tokens([*self._said, *padding], vocab_size, scores.device),
        )
