"""What a session does to fine-tune: find the rows, encode them, start a run that trains an adapter or all weights.

Like the session's other methods this chooses inputs and moves pointers; `nbllm.chat`, `nbllm.shards` and `nbllm.train`
do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbllm.errors import DataError, NotFoundError, StoreError, UsageError, did_you_mean
from nbllm.sessions.comparing import Comparing
from nbllm.sessions.models import ModelReference
from nbllm.sessions.starting import new_config, new_shards, plain_corpus, start_run
from nbllm.sessions.tuning_plan import TuningPlan
from nbllm.store import Parent

if TYPE_CHECKING:
    from nbllm.chat import ExampleSet
    from nbllm.shards import Shards
    from nbllm.tokenizer import Tokenizer
    from nbllm.train import TrainConfig


_SEQ_LEN = 256
"""TrainConfig's, where none is given."""


@dataclass(frozen=True, kw_only=True)
class _Data:
    """What is learnt, ready for a run."""

    shards: Shards
    tokenizer: Tokenizer
    held_out_texts: Iterable[str]
    examples: ExampleSet | None
    format: str


class Tuning(Comparing):
    """The part of `Session` that fine-tunes."""

    def finetune(
        self,
        *,
        base: str | None = None,
        method: str = "lora",
        data: Any = None,
        format: str | None = None,
        r: int = 8,
        alpha: float = 16,
        dropout: float = 0.05,
        targets: str = "auto",
        bottleneck: int = 32,
        virtual_tokens: int = 20,
        held_out: float = 0.05,
        drop_long: bool = False,
        name: str | None = None,
        overwrite: bool = False,
        wait: bool = False,
        dry_run: bool = False,
        say: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Any:
        """Starts a fine-tuning run; its adapter is used by the next sampling once it has a checkpoint.

        Args:
            base: a run, folder, GGUF file or hub name; the current model by default.
            method: `lora`, `qlora` (on a base in 4 bits), `dora`, `ia3`, `adapter` (a bottleneck after each
                feed-forward), `prompt` (virtual tokens before every text), `prefix` (keys and values of such in every
                layer) or `full` (all weights).
            data: a file, folder or glob, `hf:NAME[:CONFIG][:SPLIT]`, a list of strings, dicts or conversations, a
                DataFrame, an Arrow table or a dataset to learn from.
            format: `chat` (`messages`), `instruction` (`instruction`, `input`, `output`), `completion` (`prompt`,
                `completion`) or `text` (every document is learnt whole); by default what the first row looks like.
                In all but `text` only answers are learnt.
            r: the rank of the low-rank update.
            alpha: its scale is alpha / r.
            dropout: the probability of dropping an input of the update while training.
            targets: `auto`, or names of linear layers separated by commas.
            bottleneck: the width of the detours of `adapter`.
            virtual_tokens: how many, for `prompt` and `prefix`.
            held_out: the fraction of rows that is never trained on.
            drop_long: leave out rows that are cut before their answer begins, in place of refusing them.
            name: the run's and adapter's name; a new one is made up if none is given.
            overwrite: replace a run and adapter of that name.
            wait: block until the run has ended.
            dry_run: start nothing; give back what would be trained, with an example.
            say: called with lines to show before the run starts.
            options: the fields of `nbllm.train.TrainConfig`.

        Returns:
            The Run; with `dry_run` a TuningPlan.

        Raises:
            DataError: rows that can't be learnt from, by name.
            StoreError: a run of that name is there; names `--overwrite`.
        """
        from nbllm.train import AdapterConfig

        if data is None:
            raise DataError(
                "There is nothing to fine-tune on", next="Add --data FILE, or --data $texts for a list of strings"
            )
        with self.lock:
            reference = self.models.reference(base) if base else self.model
        if reference is None:
            raise NotFoundError("There is no model yet", next="Train one with %llm_train, or add --base FOLDER")
        if "seq_len" not in options:  # what a base of a short context can read
            longest = self.models.longest(reference)
            room = None if longest is None else longest - (virtual_tokens if method in ("prompt", "prefix") else 0)
            if room is not None and 2 <= room < _SEQ_LEN:
                options["seq_len"] = room
        full = method == "full"
        adapter = (
            None
            if full
            else AdapterConfig(
                method=method,
                r=r,
                alpha=alpha,
                dropout=dropout,
                targets=targets,
                width=bottleneck,
                virtual_tokens=virtual_tokens,
            )
        )
        config = new_config(self, options, model=str(self.models.path(reference)), held_out=held_out, adapter=adapter)
        found = self._data(reference, data, format, config, drop_long, name)
        plan = TuningPlan.of(config, found.shards, found.examples, found.format)
        if dry_run:
            return plan
        for line in plan.lines if say is not None else ():
            say(line)  # type: ignore[misc]
        if overwrite and name is not None:
            self._make_room(name)
        try:
            run = start_run(
                self,
                config,
                name=name,
                base=f"{reference.name}-{method}",
                tokenizer=found.tokenizer.name,
                shards=found.shards,
                held_out_texts=found.held_out_texts,
                method="finetune",
                arguments={
                    "base": reference.name,
                    "method": method,
                    "data": data,
                    "format": found.format,
                    "r": r,
                    "alpha": alpha,
                    "dropout": dropout,
                    "targets": targets,
                    "bottleneck": bottleneck,
                    "virtual_tokens": virtual_tokens,
                    "held_out": held_out,
                    **options,
                },
                more_parents=self.models.parents(reference),
            )
        except StoreError as error:
            if name is None or name not in self.store.names("run"):
                raise
            raise StoreError(
                f"A run is already named {name!r}, and does something else or has ended",
                next="Add --overwrite to replace it and its adapter, or choose another --name",
            ) from error
        with self.lock:
            self.run = run
            self.model = ModelReference(kind="run", source=run.name) if full else reference
            self.adapter = None if full else run.name
            self.tokenizer = found.tokenizer
        if wait:
            run.wait()
        return run

    def _data(
        self,
        reference: ModelReference,
        data: Any,
        format: str | None,
        config: TrainConfig,
        drop_long: bool,
        name: str | None,
    ) -> _Data:
        """The rows as shards: text through a corpus, the rest as examples with their answers marked."""
        from nbllm.chat import FORMATS, find_format, find_records, make_examples, names_records
        from nbllm.shards import build

        if format is not None and format not in FORMATS:
            raise UsageError(f"--format can't be {format!r}", next=did_you_mean(format, FORMATS))
        tokenizer = self.models.tokenizer(reference)
        records = find_records(data) if format not in (None, "text") or (format is None and names_records(data)) else []
        if format is None:
            plain = not records or (len(records[0].fields) == 1 and _is_text(records[0]))
            format = "text" if plain else find_format(records)
        if format == "text":
            source = plain_corpus(self, data, f"{name or reference.name}-data")
            shards = new_shards(self, source, tokenizer, config.held_out)
            texts = source.texts("held-out", config.held_out)
            return _Data(shards=shards, tokenizer=tokenizer, held_out_texts=texts, examples=None, format=format)
        examples = make_examples(
            records,
            tokenizer,
            format=format,
            held_out=config.held_out,
            seq_len=config.seq_len,
            drop_long=drop_long,
        )
        tokenizer = self._stored_with_template(tokenizer, examples.tokenizer)
        label = data if isinstance(data, str) else f"{name or reference.name}-data"
        shards = build(
            self.store,
            tokenizer,
            train=examples.train,
            held_out=examples.held_out,
            parents=(Parent(kind="file", name=str(label), hash=examples.hash), tokenizer.as_parent()),
            parameters={
                "held_out": config.held_out,
                "format": format,
                "template": examples.template,
                "seq_len": config.seq_len if drop_long else None,
            },
        )
        return _Data(
            shards=shards,
            tokenizer=tokenizer,
            held_out_texts=examples.answers_held_out,
            examples=examples,
            format=format,
        )

    def _stored_with_template(self, own: Tokenizer, wanted: Tokenizer) -> Tokenizer:
        """`wanted` as an artefact of the store: `own` itself, or its copy that has got a chat template."""
        from nbllm.tokenizer import load

        if wanted.chat_template == own.chat_template:
            return own
        for stored in self.store.names("tokenizer"):
            found = load(self.store, stored)
            if (found.hash, found.chat_template) == (wanted.hash, wanted.chat_template):
                return found
        name, number = wanted.name, 2
        while name in self.store.names("tokenizer"):
            name, number = f"{wanted.name}-{number}", number + 1
        parameters = {"tokenizer_hash": wanted.hash, "chat_template": wanted.chat_template}
        parents = [own.as_parent()]
        with self.store.create("tokenizer", name, parameters=parameters, parents=parents) as draft:
            wanted.save(draft.folder)
            draft.summary["vocab_size"] = wanted.vocab_size
        return load(self.store, name)

    def _make_room(self, name: str) -> None:
        """Stops and removes the run of that name, and the adapter that it published."""
        from nbllm.train import LIVE, Run

        for kind in ("run", "adapter"):
            if name in self.store.names(kind):
                if kind == "run" and (run := Run(self.store, name)).status in LIVE:
                    run.stop()
                self.store.remove(self.store.get(kind, name))


def _is_text(record: Any) -> bool:
    return all(isinstance(value, str) for value in record.fields.values())
