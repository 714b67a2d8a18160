"""Text from data on its way to a terminal or a page: what would steer either is written out instead, and a page doesn't
typeset its dollars as formulas.

Knows nothing of where the text comes from. Line ends and tabs stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_STEERING = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)|[\ud800-\udfff]")


def plain(text: str) -> str:
    """The text with control characters (a terminal's escapes among them), characters that turn the direction of writing
    and halves of characters as `<U+001B>`."""
    return _STEERING.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)


def plain_html(markup: str) -> str:
    """The same for HTML whose text is escaped already."""
    return _STEERING.sub(lambda match: f"&lt;U+{ord(match[0]):04X}&gt;", markup)


def untypeset(markup: str) -> str:
    """HTML whose text stands as it is, dollars and backslashes too: MathJax leaves these classes alone."""
    return f'<div class="tex2jax_ignore mathjax_ignore">{markup}</div>'


def harmless(bundle: Mapping[str, str]) -> dict[str, str]:
    """A result's representations by MIME type, text and HTML each as above."""
    changes = {"text/plain": plain, "text/html": lambda markup: untypeset(plain_html(markup))}
    return {kind: changes[kind](data) if kind in changes else data for kind, data in bundle.items()}
