"""Words as spaCy's English rules cut them, which datatrove counts; for `variant=datatrove`.

Rewritten from the rules of spaCy 3.8 (`lang/punctuation.py`, `lang/char_classes.py`, `lang/en/`): white space, then
prefixes and suffixes from outside in, then infixes; contractions and common abbreviations are exceptions. Left out:
exceptions without an apostrophe (`dont`), emoticons, and spaCy's list of pictographs beyond the usual blocks. Each
different piece is cut once and remembered, as spaCy does.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nbllm.corpus.layout import Ints, Layout, running

_REMEMBERED = 200_000


def _listed(typed: str) -> tuple[str, ...]:
    return tuple(typed.split())


_PUNCTUATION = _listed("…… … , : ; ! ? ¿ ؟ ¡ ( ) [ ] { } < > _ # * & 。 ？ ！ ， 、 ； ： ～ · । ، ۔ ؛ ٪")
_QUOTES = _listed("' \" ” “ ` ‘ ´ ’ ‚ , „ » « 「 」 『 』 （ ） 〔 〕 【 】 《 》 〈 〉 〈 〉 ⟦ ⟧")
_CURRENCIES = _listed(r"\$ £ € ¥ ฿ US\$ C\$ A\$ ₽ ﷼ [₠-₿]")
_PICTOGRAPHS = "[¦©®°҂\u2100\u2101\u2103-\u2106\u2108\u2109\u2114\u2116\u2117\u211e-\u2123\u2125\u2127\u2129\u212e\u2195-\u2199\u219c-\u219f\u21a1\u21a2\u21a4\u21a5\u21a7-\u21ad\u21af-\u21cd\u21d0\u21d1\u21d3\u21d5-\u21f3\u2300-\u2307\u230c-\u231f\u2322-\u2328\u232b-\u237b\u237d-\u239a\u23b4-\u23db\u23e2-\u2426\u2440-\u244a\u249c-\u24e9\u2500-\u25b6\u25b8-\u25c0\u25c2-\u25f7\u2600-\u266e\u2670-\u2767\u2794-\u27bf\u2800-\u28ff\u2b00-\u2b2f\u2e80-\u2fd5\u2ff0-\u2ffb\u3004\u3012\u3013\u3020\u3200-\u33ff\u4dc0-\u4dff\ua490-\ua4c6\ufffc\ufffd\U0001f000-\U0001faff]"  # noqa: E501
_UNITS = _listed(
    "km km² km³ m m² m³ dm dm² dm³ cm cm² cm³ mm mm² mm³ ha µm nm yd in ft kg g mg µg t lb oz m/s km/h kmh mph hPa Pa "
    "mbar mb MB kb KB gb GB tb TB T G M K % км км² км³ м м² м³ дм дм² дм³ см см² см³ мм мм² мм³ нм кг г мг м/с км/ч "
    "кПа Па мбар Кб КБ кб Мб МБ мб Гб ГБ гб Тб ТБ тб"
)
_NOT = re.compile(
    r"(ai|are|ca|could|dare|did|does|do|had|has|have|is|may|might|must|need|ought|sha|should|was|were|wo|would)"
    r"(n['’]t)(['’]ve)?",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"(i|you|he|she|it|we|they|who|what|when|where|why|how|there|that|this|those|these|could|should|would|might|must)"
    r"(['’](?:ll|d|ve|re|m|s))(['’]ve)?",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"(1[0-2]|[1-9])(am|pm|a\.m\.?|p\.m\.?)")
_ALONE = re.compile(r"[a-zäöü]\.|[a-z]\.[a-z]\.|''|\\[nt]|C\+\+|\^_+\^|[:;=]-?[()DPp/|]")
_ABBREVIATIONS = frozenset(
    _listed(
        "Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. "
        "Mr. Mrs. Ms. p.m. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. Mt. Ak. Ala. Apr. Ariz. Ark. Aug. Calif. Colo. "
        "Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. Jul. Jun. Kan. Kans. Ky. La. Mar. Mass. Mich. Minn. "
        "Miss. N.C. N.D. N.H. N.J. N.M. N.Y. Neb. Nebr. Nev. Nov. Oct. Okla. Ore. Pa. S.C. Sep. Sept. Tenn. Va. "
        "Wash. Wis. 'S 's ’S ’s and/or w/o 'Cause 'cause 'em 'll 'nuff 'd 're 've"
    )
)
_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
_SYMBOLS = (
    (0x0, 0x8), (0xb, 0x1f), (0x22, 0x2d), (0x2f, 0x2f), (0x3a, 0x3e), (0x40, 0x40), (0x5b, 0x60), (0x7b, 0x9f),
    (0xab, 0xab), (0xb4, 0xb4), (0xbb, 0xbb), (0x2013, 0x2014), (0x2019, 0x2019), (0x201c, 0x201e), (0x2026, 0x2026),
    (0x2236, 0x2236), (0x2501, 0x2501), (0x25ba, 0x25ba), (0x3001, 0x3001), (0x3008, 0x300d), (0x3010, 0x3011),
    (0xff05, 0xff05), (0xff08, 0xff09), (0xff0c, 0xff0c), (0xff11, 0xff11), (0xff1a, 0xff1b), (0xff5e, 0xff5e),
)  # fmt: skip
"""datatrove's PUNCTUATION_SET apart from what ends a sentence."""


