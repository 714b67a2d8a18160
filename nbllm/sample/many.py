"""Many prompts: each continued as if it were alone, many at once, and every answer kept as soon as it is there.

Runs over `paged` where the model can, else over `engine`'s padded batches, and says so. A prompt that can't be used
fails alone, with the reason in its answer. Knows neither sessions nor where models come from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import NbllmError, UsageError
from nbllm.sample.answers import Answer, AnswerFile, Answers, Question, questions
from nbllm.sample.cut import whole_text
from nbllm.sample.engine import generate_batch
from nbllm.sample.forward import Forward
from nbllm.sample.parameters import SamplingParameters
from nbllm.sample.prompt import chat_prompt, encode_prompt
from nbllm.sample.stops import StopTexts
from nbllm.tokenizer import StreamDecoder, Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OnProgress = Callable[[int, int, float], None]
_TICK_S = 0.5
_CONTEXT_TOKENS = 4
"""How much of the prompt is decoded with the text, where a token's text depends on the one before it."""


@dataclass(kw_only=True)
class _Row:
    """One sample of one prompt while it grows."""

    question: Question
    sample: int
    ids: list[int]
    limit: int
    """The most new tokens that settings and context allow."""


def generate_many(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Any] | str | Path,
    parameters: SamplingParameters | None = None,
    *,
    to: str | Path | None = None,
    made_with: Mapping[str, Any] | None = None,
    chat: bool = False,
    overwrite: bool = False,
    batch_size: int = 32,
    progress: OnProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Answers:
    """Continues many prompts; each gets the text that `generate` gives it alone, but for rounding in the logits.

    An interrupt ends it and keeps what is done; with a file, the same call goes on from there.

    Args:
        model: a causal language model of transformers.
        tokenizer: the model's.
        prompts: texts, lists of ids, or conversations where `chat`; or a file: `.jsonl` with `prompt` (or `text`,
            `messages`) and maybe `id`, or text with one prompt a line.
        parameters: the settings.
        to: a `.jsonl` file that the answers are appended to as they are done; those that it holds are skipped.
        made_with: what else a file's answers depend on, such as the model; kept beside it, as the settings are.
        chat: put each prompt into the model's chat template.
        overwrite: replace the file.
        batch_size: how many samples are run at once.
        progress: called with prompts done, prompts in all and tokens a second, every half second at least.
        should_stop: asked as often; True ends it as an interrupt does.

    Raises:
        NotFoundError, DataError: the file of prompts can't be read.
        UsageError: the file of answers was made with other settings or from other prompts.
        DataError: the model's logits aren't numbers.
        RunError: the model failed, such as for want of memory; what is done is kept.
    """
    parameters = parameters or SamplingParameters()
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError("batch_size is at least 1", received=batch_size)
    asked = questions(prompts)
    settings = {**(made_with or {}), "chat": chat, **asdict(parameters)}
    with AnswerFile(to, settings, overwrite=overwrite) if to is not None else nullcontext() as file:
        work = _Work(model, tokenizer, parameters, chat=chat, batch_size=batch_size)
        todo = asked if file is None else [one for one in asked if not _is_done(one, file, parameters.n)]
        count = _Count(asked, todo, parameters.n, progress, should_stop)
        before = {} if file is None else file.found
        kept: list[Answer] = []
        try:
            with closing(work.run(todo, before, count)) as answers:
                for answer in answers:
                    if file is None:
                        kept.append(answer)
                    else:
                        file.add(answer)
                    count.add(answer)
        except KeyboardInterrupt:
            count.stopped = True
    kept.sort(key=lambda one: (one.index, one.sample))
    failed_before = sum(one.error is not None for key, one in before.items() if key[0] not in count.open_at_first)
    return Answers(
        path=None if to is None else Path(to).expanduser(),
        kept=tuple(kept),
        prompts=len(asked),
        done=count.done,
        failed=count.failed + failed_before,
        found=len(asked) - len(todo),
        tokens=count.said,
        tokens_per_s=count.said / count.seconds,
        interrupted=count.done < len(asked),
        note=work.note,
    )


