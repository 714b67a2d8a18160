"""Lines, paragraphs and words of a text, in any script.

Chinese, Japanese, Thai, Lao, Khmer and Burmese write no spaces between words: there each character counts as a word.
Combining marks belong to their word (`\\w` of `re` leaves them out and would cut Hindi at every vowel sign). Lines end
at \\n, \\r\\n and \\r only. Knows nothing of stages.

Source of the scripts: Unicode 15.1, Blocks.txt.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata

# Thai and Lao, Burmese, Khmer, kana, bopomofo, ideographs with extensions and compatibility forms, halfwidth kana
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3021-\u3029\u3041-\u3096\u3099-\u30ff\u3100-\u312f"
    r"\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)
_LINE_END = re.compile(r"\r\n|\r|\n")
UNSPACED = re.compile(f"[{_UNSPACED}]")
"""One character of a script without spaces between words."""


def lines(text: str) -> list[str]:
    """The lines of a text without their ends (`str.splitlines` also cuts at U+2028, form feeds and more)."""
    return _LINE_END.split(text) if "\r" in text else text.split("\n")


def paragraphs(text: str) -> list[str]:
    """The runs of lines between blank lines, their lines joined by \\n; none is blank itself."""
    found: list[str] = []
    held: list[str] = []
    for line in [*lines(text), ""]:
        if line and not line.isspace():
            held.append(line)
        elif held:
            found.append("\n".join(held))
            held = []
    return found


def words(text: str) -> list[str]:
    """The words of a text: runs of letters, digits, `_` and their marks; single characters in unspaced scripts."""
    return _word_pattern().findall(text)


def unspaced_share(text: str) -> float:
    """The share of letters and digits, 0 to 1, that belongs to scripts without spaces between words."""
    if text.isascii():
        return 0.0
    unspaced = len(UNSPACED.findall(text))
    return unspaced / (unspaced + sum(map(len, _spaced_pattern().findall(text)))) if unspaced else 0.0


def tokens(text: str) -> list[str]:
    """The pieces between white space, as rules on "words" with symbols in them want; unspaced scripts by character."""
    if text.isascii() or not UNSPACED.search(text):
        return text.split()
    return UNSPACED.sub(lambda match: f" {match[0]} ", text).split()


@functools.cache
def _spaced_pattern() -> re.Pattern[str]:
    """A word of a script with spaces."""
    word = rf"[^\W{_UNSPACED}]"
    marks = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in mark_ranges())
    return re.compile(f"{word}+(?:[{marks}]+{word}*)*")


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    return re.compile(f"[{_UNSPACED}]|{_spaced_pattern().pattern}")


@functools.cache
def mark_ranges() -> tuple[tuple[int, int], ...]:
    """Combining marks outside the unspaced scripts, as first and last code points."""
    ranges: list[list[int]] = []
    for code in range(0x300, min(0x1F000, sys.maxunicode)):
        character = chr(code)
        if unicodedata.category(character)[0] == "M" and not UNSPACED.match(character):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return tuple((first, last) for first, last in ranges)


def words_with_places(text: str) -> list[tuple[str, int, int]]:
    """The words of a text with where each starts and ends, in characters."""
    return [(match[0], *match.span()) for match in _word_pattern().finditer(text)]
