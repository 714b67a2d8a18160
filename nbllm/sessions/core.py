"""The session: every capability as one method over what is current.

The methods import the rooms that do the work inside themselves, since `import nbllm` must load neither torch nor
transformers; they choose inputs and move the pointers, and do no work of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import NotFoundError, UsageError
from nbllm.sessions.models import ModelReference
from nbllm.sessions.starting import compressed_reference, new_config, new_shards, planned, recordable, start_run
from nbllm.sessions.tuning import Tuning
from nbllm.store import Manifest

if TYPE_CHECKING:
    from nbllm.corpus import Corpus
    from nbllm.sessions.archive import Unpacked
    from nbllm.sessions.card import SessionCard
    from nbllm.sessions.run_comparison import RunComparison, RunTable
    from nbllm.sessions.training_plan import TrainingPlan
    from nbllm.tokenizer import Comparison, Parity, Tokenizer
    from nbllm.train import Run


_TELLING = ("progress", "say", "estimated")


class Session(Tuning):
    """What is current in one notebook; every magic and panel works through one of these.

    Args:
        store: where the artefacts are.
        name: this session's name in the store.

    Each trait can be observed (`session.observe(function, "corpus")`) and assigned, an artefact also by its name.
    """

    def __repr__(self) -> str:
        return f"Session({self.name!r}, store={str(self.store.root)!r})"

    # Cleaning and tokenizing ------------------------------------------------------------------------------------

    def clean(self, *sources: Any, **options: Any) -> Corpus:
        """Cleans text into a corpus and makes it current; see `nbllm.corpus.clean` for the options.

        Args:
            sources: files, folders, globs, `builtin:pydocs`, DataFrames, Arrow tables or datasets.
            options: `texts`, `recipe`, `stages`, `name`, `text_column`, `split`, `stream`, `max_expansion`, `mix`,
                `tokens`, `bytes_per_token`, `functions`, `workers`, `engine`, `ray_address`, `batch_documents`, `keep`,
                `overwrite`, `progress`, `say` and `estimated`.
        """
        from nbllm.corpus import clean

        recorded = {key: value for key, value in options.items() if key not in (*_TELLING, "overwrite")}
        call = {"method": "clean", "sources": recordable(list(sources)), "arguments": recordable(recorded)}
        corpus = clean(self.store, sources, call=call, **options)
        corpus.asked = sources, {key: value for key, value in options.items() if key not in _TELLING}
        with self.lock:
            self.corpus = corpus
        return corpus

    def train_tokenizer(
        self,
        *,
        corpus: str | None = None,
        algorithm: str = "bpe",
        vocab_size: int | None = None,
        special: Sequence[str] = (),
        pattern: str | None = None,
        digits: str | None = None,
        name: str | None = None,
        held_out: float = 0.05,
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Tokenizer:
        """Trains a tokenizer on the training part of a corpus (the current one by default) and makes it current.

        Args:
            corpus, algorithm, vocab_size, special, pattern, digits, name, overwrite, progress: as of
                `nbllm.tokenizer.train`; `progress` is called with texts and bytes read so far.
            held_out: the fraction of documents that is left out.
        """
        from nbllm.tokenizer import train

        source = self.current_corpus(corpus)
        self.store.verify(source.manifest)
        arguments = {
            "algorithm": algorithm,
            "vocab_size": vocab_size,
            "special": list(special),
            "pattern": pattern,
            "digits": digits,
        }
        tokenizer = train(
            self.store,
            lambda: source.texts("train", held_out),
            text_bytes=source.text_bytes("train", held_out),
            algorithm=algorithm,
            vocab_size=vocab_size,
            special=special,
            pattern=pattern,
            digits=digits,
            name=name or source.name,
            parents=(source.manifest.as_parent(),),
            parameters_extra={"held_out": held_out},
            overwrite=overwrite,
            progress=progress,
            call={
                "method": "train_tokenizer",
                "arguments": {**arguments, "corpus": source.name, "held_out": held_out, "name": name or source.name},
            },
        )
        with self.lock:
            self.tokenizer = tokenizer
        return tokenizer

    def load_tokenizer(self, source: str, *, pattern: str | None = None) -> Tokenizer:
        """Makes a tokenizer current: a name in the store, a folder, a file or `tiktoken:NAME`; see `tokenizer.load`."""
        from nbllm.tokenizer import load

        with self.lock:
            self.tokenizer = tokenizer = self.models.stored(load(self.store, source, pattern=pattern))
        return tokenizer

    def compare_tokenizers(
        self, *names: str, text: str | None = None, corpus: str | None = None, parallel: Any = None
    ) -> Comparison | Parity:
        """Tokenizers side by side on a text, on a corpus by language, or on translations of the same sentences.

        Args:
            names: two to five: names in the store, transformers folders, files or `tiktoken:NAME`.
            text: what to compare them on; a corpus by default.
            corpus: the name of a corpus; the current one by default.
            parallel: sentences by language (a mapping, a DataFrame, a .tsv, .csv or .jsonl file with a column a
                language): what the same meaning costs in each. One tokenizer is enough then.
        """
        from nbllm.sessions.languages import by_language
        from nbllm.tokenizer import compare, parity, read_parallel

        if parallel is not None and 1 <= len(names) <= 5:
            return parity([self._load_tokenizer(name) for name in names], read_parallel(parallel))
        if not 2 <= len(names) <= 5:
            raise UsageError(
                "A comparison needs two tokenizers, or up to five", next="%llm_session lists what there is"
            )
        found = [self._load_tokenizer(name) for name in names]
        return compare(found, [text] if text is not None else by_language(self.current_corpus(corpus)))

    # Training ---------------------------------------------------------------------------------------------------

    def train(
        self,
        *,
        model: str = "llama-nano",
        corpus: str | None = None,
        tokenizer: str | None = None,
        held_out: float = 0.05,
        name: str | None = None,
        wait: bool = False,
        dry_run: bool = False,
        **options: Any,
    ) -> Run | TrainingPlan:
        """Starts a training run in its own processes and returns at once; the run outlives this kernel.

        Args:
            model: a preset, or a folder, file or hub name to go on from (it brings its own tokenizer).
            corpus: the name of a corpus; the current one by default.
            tokenizer: the name of a tokenizer; the current one by default.
            held_out: the fraction of documents that is never trained on.
            name: the run's name; a new one is made up if none is given.
            wait: block until the run has ended.
            dry_run: start nothing; give back what the run would take: memory by kind, steps, time, command.
            options: the fields of `nbllm.train.TrainConfig`, such as `steps`, `batch_size`, `lr`, `precision`.
        """
        from nbllm.model import PRESETS
        from nbllm.train import objective

        source = self.current_corpus(corpus)
        if model in PRESETS:
            with self.lock:
                chosen = self._load_tokenizer(tokenizer) if tokenizer else self.tokenizer
            if chosen is None:
                raise NotFoundError("There is no tokenizer yet", next="Make one with %llm_tokenizer train")
            start_from = model
        else:
            reference = self.models.reference(model)
            start_from, chosen = str(self.models.path(reference)), self.models.tokenizer(reference)
        config = new_config(self, options, model=start_from, held_out=held_out)
        objective.check_parallel(config.parallel, config.model)
        if objective.choose(config.objective, config.model) == "mlm":
            objective.mask_token_id(chosen)  # before the corpus is encoded
        shards = new_shards(self, source, chosen, held_out)
        base = f"{source.name}-{Path(model).name.split('-')[-1]}"
        if dry_run:
            return planned(self, config, name=name or base, tokenizer=chosen.name, shards=shards)
        run = start_run(
            self,
            config,
            name=name,
            base=base,
            tokenizer=chosen.name,
            shards=shards,
            held_out_texts=source.texts("held-out", held_out),
            method="train",
            arguments={
                "model": model,
                "corpus": source.name,
                "tokenizer": chosen.name,
                "held_out": held_out,
                **options,
            },
        )
        with self.lock:
            self.run = run
            self.model = ModelReference(kind="run", source=run.name)
            self.adapter = None
            self.tokenizer = chosen
        if wait:
            run.wait()
        return run

    def attach(self, name: str) -> Run:
        """Makes a run current again, live or ended."""
        run = self._load_run(name)
        with self.lock:
            self.run = run
        return run

    def runs(self) -> list[Run]:
        """Every run of the store, newest first."""
        from nbllm.train import runs

        return runs(self.store)

    def run_table(self) -> RunTable:
        """Every run of the store with its numbers, newest first."""
        from nbllm.sessions.run_comparison import RunTable

        return RunTable.of(self.runs())

    def compare_runs(self, *names: str) -> RunComparison:
        """Two to eight runs side by side: their numbers, and what was asked of them differently.

        Raises:
            UsageError: another number of runs, or one named twice.
            NotFoundError: there is no such run.
        """
        from nbllm.sessions.run_comparison import RunComparison

        return RunComparison.of([self._load_run(name) for name in names])

    def compressed_reference(self, run: Run | None = None) -> dict[str, float]:
        """What `xz -9` and `gzip -9` need for a run's held-out text (the current run's by default), in bits a byte.

        Returns:
            `xz` and `gzip`; empty where there is no run or no held-out text.
        """
        chosen = run or self.run
        return compressed_reference(chosen) if chosen is not None else {}

    # The session itself -----------------------------------------------------------------------------------------

    def card(self) -> SessionCard:
        """What is current, with its lineage, disk use and live runs; shows itself in a notebook."""
        from nbllm.sessions.card import SessionCard

        return SessionCard.of(self)

    def use(self, name: str) -> Manifest:
        """Makes a stored corpus, tokenizer, run or adapter of that name current; of several kinds, each of them."""
        from nbllm.sessions.contents import use

        return use(self, name)

    def rm(self, *names: str, all: bool = False, yes: bool = False) -> list[Manifest]:
        """Removes artefacts; refuses, naming them, where others were made from these, unless `yes`.

        Args:
            names: of what to remove.
            all: remove everything in the store; refuses unless `yes`.
            yes: do it.

        Returns:
            What was removed.
        """
        from nbllm.sessions.contents import remove, remove_all

        return remove_all(self, yes=yes) if all else remove(self, names, yes=yes)

    def gc(self) -> list[Manifest]:
        """Removes what nothing uses and is made again when needed (unused token shards, exports kept for
        `--backend`), and what interrupted cleanings left; returns the artefacts."""
        from nbllm.sessions.contents import collect

        return collect(self)

    def pack(self, file: str | Path, *, overwrite: bool = False) -> list[Manifest]:
        """Writes the current artefacts, all that they were made from and the script into one file, for a colleague.

        Returns:
            The artefacts in it, oldest first.
        """
        from nbllm.sessions.archive import pack

        return pack(self, file, overwrite=overwrite)

    def unpack(self, file: str | Path, *, overwrite: bool = False) -> Unpacked:
        """Takes such a file's artefacts into this store, checked byte by byte, and makes current here what was
        current there. No code in it is run."""
        from nbllm.sessions.archive import unpack

        return unpack(self, file, overwrite=overwrite)

    def script(self) -> str:
        """The Python script that rebuilds what is current from its sources."""
        from nbllm.sessions.lineage import script

        return script(self)

    def free(self) -> int:
        """Releases the models kept in memory; returns how many there were."""
        with self.lock:
            return self.models.free()
