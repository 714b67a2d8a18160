"""Checkpoints of a run: written beside the last good one, hashed, flushed, renamed; listed, verified, pruned.

A checkpoint is an ordinary transformers folder (weights, config, tokenizer), or an adapter's folder, with a `state`
folder for what only a resume needs, and `checkpoint.json`, written last, that names every file with size and SHA-256.
A folder without it isn't a checkpoint. Imports no torch; knows nothing of what the files mean.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nbllm.errors import RunError, StoreError
from nbllm.files import finite, read_json, sync_files, write_json

CHECKPOINTS = "checkpoints"
STATE = "state"
_RECORD = "checkpoint.json"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint."""

    step: int
    """Optimizer steps taken."""
    path: Path
    """Its folder."""
    generation: int
    """Which start of the run wrote it."""
    eval_loss: float | None
    """Newest held-out loss at the time, nats a token."""
    bits_per_byte: float | None
    """The same in bits a byte of text."""
    files: dict[str, dict[str, Any]] = field(repr=False, default_factory=dict)
    """Relative name of each file: `{"bytes": …, "sha256": …}`."""

    def verify(self) -> None:
        """Reads every file; raises StoreError where one isn't what was written."""
        for name, wanted in self.files.items():
            file = self.path / name
            if not file.is_file() or _describe(file) != wanted:
                raise StoreError(f"{file} isn't what the run wrote", next="Remove that checkpoint to use an older one")


def checkpoint_name(step: int) -> str:
    """The folder name of a step's checkpoint."""
    return f"step-{step:08d}"


def list_checkpoints(run_folder: Path) -> list[Checkpoint]:
    """The complete checkpoints of a run, oldest first; sizes are checked, contents aren't."""
    found = []
    folder = run_folder / CHECKPOINTS
    for path in folder.iterdir() if folder.is_dir() else ():
        if _NAME.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError, StoreError, KeyError, TypeError):
                record = Checkpoint(path=path, **read_json(path / _RECORD))
                if all((path / name).stat().st_size == file["bytes"] for name, file in record.files.items()):
                    found.append(record)
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def newest(run_folder: Path) -> Checkpoint | None:
    """The newest checkpoint whose every file is what was written, damaged ones passed over; None without one."""
    for checkpoint in reversed(list_checkpoints(run_folder)):
        with contextlib.suppress(StoreError):
            checkpoint.verify()
            return checkpoint
    return None


def best(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """The one with the lowest held-out loss, the newer of equals; None where nothing was evaluated."""
    measured = [checkpoint for checkpoint in checkpoints if checkpoint.eval_loss is not None]
    return min(measured, key=lambda checkpoint: (checkpoint.eval_loss, -checkpoint.step), default=None)


def open_draft(run_folder: Path, step: int) -> Path:
    """A fresh hidden folder for a step's checkpoint, with its `state` folder; an older draft of any step is removed.

    Called by one process; the others write into the folder that `draft_path` names.
    """
    folder = run_folder / CHECKPOINTS
    folder.mkdir(parents=True, exist_ok=True)
    drop_drafts(run_folder)
    draft = draft_path(run_folder, step)
    (draft / STATE).mkdir(parents=True)
    return draft


def drop_drafts(run_folder: Path) -> None:
    """Removes what was begun and never became a checkpoint; called by one process."""
    for left in (run_folder / CHECKPOINTS).glob(".*"):
        shutil.rmtree(left, ignore_errors=True)


def draft_path(run_folder: Path, step: int) -> Path:
    """Where a step's checkpoint is written before it is complete."""
    return run_folder / CHECKPOINTS / f".{checkpoint_name(step)}"


def close_draft(
    run_folder: Path, step: int, *, generation: int, eval_loss: float | None, bits_per_byte: float | None
) -> Checkpoint:
    """Hashes, flushes and renames the draft of a step; called once every process has written its part.

    Raises:
        RunError: the draft isn't there or holds nothing.
    """
    draft = draft_path(run_folder, step)
    names = sorted(path.relative_to(draft).as_posix() for path in draft.rglob("*") if path.is_file())
    if not names:
        raise RunError(f"Nothing was written for the checkpoint of step {step}")
    final = run_folder / CHECKPOINTS / checkpoint_name(step)
    record = Checkpoint(
        step=step,
        path=final,
        generation=generation,
        eval_loss=finite(eval_loss),
        bits_per_byte=finite(bits_per_byte),
        files={name: _describe(draft / name) for name in names},
    )
    fields = asdict(record)
    del fields["path"]
    write_json(draft / _RECORD, fields)
    sync_files(draft)
    if final.exists():  # an incomplete or damaged one, or the same step written again after a resume
        _remove(final)
    os.replace(draft, final)
    _sync_folder(final.parent)
    return record


def prune(run_folder: Path, *, keep: int) -> list[Checkpoint]:
    """Removes all but the `keep` newest checkpoints and the best one; returns what stays, oldest first."""
    checkpoints = list_checkpoints(run_folder)
    staying = {checkpoint.step for checkpoint in checkpoints[-keep:]}
    if (top := best(checkpoints)) is not None:
        staying.add(top.step)
    for checkpoint in checkpoints:
        if checkpoint.step not in staying:
            _remove(checkpoint.path)
    return [checkpoint for checkpoint in checkpoints if checkpoint.step in staying]


def drop_after(run_folder: Path, step: int) -> None:
    """Removes whatever claims to be a checkpoint of a later step, as damaged ones that a resume passed over do."""
    folder = run_folder / CHECKPOINTS
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and int(match.group(1)) > step:
            _remove(path)


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _remove(path: Path) -> None:
    """Renames first, so that a reader finds all of a checkpoint or none of it."""
    doomed = path.with_name(f".{uuid.uuid4().hex}")
    os.replace(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
