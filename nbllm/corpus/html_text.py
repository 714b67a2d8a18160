"""The main text of an HTML page, by trafilatura (extra `html`), without menus, adverts and footers.

Trafilatura decides what is main text; `precision` leaves out more of what is doubtful. Pages without a main text give
an empty one. Knows nothing of files or stages.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from nbllm.errors import UsageError


def html_text(page: str, *, precision: bool = True) -> str:
    """The main text of a page; empty where there is none.

    Raises:
        UsageError: trafilatura isn't installed.
    """
    found = _extract()(page, favor_precision=precision, include_comments=False, include_tables=True)
    return str(found or "")


@functools.cache
def _extract() -> Callable[..., Any]:
    try:
        import trafilatura
    except ImportError as error:
        raise UsageError("HTML needs trafilatura", next='pip install "nbllm[html]"') from error
    extract: Callable[..., Any] = trafilatura.extract
    return extract
