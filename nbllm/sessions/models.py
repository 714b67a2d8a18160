"""Which model is meant, where it lies, and the models kept in memory.

A reference to a run means its newest checkpoint, looked up whenever it is used, so that sampling from a live run
follows it. Models in memory are keyed by the content they were loaded from, never by name alone: a run resumed under
the same name, or a folder written again, is loaded again.
"""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import NotFoundError, RunError, UsageError, did_you_mean
from nbllm.files import hash_value, read_json
from nbllm.store import Parent, Store

if TYPE_CHECKING:
    from nbllm.tokenizer import Tokenizer

_KEPT = 2
_TENSORRT = ("TensorrtExecutionProvider", "CUDAExecutionProvider")


@dataclass(frozen=True, kw_only=True)
class ModelReference:
    """What `session.model` holds: where a model comes from, not the model."""

    kind: str
    """`run` (of this store) or `folder` (a transformers folder, a GGUF file, or a hub name)."""
    source: str
    """The run's name, or the folder, file or hub name."""
    checkpoint: int | None = None
    """The step of a run's checkpoint; None for the newest."""

    @property
    def name(self) -> str:
        """A short name for messages and artefacts."""
        return self.source if self.kind == "run" else Path(self.source).name.removesuffix(".gguf")


class Models:
    """Finds models and keeps the last few in memory.

    Args:
        store: where runs and adapters are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loaded: dict[tuple[str, ...], Any] = {}
        self._runtime: tuple[tuple[str, tuple[str, ...]], Any] | None = None
        self._loaded_quantized: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._tokenizers: dict[tuple[str, ...], Tokenizer] = {}

    def reference(self, source: str) -> ModelReference:
        """The reference that a name means: a run of the store first, else a folder, file or hub name."""
        if source in self._store.names("run"):
            return ModelReference(kind="run", source=source)
        path = Path(source).expanduser()
        if path.exists():
            return ModelReference(kind="folder", source=str(path.absolute()))
        if source.count("/") == 1 and not source.startswith((".", "/", "~")):
            return ModelReference(kind="folder", source=source)
        raise NotFoundError(
            f"No run, folder or file is named {source!r}",
            next=did_you_mean(source, self._store.names("run")) or "Train one with %llm_train",
        )

    def path(self, reference: ModelReference) -> str:
        """The transformers folder (or GGUF file, or hub name) behind a reference.

        Raises:
            RunError: the run has no checkpoint yet, or not that one.
        """
        if reference.kind == "folder":
            return reference.source
        from nbllm.train import LIVE, Run

        run = Run(self._store, reference.source)
        checkpoints = run.checkpoints
        if reference.checkpoint is not None:
            checkpoints = [item for item in checkpoints if item.step == reference.checkpoint]
        if not checkpoints and reference.checkpoint is None and run.status not in LIVE:
            others = [name for name in self._store.names("run") if name != run.name]
            raise RunError(
                f"The run {run.name!r} {run.status} before its first checkpoint",
                next=f"Choose another: %llm_session use {others[0]}" if others else "Start again with %llm_train",
            )
        if not checkpoints and reference.checkpoint is not None:
            there = ", ".join(str(item.step) for item in run.checkpoints) or "none"
            raise RunError(
                f"The run {run.name!r} has no checkpoint at step {reference.checkpoint}", next=f"It has: {there}"
            )
        if not checkpoints:
            raise RunError(
                f"The run {run.name!r} has no checkpoint yet",
                next=f"Wait for one (%llm_train --attach {run.name}), or press Checkpoint in its panel",
            )
        chosen = checkpoints[-1]
        base = _base_of_adapter(self._store, chosen.path)
        return base or str(chosen.path)

    def longest(self, reference: ModelReference) -> int | None:
        """The most tokens that a model reads at once; None where its files don't tell."""
        config = Path(self.path(reference)) / "config.json"
        found = read_json(config) if config.is_file() else {}
        length = found.get("max_position_embeddings", found.get("n_positions"))
        return length if isinstance(length, int) else None

    def tokenizer(self, reference: ModelReference) -> Tokenizer:
        """The tokenizer that a model brings with it: the stored one that a run was trained with, where it is there."""
        from nbllm.tokenizer import load

        if reference.kind == "run":
            for parent in self._store.get("run", reference.source).parents:
                if parent.kind == "tokenizer" and parent.name in self._store.names("tokenizer"):
                    stored = load(self._store, parent.name)
                    if stored.manifest is not None and stored.manifest.hash == parent.hash:
                        return stored
        path = self.path(reference)
        key = _content_key(path)
        if key not in self._tokenizers:
            self._tokenizers[key] = self.stored(load(self._store, path))
        return self._tokenizers[key]

    def stored(self, tokenizer: Tokenizer) -> Tokenizer:
        """The same tokenizer as an artefact of the store, copied there if it came from elsewhere, so that runs and a
        restarted kernel find it whatever becomes of the folder."""
        from nbllm.tokenizer import load

        if tokenizer.manifest is not None:
            return tokenizer
        names = self._store.names("tokenizer")
        for name in names:  # a checkpoint, or what was merged or exported from one, carries a copy
            stored = load(self._store, name)
            if stored.hash == tokenizer.hash:
                return stored
        parameters = {"copied_from": tokenizer.name, "tokenizer_hash": tokenizer.hash}
        base = re.sub(r"[^\w .+-]", "-", tokenizer.name).strip(" .-_+")[:90] or "tokenizer"
        name = base
        number = 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        with self._store.create("tokenizer", name, parameters=parameters) as draft:
            tokenizer.save(draft.folder)
            draft.summary["vocab_size"] = tokenizer.vocab_size
        return load(self._store, name)

    def parents(self, reference: ModelReference) -> list[Parent]:
        """What an artefact made from this model keeps as its parent."""
        if reference.kind == "run":
            return [self._store.get("run", reference.source).as_parent()]
        return [Parent(kind="file", name=reference.source, hash=hash_value(list(_content_key(reference.source))))]

    def adapter_folder(self, name: str) -> Path:
        """The folder of an adapter: the published artefact, else the newest checkpoint of the run that trains it."""
        from nbllm.model import is_adapter_folder

        if name in self._store.names("run"):
            from nbllm.train import Run

            checkpoints = [item for item in Run(self._store, name).checkpoints if is_adapter_folder(item.path)]
            if checkpoints:
                return Path(checkpoints[-1].path)
        if name in self._store.names("adapter"):
            return self._store.path("adapter", name)
        path = Path(name).expanduser()
        if is_adapter_folder(path):
            return path
        if name in self._store.names("run"):
            raise RunError(
                f"The adapter {name!r} has no checkpoint yet", next=f"Wait for one (%llm_train --attach {name})"
            )
        raise NotFoundError(
            f"No adapter is named {name!r}",
            next=did_you_mean(name, self._store.names("adapter")) or "Make one with %llm_finetune --data FILE",
        )

    def base_of(self, adapter: str, current: ModelReference | None) -> ModelReference:
        """The model that an adapter belongs to: what its configuration names, else the current one."""
        base = _base_of_adapter(self._store, self.adapter_folder(adapter))
        if base:
            path = Path(base)
            if path.parent.name == "checkpoints" and path.parent.parent.name in self._store.names("run"):
                run = path.parent.parent.name
                return ModelReference(kind="run", source=run, checkpoint=int(path.name.removeprefix("step-")))
            return ModelReference(kind="folder", source=base)
        if current is None:
            raise NotFoundError(f"The adapter {adapter!r} doesn't name its base", next="Add --model FOLDER")
        return current

    def load(
        self,
        reference: ModelReference,
        *,
        adapter: str | None = None,
        quantize: str | None = None,
        scale: float = 1.0,
    ) -> tuple[Any, Tokenizer]:
        """The model in eval mode on the best device, with an adapter attached or not, and its tokenizer.

        Args:
            reference: which model.
            adapter: the name of an adapter to attach.
            scale: how strongly the adapter acts: 0 as the base, 1 as trained.
            quantize: `int8` or `int4` weights; the whole model is let go once they are made, but for what they share.

        Raises:
            UsageError: an adapter and quantised weights together, or weights that can't be quantised.
        """
        if quantize and adapter:
            raise UsageError(
                "An adapter can't be attached to quantised weights",
                next=f"Merge it first: %llm_adapter merge {adapter}, or add --adapter off",
            )
        from nbllm.adapters import attach, attached, content_hash, detach, prepare_base, set_scale, wanted_base
        from nbllm.model import best_device, load

        folder = self.adapter_folder(adapter) if adapter else None
        if folder is not None:
            wanted = _base_of_adapter(self._store, folder)
            if wanted and _content_key(wanted) != _content_key(self.path(reference)):
                reference = self.base_of(str(adapter), reference)
        path = self.path(reference)
        key = _content_key(path)
        if folder is not None and (kind := wanted_base(folder)) is not None:
            key = (*key, kind)
        if quantize and (quantize, key) in self._loaded_quantized:
            return self._quantized(key, quantize, None), self.tokenizer(reference)
        if key not in self._loaded:
            while len(self._loaded) >= _KEPT:
                self._loaded.pop(next(iter(self._loaded)))
            device = best_device()
            self._loaded[key] = load(path, dtype=_stored_dtype(path, device), device=device).eval()
            if folder is not None:
                prepare_base(self._loaded[key], folder)
        model = self._loaded[key] = self._loaded.pop(key)  # last used, last dropped
        current = attached(model)
        if folder is None:
            detach(model)
        elif current is None or current.hash != content_hash(folder):
            attach(model, folder)
        if folder is not None:
            set_scale(model, scale)
        model.eval()
        if quantize:
            model = self._quantized(key, quantize, self._loaded.pop(key))
        return model, self._with_template(self.tokenizer(reference), folder)

    def tokenizer_with(self, reference: ModelReference, adapter: str) -> Tokenizer:
        """A model's tokenizer, with the chat template of an adapter where it has none of its own."""
        return self._with_template(self.tokenizer(reference), self.adapter_folder(adapter))

    def runtime(self, reference: ModelReference, adapter: str | None = None, *, backend: str) -> tuple[Any, Tokenizer]:
        """The model in another runtime, over an export that the store keeps, and its tokenizer; the last one is kept.

        Args:
            reference: which model.
            adapter: the name of an adapter to merge in.
            backend: `onnx`, `llamacpp` or `vllm`.
        """
        *_, key = self._content(reference, adapter)
        if self._runtime is None or self._runtime[0] != (backend, key):
            self._end_runtime()  # its memory first
            self._runtime = (backend, key), self.load_runtime(reference, adapter, backend=backend)
        return self._runtime[1], self.tokenizer(reference)

    def load_runtime(self, reference: ModelReference, adapter: str | None = None, *, backend: str) -> Any:
        """The same, loaded anew and kept by the caller alone; also `tensorrt`, through ONNX Runtime's provider."""
        from nbllm.export.runtimes import load_runtime

        folder, path, key = self._content(reference, adapter)
        providers = _TENSORRT if backend == "tensorrt" else None
        backend = "onnx" if backend == "tensorrt" else backend
        return load_runtime(backend, path, store=self._store, key=key, adapter=folder, providers=providers)

    def _content(self, reference: ModelReference, adapter: str | None) -> tuple[Path | None, str, tuple[str, ...]]:
        """The adapter's folder, the model's, and what the content of both is."""
        from nbllm.adapters import content_hash

        folder = self.adapter_folder(adapter) if adapter else None
        path = self.path(self.base_of(adapter, reference) if adapter else reference)
        return folder, path, (*_content_key(path), content_hash(folder) if folder else "")

    def _with_template(self, tokenizer: Tokenizer, folder: Path | None) -> Tokenizer:
        """The tokenizer with the chat template that an adapter was trained with, where it has none of its own."""
        from nbllm.chat import with_template

        path = folder / "chat_template.jinja" if folder is not None else None
        if path is None or tokenizer.chat_template or not path.is_file():
            return tokenizer
        key = (str(path), tokenizer.hash, str(path.stat().st_mtime_ns))
        if key not in self._tokenizers:
            self._tokenizers[key] = with_template(tokenizer, path.read_text(encoding="utf-8"))
        return self._tokenizers[key]

    def _end_runtime(self) -> None:
        kept, self._runtime = self._runtime, None
        if kept is not None and hasattr(kept[1], "close"):  # vLLM's process
            kept[1].close()

    def _quantized(self, key: tuple[str, ...], kind: str, model: Any) -> Any:
        """The quantised weights that are kept, else those made from `model`."""
        from nbllm.model import quantize

        kept = self._loaded_quantized
        if (kind, key) not in kept:
            while len(kept) >= _KEPT:
                kept.pop(next(iter(kept)))
            made = quantize(model, kind)
            whole = {id(one) for one in (*model.parameters(), *model.buffers())}
            for rest in (*made.parameters(), *made.buffers()):
                if id(rest) in whole and rest.device.type == "cpu":
                    rest.data = rest.data.clone()  # one view of the file would keep all of it in memory
            kept[kind, key] = made
        kept[kind, key] = kept.pop((kind, key))  # last used, last dropped
        return kept[kind, key]

    def free(self) -> int:
        """Drops every model and tokenizer in memory, and gives the accelerator's memory back."""
        count = len(self._loaded) + len(self._loaded_quantized)
        self._loaded.clear()
        self._loaded_quantized.clear()
        self._end_runtime()
        self._tokenizers.clear()
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return count


