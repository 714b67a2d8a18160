"""Where a cleaning that was interrupted lies until it goes on: `.nbllm/cleaning/NAME/`, one for each corpus name.

A scratch holds its plan (what is cleaned and how), its tables and how far they are. The next cleaning of that name
takes it over where the plan is the same, and else removes it. At most a few are kept, the newest; a finished cleaning
removes its own. What two kernels clean under one name at once isn't shared: the second takes a scratch that goes with
it. Knows nothing of stages.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbllm.corpus.streams import Streams
from nbllm.errors import DataError, NotFoundError, StoreError, UsageError
from nbllm.files import hash_value, hidden_folder, read_json, write_json, writing
from nbllm.store import Store, versions

KEEP_EVERY_S = 2.0
"""How often the state is kept: a killed cleaning loses so much work, an interrupted one none."""
_KEPT = 3
_FOLDER = "cleaning"
REFUSALS = (UsageError, DataError, NotFoundError, StoreError)
"""What running the cell again meets again, so that nothing is kept for it."""
_SHAPING = ("python", "nbllm", "pyarrow")


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A cleaning that was interrupted, as the card shows it."""

    name: str
    documents: int
    """Documents read before it stopped."""
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.name} ({self.documents:,} documents read, {self.size_bytes / 1e6:,.1f} MB)"


class Scratch:
    """One cleaning's place; made by `open_scratch`.

    Attributes:
        folder: where it is.
        state: how far the cleaning that lay here was, as it was last kept; None for a new one.
    """

    def __init__(self, folder: Path, state: dict[str, Any] | None) -> None:
        self.folder = folder
        self.state = state
        self._next = time.monotonic() + KEEP_EVERY_S

    def streams(self) -> Streams:
        """The tables, as they were when the state was kept."""
        return Streams(self.folder / "tables", self.state["sizes"] if self.state else None)

    def due(self) -> bool:
        """Whether it is time to keep the state."""
        return time.monotonic() >= self._next

    def keep(self, state: Mapping[str, Any], streams: Streams) -> None:
        """Keeps a state, whose `sizes` are those that the tables had then."""
        streams.flush()
        for name in state["sizes"]:
            _sync(streams.folder / f"{name}.stream")
        write_json(self.folder / "state.json", state)
        self.state = dict(state)
        self._next = time.monotonic() + KEEP_EVERY_S


@contextlib.contextmanager
def open_scratch(
    store: Store, name: str, plan: Mapping[str, Any], say: Callable[[str], None] | None = None
) -> Iterator[Scratch]:
    """The scratch of a corpus name, taken over where it has the same plan; removed at the end, but for an interrupt.

    Args:
        store: where it lies.
        name: the corpus's.
        plan: what makes two cleanings the same, as JSON; versions are added here.
        say: told in one line that a cleaning goes on, or starts anew.
    """
    tell = say or (lambda line: None)
    parent = store.root / _FOLDER
    with writing(store.root):
        parent.mkdir(exist_ok=True)
    with contextlib.ExitStack() as locks:
        try:
            locks.enter_context(store.lock(f"{_FOLDER}-{name}", wait_s=0))
            folder = parent / name
        except StoreError:  # another kernel cleans under this name just now
            folder = hidden_folder(parent)
            locks.callback(shutil.rmtree, folder, ignore_errors=True)
            locks.enter_context(store.lock(f"{_FOLDER}-{folder.name}", wait_s=0))
        _sweep(store, parent, name)
        digest = hash_value({**plan, "versions": {key: versions().get(key) for key in _SHAPING}})
        state = _state_of(folder, digest)
        if state is not None:
            tell(f"The cleaning of {name} that was interrupted goes on: {state['read']:,} documents were read.")
        else:
            if (folder / "state.json").exists():
                tell(f"The cleaning of {name} that was interrupted had another recipe or source: this starts anew.")
            shutil.rmtree(folder, ignore_errors=True)
        done = True
        try:
            if state is None:
                folder.mkdir(exist_ok=True)
                write_json(folder / "plan.json", {"hash": digest})
            yield Scratch(folder, state)
        except BaseException as error:
            done = isinstance(error, REFUSALS) or not (folder / "state.json").exists()
            raise
        finally:
            if done:
                shutil.rmtree(folder, ignore_errors=True)


def unfinished(store: Store) -> list[Unfinished]:
    """The cleanings that were interrupted and can go on, by name."""
    found = []
    for folder in sorted((store.root / _FOLDER).glob("[!.]*")):
        with contextlib.suppress(OSError, StoreError, KeyError, TypeError):
            state = read_json(folder / "state.json")
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            found.append(Unfinished(name=folder.name, documents=int(state["read"]), size_bytes=size))
    return found


def remove_unfinished(store: Store) -> list[Unfinished]:
    """Removes the cleanings that were interrupted, but for those that run now; returns them."""
    found = []
    for one in unfinished(store):
        with contextlib.suppress(StoreError), store.lock(f"{_FOLDER}-{one.name}", wait_s=0):
            shutil.rmtree(store.root / _FOLDER / one.name, ignore_errors=True)
            found.append(one)
    return found


def _state_of(folder: Path, digest: str) -> dict[str, Any] | None:
    """The state kept in a folder, where its plan is this one and its tables are whole."""
    try:
        if read_json(folder / "plan.json")["hash"] != digest:
            return None
        state = dict(read_json(folder / "state.json"))
        with Streams(folder / "tables", state["sizes"]):
            return state
    except (OSError, StoreError, KeyError, TypeError):
        return None


def _sweep(store: Store, parent: Path, name: str) -> None:
    """Removes all but the newest scratches, and what killed kernels left that can't go on."""
    entries = sorted((entry for entry in parent.iterdir() if entry.name != name), key=_age, reverse=True)
    kept = 1
    for entry in entries:
        half = entry.name.startswith(".") and time.time() - _age(entry) > 86_400
        if not entry.name.startswith("."):
            kept += 1
        if half or (kept > _KEPT and not entry.name.startswith(".")):
            with contextlib.suppress(StoreError), store.lock(f"{_FOLDER}-{entry.name}", wait_s=0):
                shutil.rmtree(entry, ignore_errors=True)


def _age(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _sync(path: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
