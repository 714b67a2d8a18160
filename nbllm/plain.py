"""Text from data on its way to a terminal or a page: what would steer either is written out instead.

Knows nothing of where the text comes from. Line ends and tabs stay.
"""

from __future__ import annotations

import re

_STEERING = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)|[\ud800-\udfff]")


def plain(text: str) -> str:
    """The text with control characters (a terminal's escapes among them), characters that turn the direction of writing
    and halves of characters as `<U+001B>`."""
    return _STEERING.sub(lambda match: f"<U+{ord(match[0]):04X}>", text)


def plain_html(markup: str) -> str:
    """The same for HTML whose text is escaped already."""
    return _STEERING.sub(lambda match: f"&lt;U+{ord(match[0]):04X}&gt;", markup)
