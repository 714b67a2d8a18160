"""Text that a run sees more than once: documents of its shards that are the same or begin alike, and who they are.

Counts every token once; reads each shard's tokens once. Knows shards and the corpus that they were made from, no model.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from nbllm.corpus import Corpus
from nbllm.errors import NbllmError
from nbllm.shards import Shards, TokenStream
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer

BEGINNING = 64
"""Tokens after which two documents that began alike are taken for copies of each other."""
_MOST_DOCUMENTS = 500_000
_MOST_READ = 200_000
_SHOWN = 48


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """One text that is there several times."""

    text: str
    """How it begins."""
    count: int
    """How often it is there."""
    tokens: int
    """Of one copy, on average."""
    documents: tuple[str, ...] = ()
    """The first copies' names in the corpus, where it could be asked."""


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """What a part of the shards has more than once."""

    share: float
    """Of its tokens: those in copies of what was there already."""
    documents: int
    """How many documents are copies."""
    looked_at: int
    """How many there are, or were looked at."""
    most: tuple[Repeated, ...]
    """The texts with the most copies' tokens first."""
    held_out: int = 0
    """Held-out documents that the training part has too."""


def repeats(shards: Shards, tokenizer: Tokenizer, *, name: int = 3) -> Repeats:
    """Looks for copies in the training part, and for held-out documents in it.

    Args:
        shards: a run's data.
        tokenizer: what made them.
        name: how many texts to name.
    """
    stream = shards.train
    keys, lengths = _keys(stream)
    counts, tokens = Counter(keys), Counter[bytes]()
    for key, length in zip(keys, lengths, strict=True):
        tokens[key] += length
    copies = {key: tokens[key] - tokens[key] // count for key, count in counts.items() if count > 1}
    worst = sorted(copies, key=lambda key: -copies[key])[:name]
    first = {key: keys.index(key) for key in worst}
    most = []
    for key in worst:
        start = int(stream.boundaries[first[key]])
        ids = [int(id) for id in stream.tokens[start : min(start + _SHOWN, int(stream.boundaries[first[key] + 1]))]]
        text = tokenizer.decode(ids)
        most.append(Repeated(text=text, count=counts[key], tokens=tokens[key] // counts[key]))
    known = set(counts)
    return Repeats(
        share=sum(copies.values()) / max(1, sum(lengths)),
        documents=sum(count - 1 for count in counts.values()),
        looked_at=len(keys),
        most=tuple(most),
        held_out=sum(key in known for key in _keys(shards.held_out)[0]),
    )


def named(store: Store, shards: Shards, found: Repeats) -> Repeats:
    """The same with the names of the copies in the corpus, where that is still there."""
    parents = shards.manifest.parents if shards.manifest else ()
    corpus = next((parent.name for parent in parents if parent.kind == "corpus"), None)
    if corpus is None or not found.most:
        return found
    try:
        documents = iter(Corpus.load(store, corpus))
    except NbllmError:
        return found
    ids: dict[str, list[str]] = {one.text: [] for one in found.most}
    for number, document in enumerate(documents):
        if number >= _MOST_READ:
            break
        for text, places in ids.items():
            if len(places) < 2 and document["text"].startswith(text.rstrip("\ufffd")):
                places.append(f"{document['source']} {document['id']}".strip())
    most = tuple(
        Repeated(text=one.text, count=one.count, tokens=one.tokens, documents=tuple(ids[one.text]))
        for one in found.most
    )
    return Repeats(
        share=found.share,
        documents=found.documents,
        looked_at=found.looked_at,
        most=most,
        held_out=found.held_out,
    )


def _keys(stream: TokenStream) -> tuple[list[bytes], list[int]]:
    """For each document a hash of its beginning (of all of it where it is short), and its tokens."""
    bounds = stream.boundaries[: _MOST_DOCUMENTS + 1].tolist()
    keys, lengths = [], []
    for start, stop in pairwise(bounds):
        ids = stream.tokens[start : min(stop, start + BEGINNING)]
        keys.append(hashlib.blake2b(ids.tobytes(), digest_size=12).digest())
        lengths.append(stop - start)
    return keys, lengths
