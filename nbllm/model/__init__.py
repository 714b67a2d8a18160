"""Models: built from a preset, or loaded from a folder, a GGUF file or the hub; always ordinary transformers models.

Importing this room loads neither torch nor transformers; calling it does. It doesn't know tokenizers.
"""

from __future__ import annotations

from nbllm.model.load import adapter_base, is_adapter_folder, load, torch_dtype
from nbllm.model.presets import PRESETS, Preset, build, find_preset
from nbllm.model.structure import best_device, block_parameters, check_packing, find_blocks, parameter_count

__all__ = [
    "PRESETS",
    "Preset",
    "adapter_base",
    "best_device",
    "block_parameters",
    "build",
    "check_packing",
    "find_blocks",
    "find_preset",
    "is_adapter_folder",
    "load",
    "parameter_count",
    "torch_dtype",
]
