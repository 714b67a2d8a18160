"""A corpus's texts by language, for comparing tokenizers. Knows corpora and their language stage, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbllm.corpus import Corpus

_LOOKED_AT = 1000
_MOST = 8


class _Texts:
    """Texts of a corpus by their positions; read again each time."""

    def __init__(self, corpus: Corpus, wanted: set[int]) -> None:
        self._corpus = corpus
        self._wanted = wanted

    def __iter__(self) -> Iterator[str]:
        return (text for place, text in enumerate(self._corpus.texts()) if place in self._wanted)


def by_language(corpus: Corpus) -> Mapping[str, _Texts]:
    """The texts of a corpus by language code, the commonest languages first; the rest together as `other`.

    The language is told from a text's first thousand characters, as the cleaning stage `language` does.
    """
    from nbllm.corpus.stages.language import language_shares

    places: dict[str, set[int]] = {}
    for place, text in enumerate(corpus.texts()):
        shares = language_shares(text[:_LOOKED_AT])
        language = max(shares, key=lambda code: (shares[code], code)) if shares else "other"
        places.setdefault(language, set()).add(place)
    ordered = sorted(places, key=lambda code: (-len(places[code]), code))
    common = [code for code in ordered if code != "other"][:_MOST]
    rest = {place for code in ordered if code not in common for place in places[code]}
    found = {code: _Texts(corpus, places[code]) for code in common}
    return {**found, **({"other": _Texts(corpus, rest)} if rest else {})} or {"all": _Texts(corpus, set())}
