"""Tokenizers: train one, load one, encode and decode, look into it. Doesn't know corpora or models."""

from nbllm.tokenizer.compare import Comparison, compare
from nbllm.tokenizer.load import load
from nbllm.tokenizer.patterns import DIGITS, PATTERNS
from nbllm.tokenizer.report import TokenizerReport
from nbllm.tokenizer.stream_decoder import StreamDecoder
from nbllm.tokenizer.strip import StripToken, TokenStrip
from nbllm.tokenizer.tokenizer import Tokenizer
from nbllm.tokenizer.train import END_OF_TEXT, PAD, TokenizerConfig, default_vocab_size, train

__all__ = [
    "DIGITS",
    "END_OF_TEXT",
    "PAD",
    "PATTERNS",
    "Comparison",
    "StreamDecoder",
    "StripToken",
    "TokenStrip",
    "Tokenizer",
    "TokenizerConfig",
    "TokenizerReport",
    "compare",
    "default_vocab_size",
    "load",
    "train",
]
