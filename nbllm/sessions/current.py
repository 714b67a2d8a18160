"""Which session a process works with: one object a name and store, found by its notebook or opened by name."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path

from nbllm.files import check_name
from nbllm.sessions.core import Session
from nbllm.store import Store

_sessions: dict[tuple[Path, str], Session] = {}
_sessions_lock = threading.Lock()
_opened: dict[Path, str] = {}


def current_session(name: str | None = None, store: Store | None = None) -> Session:
    """The one session of that name over that store in this process."""
    store = store or Store.find()
    name = check_name(name or _opened.get(store.root) or _default_name())
    with _sessions_lock:
        key = store.root, name
        if key not in _sessions:
            _sessions[key] = Session(store, name)
        return _sessions[key]


def open_session(name: str, store: Store | None = None) -> Session:
    """Makes the session of that name the one that this process gets when it asks for none by name."""
    store = store or Store.find()
    session = current_session(name, store)
    _opened[store.root] = session.name
    return session


def session_names(store: Store) -> list[str]:
    """Names of the sessions over a store, the one last used first."""
    files = (store.root / "sessions").glob("*.json")
    return [file.stem for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]


def _default_name() -> str:
    """`NBLLM_SESSION`, else the notebook's name where the front end tells it, else `default`."""
    if os.environ.get("NBLLM_SESSION"):
        return os.environ["NBLLM_SESSION"]
    main = sys.modules.get("__main__")
    notebook = os.environ.get("JPY_SESSION_NAME", "") or str(getattr(main, "__vsc_ipynb_file__", ""))
    if not notebook.endswith(".ipynb"):
        return "default"
    return re.sub(r"[^\w .+-]", "-", Path(notebook).stem).strip(" .-_+")[:100] or "default"
