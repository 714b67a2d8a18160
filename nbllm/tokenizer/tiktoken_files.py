"""tiktoken's encodings as tokenizer.json: the same ids from the tokenizers library, without tiktoken and a network.

A `.tiktoken` file lists tokens with their ranks; a merge is any two neighbours that together are a token, the lowest
rank first, and a piece that is a token as a whole is taken whole (`ignore_merges`). The merges that this can ever do
are one for each token: the pair that merging its own bytes, by lower ranks alone, ends in. Names, patterns, special
tokens and hashes are those of `tiktoken_ext/openai_public.py` (tiktoken 0.14). Files come from tiktoken's cache.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbllm.errors import DataError, NotFoundError, UsageError, did_you_mean
from nbllm.tokenizer.byte_level import BYTE_TO_LETTER
from nbllm.tokenizer.patterns import PATTERNS, expression
from nbllm.tokenizer.tokenizer import Tokenizer

_URL = "https://openaipublic.blob.core.windows.net/encodings/"
_END = "<|endoftext|>"
_FILL = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """A published encoding."""

    file: str
    """The name of its file of ranks."""
    sha256: str
    """The file's hash."""
    pattern: str
    """A name in `patterns.PATTERNS`."""
    special: Mapping[str, int] = field(default_factory=dict)
    """Special tokens with their ids."""


_R50K = Encoding(
    file="r50k_base",
    sha256="306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    pattern="gpt2",
    special={_END: 50256},
)
_P50K_HASH = "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"
ENCODINGS: dict[str, Encoding] = {
    "gpt2": _R50K,
    "r50k_base": _R50K,
    "p50k_base": Encoding(file="p50k_base", sha256=_P50K_HASH, pattern="gpt2", special={_END: 50256}),
    "p50k_edit": Encoding(
        file="p50k_base",
        sha256=_P50K_HASH,
        pattern="gpt2",
        special={_END: 50256, **{token: 50281 + i for i, token in enumerate(_FILL)}},
    ),
    "cl100k_base": Encoding(
        file="cl100k_base",
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        pattern="gpt4",
        special={_END: 100257, **{token: 100258 + i for i, token in enumerate(_FILL)}, "<|endofprompt|>": 100276},
    ),
    "o200k_base": Encoding(
        file="o200k_base",
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        pattern="gpt4o",
        special={_END: 199999, "<|endofprompt|>": 200018},
    ),
}
"""Names that `tiktoken:NAME` takes."""


def by_name(name: str) -> Tokenizer:
    """A published encoding, from the file in tiktoken's cache.

    Raises:
        NotFoundError: no encoding of that name, or its file isn't in the cache.
        DataError: the file in the cache isn't the published one.
    """
    if name not in ENCODINGS:
        raise NotFoundError(f"No tiktoken encoding is named {name!r}", next=did_you_mean(name, ENCODINGS))
    encoding = ENCODINGS[name]
    url = f"{_URL}{encoding.file}.tiktoken"
    key = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    path = _cache() / key
    if not path.is_file():
        raise NotFoundError(
            f"The ranks of {name} aren't in tiktoken's cache ({_cache()})",
            next=f"With a network run tiktoken.get_encoding('{name}') once, or load a .tiktoken file",
        )
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != encoding.sha256:
        raise DataError(f"{path} isn't the published file of {name}", next="Remove it and let tiktoken fetch it again")
    return convert(_ranks(content, path), pattern=encoding.pattern, special=encoding.special, name=name)


def read_file(path: Path, *, pattern: str | None = None) -> Tokenizer:
    """A `.tiktoken` file.

    Args:
        path: the file.
        pattern: how its model cuts text, a name in `patterns.PATTERNS`; needn't be given for a published file, which
            is known by its hash and gets its special tokens too.

    Raises:
        UsageError: an unknown file without a pattern.
        DataError: no file of ranks.
    """
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    known = next((encoding for encoding in ENCODINGS.values() if encoding.sha256 == digest), None)
    if known is None and pattern is None:
        raise UsageError(
            f"{path.name} holds ranks only, not how its model cuts text",
            next=f"Add --pattern {'|'.join(PATTERNS)}",
        )
    special = known.special if known is not None else {}
    chosen = pattern or (known.pattern if known is not None else "none")
    return convert(_ranks(content, path), pattern=chosen, special=special, name=path.stem)


def convert(ranks: Mapping[bytes, int], *, pattern: str, special: Mapping[str, int], name: str) -> Tokenizer:
    """The tokenizer of tiktoken's `mergeable_ranks`.

    Args:
        ranks: for each token its rank, which is its id; all 256 bytes are among them.
        pattern: a name in `patterns.PATTERNS`.
        special: special tokens with their ids.
        name: the tokenizer's name.

    Raises:
        DataError: a byte is missing, or two tokens have one id.
    """
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise DataError(f"{name} lacks tokens for single bytes")
    vocabulary = {_letters(token): rank for token, rank in sorted(ranks.items(), key=lambda item: item[1])}
    vocabulary |= special
    if len(set(vocabulary.values())) != len(vocabulary):
        raise DataError(f"{name} gives one id to two tokens")
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = _before(token, rank, ranks) if len(token) > 1 else []
        if len(parts) == 2:  # others are reached only as a whole piece
            merges.append([_letters(parts[0]), _letters(parts[1])])
    cut = expression(pattern)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    by_pattern = {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}
    split = [] if cut is None else [by_pattern]
    definition: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": id,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token, id in special.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "ignore_merges": True, "vocab": vocabulary, "merges": merges},
    }
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if _END in special:
        config |= {"bos_token": _END, "eos_token": _END}
    return Tokenizer(json.dumps(definition, ensure_ascii=False), config=config, name=name)


def _before(token: bytes, rank: int, ranks: Mapping[bytes, int]) -> list[bytes]:
    """What a token's bytes are by the merges of lower ranks."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 1:
        found = [ranks.get(left + right, rank) for left, right in itertools.pairwise(parts)]
        lowest = min(found)
        if lowest >= rank:
            break
        i = found.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def _letters(token: bytes) -> str:
    return "".join(BYTE_TO_LETTER[byte] for byte in token)


def _ranks(content: bytes, path: Path) -> dict[bytes, int]:
    ranks = {}
    try:
        for line in content.splitlines():
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except (ValueError, binascii.Error) as error:
        raise DataError(f"{path} is no file of tiktoken ranks: {error}") from error
    return ranks


def _cache() -> Path:
    """Where tiktoken keeps its files (its load.py)."""
    named = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    return Path(named) if named else Path(tempfile.gettempdir()) / "data-gym-cache"
