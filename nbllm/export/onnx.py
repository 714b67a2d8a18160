"""A model as ONNX: one graph that takes new ids and the keys and values so far, and gives logits and the grown ones.

Batch, new ids and past are dynamic, so that one file runs prompts and single steps, alone or padded on the left.
Written by torch.onnx.export (dynamo) in fp32; checked in ONNX Runtime. `onnx_inputs.json` beside it names inputs and
outputs. It doesn't write models whose layers see only a window, or keep something else than keys and values.

Legend: B rows, T new ids, P past ids, S = P + T, K key/value heads, C head size, V vocabulary, L layers.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import UsageError
from nbllm.export.checks import ROUNDING, compare
from nbllm.export.exported import Check
from nbllm.export.extras import install_line, installed, need

if TYPE_CHECKING:
    from torch import Tensor

    from nbllm.tokenizer import Tokenizer

MODEL = "model.onnx"
"""The graph's file; its weights are beside it, in `model.onnx.data`."""
INPUTS = "onnx_inputs.json"
"""What the inputs and outputs are called, and their sizes."""
_OPSET = 20
_CACHE_NAMES = ("cache", "past_key_values")  # transformers renamed the argument in its version 5


def require() -> None:
    """Raises UsageError where what writes ONNX isn't installed."""
    need("The export to ONNX", "onnx", "onnx", "onnxscript")


def write(model: Any, tokenizer: Tokenizer, folder: Path) -> tuple[list[Check], str | None]:
    """Writes a model into a new folder and checks it where ONNX Runtime is installed.

    Args:
        model: a causal language model of transformers, fp32, on the CPU, in eval mode.
        tokenizer: the model's.
        folder: made here.

    Returns:
        The checks, and why there are none, as a clause.

    Raises:
        UsageError: this kind of model can't be written as ONNX.
        RunError: ONNX Runtime doesn't predict the same next tokens.
    """
    config = model.config.get_text_config()
    _refuse(model, config)
    folder.mkdir(parents=True)
    layers: int = config.num_hidden_layers
    past = [f"past.{layer}.{what}" for layer in range(layers) for what in ("key", "value")]
    present = [f"present.{layer}.{what}" for layer in range(layers) for what in ("key", "value")]
    kv_heads, head_size = _export(model, layers, past, present, folder / MODEL)
    ends = config.eos_token_id
    inputs = {
        "ids": "input_ids",
        "mask": "attention_mask",
        "positions": "position_ids",
        "past": past,
        "logits": "logits",
        "present": present,
        "kv_heads": kv_heads,
        "head_size": head_size,
        "dtype": "float32",
        "vocab_size": config.vocab_size,
        "context": getattr(config, "max_position_embeddings", None),
        "eos_ids": [end for end in (ends if isinstance(ends, list) else [ends]) if end is not None],
    }
    (folder / INPUTS).write_text(json.dumps(inputs, indent=1) + "\n", encoding="utf-8")
    model.config.save_pretrained(folder)
    tokenizer.save(folder)
    if not installed("onnxruntime"):
        return [], f"it wasn't checked, since onnxruntime isn't installed: {install_line('onnx')}"
    from nbllm.export.runtimes.onnx_runtime import OnnxRuntime

    return [compare("ONNX Runtime", model, OnnxRuntime(folder), tokenizer, rounding=ROUNDING["fp32"])], None


def _refuse(model: Any, config: Any) -> None:
    kind = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{kind} can't be written as ONNX: it is an encoder-decoder")
    windows = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if windows or getattr(config, "sliding_window", None) is not None:
        raise UsageError(f"{kind} can't be written as ONNX: some of its layers don't see all tokens before them")
    taken = inspect.signature(model.forward).parameters
    if not any(name in taken for name in _CACHE_NAMES):
        raise UsageError(f"{kind} can't be written as ONNX: it keeps no keys and values")


def _export(model: Any, layers: int, past: list[str], present: list[str], path: Path) -> tuple[int, int]:
    """Writes the graph. Returns K and C."""
    import torch
    from transformers import DynamicCache

    taken = inspect.signature(model.forward).parameters
    cache_name = next(name for name in _CACHE_NAMES if name in taken)

    class Step(torch.nn.Module):
        """The model as a function of tensors only."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor, mask: Tensor, positions: Tensor, past: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            new, total = ids.shape[1], mask.shape[1]  # T, S
            query = torch.arange(new)[:, None] + (total - new)
            causal = torch.arange(total)[None] <= query  # [T, S]
            seen = causal[None, None] & (mask[:, None, None, :] != 0)  # [B, 1, T, S]
            # finite, so that a row of padding has a softmax; four dimensions, so that the model makes no mask itself
            added = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
            cache = DynamicCache(config=self.model.config)
            for layer in range(layers):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            options: dict[str, Any] = {cache_name: cache, "use_cache": True}
            if "position_ids" in taken:
                options["position_ids"] = positions
            if "logits_to_keep" in taken:
                options["logits_to_keep"] = 1
            logits = self.model(input_ids=ids, attention_mask=added, return_dict=True, **options).logits
            kept = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
            return (logits[:, -1], *kept)

    try:
        with torch.no_grad(), _quiet():
            # what the keys of one token look like tells K and C, whatever the config calls them
            cache = DynamicCache(config=model.config)
            model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=True, **{cache_name: cache})
            shapes = {tuple(tensor.shape) for layer in cache.layers for tensor in (layer.keys, layer.values)}
            if len(shapes) != 1 or len(cache.layers) != layers:
                raise ValueError("its layers keep keys and values of different shapes")
            _, kv_heads, _, head_size = shapes.pop()
            rows, new, before = 2, 3, 4  # sizes of the example; 0 and 1 would be taken for constants
            dynamic = torch.export.Dim.DYNAMIC
            program = torch.onnx.export(
                Step().eval(),
                (
                    torch.arange(rows * new).reshape(rows, new),
                    torch.ones(rows, before + new, dtype=torch.int64),
                    torch.arange(before, before + new).repeat(rows, 1),
                    tuple(torch.zeros(rows, kv_heads, before, head_size) for _ in past),
                ),
                dynamo=True,
                verbose=False,
                opset_version=_OPSET,
                # ONNX Runtime folds and fuses when it loads; onnxscript's optimizer took four fifths of the export
                optimize=False,
                input_names=["input_ids", "attention_mask", "position_ids", *past],
                output_names=["logits", *present],
                dynamic_shapes=(*({0: dynamic, 1: dynamic},) * 3, tuple({0: dynamic, 2: dynamic} for _ in past)),
            )
            assert program is not None  # only the older exporter returns nothing
            program.save(str(path), external_data=True)
    except Exception as error:  # whatever tracing such a model raises
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UsageError(f"{type(model).__name__} can't be written as ONNX: {reason[:200]}") from error
    return kv_heads, head_size


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporter's notes about operators that no language model has out of the notebook."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
