"""Continuing prompts: ids from the decode loop become text that streams, ends at stop texts and survives an interrupt.

A sample's final text is made from its tokens, not from what was streamed, so that an interrupt at any moment leaves the
two in step. Knows tokenizers and the loop; not sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from nbllm.errors import UsageError
from nbllm.sample.beams import beam_search
from nbllm.sample.cut import whole_text
from nbllm.sample.decode import Choice, DecodeLoop
from nbllm.sample.forward import Forward
from nbllm.sample.generation import Generation, Sample
from nbllm.sample.parameters import SamplingParameters
from nbllm.sample.prompt import encode_prompt
from nbllm.sample.rows import TorchRows
from nbllm.sample.runtime import Rows, Runtime
from nbllm.sample.speculate import DRAFT_TOKENS, Draft, SpeculativeLoop, prompt_lookup
from nbllm.sample.stops import StopTexts
from nbllm.sample.trace import Recorder, Step
from nbllm.tokenizer import StreamDecoder, Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OnText = Callable[[int, str], None]
OnStep = Callable[[int, Step], None]
Prompt = str | Sequence[int]
_CONTEXT_TOKENS = 4
"""How much of the prompt is decoded with the text, where a token's text depends on the one before it."""


def generate(
    model: PreTrainedModel | Runtime,
    tokenizer: Tokenizer,
    prompt: Prompt,
    parameters: SamplingParameters | None = None,
    *,
    on_text: OnText | None = None,
    on_step: OnStep | None = None,
    should_stop: Callable[[], bool] | None = None,
    trace: bool = False,
    use_cache: bool = True,
    keep: bool = True,
    draft: PreTrainedModel | None = None,
) -> Generation:
    """Continues a prompt, `parameters.n` times side by side.

    An interrupt ends it and keeps what there is: the generation comes back with the stop reason `interrupted`, and it
    is for the caller to raise it again.

    Args:
        model: a causal language model of transformers, or a model in another runtime.
        tokenizer: the model's.
        prompt: text, or token ids that are taken as they are.
        parameters: the settings.
        on_text: called with a sample's number and each new piece of its text: whole characters, never part of a stop
            text. Together the pieces are the sample's text.
        on_step: called with a sample's number and each token with its alternatives, before its text is streamed.
        should_stop: asked before every step; True ends it as an interrupt does.
        trace: record each step's alternatives.
        use_cache: keep keys and values; without, everything is computed again each step.
        keep: leave the prompt's keys and values to later calls, and compile the step once it is worth it; False for
            weights that are being trained.
        draft: a smaller model with the same tokenizer that guesses tokens; the text stays the same.

    Raises:
        UsageError: the prompt is longer than the model's context (and `sliding` is off), or holds ids that the model
            doesn't have, or is empty where no token begins a text.
        DataError: the model's logits aren't numbers.
    """
    parameters = parameters or SamplingParameters()
    return _run(
        model,
        tokenizer,
        [prompt],
        parameters,
        on_text=on_text,
        on_step=on_step,
        should_stop=should_stop,
        trace=trace,
        use_cache=use_cache,
        keep=keep,
        draft=draft,
    )[0]


