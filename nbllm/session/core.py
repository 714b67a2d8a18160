"""The session: observable pointers into the store, and every capability as one method.

The store is the truth: the pointers are kept in `sessions/NAME.json`, so that a restarted kernel finds them again
without a command. The methods import the rooms that do the work inside themselves, since `import nbllm` must load
neither torch nor transformers; they choose inputs, move the pointers, and do no work of their own.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traitlets import Any as AnyTrait
from traitlets import HasTraits, TraitError, observe, validate
from traitlets import default as dynamic_default

from nbllm.errors import DataError, NbllmError, NotFoundError, StoreError, UsageError
from nbllm.session.models import ModelReference, Models
from nbllm.store import Manifest, Store, check_name, read_json, write_json

if TYPE_CHECKING:
    from nbllm.adapters import AdapterInfo
    from nbllm.corpus import Corpus
    from nbllm.evaluate import EvalResult
    from nbllm.sample import Generation, SamplingParameters
    from nbllm.session.card import SessionCard
    from nbllm.tokenizer import Tokenizer
    from nbllm.train import Run

_POINTERS = ("corpus", "tokenizer", "model", "run", "adapter", "sampling")
_sessions: dict[tuple[Path, str], Session] = {}
_sessions_lock = threading.Lock()


def current_session(name: str | None = None, store: Store | None = None) -> Session:
    """The one session of that name over that store in this process."""
    store = store or Store.find()
    name = check_name(name or _default_name())
    with _sessions_lock:
        key = store.root, name
        if key not in _sessions:
            _sessions[key] = Session(store, name)
        return _sessions[key]


def _default_name() -> str:
    """`NBLLM_SESSION`, else the notebook's name where the front end tells it, else `default`."""
    if os.environ.get("NBLLM_SESSION"):
        return os.environ["NBLLM_SESSION"]
    main = sys.modules.get("__main__")
    notebook = os.environ.get("JPY_SESSION_NAME", "") or str(getattr(main, "__vsc_ipynb_file__", ""))
    if not notebook.endswith(".ipynb"):
        return "default"
    return re.sub(r"[^\w .+-]", "-", Path(notebook).stem).strip(" .-_+")[:100] or "default"


