"""Where a panel goes: below its cell, or into a tab that is waiting for it. Knows nothing of what a panel shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_host: ContextVar[Callable[[Any], None] | None] = ContextVar("nbllm_panel_host", default=None)


def present(panel: Any) -> None:
    """Puts a panel's widget on the page; its static face is the panel's own to show afterwards."""
    host = _host.get()
    if host is not None:
        host(panel)
        return
    from IPython.display import publish_display_data

    view = {"version_major": 2, "version_minor": 0, "model_id": panel.model_id}
    publish_display_data({"application/vnd.jupyter.widget-view+json": view})


@contextmanager
def hosted(host: Callable[[Any], None]) -> Iterator[None]:
    """Panels that are shown inside go to `host`, which may give them another face, in the place of the page."""
    token = _host.set(host)
    try:
        yield
    finally:
        _host.reset(token)
