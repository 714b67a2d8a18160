"""What decoding needs of a model, wherever it runs: prompts in, logits out. No sampling, no text.

A `Runtime` is a loaded model (in torch, ONNX Runtime, llama.cpp); `Rows` is one batch being decoded in it. Filters,
noise, stop texts and traces are the same above all of them.

Legend: P prompts, n samples a prompt, B rows, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Rows(Protocol):
    """The rows of one batch while they grow: the model's side of the loop."""

    def start(self, prompts: Sequence[Sequence[int]], n: int) -> Tensor:
        """Runs the prompts, once each however many samples they get.

        Args:
            prompts: ids of each prompt, at least one prompt and one id.
            n: rows a prompt: row r is sample r % n of prompt r // n.

        Returns:
            Logits of the next token, float32 [P * n, V].
        """
        ...

    def advance(self, tokens: Tensor) -> Tensor:
        """Appends a token to every row.

        Args:
            tokens: int64 [B].

        Returns:
            Logits of the next token, float32 [B, V].
        """
        ...

    def select(self, places: Tensor) -> None:
        """Keeps these rows in this order; a row may come more than once.

        Args:
            places: int64 [B'].
        """
        ...


class Runtime(Protocol):
    """A model loaded somewhere."""

    @property
    def name(self) -> str:
        """`torch`, `onnx`, `llamacpp`."""
        ...

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    @property
    def context(self) -> int | None:
        """The most tokens that prompt and text may have together; None: no limit is known."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the tensors of `Rows` are."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a text by the model's own configuration."""
        ...

    def rows(self) -> Rows:
        """An empty batch."""
        ...
