"""A session as one file: its current artefacts, all that they were made from, and the script that makes them again.

The file is a zip with `index.json`, which names every other member with its size and SHA-256. Unpacking trusts none of
it: names are checked, links can't occur, no more is written than the index says and the disk holds, every byte is
hashed, and nothing becomes visible before all of it is there. No code in it is run, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from nbllm.errors import DataError, NotFoundError, StoreError, UsageError
from nbllm.files import check_name, hash_files, replace_folder, sync_files, writing
from nbllm.sessions.lineage import ancestors, script
from nbllm.sessions.models import ModelReference
from nbllm.store import KINDS, Manifest, Store

if TYPE_CHECKING:
    from nbllm.sessions.core import Session

_INDEX, _SCRIPT = "index.json", "rebuild.py"
_VERSION = 1
_INDEX_BYTES_AT_MOST = 64 * 2**20
_BLOCK = 2**20


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """What came out of an archive."""

    added: tuple[Manifest, ...]
    """Artefacts that are new in this store."""
    known: tuple[Manifest, ...]
    """Artefacts that were here already, with the same content."""
    missing: tuple[str, ...]
    """What the session pointed to outside its store, and the archive therefore lacks."""

    def __str__(self) -> str:
        parts = [f"{manifest.kind} {manifest.name}" for manifest in self.added]
        text = f"Unpacked {', '.join(parts)}." if parts else "Nothing new."
        if self.known:
            text += f" Here already: {', '.join(f'{manifest.kind} {manifest.name}' for manifest in self.known)}."
        return text + "".join(f" Not in the archive: {name}." for name in self.missing)


def pack(session: Session, file: str | Path, *, overwrite: bool = False) -> list[Manifest]:
    """Writes the session's current artefacts, their ancestors and its script into one file.

    Returns:
        The artefacts in it, oldest first.

    Raises:
        UsageError: the file is there already and `overwrite` is False.
        NotFoundError: nothing is current.
        StoreError: a run among them lives.
    """
    path = Path(file).expanduser()
    if path.exists() and not overwrite:
        raise UsageError(f"{path} is there already", next="Add --overwrite to replace it")
    wanted = _wanted(session)
    if not wanted:
        raise NotFoundError("There is nothing to pack yet", next="Make a corpus with %llm_clean builtin:pydocs")
    _refuse_live(session.store, wanted)
    members = [(_SCRIPT, script(session).encode())]
    files = {f"{KINDS[item.kind]}/{item.name}": session.store.path(item.kind, item.name) for item in wanted}
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    index: dict[str, Any] = {
        "nbllm": _VERSION,
        "session": _pointers(session, wanted),
        "outside": _outside(session),
        "artefacts": [{"kind": item.kind, "name": item.name, "hash": item.hash} for item in wanted],
        "files": {},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with writing(path.parent), zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, content in members:
                archive.writestr(name, content)
                index["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for base, folder in files.items():
                for source in _files(folder):
                    name = f"{base}/{source.relative_to(folder).as_posix()}"
                    index["files"][name] = _add(archive, name, source)
            archive.writestr(_INDEX, json.dumps(index, ensure_ascii=False))
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return wanted


def unpack(session: Session, file: str | Path, *, overwrite: bool = False) -> Unpacked:
    """Takes an archive's artefacts into this session's store and makes what was current there current here.

    Args:
        file: what `pack` wrote.
        overwrite: replace artefacts of the same name and another content.

    Raises:
        NotFoundError: there is no such file.
        DataError: it isn't such an archive, or was damaged or tampered with; the store is as it was.
        StoreError: a name is in use by a different content, or the disk is too small.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        raise NotFoundError(f"There is no file {str(path)!r}", next="Make one with %llm_session pack FILE")
    store = session.store
    store.prepare()
    inbox = store.root / f".unpack-{uuid.uuid4().hex}"
    try:
        with _opened(path) as archive:
            index = _read_index(archive, path)
            with writing(store.root):
                _extract(archive, index["files"], inbox, path)
        arrived = [_arrived(Store(inbox), item, path) for item in index["artefacts"]]
        known = [item for item in arrived if _same(store, item)]
        new = [item for item in arrived if item not in known]
        _refuse_in_use(store, new, overwrite)
        for item in new:
            _take_in(store, Store(inbox), item)
    finally:
        shutil.rmtree(inbox, ignore_errors=True)
    _point(session, index["session"], arrived)
    return Unpacked(added=tuple(new), known=tuple(known), missing=tuple(str(name) for name in index["outside"]))