def generate_batch(
    model: PreTrainedModel | Runtime,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    parameters: SamplingParameters | None = None,
    *,
    batch_size: int = 32,
    on_text: OnText | None = None,
    should_stop: Callable[[], bool] | None = None,
    trace: bool = False,
    use_cache: bool = True,
) -> list[Generation]:
    """Continues many prompts, several at once; each as if it were alone, with the same random numbers.

    Args:
        model, tokenizer, parameters, should_stop, trace, use_cache: as for `generate`.
        prompts: texts or lists of ids, of any lengths.
        batch_size: how many prompts are run at once.
        on_text: called with prompt's number times `n` plus the sample's, and new text.

    Returns:
        One generation a prompt, in their order. After an interrupt, those that hadn't begun have empty samples.
    """
    parameters = parameters or SamplingParameters()
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError("batch_size is at least 1", received=batch_size)
    ids = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    if parameters.sliding or parameters.beams > 1:  # rows of one batch slide together
        batch_size = 1
    # prompts of like length together: little padding
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    found: dict[int, Generation] = {}
    interrupted = False
    for start in range(0, len(order), batch_size):
        part = order[start : start + batch_size]

        def pass_on(row: int, text: str, part: list[int] = part) -> None:
            if on_text is not None:
                on_text(part[row // parameters.n] * parameters.n + row % parameters.n, text)

        generations = _run(
            model,
            tokenizer,
            [ids[i] for i in part],
            parameters,
            on_text=pass_on,
            should_stop=(lambda: True) if interrupted else should_stop,
            trace=trace,
            use_cache=use_cache,
        )
        interrupted = interrupted or any(one.stop_reason == "interrupted" for one in generations)
        found |= dict(zip(part, generations, strict=True))
    return [found[i] for i in range(len(ids))]


@dataclass
class _Limits:
    """What ends a sample."""

    max_new_tokens: int
    context: int | None
    eos: frozenset[int]
    stop: tuple[str, ...]


class _Row:
    """One sample while it grows."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], limits: _Limits) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._limits = limits
        # a word piece's leading space hangs on what stands before it; bytes stand for themselves
        self._before = [] if tokenizer.byte_level else prompt[-_CONTEXT_TOKENS:]
        self._decoder = StreamDecoder(tokenizer)
        for id in self._before:
            self._decoder.push(id)
        self._stops = StopTexts(limits.stop)
        self.choices: list[Choice] = []
        self.streamed = 0
        """Characters handed to `on_text`."""
        full = limits.context is not None and len(prompt) >= limits.context
        self.reason: str | None = "context" if full else None

    def take(self, choice: Choice) -> str:
        """Adds a token. Returns the text that is certain now; sets `reason` where the sample has ended."""
        self.choices.append(choice)
        limits, count = self._limits, len(self.choices)
        text = "" if choice.token in limits.eos else self._stops.push(self._decoder.push(choice.token))
        if self._stops.found is not None:
            self.reason = "stop"
        elif choice.token in limits.eos:
            self.reason = "eos"
        elif count >= limits.max_new_tokens:
            self.reason = "length"
        elif limits.context is not None and len(self._prompt) + count >= limits.context:
            self.reason = "context"
        return text

    def sample(self) -> Sample:
        """The sample as far as it has come."""
        tokens = [choice.token for choice in self.choices]
        said = tokens[:-1] if tokens and tokens[-1] in self._limits.eos else tokens
        text = whole_text(self._tokenizer, [*self._before, *said])
        if self._before:
            text = text.removeprefix(self._tokenizer.decode(self._before))
        stops = StopTexts(self._limits.stop)
        text = stops.push(text) + stops.flush()
        return Sample(
            text=text,
            tokens=tuple(tokens),
            logprobs=tuple(choice.logprob for choice in self.choices),
            stop_reason=self.reason or "interrupted",
        )


def _run(
    model: PreTrainedModel | Runtime,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    parameters: SamplingParameters,
    *,
    on_text: OnText | None,
    should_stop: Callable[[], bool] | None,
    trace: bool,
    use_cache: bool,
    keep: bool = True,
    on_step: OnStep | None = None,
    draft: PreTrainedModel | None = None,
) -> list[Generation]:
    runtime = model if _is_runtime(model) else Forward.of(model)
    ids = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    for prompt in ids:
        _check_prompt(prompt, runtime, sliding=parameters.sliding)
    limits = _Limits(
        max_new_tokens=parameters.max_new_tokens,
        context=None if parameters.sliding else runtime.context,
        eos=runtime.eos_ids | ({tokenizer.eos_id} if tokenizer.eos_id is not None else frozenset()),
        stop=parameters.stop,
    )
    rows = [_Row(tokenizer, prompt, limits) for prompt in ids for _ in range(parameters.n)]
    open_prompts = [i for i in range(len(ids)) if rows[i * parameters.n].reason is None]
    numbers = [i * parameters.n + j for i in open_prompts for j in range(parameters.n)]
    recorder = Recorder() if trace or on_step is not None else None
    clock = _Clock()
    batch: Rows
    trained = None
    if isinstance(runtime, Forward):
        trained = runtime.model if runtime.model.training else None
        batch = runtime.rows(use_cache=use_cache, sliding=parameters.sliding, keep=keep and trained is None)
    else:
        batch = runtime.rows()
    if trained is not None:
        trained.eval()
    try:
        if numbers and not (should_stop is not None and should_stop()):
            if parameters.beams > 1:
                _search(batch, rows, ids[0], parameters, limits, clock, should_stop)
            else:
                open_ids = [ids[i] for i in open_prompts]
                loop = _loop(runtime, batch, open_ids, parameters, recorder=recorder, draft=draft)
                while loop.rows:
                    choices = loop.step()
                    clock.tick(len(choices))
                    if on_step is not None and recorder is not None:
                        steps = dict(zip(loop.running, recorder.last(tokenizer), strict=True))
                        for choice in choices:
                            on_step(numbers[choice.row], steps[choice.row])
                    for choice in choices:
                        _stream(rows[numbers[choice.row]], numbers[choice.row], choice, on_text)
                    loop.drop({choice.row for choice in choices if rows[numbers[choice.row]].reason is not None})
                    if should_stop is not None and loop.rows and should_stop():
                        break
    except KeyboardInterrupt:  # rows without a reason are the interrupted ones
        if all(row.reason is not None for row in rows):  # it came with the last piece of text: the caller must know
            rows[-1].reason = "interrupted"
    finally:
        if isinstance(batch, TorchRows):
            batch.keep()
        if trained is not None:
            trained.train()
    samples = [row.sample() for row in rows]
    if on_text is not None:
        for number, (row, sample) in enumerate(zip(rows, samples, strict=True)):
            if len(sample.text) > row.streamed:
                on_text(number, sample.text[row.streamed :])
    generations = []
    for i, (prompt, typed) in enumerate(zip(ids, prompts, strict=True)):
        mine = slice(i * parameters.n, (i + 1) * parameters.n)
        recorded = None
        if recorder is not None and trace:
            own = [place for place, number in enumerate(numbers) if number // parameters.n == i]
            recorded = recorder.trace(tokenizer, own, [sample.tokens for sample in samples[mine]])
        generations.append(
            Generation(
                prompt=typed if isinstance(typed, str) else tokenizer.decode(prompt, skip_special=False),
                prompt_tokens=tuple(prompt),
                samples=tuple(samples[mine]),
                parameters=parameters,
                tokens_per_s=clock.tokens_per_s,
                first_token_ms=clock.first_token_ms,
                prompt_tokens_reused=int(getattr(batch, "reused", 0)),
                compiled=bool(getattr(batch, "compiled_steps", 0)),
                trace=recorded,
            )
        )
    return generations


def _is_runtime(model: PreTrainedModel | Runtime) -> TypeGuard[Runtime]:
    return hasattr(model, "rows") and hasattr(model, "eos_ids")


def _loop(
    runtime: Runtime,
    batch: Rows,
    prompts: list[list[int]],
    parameters: SamplingParameters,
    *,
    recorder: Recorder | None,
    draft: PreTrainedModel | None,
) -> DecodeLoop:
    """The loop that these settings ask for. Guessing is for one sample whose keys and values can be cut back."""
    guessed = parameters.prompt_lookup > 0 or draft is not None
    alone = len(prompts) == 1 and parameters.n == 1 and not parameters.sliding
    if not guessed or not alone or not isinstance(runtime, Forward):
        return DecodeLoop(runtime, batch, prompts, parameters, recorder=recorder)
    if not isinstance(batch, TorchRows) or not batch.can_cut_back:
        return DecodeLoop(runtime, batch, prompts, parameters, recorder=recorder)
    return SpeculativeLoop(
        runtime,
        batch,
        prompts[0],
        parameters,
        propose=Draft(Forward.of(draft), runtime, parameters) if draft is not None else prompt_lookup,
        most=parameters.prompt_lookup or DRAFT_TOKENS,
        recorder=recorder,
    )


def _search(
    batch: Rows,
    rows: list[_Row],
    prompt: list[int],
    parameters: SamplingParameters,
    limits: _Limits,
    clock: _Clock,
    should_stop: Callable[[], bool] | None,
) -> None:
    """Fills the rows of one prompt with the best beams, the best first."""
    beams = beam_search(
        batch, prompt, parameters, limits.eos, limits.context, lambda _count, _best: clock.tick(1), should_stop
    )
    for row, beam in zip(rows, beams, strict=False):
        for token, logprob in zip(beam.tokens, beam.logprobs, strict=True):
            row.choices.append(Choice(row=0, token=token, logprob=logprob))
        row.reason = beam.stop_reason


def _stream(row: _Row, number: int, choice: Choice, on_text: OnText | None) -> None:
    text = row.take(choice)
    if row.reason is not None:  # also what was held back
        text = row.sample().text[row.streamed :]
    if text:
        row.streamed += len(text)  # counted first, so that an interrupt in the callback shows nothing twice
        if on_text is not None:
            on_text(number, text)


class _Clock:
    """Time to the first token, and the pace after it."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._first: float | None = None
        self._last = self._started
        self._tokens = 0  # after the first step

    def tick(self, tokens: int) -> None:
        self._last = time.perf_counter()
        if self._first is None:
            self._first = self._last
        else:
            self._tokens += tokens

    @property
    def first_token_ms(self) -> float | None:
        return None if self._first is None else (self._first - self._started) * 1000

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / (self._last - self._first) if self._first is not None and self._tokens else 0.0


def _check_prompt(prompt: list[int], runtime: Runtime, *, sliding: bool) -> None:
    if max(prompt) >= runtime.vocab_size:
        raise UsageError(
            f"The prompt has token {max(prompt)}, and the model's vocabulary has {runtime.vocab_size:,} tokens",
            next="Load the tokenizer that the model was trained with",
        )
    if runtime.context is not None and len(prompt) > runtime.context and not sliding:
        raise UsageError(
            f"The prompt has {len(prompt):,} tokens, more than the model's context of {runtime.context:,}",
            next="Shorten it, or add --sliding to go on from its newer half",
        )