class _Count:
    """How far it is, for `progress`; and whether to stop."""

    def __init__(
        self,
        asked: Sequence[Question],
        todo: Sequence[Question],
        n: int,
        progress: OnProgress | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self._total = len(asked)
        self._left = dict.fromkeys((one.index for one in todo), n)
        self._progress, self._should_stop = progress, should_stop
        self._started = time.perf_counter()
        self._last = 0.0
        self._tokens = 0
        self.open_at_first = set(self._left)
        self.failed = 0
        self.said = 0
        self.stopped = False

    @property
    def done(self) -> int:
        """Prompts that are done."""
        return self._total - len(self._left)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return max(time.perf_counter() - self._started, 1e-9)

    def had(self, index: int) -> None:
        """A sample that was in the file already."""
        self._take(index, 1)

    def add(self, answer: Answer) -> None:
        """Another answer is there."""
        self.failed += answer.error is not None
        self.said += len(answer.tokens)
        self._take(answer.index, self._left[answer.index] if answer.error is not None else 1)
        self.tick(self._tokens, now=True)

    def _take(self, index: int, samples: int) -> None:
        self._left[index] -= samples
        if self._left[index] <= 0:
            del self._left[index]

    def tick(self, tokens: int, *, now: bool = False) -> None:
        """Reports, now and then; `tokens` counts those of answers that aren't done too."""
        self._tokens = max(tokens, self.said)
        if now or time.monotonic() - self._last >= _TICK_S:
            self._last = time.monotonic()
            if self._progress is not None:
                self._progress(self.done, self._total, self._tokens / self.seconds)

    def stop(self) -> bool:
        """Whether somebody wants it to end."""
        self.stopped = self.stopped or (self._should_stop is not None and self._should_stop())
        return self.stopped


class _Work:
    """From questions to answers."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        parameters: SamplingParameters,
        *,
        chat: bool,
        batch_size: int,
    ) -> None:
        self._model, self._tokenizer, self._parameters = model, tokenizer, parameters
        self._chat, self._batch_size = chat, batch_size
        forward = Forward.of(model)
        self._context, self._vocab_size = forward.context, forward.vocab_size
        self._eos = forward.eos_ids | ({tokenizer.eos_id} if tokenizer.eos_id is not None else frozenset())
        self.note: str | None = None

    def run(
        self, todo: Sequence[Question], before: Mapping[tuple[int, int], Answer], count: _Count
    ) -> Generator[Answer]:
        """The answers, as they are done."""
        rows: list[_Row] = []
        for question in todo:
            try:
                ids = self._encode(question)
            except (NbllmError, ValueError, TypeError) as error:
                yield Answer(index=question.index, id=question.id, prompt=question.prompt, error=str(error))
                continue
            limit = self._parameters.max_new_tokens
            if self._context is not None and not self._parameters.sliding:
                limit = min(limit, self._context - len(ids))
            for sample in range(self._parameters.n):
                row = _Row(question=question, sample=sample, ids=ids, limit=limit)
                found = before.get((question.index, sample))
                if found is not None and found.error is None:
                    count.had(question.index)
                elif limit <= 0:
                    yield self._answer(row, [], "context")
                else:
                    rows.append(row)
        if rows:
            yield from self._paged(rows, count)

    def _paged(self, rows: list[_Row], count: _Count) -> Iterator[Answer]:
        from nbllm.sample.paged import PagedBatch, PagedUnsupported

        waiting = iter(rows)
        open_rows: dict[str, tuple[_Row, _Stop]] = {}
        every_token = bool(self._parameters.stop)
        at_once = min(self._batch_size, len(rows))
        longest = max(len(row.ids) + row.limit for row in rows)
        try:
            with PagedBatch(self._model, self._parameters, eos=self._eos, rows=at_once, longest=longest) as batch:
                while not count.stop():
                    while len(open_rows) < 2 * at_once and (row := next(waiting, None)) is not None:
                        key = f"{row.question.index}.{row.sample}"
                        open_rows[key] = row, _Stop(self._tokenizer, row.ids, self._parameters.stop, self._eos)
                        batch.add(key, row.ids, sample=row.sample, max_new_tokens=row.limit, every_token=every_token)
                    if not open_rows:
                        return
                    heard = batch.take(_TICK_S)
                    count.tick(batch.tokens)
                    if heard is None or heard.key not in open_rows:
                        continue
                    row, stop = open_rows[heard.key]
                    reason = stop.reason(heard.tokens)
                    if reason is None and heard.done:
                        short = len(heard.tokens) < self._parameters.max_new_tokens
                        ended = heard.tokens[-1] in self._eos
                        reason = "eos" if ended else "context" if short else "length"
                    if reason is None:
                        continue
                    del open_rows[heard.key]
                    if not heard.done:
                        batch.cancel(heard.key)
                    yield self._answer(row, heard.tokens, reason)
        except PagedUnsupported as error:
            self.note = (
                f"In padded batches, since paged attention isn't possible for this {type(self._model).__name__}:"
                f" {error}"
            )
            yield from self._padded(rows, count)

    def _padded(self, rows: list[_Row], count: _Count) -> Iterator[Answer]:
        by_prompt: dict[int, list[_Row]] = {}
        for row in rows:
            by_prompt.setdefault(row.question.index, []).append(row)
        prompts = list(by_prompt.values())
        size = max(1, self._batch_size // self._parameters.n)
        tokens = 0

        def stop() -> bool:
            count.tick(tokens)
            return count.stop()

        for start in range(0, len(prompts), size):
            part = prompts[start : start + size]
            generations = generate_batch(
                self._model,
                self._tokenizer,
                [mine[0].ids for mine in part],
                self._parameters,
                batch_size=size,
                should_stop=stop,
            )
            tokens += sum(len(sample.tokens) for one in generations for sample in one.samples)
            count.tick(tokens)
            for mine, generation in zip(part, generations, strict=True):
                for row in mine:
                    sample = generation.samples[row.sample]
                    if sample.stop_reason == "interrupted":
                        count.stopped = True
                    else:
                        yield self._answer(row, list(sample.tokens), sample.stop_reason)
            if count.stop():
                return

    def _encode(self, question: Question) -> list[int]:
        prompt: Any = question.prompt
        if question.error is not None:
            raise UsageError(question.error)
        talk = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], Mapping)
        if talk and not self._chat:
            raise UsageError("messages need --chat")
        if self._chat and (talk or isinstance(prompt, str)):
            ids = chat_prompt(self._tokenizer, prompt)
        else:
            ids = encode_prompt(self._tokenizer, prompt)
        if max(ids) >= self._vocab_size:
            raise UsageError(
                f"The prompt has token {max(ids)}, and the model's vocabulary has {self._vocab_size:,} tokens"
            )
        if self._context is not None and len(ids) > self._context and not self._parameters.sliding:
            raise UsageError(
                f"The prompt has {len(ids):,} tokens, more than the model's context of {self._context:,}",
                next="Shorten it, or add --sliding to go on from its newer half",
            )
        return ids

    def _answer(self, row: _Row, tokens: list[int], reason: str) -> Answer:
        said = tokens[:-1] if tokens and tokens[-1] in self._eos else tokens
        before = _before(self._tokenizer, row.ids)
        text = whole_text(self._tokenizer, [*before, *said])
        if before:
            text = text.removeprefix(self._tokenizer.decode(before))
        stops = StopTexts(self._parameters.stop)
        return Answer(
            index=row.question.index,
            id=row.question.id,
            sample=row.sample,
            prompt=row.question.prompt,
            text=stops.push(text) + stops.flush(),
            tokens=tuple(tokens),
            stop_reason=reason,
        )


class _Stop:
    """Finds a stop text in a row that grows."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], stops: tuple[str, ...], eos: frozenset[int]) -> None:
        self._stops, self._eos = StopTexts(stops), eos
        self._decoder = StreamDecoder(tokenizer)
        self._watches = bool(stops)
        self._read = 0
        for id in _before(tokenizer, prompt) if stops else ():
            self._decoder.push(id)

    def reason(self, tokens: Sequence[int]) -> str | None:
        """`stop` once the row's tokens hold a stop text.

        Args:
            tokens: all of the row's so far; at most one more than at the last call.
        """
        if not self._watches:
            return None
        for token in tokens[self._read :]:
            if token not in self._eos:
                self._stops.push(self._decoder.push(token))
        self._read = len(tokens)
        return "stop" if self._stops.found is not None else None


def _before(tokenizer: Tokenizer, prompt: list[int]) -> list[int]:
    """A word piece's leading space hangs on what stands before it; bytes stand for themselves."""
    return [] if tokenizer.byte_level else prompt[-_CONTEXT_TOKENS:]


def _is_done(question: Question, file: AnswerFile, n: int) -> bool:
    """Whether the file holds all of a prompt's answers.

    Raises:
        UsageError: it holds answers to another prompt in that place.
    """
    found = [file.found[question.index, sample] for sample in range(n) if (question.index, sample) in file.found]
    same = [one for one in found if one.prompt == question.prompt and one.id == question.id]
    for one in found:
        if one not in same and one.error is None:
            raise UsageError(
                f"{file.path} holds the answer to another prompt {question.id!r}: the prompts have changed",
                next="Name another file, or add --overwrite",
            )
    return len(same) == n or any(one.error is not None for one in same)
