"""The three ways to make a vocabulary, each as a tokenizer without one and its trainer, by the tokenizers library.

`bpe` (Sennrich et al. 2016) and `unigram` (Kudo 2018) work on bytes as in GPT-2: any text comes back exactly.
`wordpiece` is BERT's (Devlin et al. 2019, cased): words between white space and punctuation, `##` inside a word,
`[UNK]` for a word with a character that the training text didn't have; white space isn't kept. For Unigram and
WordPiece the library breaks ties by chance: a few tokens in a hundred, and ids, differ from one training to the next.
BPE comes out the same every time. Knows nothing of texts and stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from nbllm.tokenizer.patterns import DIGITS, expression

UNKNOWN = "[UNK]"
_MIN_FREQUENCY = 2  # a pair seen once teaches nothing
_LONGEST_BYTES = 32  # table borders of dashes would else fill a small vocabulary; costs 0.2 % more tokens on prose
_LONGEST_PIECE = 16  # Unigram's time and memory go with it; SentencePiece's own default
_LONG_PIECE = "(?m:.{1,1024})"  # training (not encoding) takes time by the square of a piece's length; m: . is any
_ALPHABET = 6000  # WordPiece: the most different characters kept


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What trains one vocabulary."""

    backend: Any
    """The tokenizer to train, cutting as in training."""
    trainer: Any
    """The library's trainer."""
    cut: Any
    """The cut for encoding: as in training, without a limit to a piece's length."""


def recipe(
    algorithm: str, vocab_size: int, special_tokens: list[str], pattern: str | None, digits: str | None
) -> Recipe:
    """A tokenizer and its trainer.

    Args:
        algorithm: `bpe`, `unigram` or `wordpiece`.
        vocab_size: tokens wanted, special ones included.
        special_tokens: in the order of their ids.
        pattern: a name in `patterns.PATTERNS`; WordPiece has its own.
        digits: a name in `patterns.DIGITS`, or None.
    """
    common = {"vocab_size": vocab_size, "special_tokens": special_tokens, "show_progress": False}
    if algorithm == "wordpiece":
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token=UNKNOWN))
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
        )
        steps = [pre_tokenizers.BertPreTokenizer()]
        if digits in ("single", "triple"):
            steps.append(pre_tokenizers.Split(tokenizers.Regex(DIGITS[digits]), behavior="isolated"))
        backend.decoder = decoders.WordPiece(cleanup=False)
        trainer = trainers.WordPieceTrainer(min_frequency=_MIN_FREQUENCY, limit_alphabet=_ALPHABET, **common)
        cap = pre_tokenizers.Split(tokenizers.Regex(_LONG_PIECE), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, cap])
        return Recipe(backend=backend, trainer=trainer, cut=pre_tokenizers.Sequence(steps))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if algorithm == "unigram":
        backend = tokenizers.Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(initial_alphabet=alphabet, max_piece_length=_LONGEST_PIECE, **common)
    else:
        backend = tokenizers.Tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(
            min_frequency=_MIN_FREQUENCY,
            max_token_length=_LONGEST_BYTES + 1,  # the library stops one short of it
            initial_alphabet=alphabet,
            **common,
        )
    found = expression(pattern or "none", digits)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)
    split = [] if found is None else [pre_tokenizers.Split(tokenizers.Regex(found), behavior="isolated")]
    cap = pre_tokenizers.Split(tokenizers.Regex(_LONG_PIECE), behavior="isolated")
    backend.decoder = decoders.ByteLevel()
    backend.pre_tokenizer = pre_tokenizers.Sequence([*split, cap, byte_level])
    return Recipe(backend=backend, trainer=trainer, cut=pre_tokenizers.Sequence([*split, byte_level]))
