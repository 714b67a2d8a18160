"""Token shards: what a training reads. Building them, the streams on disk, and the loader. No torch in here."""

from nbllm.shards.build import Document, Example, Shards, build
from nbllm.shards.loader import GlobalBatch, Loader
from nbllm.shards.masking import SHARE, Masking
from nbllm.shards.stream import IGNORED, Fit, MicroBatch, TokenStream

__all__ = [
    "IGNORED",
    "SHARE",
    "Document",
    "Example",
    "Fit",
    "GlobalBatch",
    "Loader",
    "Masking",
    "MicroBatch",
    "Shards",
    "TokenStream",
    "build",
]
