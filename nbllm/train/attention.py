"""Which implementation of attention a run uses: chosen, refused where it can't work, and what is truly active.

Documents that share a row are told apart by position ids that restart. transformers makes a mask of them for `sdpa`,
`eager` and `flex`; for `flash` it reads them only from a batch of one row, so that a batch is laid out as one long row
(`flattens`). Choosing imports no torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbllm.errors import RunError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KINDS = ("auto", "sdpa", "flash", "flex", "eager")
"""What can be asked for."""
_NAMES = {"sdpa": "sdpa", "eager": "eager", "flex": "flex_attention", "flash": "flash_attention_2"}
"""As transformers calls them."""
GPU_ONLY = ("flash", "flex")
"""Those without a backward pass on a CPU."""


def choose(wanted: str, device_type: str, *, precision: str | None = None) -> str | None:
    """transformers' name of what was asked for; None for `auto`, its own choice.

    Args:
        wanted: one of `KINDS`.
        device_type: `cpu`, `cuda` or `mps`.
        precision: `fp32`, `bf16` or `fp16`; None where it isn't settled yet.

    Raises:
        UsageError: it has no backward pass on this device, or not in this precision, or its package isn't installed.
    """
    if wanted == "auto":
        return None
    if wanted in GPU_ONLY and device_type != "cuda":
        raise UsageError(
            f"--attention {wanted} can't be trained without a GPU, and this run is on {device_type}",
            next="Use --attention sdpa",
        )
    if wanted == "flash" and precision == "fp32":
        raise UsageError("--attention flash computes in bf16 or fp16, not in fp32", next="Use --precision bf16")
    if wanted == "flash" and importlib.util.find_spec("flash_attn") is None:
        raise UsageError("--attention flash needs flash-attn", next="pip install flash-attn, or use --attention sdpa")
    return _NAMES[wanted]


def active(model: PreTrainedModel, wanted: str) -> str:
    """The implementation that the model uses, by the name that is asked for here.

    Raises:
        RunError: another one than was asked for.
    """
    inside = str(model.config._attn_implementation)
    found = next((kind for kind, name in _NAMES.items() if name == inside), inside)
    if wanted not in ("auto", found):
        raise RunError(f"--attention {wanted} was asked for, but {found} is active")
    return found


def flattens(model: PreTrainedModel) -> bool:
    """Whether documents are told apart only where the batch is one row."""
    return "flash" in str(getattr(model.config, "_attn_implementation", ""))


@contextlib.contextmanager
def everywhere(model: PreTrainedModel) -> Iterator[None]:
    """For a while with attention that takes every input (a cache, one token, fp32), as sampling needs it."""
    config = model.config
    before = config._attn_implementation
    if before in [_NAMES[kind] for kind in GPU_ONLY]:
        config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        if config._attn_implementation != before:
            config._attn_implementation = before
