"""Models: built from a preset, or loaded from a folder, a GGUF file or the hub; always ordinary transformers models.

Importing this room loads neither torch nor transformers; calling it does. It doesn't know tokenizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbllm.model.load import adapter_base, dtype_name, is_adapter_folder, load, torch_dtype
from nbllm.model.masked import head_transform, is_masked, separate_documents
from nbllm.model.presets import PRESETS, Preset, build, find_preset
from nbllm.model.structure import best_device, block_parameters, check_packing, find_blocks, parameter_count

if TYPE_CHECKING:
    from nbllm.model.patching import patch
    from nbllm.model.quantization import quantize

__all__ = [
    "PRESETS",
    "Preset",
    "adapter_base",
    "best_device",
    "block_parameters",
    "build",
    "check_packing",
    "dtype_name",
    "find_blocks",
    "find_preset",
    "head_transform",
    "is_adapter_folder",
    "is_masked",
    "load",
    "parameter_count",
    "patch",
    "quantize",
    "separate_documents",
    "torch_dtype",
]


def __getattr__(name: str) -> Any:
    if name == "quantize":
        from nbllm.model.quantization import quantize  # its layers are torch modules

        return quantize
    if name == "patch":
        from nbllm.model.patching import patch  # so are these

        return patch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
