"""Runtimes beside torch: ONNX Runtime, llama.cpp, vLLM; each in a file of its own, imported when it is asked for."""

from __future__ import annotations

from nbllm.export.runtimes.load import BACKENDS, load_runtime

__all__ = ["BACKENDS", "load_runtime"]
