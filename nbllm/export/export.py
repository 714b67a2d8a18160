"""Writing a model where the user wants it: the folder is complete, checked and renamed into place, or isn't there.

What a format needs is in a file of its own: `hugging_face` for transformers folders, `onnx`, `gguf`, `vllm`.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path

from nbllm.errors import StoreError, UsageError, did_you_mean
from nbllm.export.exported import Check, Exported
from nbllm.files import replace_folder, sync_files, writing

FORMATS: dict[str, str] = {
    "hf": "an ordinary transformers folder: config, safetensors, tokenizer",
    "onnx": "a graph with keys and values as inputs and outputs, for ONNX Runtime",
    "gguf": "one file for llama.cpp",
    "vllm": "a transformers folder that vLLM serves",
}
"""What `to` takes."""


def export(
    source: str | Path,
    folder: str | Path,
    *,
    to: str = "hf",
    adapter: str | Path | None = None,
    gguf_type: str = "f16",
    overwrite: bool = False,
) -> Exported:
    """Writes a model, merged with its adapter, and checks that the result predicts the same next tokens.

    The check is made in the program that the format is for, where it is installed; `Exported.message` says what was
    checked, and what to install otherwise.

    Args:
        source: a folder (a checkpoint, a transformers model, an adapter), a GGUF file or a hub name.
        folder: what to write; it mustn't hold anything yet.
        to: the format, a key of `FORMATS`.
        adapter: the folder of an adapter to merge in.
        gguf_type: of the weights in a GGUF file: f16, bf16, q8_0 or f32.
        overwrite: replace the folder, if it holds a model.

    Raises:
        UsageError: an unknown format, a place that can't be written to, a package that isn't installed, or a model
            that the format can't hold.
        StoreError: the folder isn't empty, and `overwrite` is False or it doesn't hold a model.
        RunError: what was written doesn't predict what the source does; nothing is left behind.
    """
    if to not in FORMATS:
        raise UsageError(f"There is no export to {to!r}", next=did_you_mean(to, FORMATS))
    target = Path(folder).expanduser().absolute()
    _check_target(target, source, adapter, overwrite=overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{target.parent} can't be made: {error.strerror}", next="Name another folder") from error
    draft = target.parent / f".{uuid.uuid4().hex}"
    try:
        with writing(target.parent, only_full=True):
            written = write(source, draft, to=to, adapter=adapter, gguf_type=gguf_type)
            sync_files(draft)
            replace_folder(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return replace(written, folder=target, file=target / written.file.relative_to(draft))


def write(
    source: str | Path, folder: Path, *, to: str, adapter: str | Path | None = None, gguf_type: str = "f16"
) -> Exported:
    """Writes and checks an export in a folder that isn't there yet; see `export`, which also puts it into its place."""
    from nbllm.export import gguf, hugging_face, onnx, vllm

    if to == "hf":
        return Exported(
            folder=folder, format=to, file=folder, checks=(hugging_face.write(source, folder, adapter=adapter),)
        )
    if to == "vllm":
        checks, missing = vllm.write(source, folder, adapter=adapter)
        return Exported(folder=folder, format=to, file=folder, checks=tuple(checks), missing=missing)
    if to == "onnx":
        onnx.require()
    else:
        gguf.require()
        gguf.check_type(gguf_type)
    from nbllm.model import is_adapter_folder, load
    from nbllm.tokenizer import Tokenizer

    merged: Path | None = None
    found: list[Check]
    try:
        if adapter is not None or is_adapter_folder(Path(source).expanduser()):
            merged = folder.with_name(f"{folder.name}-merged")
            hugging_face.write(source, merged, adapter=adapter)
            model, tokenizer = load(merged), Tokenizer.from_folder(merged)
        else:
            model, tokenizer = load(source), hugging_face.tokenizer_of(source)
        if to == "onnx":
            found, missing = onnx.write(model, tokenizer, folder)
            file = folder / onnx.MODEL
        else:
            file, found, missing = gguf.write(model, tokenizer, folder, gguf_type=gguf_type)
    finally:
        if merged is not None:
            shutil.rmtree(merged, ignore_errors=True)
    return Exported(folder=folder, format=to, file=file, checks=tuple(found), missing=missing)


def _check_target(target: Path, source: str | Path, adapter: str | Path | None, *, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file", next="Name a folder")
    for what in (source, adapter):
        path = None if what is None else Path(what).expanduser().absolute()
        if path is not None and path.exists() and (target == path or target in path.parents):
            raise UsageError(f"{target} holds what is to be exported", next="Name another folder")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not overwrite:
        raise StoreError(f"{target} isn't empty", next="Name another folder, or add --overwrite to replace it")
    if not (target / "config.json").is_file() and not any(target.glob("*.gguf")):
        raise StoreError(f"{target} isn't empty and holds no model, so it isn't replaced", next="Name another folder")
