"""Texts to ids for shards: by tiktoken where it gives the ids that the tokenizers library gives, else by that library.

Both apply the same merges to the same pieces of text, and tiktoken several times as fast. They could differ in three
ways, and each is looked at before its ids are used:

* Merges. tiktoken joins two neighbours whenever they are a token together; the library only pairs in its list. Joining
  in the order of the list comes to the same if every token's own bytes are joined to that token by the list alone: the
  pair that its last step joins is then the only one of that content that can ever stand side by side, since merges
  inside a span don't depend on what is outside until one crosses its border. All tokens are encoded to see this.
* The pattern that cuts a text into pieces, which two engines of regular expressions read. Classes of characters are
  where engines and their editions of Unicode differ, so every pair of ASCII characters, and every other character
  between letters, digits, spaces and signs when it first occurs, is encoded by both.
* Anything nobody thought of: the first texts are encoded by both.

Knows of a tokenizer its definition and its methods; nothing of shards.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from nbllm.tokenizer import Tokenizer

Ids = NDArray[np.uint32]

_WORTH_CHARACTERS = 200_000  # in one call; proving costs as much as the library needs for about as many
_PROVEN_CHARACTERS = 20_000
_ASCII = [chr(code) for code in range(128)]
_BETWEEN = "a{0}b A{0}{0}B 1{0}2 {0} {0}{0} .{0}, \n{0}\n\r{0}\r\n'{0} '{0}e '{0}l 'l{0} 'r{0} {0}'s"
_PROVEN: dict[str, tuple[Any, set[str]]] = {}
"""By hash of a tokenizer that has been looked at in this process: tiktoken's encoding, or None, and the characters."""
_BORDER = "\U0010ffff\U0010fffe\U0010ffff"  # between texts that are encoded at once; no text has these characters


class Encoder:
    """Encodes texts as the tokenizer does, special tokens as text.

    Args:
        tokenizer: any.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._border_id: int = tokenizer.vocab_size
        self._fast: Any = None
        self._seen: set[str] | None = None
        """Characters that both encode alike; None before there was enough text for it to be worth while."""
        self._threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @property
    def fast(self) -> bool:
        """Whether tiktoken encodes."""
        return self._fast is not None

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of many texts, each as `tokenizer.encode_batch` has them, uint32.

        Raises:
            DataError: half a surrogate pair in a text.
        """
        if self._seen is None and sum(map(len, texts)) >= _WORTH_CHARACTERS:
            self._begin(texts)
        if self._fast is not None and self._seen is not None:
            new = set().union(*(text for text in texts if not text.isascii())) - self._seen
            self._give_up_unless_alike([_BETWEEN.format(character) for character in sorted(new)])
            self._seen |= new
        found = self._by_tiktoken(texts) if self._fast is not None else None
        return self._by_library(texts) if found is None else found

    def _begin(self, texts: Sequence[str]) -> None:
        known = getattr(self._tokenizer, "hash", "")
        if known in _PROVEN:
            self._fast, self._seen = _PROVEN[known]
            return
        self._seen = set(_ASCII)
        self._fast = _tiktoken(self._tokenizer, self._border_id)
        self._give_up_unless_alike(_pairs() + _some(texts))
        if known:
            _PROVEN.clear()  # one is enough: what is trained goes over one tokenizer's text
            _PROVEN[known] = self._fast, self._seen

    def _give_up_unless_alike(self, texts: list[str]) -> None:
        if self._fast is not None and texts:
            found = self._by_tiktoken(texts)
            pairs = zip(found or (), self._by_library(texts), strict=False)
            if found is None or not all(np.array_equal(mine, other) for mine, other in pairs):
                self._fast = None

    def _by_library(self, texts: Sequence[str]) -> list[Ids]:
        return [np.array(ids, dtype=np.uint32) for ids in self._tokenizer.encode_batch(texts)]

    def _by_tiktoken(self, texts: Sequence[str]) -> list[Ids] | None:
        """None where it doesn't manage: no Unicode, the border in a text, or a piece too long for its expressions."""
        ends = np.cumsum([len(text) for text in texts])
        cuts = np.searchsorted(ends, np.arange(1, self._threads) * (ends[-1] if len(ends) else 0) / self._threads)
        shares = [texts[first:last] for first, last in zip([0, *cuts], [*cuts, len(texts)], strict=True)]
        with ThreadPoolExecutor(self._threads) as pool:
            parts = list(pool.map(self._joined, [share for share in shares if share]))
        return None if any(part is None for part in parts) else [ids for part in parts for ids in part or ()]

    def _joined(self, texts: Sequence[str]) -> list[Ids] | None:
        """Many texts in one call, which holds up no other thread."""
        try:
            ids: Ids = self._fast.encode_to_numpy(_BORDER.join(texts), allowed_special={_BORDER}, disallowed_special=())
        except (ValueError, UnicodeError):
            return None
        borders = np.flatnonzero(ids == self._border_id)
        if len(borders) != len(texts) - 1:
            return None
        firsts, lasts = [0, *(borders + 1).tolist()], [*borders.tolist(), len(ids)]
        return [ids[first:last] for first, last in zip(firsts, lasts, strict=True)]


