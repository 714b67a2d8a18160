"""The pointers of a session: what is current, observable, assignable by name, and kept in `sessions/NAME.json`.

The store is the truth: a restarted kernel finds the pointers again without a command, each loaded when it is first
looked at. Knows how artefacts are opened, not how they are made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from traitlets import Any as AnyTrait
from traitlets import HasTraits, TraitError, observe, validate
from traitlets import default as dynamic_default

from nbllm.errors import NotFoundError, StoreError, UsageError
from nbllm.files import check_name, read_json, write_json
from nbllm.sessions.models import ModelReference, Models
from nbllm.store import Store

if TYPE_CHECKING:
    from nbllm.corpus import Corpus
    from nbllm.tokenizer import Tokenizer
    from nbllm.train import Run

POINTERS = ("corpus", "tokenizer", "model", "run", "adapter", "sampling")


class Pointers(HasTraits):
    """What is current in one notebook.

    Args:
        store: where the artefacts are.
        name: this session's name in the store.
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
        self._saved: dict[str, Any] = self._read_saved()

    def _read_saved(self) -> dict[str, Any]:
        """What the session's file says; a damaged one is moved aside, since nothing but pointers is in it."""
        try:
            saved = read_json(self._file)
            if isinstance(saved, dict):
                return saved
        except FileNotFoundError:
            return {}
        except StoreError:
            pass
        aside = self._file.with_suffix(".damaged")
        with contextlib.suppress(OSError):
            self._file.replace(aside)
        warnings.warn(
            f"{self._file} was damaged and is now {aside.name}; say what is current with %llm_session use NAME",
            stacklevel=4,
        )
        return {}

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
        try:
            return SamplingParameters(**saved)
        except (UsageError, TypeError):  # of an older version, or changed by hand
            return SamplingParameters()

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

    @observe(*POINTERS)
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

    def current_corpus(self, name: str | None) -> Corpus:
        """The corpus of that name, the current one for None; raises NotFoundError where there is none."""
        with self.lock:
            corpus = self._load_corpus(name) if name else self.corpus
        if corpus is None:
            raise NotFoundError("There is no corpus yet", next="Make one with %llm_clean builtin:pydocs")
        return corpus

    def _load_corpus(self, name: str) -> Corpus:
        from nbllm.corpus import Corpus

        return Corpus.load(self.store, name)

    def _load_tokenizer(self, name: str) -> Tokenizer:
        from nbllm.tokenizer import load

        return load(self.store, name)

    def _load_run(self, name: str) -> Run:
        from nbllm.train import Run

        return Run(self.store, name)
