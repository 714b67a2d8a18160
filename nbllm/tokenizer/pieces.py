"""What the written form of a token stands for: marks that vocabularies put on tokens, and WordPiece's longest match.

Knows strings only, nothing of tokenizers.
"""

from __future__ import annotations

from collections.abc import Container

from nbllm.tokenizer.byte_level import letters_to_bytes


def token_bytes(token: str, *, byte_level: bool, affixes: tuple[str, str] = ("", "")) -> bytes:
    """The bytes that a token of a vocabulary stands for.

    Args:
        token: as the vocabulary writes it.
        byte_level: whether it is written in the byte alphabet (`Ġthe`).
        affixes: what marks a token that goes on inside a word (`##`) and one that ends a word (`</w>`); the marks
            stand for nothing.
    """
    prefix, suffix = affixes
    if prefix and token != prefix:
        token = token.removeprefix(prefix)
    if suffix and token != suffix:
        token = token.removesuffix(suffix)
    if byte_level:
        return letters_to_bytes(token)
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            return token.encode()
    return token.replace("▁", " ").encode()


def longest_pieces(token: str, vocabulary: Container[str], prefix: str) -> tuple[str, ...]:
    """What WordPiece (Schuster and Nakajima 2012) would cut a token into if the vocabulary hadn't it: the longest
    token that fits, from the left, again and again. Empty where nothing fits.

    Args:
        token: as the vocabulary writes it (`##ing`).
        vocabulary: all tokens.
        prefix: what marks a token that goes on inside a word.
    """
    inside = token.startswith(prefix) and token != prefix
    word = token.removeprefix(prefix) if inside else token
    found: list[str] = []
    start = 0
    while start < len(word):
        mark = prefix if start or inside else ""
        fitting = (
            mark + word[start:end]
            for end in range(len(word), start, -1)
            if mark + word[start:end] != token and mark + word[start:end] in vocabulary
        )
        piece = next(fitting, None)
        if piece is None:
            return ()
        found.append(piece)
        start += len(piece) - len(mark)
    return tuple(found)