@dataclass(frozen=True)
class SpacyWords:
    """The words of a batch; D documents, W words, V different words."""

    ids: Ints
    """[W], 0 … V-1."""
    offsets: Ints
    """[D + 1]: the words of document d."""
    starts: Ints
    """[W]: the code point at which the piece of each word begins."""
    sizes: Ints
    """[V]: characters."""
    letters: NDArray[np.bool_]
    """[V]: holds a letter."""
    symbols: NDArray[np.bool_]
    """[V]: nothing but punctuation."""
    stop: Ints
    """[V]: the number of a stop word, -1 for others."""
    ends: NDArray[np.bool_]
    """[V]: a mark at which a sentence ends."""
    punctuation: NDArray[np.bool_]
    """[V]: all its characters are of Unicode's category P."""


def spacy_words(layout: Layout) -> SpacyWords:
    """The words of a batch's texts."""
    pieces = layout.pieces
    codes, texts = layout.numbers(pieces)
    numbers: dict[str, int] = {}
    flat: list[int] = []
    counts = np.zeros(len(texts), np.int64)
    used = np.bincount(codes, minlength=len(texts)) > 0  # what stands between pieces is among the texts too
    places = np.flatnonzero(used)
    for index, piece in zip(places.tolist(), texts.take(pa.array(places)).to_pylist(), strict=True):
        parts = cut(piece)
        counts[index] = len(parts)
        flat += [numbers.setdefault(part, len(numbers)) for part in parts]
    begin = running(counts)
    repeats = counts[codes]
    ends_at = running(repeats)
    inside = np.arange(int(ends_at[-1])) - np.repeat(ends_at[:-1], repeats)
    ids = np.array(flat, np.int64)[np.repeat(begin[codes], repeats) + inside]
    facts = [_facts(word) for word in numbers]
    columns = list(zip(*facts, strict=True)) if facts else [()] * 6
    return SpacyWords(
        ids,
        ends_at[pieces.offsets],
        np.repeat(pieces.start, repeats),
        np.array(columns[0], np.int64),
        np.array(columns[1], bool),
        np.array(columns[2], bool),
        np.array(columns[3], np.int64),
        np.array(columns[4], bool),
        np.array(columns[5], bool),
    )


@functools.lru_cache(_REMEMBERED)
def cut(piece: str) -> tuple[str, ...]:
    """The words of one piece without white space."""
    if piece.isalpha() and piece.isascii():
        return (piece,)
    prefix, suffix, infix, address = _patterns()
    before: list[str] = []
    after: list[str] = []
    size = -1
    while piece and len(piece) != size and not _is_exception(piece):
        size = len(piece)
        head = match.end() if (match := prefix.search(piece)) else 0
        if head and _is_exception(piece[head:]):
            before.append(piece[:head])
            piece = piece[head:]
            break
        found = suffix.search(piece[head:])
        tail = len(found[0]) if found else 0
        if tail and _is_exception(piece[:-tail]):
            after.append(piece[-tail:])
            piece = piece[:-tail]
            break
        if head and tail and head + tail <= len(piece):
            before.append(piece[:head])
            after.append(piece[-tail:])
            piece = piece[head:-tail]
        elif head:
            before.append(piece[:head])
            piece = piece[head:]
        elif tail:
            after.append(piece[-tail:])
            piece = piece[:-tail]
    middle: list[str] = []
    if piece:
        if special := _special(piece):
            middle = special
        elif len(piece) > 3 and ("." in piece) and len(piece) < 2000 and address.match(piece):
            middle = [piece]
        else:
            start = 0
            for match in infix.finditer(piece):
                if match.start() == 0:
                    continue
                if match.start() != start:
                    middle.append(piece[start : match.start()])
                middle.append(match[0])
                start = match.end()
            if piece[start:]:
                middle.append(piece[start:])
    return (*before, *middle, *reversed(after))


def _is_exception(piece: str) -> bool:
    return bool(piece) and bool(_special(piece))