# Packing ------------------------------------------------------------------------------------------------------------


def _wanted(session: Session) -> list[Manifest]:
    store = session.store
    named = [("corpus", session.corpus), ("tokenizer", session.tokenizer), ("run", session.run)]
    pairs = [(kind, value.name) for kind, value in named if value is not None]
    if session.model is not None and session.model.kind == "run":
        pairs.append(("run", session.model.source))
    if session.adapter is not None:
        pairs += [("adapter", session.adapter), ("run", session.adapter)]
    found: dict[str, Manifest] = {}
    for kind, name in pairs:
        with suppress(NotFoundError, UsageError):  # an adapter may be a run's, or a folder's, alone
            manifest = store.get(kind, name)
            for item in [*ancestors(session, manifest), manifest]:
                found[f"{item.kind}/{item.name}"] = item
    return sorted(found.values(), key=lambda item: item.created)


def _refuse_live(store: Store, wanted: list[Manifest]) -> None:
    from nbllm.train import live_runs

    live = {run.name for run in live_runs(store)}
    for item in wanted:
        if item.kind == "run" and item.name in live:
            raise StoreError(f"The run {item.name!r} is live", next=f"Stop it first: %llm_train --stop {item.name}")


def _pointers(session: Session, wanted: list[Manifest]) -> dict[str, Any]:
    """Names of what is current and in the archive; what lies outside the store can't be found elsewhere."""
    packed = {(item.kind, item.name) for item in wanted}
    found: dict[str, Any] = {
        kind: value.name
        for kind, value in (("corpus", session.corpus), ("tokenizer", session.tokenizer), ("run", session.run))
        if value is not None and (kind, value.name) in packed
    }
    model = session.model
    if model is not None and model.kind == "run" and ("run", model.source) in packed:
        found["model"] = {"source": model.source, "checkpoint": model.checkpoint}
    if session.adapter is not None and {("adapter", session.adapter), ("run", session.adapter)} & packed:
        found["adapter"] = session.adapter
    return {**found, "sampling": asdict(session.sampling)}


def _outside(session: Session) -> list[str]:
    model = session.model
    return [f"the model {model.name}"] if model is not None and model.kind == "folder" else []


def _files(folder: Path) -> Iterator[Path]:
    for source in sorted(folder.rglob("*")):
        relative = source.relative_to(folder)
        hidden = any(part.startswith(".") for part in relative.parts)
        if source.is_file() and not source.is_symlink() and not hidden and source.suffix != ".lock":
            yield source


