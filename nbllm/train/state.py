"""What a resume needs besides the weights, as safetensors and JSON: optimizer state, scaler and random states.

Nothing is pickled. Optimizer state is kept under the parameters' names, so that it is readable and doesn't depend on
their order. Every rank has its own random state.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nbllm.errors import StoreError
from nbllm.files import read_json, write_json
from nbllm.train.optimizer import Optimizers
from nbllm.train.parallel.replicated import Parallel


def save_optimizers(optimizers: Optimizers, folder: Path, parallel: Parallel) -> None:
    """Writes `optimizer-NAME.safetensors` for each member: keys `PARAMETER|FIELD`, whole tensors whatever the plan.

    A collective call; rank 0 writes.
    """
    for name in optimizers.members:
        whole = parallel.collect(parallel.state_of(optimizers, name))
        if whole is not None:
            kept = {key: value.cpu().contiguous() for key, value in whole.items()}
            save_file(kept, folder / f"optimizer-{name}.safetensors")


def load_optimizers(optimizers: Optimizers, folder: Path, parallel: Parallel) -> None:
    """Reads what `save_optimizers` wrote; raises StoreError where it belongs to other optimizers or parameters."""
    known = set(optimizers.names.values())
    for name in optimizers.members:
        path = folder / f"optimizer-{name}.safetensors"
        if not path.is_file():
            raise StoreError(f"{path} isn't there: the run was trained by another optimizer")
        state: dict[str, dict[str, Tensor]] = {}
        for key, value in load_file(path).items():
            parameter, _, field = key.rpartition("|")
            if not parallel.owns(parameter):
                continue
            if parameter not in known:
                raise StoreError(f"{path} holds {parameter}, which this model doesn't train")
            state.setdefault(parameter, {})[field] = value
        parallel.give_state(optimizers, name, state)


def save_random(folder: Path, rank: int) -> None:
    """Writes this process's random states (torch, each CUDA device, numpy, Python)."""
    generator: dict[str, Any] = dict(np.random.get_state(legacy=False))
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    tensors["numpy"] = torch.from_numpy(generator["state"]["key"].astype(np.int64))
    save_file(tensors, folder / f"random-{rank:05d}.safetensors")
    version, words, gauss = random.getstate()
    numpy_rest = {"pos": int(generator["state"]["pos"]), "gauss": generator["gauss"], "has": generator["has_gauss"]}
    write_json(
        folder / f"random-{rank:05d}.json",
        {"python": {"version": version, "words": list(words), "gauss": gauss}, "numpy": numpy_rest},
    )


def load_random(folder: Path, rank: int) -> bool:
    """Restores them; False where the checkpoint was written by fewer processes and has none for this rank."""
    path = folder / f"random-{rank:05d}.safetensors"
    if not path.is_file():
        return False
    tensors = load_file(path)
    rest = read_json(folder / f"random-{rank:05d}.json")
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
    numpy_state = ("MT19937", tensors["numpy"].numpy().astype(np.uint32), rest["numpy"]["pos"])
    np.random.set_state((*numpy_state, rest["numpy"]["has"], rest["numpy"]["gauss"]))
    python = rest["python"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    return True