def _special(piece: str) -> list[str]:
    """The words of an exception; empty for other pieces."""
    if len(piece) > 14:
        return []
    if piece in _ABBREVIATIONS or _ALONE.fullmatch(piece):
        return [piece]
    if match := _CLOCK.fullmatch(piece):
        return [match[1], match[2]]
    if "'" in piece or "’" in piece:
        for pattern in (_NOT, _VERB):
            if match := pattern.fullmatch(piece):
                return [part for part in match.groups() if part]
        if piece.lower() in ("let's", "let’s"):
            return [piece[:3], piece[3:]]
    return []


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    lower, upper = _letters()
    quotes = "".join(map(re.escape, _QUOTES))
    letter = r"[^\W\d_]"
    common = [*map(re.escape, _PUNCTUATION), r"\.\.+", "…", *map(re.escape, _QUOTES)]
    prefixes = ["§", "%", "=", "—", "–", r"\+(?![0-9])", *common, *_CURRENCIES, _PICTOGRAPHS]
    currency = "|".join(_CURRENCIES)
    units = "|".join(map(re.escape, _UNITS))
    suffixes = [
        *common, _PICTOGRAPHS, "'s", "'S", "’s", "’S", "—", "–", r"(?<=[0-9])\+", r"(?<=°[FfCcKk])\.",
        rf"(?<=[0-9])(?:{currency})", rf"(?<=[0-9])(?:{units})",
        rf"(?<=[0-9{lower}%²\-\+{''.join(map(re.escape, ''.join(_PUNCTUATION)))}{quotes}])\.",
        rf"(?<=[{upper}][{upper}])\.",
    ]  # fmt: skip
    infixes = [
        r"\.\.+", "…", _PICTOGRAPHS, r"(?<=[0-9])[+\-\*^](?=[0-9-])",
        rf"(?<=[{lower}{quotes}])\.(?=[{upper}{quotes}])", rf"(?<={letter}),(?={letter})",
        rf"(?<=[^\W_])(?:-|–|—|--|---|——|~)(?={letter})", rf"(?<=[^\W_])[:<>=/](?={letter})",
    ]  # fmt: skip
    host = r"[A-Za-z0-9\u00a1-\uffff]"
    address = (
        rf"(?:(?:[\w\+\-\.]{{2,}})://)?(?:\S+(?::\S*)?@)?(?:(?:[1-9]\d?|1\d\d|2[01]\d|22[0-3])(?:\.\d{{1,3}}){{3}}|"
        rf"(?:(?:{host}[A-Za-z0-9\u00a1-\uffff_-]{{0,62}})?{host}\.)+[{lower}]{{2,63}})(?::\d{{2,5}})?(?:[/?#]\S*)?$"
    )
    return (
        re.compile("|".join(f"^{one}" for one in prefixes)),
        re.compile("|".join(f"(?:{one})$" for one in suffixes)),
        re.compile("|".join(infixes)),
        re.compile(address),
    )


@functools.cache
def _letters() -> tuple[str, str]:
    """Lower and upper case letters for a character class; letters without case are in both."""
    lower: list[list[int]] = []
    upper: list[list[int]] = []
    for code in range(0x41, 0xFFFF):
        character = chr(code)
        if character.isalpha():
            for ranges, other in ((lower, character.isupper()), (upper, character.islower())):
                if not other:
                    if ranges and ranges[-1][1] == code - 1:
                        ranges[-1][1] = code
                    else:
                        ranges.append([code, code])
    first, second = ("".join(f"\\u{a:04x}-\\u{b:04x}" for a, b in ranges) for ranges in (lower, upper))
    return first, second


@functools.lru_cache(_REMEMBERED)
def _facts(word: str) -> tuple[int, bool, bool, int, bool, bool]:
    stop = _STOP_WORDS.index(word) if word in _STOP_WORDS else -1
    if word.isalpha():
        return len(word), True, False, stop, False, False
    symbols, ends = _symbol_sets()
    return (
        len(word),
        any(map(str.isalpha, word)),
        all(character in symbols for character in word),
        stop,
        word in ends,
        all(unicodedata.category(character)[0] == "P" for character in word),
    )


@functools.cache
def _symbol_sets() -> tuple[frozenset[str], frozenset[str]]:
    from nbllm.corpus.layout import END_PUNCTUATION

    ends = frozenset(chr(code) for low, high in END_PUNCTUATION for code in range(low, high + 1))
    symbols = frozenset(chr(code) for low, high in _SYMBOLS for code in range(low, min(high, sys.maxunicode) + 1))
    return symbols | ends, ends - {"…"}
