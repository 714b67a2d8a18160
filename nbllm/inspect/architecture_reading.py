"""Reads a transformers model into parts by running two tokens through it: what runs, in which order, on what.

Looks at modules, their weights and the tensors that pass between them; a family's name says nothing here. What holds
weights but didn't run for two tokens (an expert that wasn't chosen) stands with its neighbours.

Legend: D model width, H query heads, C head size, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nbllm.model import find_blocks


@dataclass(frozen=True, kw_only=True, eq=False)
class Unit:
    """A module that holds weights itself."""

    name: str
    module: nn.Module
    taken: Tensor | None
    """What went in when it ran."""
    given: Tensor | None
    """What came out."""

    @property
    def weights(self) -> list[tuple[str, Tensor]]:
        """Its own parameters, and the integers and scales of quantised ones, by full name."""
        own = [*self.module.named_parameters(recurse=False), *_quantized(self.module)]
        return [(f"{self.name}.{name}", weight) for name, weight in own]

    @property
    def width(self) -> int:
        """How many numbers the unit gives, by its weights; 0 where it isn't clear."""
        for attribute in ("out_features", "nf"):
            if isinstance(found := getattr(self.module, attribute, None), int):
                return found
        weights = [weight for _, weight in self.weights if weight.dim() == 2]
        return int(weights[0].shape[0]) if weights else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """The units of a model where they run."""

    before: tuple[Unit, ...]
    blocks: tuple[tuple[Unit, ...], ...]
    block_names: tuple[str, ...]
    given: tuple[Tensor, ...]
    """What each block gives back."""
    after: tuple[Unit, ...]
    outputs: dict[str, Tensor]
    """What every module within the blocks gave, by its name."""
    rotary: tuple[tuple[str, nn.Module], ...]
    """Modules without weights that turn queries and keys by position, and ran."""


def read(model: Any) -> Reading:
    """Runs two tokens and notes every unit.

    Raises:
        Exception: whatever a model raises that can't be run so; the caller shows the tree instead.
    """
    prefix, blocks = find_blocks(model)
    units = {
        name: module
        for name, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None or _quantized(module)
    }
    ran: dict[str, tuple[Tensor | None, Tensor | None]] = {}
    ends: dict[int, Tensor] = {}
    hooks = []
    for name, module in units.items():
        hooks.append(module.register_forward_hook(_noting(ran, name)))
    for index, block in enumerate(blocks):

        def left(_module: nn.Module, _taken: Any, output: Any, index: int = index) -> None:
            ends[index] = (output if isinstance(output, Tensor) else output[0]).clone()

        hooks.append(block.register_forward_hook(left))
    around: dict[str, tuple[Tensor | None, Tensor | None]] = {}
    rotary = {name: module for name, module in model.named_modules() if "Rotary" in type(module).__name__}
    turned: dict[str, tuple[Tensor | None, Tensor | None]] = {}
    for name, module in blocks.named_modules(prefix=prefix):
        hooks.append(module.register_forward_hook(_noting(around, name)))
    for name, module in rotary.items():
        hooks.append(module.register_forward_hook(_noting(turned, name)))
    ids = torch.tensor([[1, 2]], device=model.get_input_embeddings().weight.device)
    try:
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if len(ends) != len(blocks):
        raise RuntimeError("not every block ran")
    order = list(ran)
    for name in units:  # beside its nearest neighbour that ran
        if name not in ran:
            near = max(range(len(order)), key=lambda at: (_common(order[at], name), at))
            order.insert(near + 1, name)
    names = tuple(f"{prefix}.{index}" for index in range(len(blocks)))
    made = {
        name: Unit(name=name, module=units[name], taken=ran.get(name, (None,))[0], given=ran.get(name, (None, None))[1])
        for name in order
    }
    inside = [tuple(made[name] for name in order if name.startswith(f"{block}.")) for block in names]
    places = [at for at, name in enumerate(order) if name.startswith(f"{prefix}.")]
    outside = [(at, name) for at, name in enumerate(order) if not name.startswith(f"{prefix}.")]
    return Reading(
        before=tuple(made[name] for at, name in outside if at < places[0]),
        blocks=tuple(inside),
        block_names=names,
        given=tuple(ends[index] for index in range(len(blocks))),
        after=tuple(made[name] for at, name in outside if at > places[0]),
        outputs={name: given for name, (_, given) in around.items() if given is not None},
        rotary=tuple((name, rotary[name]) for name in turned),
    )


def _noting(ran: dict[str, tuple[Tensor | None, Tensor | None]], name: str) -> Any:
    def note(_module: nn.Module, taken: Any, output: Any) -> None:
        if name not in ran:  # copies: some models add to a tensor in place
            given = output[0] if isinstance(output, tuple) and output else output
            ran[name] = _copied(taken[0] if taken else None), _copied(given)

    return note


def _copied(value: Any) -> Tensor | None:
    return value.clone() if isinstance(value, Tensor) else None


def _quantized(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The buffers in which a quantised layer keeps its weights."""
    buffers = dict(module.named_buffers(recurse=False))
    return list(buffers.items()) if "packed" in buffers else []


def _common(one: str, other: str) -> int:
    """How many leading parts two names share."""
    count = 0
    for left, right in zip(one.split("."), other.split("."), strict=False):
        if left != right:
            break
        count += 1
    return count