def _add(archive: zipfile.ZipFile, name: str, source: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as reader, archive.open(name, "w", force_zip64=True) as writer:
        while block := reader.read(_BLOCK):
            digest.update(block)
            size += len(block)
            writer.write(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


# Unpacking ----------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, EOFError) and error.errno is not None:
            raise StoreError(f"{path} can't be unpacked: {error.strerror}") from error
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{path} isn't an archive of a session: {why}", next="Ask for the file again")


def _read_index(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    try:
        entry = archive.getinfo(_INDEX)
    except KeyError as error:
        raise _damaged(path, f"it has no {_INDEX}") from error
    with archive.open(entry) as reader:
        text = reader.read(_INDEX_BYTES_AT_MOST + 1)
    if len(text) > _INDEX_BYTES_AT_MOST:
        raise _damaged(path, f"its {_INDEX} is too large")
    try:
        index = json.loads(text)
        version = index["nbllm"]
        files = {str(name): (int(item["bytes"]), str(item["sha256"])) for name, item in index["files"].items()}
        artefacts = [(str(item["kind"]), str(item["name"]), str(item["hash"])) for item in index["artefacts"]]
        pointers, outside = dict(index["session"]), list(index["outside"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its {_INDEX} can't be read") from error
    if version != _VERSION:
        raise DataError(f"{path} was made by another version of nbllm", received=version, next="Update nbllm")
    for name, (size, _) in files.items():
        if name != _SCRIPT:
            _check_member(name, size, path)
    for kind, name, _ in artefacts:
        if kind not in KINDS:
            raise _damaged(path, f"it names an unknown kind, {kind!r}")
        check_name(name)
    members = {entry.filename for entry in archive.infolist()} - {_INDEX}
    if members != set(files) or len(archive.infolist()) != len(members) + 1:
        raise _damaged(path, "its members aren't those that it names")
    return {"files": files, "artefacts": artefacts, "session": pointers, "outside": outside}


def _check_member(name: str, size: int, path: Path) -> None:
    parts = PurePosixPath(name).parts
    plain = not name.startswith("/") and "\\" not in name and name.isprintable() and "/".join(parts) == name
    inside = len(parts) > 2 and parts[0] in KINDS.values() and not any(part.startswith(".") for part in parts)
    if not plain or not inside or size < 0:
        raise _damaged(path, f"it would write {name!r}")
    check_name(parts[1])


def _extract(archive: zipfile.ZipFile, files: dict[str, tuple[int, str]], inbox: Path, path: Path) -> None:
    needed = sum(size for size, _ in files.values())
    inbox.mkdir()
    free = shutil.disk_usage(inbox).free
    if needed > free:
        raise StoreError(
            f"{path} needs {needed / 1e9:,.1f} GB and the disk has {free / 1e9:,.1f}",
            next="Free some space, or set NBLLM_HOME to another disk",
        )
    for name, (size, wanted) in files.items():
        if name == _SCRIPT:
            continue
        target = inbox / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as reader, target.open("xb") as writer:
            if _copy(reader, writer, size) != wanted:
                raise _damaged(path, f"{name} isn't what was packed")


def _copy(reader: IO[bytes], writer: IO[bytes], size: int) -> str | None:
    """Copies `size` bytes and returns their SHA-256 as hex; None where there are more or fewer."""
    digest, left = hashlib.sha256(), size
    while block := reader.read(min(_BLOCK, left + 1)):
        left -= len(block)
        if left < 0:
            return None
        digest.update(block)
        writer.write(block)
    return digest.hexdigest() if left == 0 else None


def _arrived(inbox: Store, named: tuple[str, str, str], path: Path) -> Manifest:
    kind, name, wanted = named
    try:
        manifest = inbox.get(kind, name)
    except (NotFoundError, StoreError) as error:
        raise _damaged(path, f"the {kind} {name!r} in it is no artefact") from error
    if (manifest.kind, manifest.name, manifest.hash) != named:
        raise _damaged(path, f"the {kind} {name!r} in it says that it is another")
    # What a run is, is its configuration; its other files grew while it ran.
    if kind != "run" and hash_files(inbox.path(kind, name)) != wanted:
        raise _damaged(path, f"the {kind} {name!r} in it isn't what its manifest says")
    return manifest


def _same(store: Store, item: Manifest) -> bool:
    with suppress(NotFoundError):
        return store.get(item.kind, item.name).hash == item.hash
    return False


def _refuse_in_use(store: Store, new: list[Manifest], overwrite: bool) -> None:
    taken = [item for item in new if store.path(item.kind, item.name).exists()]
    if taken and not overwrite:
        shown = ", ".join(f"{item.kind} {item.name}" for item in taken)
        raise StoreError(f"Different content has these names here: {shown}", next="Add --overwrite to replace it")
    _refuse_live(store, taken)


def _take_in(store: Store, inbox: Store, item: Manifest) -> None:
    source, target = inbox.path(item.kind, item.name), store.path(item.kind, item.name)
    sync_files(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with store.lock(f"{item.kind}-{item.name}"):
        replace_folder(source, target)


def _point(session: Session, pointers: dict[str, Any], arrived: list[Manifest]) -> None:
    """Makes current what the archive says, by names of what came with it and by nothing else."""
    here = {(item.kind, item.name) for item in arrived}
    with session.lock:
        for kind in ("corpus", "tokenizer", "run"):
            if (kind, pointers.get(kind)) in here:
                setattr(session, kind, pointers[kind])
        model = pointers.get("model")
        if isinstance(model, dict) and ("run", model.get("source")) in here:
            step = model.get("checkpoint")
            step = step if isinstance(step, int) else None
            session.model = ModelReference(kind="run", source=model["source"], checkpoint=step)
        adapter = pointers.get("adapter")
        if {("adapter", adapter), ("run", adapter)} & here:
            session.adapter = adapter
        sampling = pointers.get("sampling")
        if isinstance(sampling, dict):
            with suppress(UsageError, TypeError, ValueError):  # of another version: those of this session stay
                session.sampling = sampling
