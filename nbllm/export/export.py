"""Writing a model where the user wants it: the folder is complete, checked and renamed into place, or isn't there.

What a format needs is in a file of its own (`hugging_face` for transformers folders).
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from nbllm.errors import StoreError, UsageError, did_you_mean
from nbllm.store import sync_files

FORMATS: dict[str, str] = {"hf": "an ordinary transformers folder: config, safetensors, tokenizer"}
"""What `to` takes."""


def export(
    source: str | Path,
    folder: str | Path,
    *,
    to: str = "hf",
    adapter: str | Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes a model, merged with its adapter, and checks that the result predicts the same next tokens.

    Args:
        source: a folder (a checkpoint, a transformers model, an adapter), a GGUF file or a hub name.
        folder: what to write; it mustn't hold anything yet.
        to: the format, a key of `FORMATS`.
        adapter: the folder of an adapter to merge in.
        overwrite: replace the folder, if it holds a model.

    Returns:
        The folder, absolute.

    Raises:
        UsageError: an unknown format, or a place that can't be written to.
        StoreError: the folder isn't empty, and `overwrite` is False or it doesn't hold a model.
        RunError: what was written doesn't predict what the source does; nothing is left behind.
    """
    if to not in FORMATS:
        raise UsageError(f"There is no export to {to!r}", next=did_you_mean(to, FORMATS))
    target = Path(folder).expanduser().absolute()
    _check_target(target, source, adapter, overwrite=overwrite)
    from nbllm.export.hugging_face import write

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{target.parent} can't be made: {error.strerror}", next="Name another folder") from error
    draft = target.parent / f".{uuid.uuid4().hex}"
    try:
        write(source, draft, adapter=adapter)
        sync_files(draft)
        if target.exists() and any(target.iterdir()):
            os.replace(target, retired := target.parent / f".{uuid.uuid4().hex}")
            os.replace(draft, target)
            shutil.rmtree(retired, ignore_errors=True)
        else:
            os.replace(draft, target)  # also over an empty folder
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


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
    if not (target / "config.json").is_file():
        raise StoreError(f"{target} isn't empty and holds no model, so it isn't replaced", next="Name another folder")
