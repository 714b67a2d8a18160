"""A folder that the export to ONNX wrote, decoded by ONNX Runtime; keys and values stay where it computes.

Prompts of different lengths are padded on the left and masked, as in torch. Knows the folder, not sampling.

Legend: P prompts, n samples a prompt, B rows, T padded length of the prompts, S ids so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nbllm.errors import NotFoundError, StoreError, UsageError
from nbllm.export.extras import need
from nbllm.export.onnx import INPUTS, MODEL
from nbllm.files import read_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CPU = "CPUExecutionProvider"


class OnnxRuntime:
    """A model in ONNX Runtime.

    Args:
        folder: what `export(…, to="onnx")` wrote.
        providers: execution providers, best first, such as `["TensorrtExecutionProvider", "CUDAExecutionProvider"]`;
            the CPU's comes last by itself. None: the CPU only.

    Raises:
        NotFoundError: the folder holds no such export.
        UsageError: onnxruntime isn't installed, or hasn't that provider.
    """

    name = "onnx"

    def __init__(self, folder: str | Path, providers: Sequence[str] | None = None) -> None:
        need("ONNX Runtime", "onnx", "onnxruntime")
        import onnxruntime

        path = Path(folder).expanduser()
        if not (path / INPUTS).is_file() or not (path / MODEL).is_file():
            raise NotFoundError(f"{path} holds no ONNX export", next="Make one with %llm_export --to onnx FOLDER")
        available = onnxruntime.get_available_providers()
        for provider in providers or ():
            if provider not in available:
                raise UsageError(
                    f"This ONNX Runtime has no {provider}",
                    next="pip install onnxruntime-gpu brings CUDA and TensorRT",
                )
        chosen = [*(provider for provider in providers or () if provider != _CPU), _CPU]
        names = read_json(path / INPUTS)
        try:
            self._names: dict[str, Any] = names
            self.vocab_size = int(names["vocab_size"])
            context = names["context"]
            self.context: int | None = None if context is None else int(context)
            self.eos_ids: frozenset[int] = frozenset(names["eos_ids"])
            self._shape = (int(names["kv_heads"]), int(names["head_size"]))
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{path / INPUTS} is damaged: {error}", next="Export the model again") from error
        self.device = torch.device("cpu")  # of logits; keys and values are where the first provider computes
        self._place = "cpu" if chosen[0] == _CPU else "cuda"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only
        self._session = onnxruntime.InferenceSession(str(path / MODEL), options, providers=chosen)

    def rows(self) -> OnnxRows:
        """An empty batch."""
        return OnnxRows(self)

    def empty(self, rows: int) -> list[Any]:
        """Keys and values of no ids, one OrtValue a past input, each [rows, K, 0, C]."""
        kv_heads, head_size = self._shape
        nothing = np.zeros((rows, kv_heads, 0, head_size), np.float32)
        return [self.put(nothing) for _ in self._names["past"]]

    def put(self, array: NDArray[Any]) -> Any:
        """An array as an OrtValue where the session computes."""
        from onnxruntime import OrtValue

        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), self._place, 0)

    def run(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64], positions: NDArray[np.int64], past: list[Any]
    ) -> tuple[Tensor, list[Any]]:
        """One pass.

        Args:
            ids: the new ones [B, T].
            mask: [B, S].
            positions: [B, T].
            past: keys and values before them.

        Returns:
            Logits of the token after the last id, float32 [B, V], and the grown keys and values.
        """
        names, binding = self._names, self._session.io_binding()
        for name, array in ((names["ids"], ids), (names["mask"], mask), (names["positions"], positions)):
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name, value in zip(names["past"], past, strict=True):
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(names["logits"], "cpu")
        for name in names["present"]:
            binding.bind_output(name, self._place)
        self._session.run_with_iobinding(binding)
        logits, *present = binding.get_outputs()
        return torch.from_numpy(logits.numpy()), present


class OnnxRows:
    """A batch being decoded in ONNX Runtime; see `nbllm.sample.runtime.Rows`."""

    def __init__(self, runtime: OnnxRuntime) -> None:
        self._runtime = runtime
        self._past: list[Any] = []
        self._mask = np.zeros((0, 0), np.int64)  # [B, S]
        self._next = np.zeros(0, np.int64)  # place of the next token in its own text, [B]

    def start(self, prompts: Sequence[Sequence[int]], n: int) -> Tensor:
        """Runs the prompts, once each; returns logits [P * n, V]."""
        lengths = np.array([len(prompt) for prompt in prompts])
        longest = int(lengths.max())
        ids = np.array([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], np.int64)  # [P, T]
        mask = (np.arange(longest)[None] >= (longest - lengths)[:, None]).astype(np.int64)
        positions = (mask.cumsum(-1) - 1).clip(0)
        logits, self._past = self._runtime.run(ids, mask, positions, self._runtime.empty(len(prompts)))
        self._mask, self._next = mask, lengths.astype(np.int64)
        if n > 1:
            places = torch.arange(len(prompts)).repeat_interleave(n)
            self.select(places)
            logits = logits[places]
        return logits

    def advance(self, tokens: Tensor) -> Tensor:
        """Appends a token [B] to every row; returns logits [B, V]."""
        ids = tokens.cpu().numpy()[:, None]
        self._mask = np.concatenate([self._mask, np.ones_like(ids)], 1)
        logits, self._past = self._runtime.run(ids, self._mask, self._next[:, None], self._past)
        self._next = self._next + 1
        return logits

    def select(self, places: Tensor) -> None:
        """Keeps these rows [B'] in this order."""
        kept = places.cpu().numpy()
        self._mask, self._next = self._mask[kept], self._next[kept]
        self._past = [self._runtime.put(value.numpy()[kept]) for value in self._past]
