"""The same model through every runtime of this machine: speed, memory, agreement, and the machine's limit.

Importing this room loads neither torch nor any runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbllm.bench.result import Bench, BenchRow

if TYPE_CHECKING:
    from nbllm.bench.compare import compare

__all__ = ["Bench", "BenchRow", "compare"]


def __getattr__(name: str) -> Any:
    if name != "compare":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nbllm.bench.compare import compare

    return compare
