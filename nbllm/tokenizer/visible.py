"""Bytes and characters made visible: what a reader should see where a token is only a space, a tab or half a letter.

Knows nothing of tokenizers and nothing of HTML (escaping is the business of who shows it).
"""

from __future__ import annotations

import unicodedata

_PICTURES = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\x7f": "␡", "\xa0": "⍽"}
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}


def visible(content: bytes | str) -> str:
    """Text in which every character can be seen.

    A space becomes ␣, a new line ↵, a tab ⇥, other control characters their Unicode pictures; format characters, odd
    spaces and characters without a name become <U+200B>; bytes that aren't UTF-8 become <F0>.

    Args:
        content: text, or the bytes of a token, whole characters or not.
    """
    text = content if isinstance(content, str) else content.decode("utf-8", errors="surrogateescape")
    return "".join(_visible_character(character) for character in text)


def _visible_character(character: str) -> str:
    if character in _PICTURES:
        return _PICTURES[character]
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte that isn't part of a character
        return f"<{code - 0xDC00:02X}>"
    if unicodedata.category(character) in _HIDDEN:
        return f"<U+{code:04X}>"
    return character


def describe(character: str) -> str:
    """One character's code and name, as in `U+1F600 grinning face`."""
    name = unicodedata.name(character, "").lower()
    return f"U+{ord(character):04X} {name}".rstrip()
