"""What a session shows of a model's inside: attention, the logit lens, the architecture.

Like the session's other methods these choose inputs; `nbllm.inspect` does the work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nbllm.errors import NotFoundError, UsageError
from nbllm.sessions.judging import Judging

if TYPE_CHECKING:
    import pyarrow as pa

    from nbllm.inspect.architecture import ModelSummary
    from nbllm.inspect.attention import AttentionMaps
    from nbllm.inspect.lens import LogitLens
    from nbllm.inspect.undertrained import UndertrainedTokens


class Looking(Judging):
    """The part of `Session` that looks into a model."""

    def attention(
        self,
        text: str | Sequence[int],
        *,
        model: str | None = None,
        checkpoint: int | None = None,
        adapter: str | None = None,
        chat: bool = False,
    ) -> AttentionMaps:
        """The attention of every head on a text: the model runs once, and maps are made when they are asked for.

        Args:
            text: the text, or token ids.
            model, checkpoint, adapter: as for `generate`.
            chat: put the text into the model's chat template.
        """
        from nbllm.inspect.attention import attention
        from nbllm.sample.prompt import chat_prompt

        with self.lock:
            reference = self._chosen(model, checkpoint)
            if reference.kind == "run" and reference.checkpoint is None:  # a later call means these weights too
                from nbllm.train import Run

                steps = [kept.step for kept in Run(self.store, reference.source).checkpoints]
                reference = dataclasses.replace(reference, checkpoint=steps[-1] if steps else None)
            chosen = self._chosen_adapter(model, adapter)
            loaded, tokenizer = self.models.load(reference, adapter=chosen)
            ids = chat_prompt(tokenizer, text if isinstance(text, str) else tokenizer.decode(text)) if chat else text

            name = self._called(model, reference.checkpoint, adapter)
            again = _Again(self, lambda: self.models.load(reference, adapter=chosen))
            return attention(loaded, tokenizer, ids, name=name, lock=again)

    def head_scores(
        self,
        text: str | Sequence[int],
        *,
        model: str | None = None,
        checkpoints: Sequence[int] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> pa.Table:
        """What each head does at each checkpoint of a run: `AttentionMaps.scores` with the column `step` in front.

        Args:
            text: the text, or token ids.
            model: a run; the current model by default.
            checkpoints: which steps; all by default.
            progress: called with checkpoints done and in all.

        Raises:
            UsageError: the model isn't a run of this store.
        """
        import pyarrow as pa

        reference = self._chosen(model, None)
        if reference.kind != "run":
            raise UsageError("Only a run has checkpoints", received=reference.name, next="Add model=RUN")
        from nbllm.train import Run

        steps = [kept.step for kept in Run(self.store, reference.source).checkpoints]
        steps = steps if checkpoints is None else list(checkpoints)
        if not steps:
            raise NotFoundError(f"The run {reference.source!r} has no checkpoint yet", next="Wait for one")
        found = []
        for number, step in enumerate(steps, 1):
            scores = self.attention(text, model=reference.source, checkpoint=step, adapter="off").scores
            found.append(scores.add_column(0, "step", pa.array([step] * len(scores), pa.int64())))
            if progress is not None:
                progress(number, len(steps))
        return pa.concat_tables(found)

    def logit_lens(
        self,
        text: str | Sequence[int],
        *,
        model: str | None = None,
        checkpoint: int | None = None,
        adapter: str | None = None,
        chat: bool = False,
        top: int = 5,
    ) -> LogitLens:
        """What each layer of a model would predict at each position of a text.

        Args:
            text: the text, or token ids.
            model, checkpoint, adapter: as for `generate`.
            chat: put the text into the model's chat template.
            top: how many tokens to keep for each layer and position.
        """
        from nbllm.inspect.lens import logit_lens
        from nbllm.sample.prompt import chat_prompt

        with self.lock:
            loaded, tokenizer = self.load_model(model=model, checkpoint=checkpoint, adapter=adapter)
            ids = chat_prompt(tokenizer, text if isinstance(text, str) else tokenizer.decode(text)) if chat else text
            name = self._called(model, checkpoint, adapter)
            return logit_lens(loaded, tokenizer, ids, top=top, name=name)

    def model_summary(
        self,
        *,
        model: str | None = None,
        checkpoint: int | None = None,
        adapter: str | None = None,
        quantize: str | None = None,
    ) -> ModelSummary:
        """A model's architecture, with shapes, parameters, memory and FLOPs a token.

        Args:
            model, checkpoint, adapter, quantize: as for `generate`.
        """
        from nbllm.inspect.architecture import summarize

        with self.lock:
            loaded, _ = self.load_model(model=model, checkpoint=checkpoint, adapter=adapter, quantize=quantize)
            return summarize(loaded, name=self._called(model, checkpoint, adapter))

    def undertrained_tokens(
        self,
        *,
        model: str | None = None,
        checkpoint: int | None = None,
        known: Sequence[int] = (),
        share: float = 0.02,
    ) -> UndertrainedTokens:
        """Tokens that a model has hardly learnt, by its embedding; the most suspicious first.

        Args:
            model, checkpoint: as for `generate`.
            known: ids that are known never to have been trained, besides those that no text can give.
            share: which part of the vocabulary to name.
        """
        from nbllm.inspect.undertrained import undertrained

        with self.lock:
            loaded, tokenizer = self.load_model(model=model, checkpoint=checkpoint)
            return undertrained(loaded, tokenizer, known=known, name=self._called(model, checkpoint, None), share=share)

    def _called(self, model: str | None, checkpoint: int | None, adapter: str | None) -> str:
        """What is looked at, for people: the model, its checkpoint, its adapter."""
        reference, chosen = self._chosen(model, checkpoint), self._chosen_adapter(model, adapter)
        parts = [reference.name, *([f"step {reference.checkpoint:,}"] if reference.checkpoint is not None else [])]
        return " · ".join([*parts, *([f"adapter {chosen}"] if chosen else [])])


class _Again:
    """The session's lock, held with the same weights and adapter in place as when a text was looked at."""

    def __init__(self, session: Looking, load: Callable[[], object]) -> None:
        self._session, self._load = session, load

    def __enter__(self) -> None:
        self._session.lock.acquire()
        try:
            self._load()
        except BaseException:
            self._session.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._session.lock.release()
