"""nbllm: a notebook workbench for language models. Importing it loads neither torch nor transformers nor ipywidgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbllm.errors import NbllmError

if TYPE_CHECKING:
    from nbllm.sessions import Session

__version__ = "0.1.0.dev0"
__all__ = ["NbllmError", "Session", "__version__", "load_ipython_extension", "session", "unload_ipython_extension"]


def session(name: str | None = None) -> Session:
    """The session of this notebook, found again from the store after a kernel restart.

    Args:
        name: a session over the same store; by default `NBLLM_SESSION`, else the notebook's name where the front end
            tells it, else `default`.

    Returns:
        The one `Session` object of that name in this process.
    """
    from nbllm.sessions import current_session

    return current_session(name)


def load_ipython_extension(ipython: Any) -> None:
    """Registers the magics (`%load_ext nbllm`); loading twice is harmless."""
    from nbllm.magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Removes everything that loading added (`%unload_ext nbllm`)."""
    from nbllm.magics import unload

    unload(ipython)


def __getattr__(name: str) -> Any:
    if name == "Session":
        from nbllm.sessions import Session

        return Session
    raise AttributeError(f"module 'nbllm' has no attribute {name!r}")
