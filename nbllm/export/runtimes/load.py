"""From a model to a runtime: exports it into the store first, once for each content, then loads that.

Knows the store and the exports; which model is current, and what its content is, is the session's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nbllm.errors import UsageError, did_you_mean
from nbllm.export.extras import need
from nbllm.files import hash_value
from nbllm.store import Store

if TYPE_CHECKING:
    from nbllm.export.runtimes.vllm import VllmRuntime
    from nbllm.sample.runtime import Runtime

BACKENDS = ("onnx", "llamacpp", "vllm")
"""The runtimes beside torch. The first two give logits, so that sampling is ours; vLLM samples by itself."""


def load_runtime(
    backend: str,
    source: str | Path,
    *,
    store: Store,
    key: Sequence[str],
    adapter: str | Path | None = None,
    gguf_type: str = "f16",
    providers: Sequence[str] | None = None,
) -> Runtime | VllmRuntime:
    """A model in another runtime.

    Args:
        backend: one of `BACKENDS`.
        source: a folder, a GGUF file or a hub name. llama.cpp takes a GGUF file as it is.
        store: keeps the export, under `exports/`.
        key: what the content of model and adapter is; the same key finds the export again.
        adapter: the folder of an adapter to merge in.
        gguf_type: of the weights, for llama.cpp.
        providers: execution providers of ONNX Runtime; None: the CPU.

    Raises:
        UsageError: an unknown backend, a package that isn't installed, a model that it can't run.
        RunError: the export doesn't predict what the model does.
    """
    if backend not in BACKENDS:
        raise UsageError(f"No runtime is named {backend!r}", next=did_you_mean(backend, BACKENDS))
    path = Path(source).expanduser()
    if backend == "onnx":
        need("--backend onnx", "onnx", "onnxruntime")
        from nbllm.export.runtimes.onnx_runtime import OnnxRuntime

        return OnnxRuntime(_exported(path, store, key, "onnx", adapter, gguf_type), providers)
    if backend == "vllm":
        from nbllm.export.runtimes.vllm import VllmRuntime, need_python

        need_python()  # before the export
        return VllmRuntime(_exported(path, store, key, "vllm", adapter, gguf_type))
    need("--backend llamacpp", "llamacpp", "llama_cpp")
    from nbllm.export.runtimes.llama_cpp import LlamaCpp

    if path.is_file() and path.suffix == ".gguf" and adapter is None:
        return LlamaCpp(path)
    return LlamaCpp(_exported(path, store, key, "gguf", adapter, gguf_type))


def _exported(
    source: Path, store: Store, key: Sequence[str], to: str, adapter: str | Path | None, gguf_type: str
) -> Path:
    """The folder of the export in the store, made if it isn't there."""
    from nbllm.export.export import write

    parameters = {"to": to, "content": list(key)} | ({"gguf_type": gguf_type} if to == "gguf" else {})
    known = store.reusable("export", parameters, ())
    name = known.name if known else f"{to}-{hash_value(parameters)[:12]}"
    if known is None:
        with store.create("export", name, parameters=parameters, overwrite=True) as draft:
            inside = draft.folder / "model"  # the store made the draft's folder, and an export makes its own
            write(source, inside, to=to, adapter=adapter, gguf_type=gguf_type)
            for item in inside.iterdir():
                item.rename(draft.folder / item.name)
            inside.rmdir()
    return store.path("export", name)
