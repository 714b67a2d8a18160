"""The store: a `.nbllm` directory of artefacts, each a folder with a manifest that names its parents by content hash.

An artefact is written under a temporary name, flushed to disk, hashed and renamed, so that a reader sees all of it or
nothing; what a killed writer leaves behind is a hidden folder, removed by a later writer once it is a day old. Knows
nothing of what an artefact holds, nor of sessions.
"""

from __future__ import annotations

import contextlib
import datetime
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


def read_json(path: Path) -> Any:
    """Reads a JSON file of the store; raises StoreError where it is damaged, FileNotFoundError where it isn't there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
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
        """Manifests of the artefacts of a kind, newest first; folders without one (half made) are left out."""
        folder = self.root / KINDS[kind]
        if not folder.is_dir():
            return []
        found = []
        for entry in folder.iterdir():
            if not entry.name.startswith(".") and (entry / "manifest.json").is_file():
                with contextlib.suppress(FileNotFoundError):  # removed by another kernel meanwhile
                    found.append(self._read(entry))
        return sorted(found, key=lambda manifest: manifest.created, reverse=True)

    def get(self, kind: str, name: str) -> Manifest:
        """The manifest of one artefact; raises NotFoundError with the nearest name, or the command that makes one."""
        folder = self.path(kind, name)
        if not (folder / "manifest.json").is_file():
            hint = did_you_mean(name, self.names(kind)) or f"Make one with {_MAKERS[kind]}"
            raise NotFoundError(f"No {kind} is named {name!r}", next=hint)
        return self._read(folder)

    def find_kinds(self, name: str) -> list[Manifest]:
        """Every artefact of that name, of whatever kind."""
        found = []
        for kind in KINDS:
            if (self.path(kind, name) / "manifest.json").is_file():
                found.append(self.get(kind, name))
        return found

    def reusable(self, kind: str, parameters: Mapping[str, Any], parents: Sequence[Parent]) -> Manifest | None:
        """The newest artefact made with the same parameters from parents of the same content, if there is one."""
        wanted = hash_value(dict(parameters)), [(parent.kind, parent.hash) for parent in parents]
        for manifest in self.manifests(kind):
            has = hash_value(manifest.parameters), [(parent.kind, parent.hash) for parent in manifest.parents]
            if has == wanted:
                return manifest
        return None

    @contextlib.contextmanager
    def lock(self, name: str, *, wait_s: float = _LOCK_WAIT_S) -> Iterator[None]:
        """Holds a lock shared by all processes over this store; raises StoreError when another holds it too long."""
        self.prepare()
        (self.root / "locks").mkdir(exist_ok=True)
        try:
            with FileLock(self.root / "locks" / f"{name}.lock", timeout=wait_s):
                yield
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
        final.parent.mkdir(parents=True, exist_ok=True)
        if not overwrite and (final / "manifest.json").is_file():
            self._refuse_if_different(self._read(final), parameters, parents)
        _sweep(final.parent)
        folder = _hidden_folder(final.parent)
        draft = Draft(folder=folder)
        try:
            yield draft
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
                    existing = self._read(final)
                    self._refuse_if_different(existing, parameters, parents)
                if final.exists():
                    shutil.move(final, retired := _hidden_folder(final.parent))
                    os.replace(folder, final)
                    shutil.rmtree(retired, ignore_errors=True)
                else:
                    os.replace(folder, final)
            draft.manifest = manifest
        finally:
            shutil.rmtree(folder, ignore_errors=True)

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
            fields["parents"] = tuple(Parent(**parent) for parent in fields["parents"])
            return Manifest(**fields)
        except (KeyError, TypeError) as error:
            raise StoreError(
                f"{folder / 'manifest.json'} isn't a manifest of this version: {error}",
                next="Remove that folder, then make it again",
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


def _sweep(parent: Path) -> None:
    """Removes what killed writers left behind: hidden folders that are a day old."""
    for entry in parent.iterdir():
        with contextlib.suppress(OSError):
            if entry.name.startswith(".") and entry.is_dir() and time.time() - entry.stat().st_mtime > 86_400:
                shutil.rmtree(entry, ignore_errors=True)
