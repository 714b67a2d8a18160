"""Which panels are live, so that running a panel's cell again closes the panel it made before.

A panel is known by what it shows (its subject) and by the cell that made it. A new panel closes an older one of the
same kind that shows the same subject or was made by an earlier run of the same cell. After every cell the live panels
settle: what a saved notebook will show is brought up to date before the cell counts as finished.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import Any, Protocol


class Panel(Protocol):
    """What the registry asks of a panel."""

    def close(self) -> None:
        """Ends the panel's threads and removes it from the page."""

    def settle(self) -> None:
        """Brings the static face up to date; called after each cell, so it must be quick."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    kind: str
    subject: str
    cell: str
    execution: str
    panel: Panel


_live: list[_Entry] = []
_hooked: Any = None


def shell() -> Any:
    """The running IPython shell, or None."""
    with contextlib.suppress(ImportError):
        from IPython import get_ipython

        return get_ipython()
    return None


def has_kernel() -> bool:
    """Whether cells run in a Jupyter kernel, where widgets can be shown."""
    return getattr(shell(), "kernel", None) is not None


def enter(kind: str, subject: str, panel: Panel) -> None:
    """Makes `panel` the live one, and closes those it takes the place of."""
    cell, execution = _current_cell()
    entry = _Entry(kind=kind, subject=subject, cell=cell, execution=execution, panel=panel)
    for old in list(_live):
        same_cell = bool(cell) and old.cell == cell and old.execution != execution
        if old.kind == kind and (old.subject == subject or same_cell):
            _close(old)
    _live.append(entry)
    _hook()


def leave(panel: Panel) -> None:
    """Forgets a panel that was closed."""
    _live[:] = [entry for entry in _live if entry.panel is not panel]


def live(kind: str | None = None) -> list[Any]:
    """The live panels, oldest first."""
    return [entry.panel for entry in _live if kind in (None, entry.kind)]


def close_all() -> None:
    """Closes every live panel and stops listening to the shell, as unloading the extension does."""
    global _hooked
    for entry in list(_live):
        _close(entry)
    if _hooked is not None:
        with contextlib.suppress(ValueError):
            _hooked.events.unregister("post_run_cell", _settle)
        _hooked = None


def _close(entry: _Entry) -> None:
    with contextlib.suppress(ValueError):
        _live.remove(entry)
    entry.panel.close()


def _current_cell() -> tuple[str, str]:
    """What names the cell being run (its id, else a hash of its code) and this run of it; empty strings outside one."""
    kernel = getattr(shell(), "kernel", None)
    parent: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # other kernels than ipykernel need not offer it
        parent = kernel.get_parent("shell") or {}  # type: ignore[union-attr]
    execution = str(parent.get("header", {}).get("msg_id", ""))
    cell = str(parent.get("metadata", {}).get("cellId", ""))
    code = parent.get("content", {}).get("code")
    if not cell and isinstance(code, str):
        cell = hashlib.sha256(code.encode()).hexdigest()
    return cell, execution


def _hook() -> None:
    global _hooked
    current = shell()
    if current is not None and current is not _hooked:
        current.events.register("post_run_cell", _settle)
        _hooked = current


def _settle(*_: object) -> None:
    for entry in list(_live):
        with contextlib.suppress(
            Exception
        ):  # a panel's trouble must not fail the user's cell; its own watcher shows it
            entry.panel.settle()
