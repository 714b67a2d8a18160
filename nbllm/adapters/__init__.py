"""Adapters: small weights trained on top of a model, attached, swapped, taken off and merged.

Importing this room loads neither torch nor peft; calling it does. It doesn't know how adapters are trained.
"""

from __future__ import annotations

from nbllm.adapters.change import Change, changes
from nbllm.adapters.four_bit import in_four_bits, prepare_base, wanted_base
from nbllm.adapters.lora import (
    Adapter,
    attach,
    attached,
    content_hash,
    create,
    detach,
    find_targets,
    load_weights,
    save,
)
from nbllm.adapters.merge import merge
from nbllm.adapters.narrow import narrow_base
from nbllm.adapters.scale import set_scale
from nbllm.adapters.shift import Shift, shifts
from nbllm.adapters.virtual import METHODS as VIRTUAL

__all__ = [
    "VIRTUAL",
    "Adapter",
    "Change",
    "Shift",
    "attach",
    "attached",
    "changes",
    "content_hash",
    "create",
    "detach",
    "find_targets",
    "in_four_bits",
    "load_weights",
    "merge",
    "narrow_base",
    "prepare_base",
    "save",
    "set_scale",
    "shifts",
    "wanted_base",
]
