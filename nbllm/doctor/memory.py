"""Findings about memory: weights, and the keys and values of a text as long as was asked for, beside what is free.

Counts bytes; runs nothing. Knows what a container may use where the system tells it.

Legend: L layers, K key/value heads, C head size.
"""

from __future__ import annotations

from typing import Any

import torch

from nbllm.doctor.asked import Asked
from nbllm.findings import Finding
from nbllm.model.memory import memory_of
from nbllm.model.quantization import quantized_bytes
from nbllm.sample import Generation
from nbllm.sample.slots import places_for

_NEAR = 0.8
"""Of what is free, the share that a cache may take. The last fifth goes to activations, the buffers' copies while they
grow, and the other programs: a system that is filled beyond it begins to swap, and a container is killed."""
_FREE = 0.1
"""Of all memory, what should be free after that; 10 % is where Linux and Jupyter's own warnings begin to bite."""
_OWN = 0.1
"""Of all memory, what a model has to take for it to be the reason."""
_WORTH = 0.1
"""Of the weights, what int8 has to give back to be named."""


def memory_findings(model: Any, generation: Generation, asked: Asked) -> list[Finding]:
    """Memory that is nearly full, or will be before the text is as long as was asked for."""
    device = model.get_input_embeddings().weight.device
    free, total = memory_of(device)
    weights = sum({id(one): one.nbytes for one in (*model.parameters(), *model.buffers())}.values())
    each = cache_bytes_per_token(model.config)
    parameters = generation.parameters
    length = len(generation.prompt_tokens) + parameters.max_new_tokens
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    rows = max(parameters.n, parameters.beams)
    need = rows * each * places_for(min(length, most) if most else length)
    numbers = (
        f"{_gb(free)} of {_gb(total)} are free; the weights take {_gb(weights)}, keys and values of {rows:,} × "
        f"{length:,} tokens {_gb(need)} ({each / 1e3:,.0f} kB a token)"
    )
    if need > _NEAR * free:
        fits = max(1, int(_NEAR * free / max(1, rows * each)) - len(generation.prompt_tokens))
        fewer: dict[str, Any] = (
            {"n": 1} if parameters.n > 1 and need / rows <= _NEAR * free else {"max_new_tokens": fits}
        )
        return [
            Finding(
                name="the text won't fit into memory" if need > free else "the text may not fit into memory",
                severity="serious" if need > free else "warning",
                evidence=numbers,
                remedy="Ask for fewer samples" if "n" in fewer else "Keep keys and values of a shorter text",
                command=asked.line(generation, **fewer),
            )
        ]
    if free - need >= _FREE * total or weights + need < _OWN * total:
        return []
    small = (
        device.type in ("cpu", "cuda") and not getattr(model, "nbllm_quantized", None) and "adapter" not in asked.given
    )
    gain = weights - quantized_bytes(model, "int8") if small else 0
    small = gain > _WORTH * weights
    return [
        Finding(
            name="memory is near its limit",
            severity="warning",
            evidence=f"{numbers}{f'; int8 weights would give {_gb(gain)} of the weights back' if small else ''}",
            remedy="Take smaller weights" if small else "Release what isn't used: other models, kept prompts",
            command=asked.line(generation, options={"quantize": "int8"}) if small else "%llm_session free",
        )
    ]


def cache_bytes_per_token(config: Any) -> int:
    """Keys and values of one token in all layers: 2 · L · K · C numbers in the model's dtype."""
    text = config.get_text_config()
    layers = getattr(text, "num_hidden_layers", None) or 0
    heads = getattr(text, "num_attention_heads", None) or 1
    groups = getattr(text, "num_key_value_heads", None) or heads
    size = getattr(text, "head_dim", None) or (getattr(text, "hidden_size", None) or 0) // heads
    dtype = getattr(text, "dtype", None)
    width = dtype.itemsize if isinstance(dtype, torch.dtype) else 4
    return 2 * int(layers) * int(groups) * int(size) * width


def _gb(value: float) -> str:
    return f"{value / 1e9:.2f} GB" if value >= 1e7 else f"{value / 1e6:.2f} MB"