def _some(texts: Sequence[str]) -> list[str]:
    """The first texts, enough of them to compare."""
    chosen, size = [], 0
    for text in texts:
        if size >= _PROVEN_CHARACTERS:
            break
        chosen.append(text[:_PROVEN_CHARACTERS])
        size += len(chosen[-1])
    return chosen


def _pairs() -> list[str]:
    """Every ASCII character beside every other."""
    return ["".join(first + second for second in _ASCII) for first in _ASCII]


def _tiktoken(tokenizer: Tokenizer, border_id: int) -> Any:
    """tiktoken's encoding with the tokenizer's merges; None where it isn't there or they can't be put in its way."""
    definition = getattr(tokenizer, "definition", None)  # else an object with no more than `encode_batch`
    if definition is None or importlib.util.find_spec("tiktoken") is None:
        return None
    spec: dict[str, Any] = json.loads(definition)
    pattern = _pattern(spec)
    ranks = None if pattern is None else _ranks(spec, tokenizer)
    if ranks is None:
        return None
    import tiktoken

    return tiktoken.Encoding("shards", pat_str=pattern, mergeable_ranks=ranks, special_tokens={_BORDER: border_id})


def _pattern(spec: dict[str, Any]) -> str | None:
    """The expression whose matches are the pieces; None where text is cut or changed in another way."""
    model, steps = spec["model"], (spec.get("pre_tokenizer") or {}).get("pretokenizers") or []
    changed = spec.get("normalizer") is not None or any(not token["special"] for token in spec["added_tokens"])
    named = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if model["type"] != "BPE" or changed or any(model.get(name) for name in named):
        return None
    if [step["type"] for step in steps] != ["Split", "ByteLevel"]:
        return None
    split, level = steps
    plain = split["behavior"] == "Isolated" and not split["invert"] and "Regex" in split["pattern"]
    if not plain or level["use_regex"] or level["add_prefix_space"]:
        return None
    pattern: str = split["pattern"]["Regex"]
    return pattern


def _ranks(spec: dict[str, Any], tokenizer: Tokenizer) -> dict[bytes, int] | None:
    """Each token's bytes with its id; None where joining by them could differ from the list of merges."""
    import tokenizers

    model = spec["model"]
    special = {token["content"] for token in spec["added_tokens"]}
    tokens = {token: id for token, id in model["vocab"].items() if token not in special}
    merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    order = [tokens.get("".join(merge), -1) for merge in merges]
    if any(later <= earlier for earlier, later in zip([-1, *order], order, strict=False)):
        return None
    ranks = {tokenizer.token_bytes(id): id for id in tokens.values()}
    if len(ranks) != len(tokens) or not all(bytes([byte]) in ranks for byte in range(256)):
        return None
    bare = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=model["vocab"], merges=merges))  # cuts nothing
    alone = bare.encode_batch_fast(list(tokens))
    alike = all(encoding.ids == [id] for encoding, id in zip(alone, tokens.values(), strict=True))
    return ranks if alike else None
