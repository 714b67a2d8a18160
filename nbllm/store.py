"""The store: a `.nbllm` directory of artefacts, each a folder with a manifest that names its parents by content hash.

An artefact is written under a temporary name, flushed to disk, hashed and renamed, so that a reader sees all of it or
nothing. What a killed writer leaves behind is a hidden folder, removed by a later writer once its lock is free; what it
was about to replace comes back. Knows nothing of what an artefact holds, nor of sessions.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nbllm.errors import NotFoundError, StoreError, UsageError, did_you_mean

KINDS = {
    "corpus": "corpora",
    "tokenizer": "tokenizers",
    "shards": "shards",
    "run": "runs",
    "adapter": "adapters",
    "export": "exports",
}
_MAKERS = {
    "corpus": "%%llm_clean SOURCE",
    "tokenizer": "%llm_tokenizer train",
    "shards": "%llm_train",
    "run": "%llm_train",
    "adapter": "%llm_finetune",
    "export": "%llm_export",
}
_NAME = re.compile(r"[^\W_][\w .+-]{0,99}", re.UNICODE)
_LOCK_WAIT_S = 30.0
_WAS = ".was-"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EROFS, errno.EACCES, errno.EPERM}
_VERSIONED = ("nbllm", "torch", "transformers", "tokenizers", "accelerate", "peft", "pyarrow")


@dataclass(frozen=True, kw_only=True)
class Parent:
    """A reference to the artefact that another was made from."""

    kind: str
    """Its kind, a key of `KINDS`; `file` for something outside the store."""
    name: str
    """Its name when it was used."""
    hash: str
    """Its content hash when it was used."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an artefact is: written last, as `manifest.json`, when everything else of it is on disk."""

    kind: str
    """A key of `KINDS`."""
    name: str
    """The name of its folder."""
    hash: str
    """SHA-256 of the artefact's content, as hex."""
    created: str
    """UTC time of creation, ISO 8601."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """What it was made with; the same parameters over the same parents are reused. JSON values only."""
    parents: tuple[Parent, ...] = ()
    """What it was made from."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python and of the packages that matter."""
    call: dict[str, Any] = field(default_factory=dict)
    """The session method and keyword arguments that make it again: `{"method": …, "arguments": {…}}`."""
    summary: dict[str, Any] = field(default_factory=dict)
    """The few numbers that a card shows, such as documents or vocabulary size. JSON values only."""

    def as_parent(self) -> Parent:
        """The reference that a child of this artefact keeps."""
        return Parent(kind=self.kind, name=self.name, hash=self.hash)


def check_name(name: str) -> str:
    """Returns `name` if it can name an artefact on every file system, else raises UsageError."""
    if not _NAME.fullmatch(name) or name.endswith((" ", ".")) or ".." in name:
        raise UsageError(
            "A name is 1 to 100 letters, digits, spaces, dots, dashes, plus signs or underscores, and starts with a "
            "letter or digit",
            received=name,
            next='Type for example --name "my run"',
        )
    return name


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
def writing(path: Path, *, only_full: bool = False) -> Iterator[None]:
    """Says in one line what keeps a folder from being written to; raises StoreError for a full or read-only disk.

    Args:
        path: the folder.
        only_full: what happens inside also reads elsewhere, so that only a full disk is this folder's.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreError(
                f"The disk of {path} is full; what was there is as it was",
                next="Make room, for example with %llm_session gc, then run the cell again",
            ) from error
        if error.errno in _CLOSED and not only_full:
            raise StoreError(
                f"{path} can't be written to ({error.strerror})", next="Set NBLLM_HOME to a folder of your own"
            ) from error
        raise


def replace_folder(draft: Path, target: Path) -> None:
    """Puts a complete folder in the place of another, or where none is.

    Not every file system can swap two folders, so there is a moment without `target`: who is killed then leaves the
    old one beside it, and `restore_folder` brings that back.
    """
    restore_folder(target)
    was = target.with_name(_WAS + target.name)
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
    was = target.with_name(_WAS + target.name)
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


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that shape an artefact, without importing them."""
    found = {"python": platform.python_version()}
    for package in _VERSIONED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def now() -> str:
    """The current UTC time, ISO 8601, to the microsecond (creation times order artefacts)."""
    return datetime.datetime.now(datetime.UTC).isoformat()


