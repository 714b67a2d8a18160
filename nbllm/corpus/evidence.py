"""Where in a text the reason of a drop stands: the spans that a reader should look at first.

Spans are (start, end) in characters, ordered and apart. They show a reason, they don't decide: what is dropped is
decided from scores alone. Reasons without a place in the text (too short, another language) have none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from nbllm.corpus.words import words_with_places

Span = tuple[int, int]
_LINE = re.compile(r"[^\r\n]+")
_PARAGRAPH = re.compile(r"[^\r\n]+(?:(?:\r\n|\r|\n)[^\r\n]+)*")
_END = re.compile(r"[.!?。！？…\"'”」]\s*$")
_MOST = 200
_LONGEST = 200_000
"""Of longer texts only so many characters at the start are looked at."""


def spans(reason: str, text: str) -> list[Span]:
    """The places that show a reason, at most a few hundred.

    Args:
        reason: as a stage names it, such as `repeated lines`.
        text: as it came into the stage.
    """
    text = text[:_LONGEST]
    for pattern, find in _FINDERS:
        if match := pattern.search(reason):
            return _merged(find(text, match))[:_MOST]
    return []


def _merged(found: Iterator[Span]) -> list[Span]:
    result: list[Span] = []
    for start, end in sorted(found):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def _pattern(pattern: str, flags: int = 0) -> Callable[[str, re.Match[str]], Iterator[Span]]:
    compiled = re.compile(pattern, flags)
    return lambda text, _: (match.span() for match in compiled.finditer(text))


def _repeats(unit: re.Pattern[str]) -> Callable[[str, re.Match[str]], Iterator[Span]]:
    def find(text: str, _: re.Match[str]) -> Iterator[Span]:
        seen: set[str] = set()
        for match in unit.finditer(text):
            bare = match[0].strip()
            if bare and bare in seen:
                yield match.span()
            seen.add(bare)

    return find


def _lines(test: Callable[[str], bool]) -> Callable[[str, re.Match[str]], Iterator[Span]]:
    return lambda text, _: (match.span() for match in _LINE.finditer(text) if match[0].strip() and test(match[0]))


def _top_gram(text: str, match: re.Match[str]) -> Iterator[Span]:
    size = int(match[1])
    found = words_with_places(text)
    grams = [tuple(word for word, _, _ in found[at : at + size]) for at in range(len(found) - size + 1)]
    counted = Counter(grams)
    if not counted:
        return
    # among the most frequent the longest, as the rule takes it
    top = max(counted, key=lambda gram: (counted[gram], sum(map(len, gram))))
    for at, gram in enumerate(grams):
        if gram == top:
            yield found[at][1], found[at + size - 1][2]


def _repeated_grams(text: str, match: re.Match[str]) -> Iterator[Span]:
    size = int(match[1])
    found = words_with_places(text)
    seen: set[tuple[str, ...]] = set()
    for at in range(len(found) - size + 1):
        gram = tuple(word for word, _, _ in found[at : at + size])
        if gram in seen:
            yield found[at][1], found[at + size - 1][2]
        seen.add(gram)


_FINDERS: tuple[tuple[re.Pattern[str], Callable[[str, re.Match[str]], Iterator[Span]]], ...] = tuple(
    (re.compile(reason), find)
    for reason, find in (
        (r"paragraphs", _repeats(_PARAGRAPH)),
        (r"repeated lines", _repeats(_LINE)),
        (r"one (\d+)-gram", _top_gram),
        (r"repeated (\d+)-grams", _repeated_grams),
        (r"too many #", _pattern("#")),
        (r"too many ellipses", _pattern(r"…|\.\.\.")),
        (r"end in an ellipsis", _pattern(r"(?:…|\.\.\.)[ \t]*$", re.MULTILINE)),
        (r"bullet list", _pattern(r"^[ \t]*(?:[•‣●▪◦⁃∙·○■□▶►]|[-*+–—](?=\s))", re.MULTILINE)),
        (r"words with a letter", _pattern(r"(?<!\S)[^\s\w]*(?:[\d_][^\s\w]*)+(?!\S)|(?<!\S)[^\s\w]+(?!\S)")),
        (r"stop words", _pattern(r"\b(?:the|be|to|of|and|that|have|with)\b", re.IGNORECASE)),
        (r"without end punctuation", _lines(lambda line: not _END.search(line))),
        (r"short lines", _lines(lambda line: len(line.strip()) < 30)),
        (r"a list", _lines(lambda line: len(line.split()) < 4)),
        (r"lorem ipsum", _pattern("lorem ipsum", re.IGNORECASE)),
        (r"curly bracket", _pattern(r"\{")),
        (r"words too long", _pattern(r"\S{16,}")),
    )
)
