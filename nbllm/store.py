"""The store: a `.nbllm` directory of artefacts, each a folder with a manifest that names its parents by content hash.

An artefact is written under a temporary name, flushed to disk, hashed and renamed, so that a reader sees all of it or
nothing. What a killed writer leaves behind is a hidden folder, removed by a later writer once its lock is free; what it
was about to replace comes back. Knows nothing of what an artefact holds, nor of sessions.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nbllm.errors import NotFoundError, StoreError, did_you_mean
from nbllm.files import (
    MOVED_ASIDE,
    NAME,
    check_name,
    finite,
    hash_files,
    hash_value,
    hidden_folder,
    read_json,
    replace_folder,
    restore_folder,
    sync_files,
    write_json,
    writing,
)

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
        for entry in folder.glob(f"{MOVED_ASIDE}*"):
            self._restore(kind, entry.name.removeprefix(MOVED_ASIDE))
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
            folder = hidden_folder(final.parent)
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
        if final.exists() or not final.with_name(MOVED_ASIDE + name).exists():
            return
        with contextlib.suppress(StoreError, OSError), self.lock(f"{kind}-{name}", wait_s=0):
            restore_folder(final)

    def _sweep(self, parent: Path) -> None:
        """Removes what killed writers left behind: hidden folders that are a day old and whose lock nobody holds."""
        for entry in parent.iterdir():
            if not entry.name.startswith(".") or entry.name.startswith(MOVED_ASIDE):
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
                shutil.move(final, doomed := hidden_folder(final.parent))
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
            if fields["kind"] not in KINDS or not NAME.fullmatch(folder.name):
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