class Store:
    """The artefacts below one directory.

    Args:
        root: the directory; made, with a `.gitignore` that keeps it out of version control, when first written to.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()

    @classmethod
    def find(cls, folder: Path | str | None = None) -> Store:
        """The store that `NBLLM_HOME` names, else `.nbllm` in `folder` (the current directory by default)."""
        home = os.environ.get("NBLLM_HOME")
        return cls(Path(home).expanduser() if home else Path(folder or Path.cwd()) / ".nbllm")

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def prepare(self) -> None:
        """Makes the directory and its `.gitignore`."""
        with writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            ignore = self.root / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n", encoding="utf-8")

    def path(self, kind: str, name: str) -> Path:
        """The folder of an artefact, whether it exists or not."""
        return self.root / KINDS[kind] / check_name(name)

    def names(self, kind: str) -> list[str]:
        """Names of the artefacts of a kind, newest first."""
        return [manifest.name for manifest in self.manifests(kind)]

    def manifests(self, kind: str) -> list[Manifest]:
        """Manifests of the artefacts of a kind, newest first; folders without one (half made) are left out, and those
        whose manifest is damaged: `get` names what is wrong with one."""
        folder = self.root / KINDS[kind]
        if not folder.is_dir():
            return []
        for entry in folder.glob(f"{_WAS}*"):
            self._restore(kind, entry.name.removeprefix(_WAS))
        found = []
        for entry in folder.iterdir():
            if not entry.name.startswith(".") and (entry / "manifest.json").is_file():
                with contextlib.suppress(FileNotFoundError, StoreError):  # removed by another kernel meanwhile
                    found.append(self._read(entry))
        return sorted(found, key=lambda manifest: manifest.created, reverse=True)

    def damaged(self, kind: str) -> list[str]:
        """Names of the artefacts of a kind whose manifest can't be read; `get` says why."""
        folder = self.root / KINDS[kind]
        known = {manifest.name for manifest in self.manifests(kind)}
        entries = folder.iterdir() if folder.is_dir() else ()
        return sorted(
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and entry.name not in known and (entry / "manifest.json").is_file()
        )

    def get(self, kind: str, name: str) -> Manifest:
        """The manifest of one artefact; raises NotFoundError with the nearest name, or the command that makes one."""
        folder = self.path(kind, name)
        self._restore(kind, name)
        if not (folder / "manifest.json").is_file():
            hint = did_you_mean(name, self.names(kind)) or f"Make one with {_MAKERS[kind]}"
            raise NotFoundError(f"No {kind} is named {name!r}", next=hint)
        return self._read(folder)

    def verify(self, manifest: Manifest) -> None:
        """Reads every file of an artefact; raises StoreError where its content isn't what was written.

        A run's content grows after its manifest was written: its checkpoints have hashes of their own.
        """
        if manifest.kind == "run":
            return
        folder = self.path(manifest.kind, manifest.name)
        if hash_files(folder) == manifest.hash:
            return
        others = [name for name in self.names(manifest.kind) if name != manifest.name]
        instead = f", or use {others[0]}" if others else ""
        raise StoreError(
            f"The {manifest.kind} {manifest.name!r} isn't what was written: a file in {folder} is damaged",
            next=f"Make it again with {_MAKERS[manifest.kind]}, as in the cell that made it{instead}",
        )

    def find_kinds(self, name: str) -> list[Manifest]:
        """Every artefact of that name, of whatever kind."""
        found = []
        for kind in KINDS:
            if (self.path(kind, name) / "manifest.json").is_file():
                found.append(self.get(kind, name))
        return found

    def reusable(self, kind: str, parameters: Mapping[str, Any], parents: Sequence[Parent]) -> Manifest | None:
        """The newest artefact made with the same parameters from parents of the same content, if there is one whose
        files are what was written."""
        wanted = hash_value(dict(parameters)), [(parent.kind, parent.hash) for parent in parents]
        for manifest in self.manifests(kind):
            has = hash_value(manifest.parameters), [(parent.kind, parent.hash) for parent in manifest.parents]
            if has == wanted:
                with contextlib.suppress(StoreError):
                    self.verify(manifest)
                    return manifest
        return None

    @contextlib.contextmanager
    def lock(self, name: str, *, wait_s: float = _LOCK_WAIT_S) -> Iterator[None]:
        """Holds a lock shared by all processes over this store; raises StoreError when another holds it too long."""
        self.prepare()
        with writing(self.root):
            (self.root / "locks").mkdir(exist_ok=True)
        try:
            lock = FileLock(self.root / "locks" / f"{name}.lock", timeout=wait_s)
            with writing(self.root):
                lock.acquire()
            try:
                yield
            finally:
                lock.release()
        except Timeout as error:
            raise StoreError(
                f"Another kernel has been writing {name} in {self.root} for {wait_s:.0f} s",
                next="Wait until it is done, then run the cell again",
            ) from error

    @contextlib.contextmanager
    def create(
        self,
        kind: str,
        name: str,
        *,
        parameters: Mapping[str, Any],
        parents: Sequence[Parent] = (),
        call: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Iterator[Draft]:
        """Makes an artefact: yields a draft whose folder is filled by the caller, then hashes and renames it.

        An exception inside leaves nothing behind.

        Raises:
            StoreError: the name is in use by a different content and `overwrite` is False.
        """
        final = self.path(kind, name)
        self.prepare()
        with writing(self.root):
            final.parent.mkdir(parents=True, exist_ok=True)
        self._restore(kind, name)
        if not overwrite and (final / "manifest.json").is_file():
            self._refuse_if_different(self._read(final), parameters, parents)
        self._sweep(final.parent)
        with writing(self.root):
            folder = _hidden_folder(final.parent)
        draft = Draft(folder=folder)
        alive = self.root / "locks" / f"{folder.name}.lock"
        try:
            with self.lock(folder.name), writing(self.root, only_full=True):
                yield draft
                self._place(kind, name, draft, parameters, parents, call, overwrite)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            alive.unlink(missing_ok=True)

    def _place(
        self,
        kind: str,
        name: str,
        draft: Draft,
        parameters: Mapping[str, Any],
        parents: Sequence[Parent],
        call: Mapping[str, Any] | None,
        overwrite: bool,
    ) -> None:
        """Writes the manifest of a draft that is filled, and gives its folder the artefact's name."""
        final, folder = self.path(kind, name), draft.folder
        manifest = Manifest(
            kind=kind,
            name=name,
            hash=hash_files(folder),
            created=now(),
            parameters=finite(dict(parameters)),
            parents=tuple(parents),
            versions=versions(),
            call=finite(dict(call or {})),
            summary=finite(draft.summary),
        )
        write_json(folder / "manifest.json", asdict(manifest))
        sync_files(folder)
        with self.lock(f"{kind}-{name}"):
            if (final / "manifest.json").is_file() and not overwrite:
                self._refuse_if_different(self._read(final), parameters, parents)
            replace_folder(folder, final)
        draft.manifest = manifest

    def _restore(self, kind: str, name: str) -> None:
        """Brings back an artefact that a killed writer had moved aside; where a writer lives, it is left to that."""
        final = self.path(kind, name)
        if final.exists() or not final.with_name(_WAS + name).exists():
            return
        with contextlib.suppress(StoreError, OSError), self.lock(f"{kind}-{name}", wait_s=0):
            restore_folder(final)

    def _sweep(self, parent: Path) -> None:
        """Removes what killed writers left behind: hidden folders that are a day old and whose lock nobody holds."""
        for entry in parent.iterdir():
            if not entry.name.startswith(".") or entry.name.startswith(_WAS):
                continue
            with contextlib.suppress(OSError, StoreError):
                if entry.is_dir() and time.time() - entry.stat().st_mtime > 86_400:
                    with self.lock(entry.name, wait_s=0):
                        shutil.rmtree(entry, ignore_errors=True)
                    (self.root / "locks" / f"{entry.name}.lock").unlink(missing_ok=True)

    def dependants(self, manifest: Manifest) -> list[Manifest]:
        """Every artefact that was made from this one, directly or through others."""
        everything = [child for kind in KINDS for child in self.manifests(kind)]
        found: list[Manifest] = []
        hashes = {manifest.hash}
        while True:
            new = [
                child
                for child in everything
                if child not in found and any(parent.hash in hashes for parent in child.parents)
            ]
            if not new:
                return found
            found.extend(new)
            hashes.update(child.hash for child in new)

    def remove(self, manifest: Manifest) -> None:
        """Removes one artefact."""
        with self.lock(f"{manifest.kind}-{manifest.name}"):
            final = self.path(manifest.kind, manifest.name)
            if final.exists():
                shutil.move(final, doomed := _hidden_folder(final.parent))
                shutil.rmtree(doomed, ignore_errors=True)

    def size_bytes(self) -> int:
        """Bytes on disk of everything below the root."""
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    def _refuse_if_different(
        self, existing: Manifest, parameters: Mapping[str, Any], parents: Sequence[Parent]
    ) -> None:
        same = hash_value(existing.parameters) == hash_value(dict(parameters)) and [
            parent.hash for parent in existing.parents
        ] == [parent.hash for parent in parents]
        if not same:
            raise StoreError(
                f"A different {existing.kind} is already named {existing.name!r}",
                next="Choose another --name, or add --overwrite to replace it",
            )

    def _read(self, folder: Path) -> Manifest:
        fields = read_json(folder / "manifest.json")
        try:
            if fields["kind"] not in KINDS or not _NAME.fullmatch(folder.name):
                raise TypeError(f"no kind and name of an artefact: {fields['kind']!r} {folder.name!r}")
            fields["name"] = folder.name  # what a manifest from elsewhere says of itself counts for nothing
            fields["parents"] = tuple(Parent(**parent) for parent in fields["parents"])
            return Manifest(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            by = fields.get("versions") if isinstance(fields, dict) else None
            maker = by.get("nbllm") if isinstance(by, dict) else None
            raise StoreError(
                f"{folder / 'manifest.json'} isn't a manifest of this version: {error}",
                next=f"It was made by nbllm {maker}: use that version, or make it again"
                if maker and maker != versions().get("nbllm")
                else "Remove that folder, then make it again",
            ) from error


@dataclass
class Draft:
    """An artefact being made: fill `folder`, set `summary`; `manifest` is there once the context has closed."""

    folder: Path
    summary: dict[str, Any] = field(default_factory=dict)
    manifest: Manifest | None = None


def _hidden_folder(parent: Path) -> Path:
    folder = parent / f".{uuid.uuid4().hex}"
    folder.mkdir()
    return folder
