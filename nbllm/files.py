"""Files that are written whole or not at all: JSON, folders that replace others, and hashes of what is in them.

A full or read-only disk is one line. Knows nothing of artefacts.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nbllm.errors import StoreError, UsageError

NAME = re.compile(r"[^\W_][\w .+-]{0,99}", re.UNICODE)
"""A name that every file system takes."""
MOVED_ASIDE = ".was-"
"""What the name of a folder begins with that `replace_folder` has moved aside."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EROFS, errno.EACCES, errno.EPERM}


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as JSON so that readers of `path` see the old content or the new, never a part.

    Numbers that aren't finite are written as null, so that every JSON parser reads the file.
    """
    text = json.dumps(finite(value), ensure_ascii=False, indent=1, allow_nan=False)
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


@contextlib.contextmanager
def writing(
    path: Path, *, only_full: bool = False, then: str = "with %llm_session gc, then run the cell again"
) -> Iterator[None]:
    """Says in one line what keeps a folder from being written to; raises StoreError for a full or read-only disk.

    Args:
        path: the folder.
        only_full: what happens inside also reads elsewhere, so that only a full disk is this folder's.
        then: how to make room, and what to type after it.
    """
    try:
        yield
    except Exception as error:
        number = _number(error)
        if number in _FULL:
            raise StoreError(
                f"The disk of {path} is full; what was there is as it was", next=f"Make room, for example {then}"
            ) from error
        if number in _CLOSED and isinstance(error, OSError) and not only_full:
            raise StoreError(
                f"{path} can't be written to ({error.strerror})", next="Set NBLLM_HOME to a folder of your own"
            ) from error
        raise


def _number(error: Exception) -> int | None:
    """The system's number of an error; safetensors and tokenizers only tell it in their text."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def replace_folder(draft: Path, target: Path) -> None:
    """Puts a complete folder in the place of another, or where none is.

    Not every file system can swap two folders, so there is a moment without `target`: who is killed then leaves the
    old one beside it, and `restore_folder` brings that back.
    """
    restore_folder(target)
    was = target.with_name(MOVED_ASIDE + target.name)
    if target.exists():
        shutil.rmtree(was, ignore_errors=True)
        os.replace(target, was)
    try:
        os.replace(draft, target)
    except BaseException:
        restore_folder(target)
        raise
    shutil.rmtree(was, ignore_errors=True)


def restore_folder(target: Path) -> None:
    """Brings back what a killed `replace_folder` had moved aside, where nothing has taken its place."""
    was = target.with_name(MOVED_ASIDE + target.name)
    with contextlib.suppress(OSError):
        if was.exists() and not target.exists():
            os.rename(was, target)


def read_json(path: Path) -> Any:
    """Reads a JSON file of the store; raises StoreError where it is damaged, FileNotFoundError where it isn't there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}", next="Remove that folder, then make it again") from error


def finite(value: Any) -> Any:
    """The same JSON value with None in the place of numbers that aren't finite."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def hash_value(value: Any) -> str:
    """SHA-256 of a JSON value, as hex; independent of the order of keys."""
    text = json.dumps(finite(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def hash_files(folder: Path) -> str:
    """SHA-256 over the relative names and contents of all files below `folder` but `manifest.json`, as hex."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "manifest.json":
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def sync_files(folder: Path) -> None:
    """Flushes every file below `folder`, and the folders themselves, to disk."""
    for path in [folder, *folder.rglob("*")]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def hidden_folder(parent: Path) -> Path:
    """Makes an empty folder below `parent` whose name no reader looks at."""
    folder = parent / f".{uuid.uuid4().hex}"
    folder.mkdir()
    return folder


def check_name(name: str) -> str:
    """Returns `name` if it can name an artefact on every file system, else raises UsageError."""
    if not NAME.fullmatch(name) or name.endswith((" ", ".")) or ".." in name:
        raise UsageError(
            "A name is 1 to 100 letters, digits, spaces, dots, dashes, plus signs or underscores, and starts with a "
            "letter or digit",
            received=name,
            next='Type for example --name "my run"',
        )
    return name
