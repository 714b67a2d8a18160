"""What a session does to compare adapters: the same prompt through the base and each of them, and what each changed.

Like the session's other methods these choose inputs; `nbllm.sample` and `nbllm.adapters` do the work. The base stays in
memory, and adapters are swapped on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nbllm.errors import NbllmError, NotFoundError, UsageError
from nbllm.sessions.adapter_report import AdapterReport, Moved, most_moved
from nbllm.sessions.comparison import Column, Comparison, settings_line
from nbllm.sessions.looking import Looking

if TYPE_CHECKING:
    from nbllm.sample import SamplingParameters
    from nbllm.tokenizer import Tokenizer

_MOST_COLUMNS = 4
_TOKENS = 2000
"""So many tokens of held-out text are looked at."""
_ROOM = 64
"""Positions of the context that virtual tokens may take."""
_CONTEXT = 12


class Comparing(Looking):
    """The part of `Session` that compares adapters."""

    def compare_adapters(
        self,
        *names: str,
        prompt: str,
        scales: Mapping[str, float] | None = None,
        chat: bool | None = None,
        on_text: Callable[[int, str], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        **settings: Any,
    ) -> Comparison:
        """One prompt continued by the base and by adapters, with the same random numbers; what differs is marked.

        Args:
            names: the adapters, of one base; the current one by default, else the newest.
            prompt: what to continue.
            scales: how strongly an adapter acts, by its name: 0 as the base, 1 as trained, more is beyond.
            chat: put the prompt into the chat template; by default where an adapter was trained on conversations.
            on_text: called with a column's number (0: the base) and each new piece of its text.
            should_stop: asked before every token; True ends the column under way and those after it.
            settings: the fields of `SamplingParameters`; missing ones come from `session.sampling`.

        Raises:
            NotFoundError: no adapter yet.
            UsageError: adapters of different bases, or too many.
        """
        chosen = self.adapters_to_compare(names)
        for name in scales or {}:
            if name not in chosen:
                raise UsageError(f"A scale is for an adapter that is compared: {', '.join(chosen)}", received=name)
        parameters = self.sampling_with({**settings, "n": 1})
        columns: list[Column] = []
        wanted: list[str | None] = [None, *chosen]
        for place, adapter in enumerate(wanted):
            if columns and columns[-1].stop_reason == "interrupted":
                break
            columns.append(
                self.adapter_column(
                    adapter,
                    chosen,
                    prompt,
                    scale=1.0 if adapter is None else (scales or {}).get(adapter, 1.0),
                    chat=chat,
                    parameters=parameters,
                    on_text=None if on_text is None else partial(on_text, place),
                    should_stop=should_stop,
                )
            )
        return self.comparison(chosen, prompt, parameters, columns)

    def comparison(
        self, names: Sequence[str], prompt: str, parameters: SamplingParameters, columns: Sequence[Column]
    ) -> Comparison:
        """Columns side by side."""
        shown = ("temperature", "top_p", "top_k", "min_p", "seed", "max_new_tokens")
        values = [(name, getattr(parameters, name)) for name in shown]
        return Comparison(
            model=self.models.base_of(names[0], self.model).name,
            prompt=prompt,
            settings="greedy" if parameters.greedy else settings_line(values),
            columns=tuple(columns),
        )

    def adapters_to_compare(self, names: Sequence[str] = ()) -> tuple[str, ...]:
        """Names of adapters of one base; the current one where none is given, else the newest.

        Raises:
            NotFoundError: none is there.
            UsageError: several bases, one name twice, or too many.
        """
        found = tuple(names)
        if not found:
            kept = [manifest.name for manifest in self.adapters()]
            current = self.adapter or next(iter(kept), None)
            if current is None:
                raise NotFoundError(
                    "There is no adapter to compare yet", next="Make one with %llm_finetune --data FILE"
                )
            found = (current,)
        if len(set(found)) < len(found) or len(found) >= _MOST_COLUMNS:
            raise UsageError(f"A comparison takes one to {_MOST_COLUMNS - 1} different adapters", received=list(found))
        bases = {name: self.models.path(self.models.base_of(name, self.model)) for name in found}
        if len(set(bases.values())) > 1:
            one, other = list(bases)[:2]
            raise UsageError(f"{one} and {other} were trained on different bases", next="Compare them one by one")
        return found

    def adapter_column(
        self,
        name: str | None,
        beside: Sequence[str],
        prompt: str,
        *,
        scale: float = 1.0,
        chat: bool | None = None,
        parameters: SamplingParameters,
        on_text: Callable[[str], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Column:
        """One column of a comparison.

        Args:
            name: the adapter; None for the base.
            beside: all adapters of the comparison, whose tokenizer and chat template every column shares.
            prompt, chat: as for `compare_adapters`.
            scale: how strongly it acts.
            parameters: the sampling settings.
            on_text: called with each new piece of the text.
            should_stop: asked before every token.
        """
        from nbllm.sample import chat_prompt, generate

        with self.lock:
            reference = self.models.base_of(beside[0], self.model)
            tokenizer = self._tokenizer_of(beside)
            model, _ = self.models.load(reference, adapter=name, scale=scale)
            wrapped = chat if chat is not None else any(self.trained_on_chat(one) for one in beside)
            made = generate(
                model,
                tokenizer,
                chat_prompt(tokenizer, prompt) if wrapped else prompt,
                parameters,
                on_text=None if on_text is None else (lambda _, text: on_text(text)),
                should_stop=should_stop,
            )
        logprobs = made.logprobs
        return Column(
            adapter=name,
            scale=scale,
            text=made.text,
            tokens=made.tokens,
            logprob=sum(logprobs) / len(logprobs) if logprobs else 0.0,
            stop_reason=made.stop_reason,
        )

    def trained_on_chat(self, adapter: str) -> bool:
        """Whether the run that made an adapter learnt answers in a chat template; False where that isn't known."""
        try:
            call = self.store.get("run", self._run_of(adapter)).call
        except NbllmError:
            return False
        return call.get("arguments", {}).get("format") in ("chat", "instruction")

    def adapter_report(self, name: str | None = None, *, texts: Sequence[str] | None = None) -> AdapterReport:
        """What an adapter changed: norms by layer and module, and which tokens of held-out text moved most.

        Args:
            name: the adapter; the current one by default, else the newest.
            texts: what to look at in place of the text that its run held out.
        """
        from nbllm.adapters import changes, shifts

        (chosen,) = self.adapters_to_compare([name] if name else [])
        with self.lock:
            reference = self.models.base_of(chosen, self.model)
            model, tokenizer = self.models.load(reference, adapter=chosen)
            most = (self.models.longest(reference) or _TOKENS) - _ROOM
            if texts is None:
                pairs = self._held_out_ids(chosen, most)
            else:
                pairs = [(tokenizer.encode(text)[:most], None) for text in texts]
            documents = [ids for ids, _ in pairs]
            found = shifts(model, documents) if any(len(ids) > 1 for ids in documents) else []
            learnt = [targets for _, targets in pairs]
            found = [one for one in found if (mask := learnt[one.document]) is None or mask[one.position]]
            sizes = changes(model)
        moved = [
            Moved(
                context=tokenizer.decode(documents[one.document][max(0, one.position - _CONTEXT) : one.position])[-40:],
                token=tokenizer.token_text(one.token),
                before=math.exp(one.before),
                after=math.exp(one.after),
            )
            for one in found
        ]
        count = len(found)
        return AdapterReport(
            adapter=chosen,
            changes=tuple(sizes),
            moved=most_moved(moved),
            tokens=count,
            loss_before=-sum(one.before for one in found) / count if count else float("nan"),
            loss_after=-sum(one.after for one in found) / count if count else float("nan"),
            on="held-out text" if texts is None else "the given text",
        )

    def _tokenizer_of(self, adapters: Sequence[str]) -> Tokenizer:
        """The tokenizer that all columns share: with the chat template of the first adapter that brings one."""
        found = [self.models.tokenizer_with(self.models.base_of(name, self.model), name) for name in adapters]
        return next((tokenizer for tokenizer in found if tokenizer.chat_template), found[0])

    def _run_of(self, adapter: str) -> str:
        if adapter in self.store.names("adapter"):
            return str(self.store.get("adapter", adapter).parameters.get("run", adapter))
        return adapter

    def _held_out_ids(self, adapter: str, most: int) -> list[tuple[list[int], list[bool] | None]]:
        """The first documents that an adapter's run held out, as ids, cut at `most`, with what of them is learnt (None:
        all); none where the run or its shards are gone."""
        from nbllm.shards import Shards

        try:
            shards = self.store.get("run", self._run_of(adapter)).parameters["shards"]
            stream = Shards.load(self.store, str(shards)).held_out
        except (NbllmError, KeyError):
            return []
        ends = stream.boundaries.tolist()
        found: list[tuple[list[int], list[bool] | None]] = []
        taken = 0
        for start, end in pairwise(ends):
            part = slice(start, min(end, start + most))
            mask = None if stream.mask is None else [bool(wanted) for wanted in stream.mask[part]]
            found.append(([int(token) for token in stream.tokens[part]], mask))
            taken += part.stop - start
            if taken >= _TOKENS:
                break
        return found
