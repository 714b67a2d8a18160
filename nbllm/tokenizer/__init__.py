"""Tokenizers: train one, load one, encode and decode, look into it. Doesn't know corpora or models."""

from nbllm.tokenizer.align import Alignment, Segment, align
from nbllm.tokenizer.compare import Comparison, compare
from nbllm.tokenizer.details import TokenDetails
from nbllm.tokenizer.hints import Hint, hints
from nbllm.tokenizer.load import load
from nbllm.tokenizer.merges import MergeTree
from nbllm.tokenizer.parity import Parity, parity, read_parallel
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
    "Alignment",
    "Comparison",
    "Hint",
    "MergeTree",
    "Parity",
    "Segment",
    "StreamDecoder",
    "StripToken",
    "TokenDetails",
    "TokenStrip",
    "Tokenizer",
    "TokenizerConfig",
    "TokenizerReport",
    "align",
    "compare",
    "default_vocab_size",
    "hints",
    "load",
    "parity",
    "read_parallel",
    "train",
]