def _content_key(path: str) -> tuple[str, ...]:
    """What a model at `path` is loaded from: our checkpoints' hash, else the size and time of each file."""
    folder = Path(path)
    if (folder / "checkpoint.json").is_file():
        return (str(folder), hash_value(read_json(folder / "checkpoint.json")))
    if not folder.exists():
        return (path,)
    files = [folder] if folder.is_file() else sorted(item for item in folder.iterdir() if item.is_file())
    return (str(folder), *(f"{item.name}:{item.stat().st_size}:{item.stat().st_mtime_ns}" for item in files))


def _stored_dtype(path: str, device: str) -> str:
    """The dtype that a folder's weights are stored in, as transformers loads them; fp32 where a CPU would crawl in
    fp16, and for what says none or another."""
    from nbllm.model import dtype_name

    config = Path(path) / "config.json"
    stored = read_json(config) if config.is_file() else {}
    try:
        name = dtype_name(str(stored.get("dtype") or stored.get("torch_dtype")))
    except UsageError:
        return "fp32"
    return "fp32" if name == "fp16" and device == "cpu" else name


def _base_of_adapter(store: Store, folder: str | Path) -> str | None:
    """The base that an adapter folder names, where the store lies now; None where the folder holds no adapter."""
    from nbllm.model import adapter_base, is_adapter_folder

    if not is_adapter_folder(folder):
        return None
    base = adapter_base(folder)
    here = store.root.joinpath(*Path(base).parts[-4:])  # runs/NAME/checkpoints/STEP of a store that was moved
    return str(here) if Path(base).parts[-4:-3] == ("runs",) and not Path(base).exists() and here.is_dir() else base