class Session(HasTraits):
    """What is current in one notebook; every magic and panel works through one of these.

    Args:
        store: where the artefacts are.
        name: this session's name in the store.

    Each trait can be observed (`session.observe(function, "corpus")`) and assigned, an artefact also by its name.
    """

    corpus: Any = AnyTrait(None, allow_none=True, help="The current Corpus, or None.")
    tokenizer: Any = AnyTrait(None, allow_none=True, help="The current Tokenizer, or None.")
    model: Any = AnyTrait(None, allow_none=True, help="The current ModelReference, or None.")
    run: Any = AnyTrait(None, allow_none=True, help="The current Run, or None.")
    adapter: Any = AnyTrait(None, allow_none=True, help="The name of the adapter in use, or None.")
    sampling: Any = AnyTrait(help="The SamplingParameters that a sampling starts from.")

    def __init__(self, store: Store, name: str = "default") -> None:
        super().__init__()
        self.store = store
        self.name = check_name(name)
        self.lock = threading.RLock()
        """Guards the traits and the loaded models: callbacks may run on another thread than cells."""
        self.models = Models(store)
        self._file = store.root / "sessions" / f"{self.name}.json"
        try:
            self._saved: dict[str, Any] = read_json(self._file)
        except FileNotFoundError:
            self._saved = {}

    def __repr__(self) -> str:
        return f"Session({self.name!r}, store={str(self.store.root)!r})"

    # The pointers -----------------------------------------------------------------------------------------------

    @dynamic_default("corpus")
    def _find_corpus(self) -> Any:
        return self._found("corpus", self._load_corpus)

    @dynamic_default("tokenizer")
    def _find_tokenizer(self) -> Any:
        return self._found("tokenizer", self._load_tokenizer)

    @dynamic_default("model")
    def _find_model(self) -> Any:
        return self._found("model", lambda fields: ModelReference(**fields))

    @dynamic_default("run")
    def _find_run(self) -> Any:
        return self._found("run", self._load_run)

    @dynamic_default("adapter")
    def _find_adapter(self) -> Any:
        return self._saved.get("adapter")

    @dynamic_default("sampling")
    def _find_sampling(self) -> Any:
        from nbllm.sample import SamplingParameters

        known = {field.name for field in dataclasses.fields(SamplingParameters)}
        saved = {key: value for key, value in (self._saved.get("sampling") or {}).items() if key in known}
        if "stop" in saved:
            saved["stop"] = tuple(saved["stop"])
        return SamplingParameters(**saved)

    def _found(self, key: str, load: Callable[[Any], Any]) -> Any:
        pointer = self._saved.get(key)
        if pointer is None:
            return None
        try:
            return load(pointer)
        except NotFoundError:  # removed since, perhaps from another notebook
            return None

    @validate("corpus")
    def _check_corpus(self, proposal: Mapping[str, Any]) -> Any:
        return self._by_name(proposal["value"], self._load_corpus)

    @validate("tokenizer")
    def _check_tokenizer(self, proposal: Mapping[str, Any]) -> Any:
        return self._by_name(proposal["value"], self._load_tokenizer)

    @validate("run")
    def _check_run(self, proposal: Mapping[str, Any]) -> Any:
        return self._by_name(proposal["value"], self._load_run)

    @validate("model")
    def _check_model(self, proposal: Mapping[str, Any]) -> Any:
        return self._by_name(proposal["value"], self.models.reference)

    @validate("sampling")
    def _check_sampling(self, proposal: Mapping[str, Any]) -> Any:
        from nbllm.sample import SamplingParameters

        value = proposal["value"]
        if isinstance(value, Mapping):
            value = dataclasses.replace(self.sampling, **value)
        if not isinstance(value, SamplingParameters):
            raise TraitError(f"session.sampling takes SamplingParameters or a dict of settings, not {value!r}")
        return value

    @staticmethod
    def _by_name(value: Any, load: Callable[[str], Any]) -> Any:
        return load(value) if isinstance(value, str) else value

    @observe(*_POINTERS)
    def _remember(self, change: Mapping[str, Any]) -> None:
        key, value = change["name"], change["new"]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            pointer: Any = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        else:
            pointer = getattr(value, "name", value)
        with self.lock:
            self._saved[key] = pointer
            self.store.prepare()
            write_json(self._file, self._saved)

    def _load_corpus(self, name: str) -> Corpus:
        from nbllm.corpus import Corpus

        return Corpus.load(self.store, name)

    def _load_tokenizer(self, name: str) -> Tokenizer:
        from nbllm.tokenizer import load

        return load(self.store, name)

    def _load_run(self, name: str) -> Run:
        from nbllm.train import Run

        return Run(self.store, name)

    # Cleaning and tokenizing ------------------------------------------------------------------------------------

    def clean(self, *sources: Any, **options: Any) -> Corpus:
        """Cleans text into a corpus and makes it current; see `nbllm.corpus.clean` for the options.

        Args:
            sources: files, folders, globs, `builtin:pydocs`, DataFrames, Arrow tables or datasets.
            options: `texts`, `recipe`, `stages`, `name`, `text_column`, `split`, `functions`, `workers`, `overwrite`
                and `progress`.
        """
        from nbllm.corpus import clean

        recorded = {key: value for key, value in options.items() if key not in ("progress", "overwrite")}
        call = {"method": "clean", "sources": _recordable(list(sources)), "arguments": _recordable(recorded)}
        corpus = clean(self.store, sources, call=call, **options)
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
        pattern: str = "gpt4",
        digits: str = "any",
        name: str | None = None,
        held_out: float = 0.05,
        overwrite: bool = False,
    ) -> Tokenizer:
        """Trains a tokenizer on the training part of a corpus (the current one by default) and makes it current."""
        from nbllm.tokenizer import train

        source = self._corpus(corpus)
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
            call={
                "method": "train_tokenizer",
                "arguments": {**arguments, "corpus": source.name, "held_out": held_out, "name": name or source.name},
            },
        )
        with self.lock:
            self.tokenizer = tokenizer
        return tokenizer

    def load_tokenizer(self, source: str) -> Tokenizer:
        """Makes a tokenizer current: a name in the store, a transformers folder or a tokenizer.json file."""
        from nbllm.tokenizer import load

        tokenizer = load(self.store, source)
        with self.lock:
            self.tokenizer = tokenizer
        return tokenizer

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
        **options: Any,
    ) -> Run:
        """Starts a training run in its own processes and returns at once; the run outlives this kernel.

        Args:
            model: a preset, or a folder, file or hub name to go on from (it brings its own tokenizer).
            corpus: the name of a corpus; the current one by default.
            tokenizer: the name of a tokenizer; the current one by default.
            held_out: the fraction of documents that is never trained on.
            name: the run's name; a new one is made up if none is given.
            wait: block until the run has ended.
            options: the fields of `nbllm.train.TrainConfig`, such as `steps`, `batch_size`, `lr`, `precision`.
        """
        from nbllm.model import PRESETS

        source = self._corpus(corpus)
        if model in PRESETS:
            with self.lock:
                chosen = self._load_tokenizer(tokenizer) if tokenizer else self.tokenizer
            if chosen is None:
                raise NotFoundError("There is no tokenizer yet", next="Make one with %llm_tokenizer train")
            start_from = model
        else:
            reference = self.models.reference(model)
            start_from, chosen = str(self.models.path(reference)), self.models.tokenizer(reference)
        config = self._config(options, model=start_from, held_out=held_out)
        shards = self._shards(source, chosen, held_out)
        run = self._start(
            config,
            name=name,
            shards=shards,
            source=source,
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

    def finetune(
        self,
        *,
        base: str | None = None,
        method: str = "lora",
        data: Any = None,
        format: str = "text",
        r: int = 8,
        alpha: float = 16,
        dropout: float = 0.05,
        targets: str = "auto",
        held_out: float = 0.05,
        name: str | None = None,
        wait: bool = False,
        **options: Any,
    ) -> Run:
        """Starts a fine-tuning run; its adapter is used by the next sampling once it has a checkpoint.

        Args:
            base: a run, folder, GGUF file or hub name; the current model by default.
            method: `lora`.
            data: a file, folder, glob, list of strings, DataFrame, Arrow table or dataset to learn from.
            format: `text`: every document is learnt whole.
            r: the rank of the low-rank update.
            alpha: its scale is alpha / r.
            dropout: the probability of dropping an input of the update while training.
            targets: `auto`, or names of linear layers separated by commas.
            held_out: the fraction of documents that is never trained on.
            name: the run's and adapter's name; a new one is made up if none is given.
            wait: block until the run has ended.
            options: the fields of `nbllm.train.TrainConfig`.
        """
        from nbllm.corpus import clean
        from nbllm.train import AdapterConfig

        if format != "text":
            raise UsageError(f"--format can't be {format!r} yet", next="Choose text")
        if data is None:
            raise DataError(
                "There is nothing to fine-tune on", next="Add --data FILE, or --data $texts for a list of strings"
            )
        with self.lock:
            reference = self.models.reference(base) if base else self.model
        if reference is None:
            raise NotFoundError("There is no model yet", next="Train one with %llm_train, or add --base FOLDER")
        adapter = AdapterConfig(method=method, r=r, alpha=alpha, dropout=dropout, targets=targets)
        config = self._config(options, model=str(self.models.path(reference)), held_out=held_out, adapter=adapter)
        strings = isinstance(data, (list, tuple)) and all(isinstance(text, str) for text in data)
        source = clean(
            self.store,
            () if strings else (data,),
            texts=list(data) if strings else None,
            recipe="none",
            name=None if isinstance(data, str) else f"{name or reference.name}-data",
            overwrite=True,
        )
        tokenizer = self.models.tokenizer(reference)
        shards = self._shards(source, tokenizer, held_out)
        run = self._start(
            config,
            name=name,
            shards=shards,
            source=source,
            method="finetune",
            arguments={
                "base": reference.name,
                "method": method,
                "data": data,
                "format": format,
                "r": r,
                "alpha": alpha,
                "dropout": dropout,
                "targets": targets,
                "held_out": held_out,
                **options,
            },
            more_parents=self.models.parents(reference),
        )
        with self.lock:
            self.run = run
            self.model = reference
            self.adapter = run.name
            self.tokenizer = tokenizer
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

    def _config(self, options: Mapping[str, Any], **fixed: Any) -> Any:
        from nbllm.errors import did_you_mean
        from nbllm.train import TrainConfig

        known = {field.name for field in dataclasses.fields(TrainConfig)}
        for key in options:
            if key not in known:
                raise UsageError(f"Training has no option {key!r}", next=did_you_mean(key, known))
        return TrainConfig(**{**options, **fixed, "shards": "", "store_root": str(self.store.root)})

    def _shards(self, source: Corpus, tokenizer: Tokenizer, held_out: float) -> Any:
        from nbllm.shards import build

        parents = [source.manifest.as_parent()]
        if tokenizer.manifest is not None:
            parents.append(tokenizer.manifest.as_parent())
        return build(
            self.store,
            tokenizer,
            train=source.texts("train", held_out),
            held_out=source.texts("held-out", held_out),
            parents=parents,
            parameters={"held_out": held_out, "tokenizer": tokenizer.hash},
        )

    def _start(
        self,
        config: Any,
        *,
        name: str | None,
        shards: Any,
        source: Corpus,
        method: str,
        arguments: Mapping[str, Any],
        more_parents: Iterable[Any] = (),
    ) -> Run:
        from nbllm.evaluate import compressed_bits_per_byte
        from nbllm.train import start

        config = dataclasses.replace(config, shards=shards.name)
        parents = (shards.manifest.as_parent(), *shards.manifest.parents, *more_parents)
        call = {"method": method, "arguments": _recordable(dict(arguments))}
        run = start(self.store, config, name=name, parents=parents, call=call)
        held_out = list(source.texts("held-out", config.held_out))
        if held_out:
            write_json(run.folder / "reference.json", compressed_bits_per_byte(held_out))
        return run

    def _corpus(self, name: str | None) -> Corpus:
        with self.lock:
            corpus = self._load_corpus(name) if name else self.corpus
        if corpus is None:
            raise NotFoundError("There is no corpus yet", next="Make one with %llm_clean builtin:pydocs")
        return corpus

    # Sampling and adapters --------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int] = "",
        *,
        model: str | None = None,
        checkpoint: int | None = None,
        adapter: str | None = None,
        chat: bool = False,
        trace: bool = False,
        on_text: Callable[[int, str], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        **settings: Any,
    ) -> Generation:
        """Continues a prompt with the current model, or another.

        Args:
            prompt: text, or token ids.
            model: a run, folder, file or hub name; the current model by default.
            checkpoint: the step of a run's checkpoint; the newest by default.
            adapter: an adapter's name, `off` for none; the current one by default.
            chat: put the prompt into the model's own chat template first.
            trace: keep each step's alternatives.
            on_text: called with a sample's number and each new piece of its text.
            should_stop: asked before every token; True ends the sampling and keeps what there is.
            settings: the fields of `SamplingParameters`; missing ones come from `session.sampling`.
        """
        from nbllm.sample import chat_prompt, generate

        parameters = self.sampling_with(settings)
        with self.lock:
            loaded, tokenizer = self.load_model(model=model, checkpoint=checkpoint, adapter=adapter)
            if chat:
                prompt = chat_prompt(tokenizer, prompt if isinstance(prompt, str) else tokenizer.decode(prompt))
            return generate(
                loaded, tokenizer, prompt, parameters, on_text=on_text, should_stop=should_stop, trace=trace
            )

    def sampling_with(self, settings: Mapping[str, Any]) -> SamplingParameters:
        """The session's sampling settings with some replaced; raises UsageError for an unknown one."""
        from nbllm.errors import did_you_mean

        known = [field.name for field in dataclasses.fields(self.sampling)]
        for key in settings:
            if key not in known:
                raise UsageError(f"Sampling has no setting {key!r}", next=did_you_mean(key, known))
        return dataclasses.replace(self.sampling, **settings)

    def load_model(
        self, *, model: str | None = None, checkpoint: int | None = None, adapter: str | None = None
    ) -> tuple[Any, Tokenizer]:
        """The model (a transformers model, in eval mode) and its tokenizer; kept in memory by content."""
        with self.lock:
            reference = self.models.reference(model) if model else self.model
            if reference is None:
                raise NotFoundError("There is no model yet", next="Train one with %llm_train, or add --model FOLDER")
            if checkpoint is not None:
                reference = dataclasses.replace(reference, checkpoint=checkpoint)
            name = (None if adapter == "off" else adapter) if adapter else (None if model else self.adapter)
            return self.models.load(reference, adapter=name)

    def adapters(self) -> list[AdapterInfo]:
        """Every adapter of the store, newest first."""
        from nbllm.adapters import list_adapters

        return list_adapters(self.store)

    def use_adapter(self, name: str | None) -> None:
        """Makes an adapter current (None: none); the base isn't loaded again."""
        if name is not None:
            self.models.adapter_folder(name)
        with self.lock:
            self.adapter = name

    def merge_adapter(self, name: str | None = None, to: str | Path | None = None, *, overwrite: bool = False) -> Path:
        """Writes base and adapter as one ordinary transformers folder, and makes that the current model.

        Args:
            name: the adapter; the current one by default.
            to: the folder to write; `exports/NAME-merged` in the store by default.
            overwrite: replace a folder that isn't empty.
        """
        from nbllm.adapters import merge

        chosen = name or self.adapter
        if chosen is None:
            raise NotFoundError("There is no adapter yet", next="Make one with %llm_finetune --data FILE")
        folder = self.models.adapter_folder(chosen)
        base = self.models.base_of(chosen, self.model)
        target = Path(to) if to else self.store.path("export", f"{chosen}-merged")
        merged = merge(self.models.path(base), folder, target, overwrite=overwrite or to is None)
        with self.lock:
            self.model = self.models.reference(str(merged))
            self.adapter = None
        return merged

    # Evaluation and export --------------------------------------------------------------------------------------

    def evaluate(self, *, on: str = "held-out", model: str | None = None, held_out: float = 0.05) -> EvalResult:
        """Loss, perplexity and bits a byte on the current corpus's held-out part, or on another source."""
        from nbllm.corpus import clean
        from nbllm.evaluate import evaluate

        if on == "held-out":
            texts = list(self._corpus(None).texts("held-out", held_out))
        else:
            texts = list(clean(self.store, (on,), recipe="none").texts())
        if not texts:
            raise DataError(f"There is no text to evaluate on in {on}", next="Name a file, or raise --held-out")
        with self.lock:
            loaded, tokenizer = self.load_model(model=model)
            return evaluate(loaded, tokenizer, texts)

    def export(self, folder: str | Path, to: str = "hf", *, overwrite: bool = False) -> Path:
        """Writes the current model, merged with the current adapter, as an ordinary transformers folder."""
        from nbllm.export import export

        with self.lock:
            reference, adapter = self.model, self.adapter
        if reference is None:
            raise NotFoundError("There is no model yet", next="Train one with %llm_train")
        adapter_folder = self.models.adapter_folder(adapter) if adapter else None
        return export(self.models.path(reference), Path(folder), to=to, adapter=adapter_folder, overwrite=overwrite)

    # The session itself -----------------------------------------------------------------------------------------

    def card(self) -> SessionCard:
        """What is current, with its lineage, disk use and live runs; shows itself in a notebook."""
        from nbllm.session.card import SessionCard

        return SessionCard.of(self)

    def use(self, name: str) -> Manifest:
        """Makes a stored corpus, tokenizer, run or adapter of that name current; of several kinds, each of them."""
        found = [manifest for manifest in self.store.find_kinds(name) if manifest.kind not in ("shards", "export")]
        if not found:
            from nbllm.errors import did_you_mean

            known = [other for kind in ("corpus", "tokenizer", "run", "adapter") for other in self.store.names(kind)]
            raise NotFoundError(f"Nothing in the store is named {name!r}", next=did_you_mean(name, known))
        with self.lock:
            for manifest in found:
                if manifest.kind in ("corpus", "tokenizer", "run"):
                    setattr(self, manifest.kind, name)
                if manifest.kind == "run" and not any(other.kind == "adapter" for other in found):
                    self.model = ModelReference(kind="run", source=name)
                if manifest.kind == "adapter":
                    self.model = self.models.base_of(name, self.model)
                    self.adapter = name
        return found[0]

    def rm(self, *names: str, yes: bool = False) -> list[Manifest]:
        """Removes artefacts; refuses, naming them, where others were made from these, unless `yes`.

        Returns:
            What was removed.
        """
        doomed: list[Manifest] = []
        for name in names:
            found = self.store.find_kinds(name)
            if not found:
                raise NotFoundError(f"Nothing in the store is named {name!r}", next="%llm_session lists what there is")
            doomed += found
        from nbllm.train import live_runs

        live = {run.name for run in live_runs(self.store)}
        for manifest in doomed:
            if manifest.kind == "run" and manifest.name in live:
                raise StoreError(
                    f"The run {manifest.name!r} is live", next=f"Stop it first: %llm_train --stop {manifest.name}"
                )
        others = [child for manifest in doomed for child in self.store.dependants(manifest) if child not in doomed]
        if others and not yes:
            shown = ", ".join(f"{child.kind} {child.name}" for child in others[:8])
            raise StoreError(
                f"Made from {', '.join(names)}: {shown}", next="Add --yes to remove what you named and keep those"
            )
        for manifest in doomed:
            self.store.remove(manifest)
            with self.lock:
                current = getattr(self, manifest.kind, None) if manifest.kind in _POINTERS else None
                if current is not None and getattr(current, "name", current) == manifest.name:
                    setattr(self, manifest.kind, None)
                if manifest.kind == "run" and self.model and self.model.source == manifest.name:
                    self.model = None
        return doomed

    def script(self) -> str:
        """The Python script that rebuilds what is current from its sources."""
        from nbllm.session.lineage import script

        return script(self)

    def free(self) -> int:
        """Releases the models kept in memory; returns how many there were."""
        with self.lock:
            return self.models.free()


def _recordable(value: Any) -> Any:
    """A JSON value that stands for a call's argument; objects of the notebook are only described."""
    if isinstance(value, Mapping):
        return {str(key): _recordable(item) for key, item in value.items() if not callable(item)}
    if isinstance(value, (list, tuple)) and len(value) <= 50 and sum(len(str(item)) for item in value) < 20_000:
        return [_recordable(item) for item in value]
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return {"object": f"{type(value).__name__}{size}"}


__all__ = ["NbllmError", "Session", "current_session"]
