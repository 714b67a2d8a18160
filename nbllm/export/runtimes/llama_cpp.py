"""A GGUF file decoded by llama.cpp, through llama-cpp-python.

llama.cpp keeps the keys and values of one text. What comes next is computed from where it parts from that text, so that
a prompt that was seen before costs one token. One text at a time: more samples come one after the other.

Legend: V vocabulary.
"""

from __future__ import annotations

import contextlib
import io
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nbllm.errors import NotFoundError, UsageError
from nbllm.export.extras import need

_LONGEST = 8192
"""Ids kept at most, where nothing else is asked for: room for keys and values is taken at once."""


class LlamaCpp:
    """A model in llama.cpp.

    Args:
        path: a .gguf file, or a folder that holds one.
        context: the most tokens of prompt and text together; None: the model's own, up to 8,192.
        gpu_layers: layers computed on a GPU where llama.cpp was built for one; -1: all.

    Raises:
        NotFoundError: no such file.
        UsageError: llama-cpp-python isn't installed, or doesn't load the file.
    """

    name = "llamacpp"

    def __init__(self, path: str | Path, *, context: int | None = None, gpu_layers: int = -1) -> None:
        need("llama.cpp", "llamacpp", "llama_cpp")
        import llama_cpp

        file = _file(Path(path).expanduser())
        longest = context or _LONGEST
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                probe = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
                trained = int(probe.metadata.get(f"{probe.metadata['general.architecture']}.context_length", longest))
                probe.close()
                self._llama = llama_cpp.Llama(
                    str(file), n_ctx=min(longest, trained), n_gpu_layers=gpu_layers, verbose=False
                )
        except (ValueError, KeyError, RuntimeError) as error:
            raise UsageError(f"llama.cpp doesn't load {file}: {error}") from error
        # closed before Python takes its modules apart, where it would complain
        weakref.finalize(self, self._llama.close)
        self.vocab_size = int(self._llama.n_vocab())
        self.context: int | None = min(longest, trained)
        self.device = torch.device("cpu")
        end = int(self._llama.token_eos())
        self.eos_ids: frozenset[int] = frozenset([end] if end >= 0 else [])
        self.reused = 0
        """Ids of the last prompt whose keys and values were there already."""

    def rows(self) -> LlamaRows:
        """An empty batch, for one text."""
        return LlamaRows(self)

    def forget(self) -> None:
        """Drops the keys and values of what was computed."""
        self._llama.n_tokens = 0

    def encode(self, text: str) -> list[int]:
        """The ids that llama.cpp's own tokenizer gives a text; special tokens in it are text."""
        return list(self._llama.tokenize(text.encode(), add_bos=False, special=False))

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Logits of the token after some ids, float32 [V]; only what differs from the ids before is computed."""
        import llama_cpp

        llama = self._llama
        there = llama.input_ids[: llama.n_tokens]
        same = min(len(there), len(ids) - 1)  # the last id is always computed: its logits aren't kept
        differing = np.flatnonzero(there[:same] != np.asarray(ids[:same], dtype=there.dtype))
        self.reused = int(differing[0]) if len(differing) else same
        llama.n_tokens = self.reused  # what lies behind it is removed by eval
        llama.eval(list(ids[self.reused :]))
        found = llama_cpp.llama_get_logits_ith(llama.ctx, -1)
        return torch.from_numpy(np.ctypeslib.as_array(found, shape=(self.vocab_size,)).copy())


class LlamaRows:
    """One text being decoded in llama.cpp; see `nbllm.sample.runtime.Rows`."""

    def __init__(self, runtime: LlamaCpp) -> None:
        self._runtime = runtime
        self._ids: list[int] = []

    def start(self, prompts: Sequence[Sequence[int]], n: int) -> Tensor:
        """Runs the prompt; returns logits [1, V].

        Raises:
            UsageError: more than one row is asked for.
        """
        if len(prompts) * n != 1:
            raise UsageError(
                "llama.cpp decodes one text at a time here",
                received=len(prompts) * n,
                next="Add --n 1, or another --backend",
            )
        self._ids = list(prompts[0])
        return self._runtime.logits(self._ids)[None]

    def advance(self, tokens: Tensor) -> Tensor:
        """Appends a token [1]; returns logits [1, V]."""
        self._ids.append(int(tokens[0]))
        return self._runtime.logits(self._ids)[None]

    def select(self, places: Tensor) -> None:
        """Keeps the row, or none.

        Raises:
            UsageError: the row is asked for more than once.
        """
        if len(places) > 1:
            raise UsageError("llama.cpp decodes one text at a time here", received=len(places))


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted(path.glob("*.gguf")) if path.is_dir() else []
    if len(found) != 1:
        what = f"{path} holds {len(found)} GGUF files" if path.is_dir() else f"There is no file {path}"
        raise NotFoundError(what, next="Name one, or make one with %llm_export --to gguf FOLDER")
    return found[0]
