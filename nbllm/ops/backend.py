"""What runs the ops on a GPU: the definitions in PyTorch, or Triton kernels where they were asked for.

Knows whether Triton is there, what the process chose, and what a measurement on this GPU found (`keep_faster`), not how
that is measured. The kernels are not yet measured on a GPU here, so nothing takes them by itself before such a
measurement.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

KERNELS = ("linear_loss", "rms_norm", "swiglu", "rope")
"""The ops that have a kernel; `rms_norm` is with and without a residual."""
_KINDS = (torch.float32, torch.float16, torch.bfloat16)
_chosen: frozenset[str] = frozenset()


def triton_problem() -> str | None:
    """Why Triton's kernels can't be used here, in one line; None where they can."""
    if not torch.cuda.is_available():
        return "Triton's kernels need a GPU"
    if importlib.util.find_spec("triton") is None:
        return 'Triton isn\'t installed (pip install "nbllm[triton]")'
    return None


def use_triton(ops: Iterable[str]) -> None:
    """Lets these of `KERNELS` run in Triton on a GPU in this process, and the others in their definitions.

    A process starts with none of them.
    """
    global _chosen
    _chosen = frozenset(ops)


def chosen() -> frozenset[str]:
    """The kernels that this process has chosen."""
    return _chosen


def runs_in_triton(op: str, *tensors: Tensor | None) -> bool:
    """Whether these tensors of a GPU go to the op's kernel: it is chosen, and they are fp32, fp16 or bf16."""
    kinds = all(tensor is None or tensor.dtype in _KINDS for tensor in tensors)
    return op in _chosen and kinds and importlib.util.find_spec("triton") is not None


def faster_here() -> frozenset[str] | None:
    """The kernels that a measurement on this machine's GPU found right and faster; None where there was none.

    Another GPU, torch or Triton needs another measurement.
    """
    try:
        known = json.loads(_path().read_text(encoding="utf-8"))
        return frozenset(known[_machine()]) & frozenset(KERNELS)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_faster(ops: Iterable[str]) -> Path:
    """Keeps what a measurement found for `faster_here`, in the user's cache folder; returns the file."""
    path = _path()
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    known = {**(known if isinstance(known, dict) else {}), _machine(): sorted(ops)}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)
    return path


def _path() -> Path:
    base = os.environ.get("NBLLM_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nbllm" / "ops.json"


def _machine() -> str:
    from importlib import metadata

    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = "none"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return f"{device}, torch {torch.__version__}, triton {triton}"


def exact(dtype: torch.dtype) -> torch.dtype:
    """What sums are taken in: fp32, float64 for float64."""
    return dtype if dtype == torch.float64 else torch.float32
