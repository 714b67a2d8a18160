"""How a layer's parts hang on the residual stream: what each takes, where its output is added, what the stream passes.

Found by comparing the tensors of one run, not by a family's name: norms before or after, parts side by side, scaled
branches and a stream that itself passes a norm come out as they are. What fits nothing gives no steps.

Legend: T tokens, D model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import torch
from torch import Tensor

from nbllm.inspect.architecture_reading import Unit

_LIKE = 1e-3
"""Two tensors whose difference has at most this share of their norm are one."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that happens to the stream; parts are named by their place in the layer."""

    branches: tuple[tuple[int, ...], ...] = ()
    """Each takes the stream (or what `shared` made of it) through its parts, and is added to the stream."""
    shared: tuple[int, ...] = ()
    """Parts that all branches pass first."""
    through: tuple[int, ...] = ()
    """Parts that the stream itself passes; then there are no branches."""
    scale: float = 1.0
    """What a branch is multiplied by before it is added, to three digits."""


@dataclass(frozen=True, kw_only=True)
class _Point:
    """A place where a tensor is known: a part's output, or a state of the stream."""

    part: int | None = None
    stream: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Sum:
    base: _Point
    parts: tuple[int, ...]
    scale: float


def steps(parts: Sequence[Sequence[Unit]], outputs: Mapping[str, Tensor], given: Tensor) -> tuple[Step, ...]:
    """The steps of one layer; empty where its parts fit together in no way that is known here.

    Args:
        parts: the layer's parts in the order they ran, each with its units.
        outputs: what every module within the layer gave, by full name.
        given: what the layer gave.
    """
    targets = [flat for units in parts if (flat := _flat(units[0].taken)) is not None]
    if not parts or len(targets) < len(parts):
        return ()
    targets += [given.reshape(-1, given.shape[-1])]
    made = [list(_made(parts, place, outputs)) for place in range(len(parts))]
    streams, taken, found = [targets[0]], list[_Point](), list[Step]()
    for place, target in enumerate(targets):
        used = {point.part for point in taken}
        free = [part for part in range(place) if part not in used]
        for before in ([one[:1] for one in made[:place]], made[:place]):  # a module's output may hold the sum already
            source = _known(target, before, streams)
            added = None if source is not None else _sum(target, before, streams, free)
            if source is not None or added is not None:
                break
        if source is None:
            happened = _as_steps(added, taken, len(streams) - 1) if added is not None else None
            if happened is None:
                return ()
            found += happened
            streams.append(target)
            source = _Point(stream=len(streams) - 1)
        taken.append(source)
    if taken[-1].part is not None:  # the stream leaves through a last part
        found.append(Step(through=_chain(taken[-1], taken)[0]))
    named = [place for step in found for place in (*step.shared, *step.through, *(p for b in step.branches for p in b))]
    return tuple(found) if sorted(named) == list(range(len(parts))) else ()


def adds_up(outputs: Sequence[Tensor | None], target: Tensor | None) -> bool:
    """Whether these, two or more, make the target together, as the embeddings of tokens and positions do."""
    flats, wanted = [_flat(output) for output in outputs], _flat(target)
    if wanted is None or len(flats) < 2 or any(one is None or one.shape != wanted.shape for one in flats):
        return False
    return _like(wanted, torch.stack([one for one in flats if one is not None]).sum(0))


def _as_steps(added: _Sum, taken: Sequence[_Point], stream: int) -> list[Step] | None:
    """A sum as what happens to the stream; None where it reaches back beyond the stream's last state."""
    through, begun = _chain(added.base, taken)
    chains = [_chain(_Point(part=part), taken) for part in added.parts]
    if begun != stream or any(begin != stream for _, begin in chains):
        return None
    if any(chain[: len(through)] != through for chain, _ in chains):
        return None
    branches = [chain[len(through) :] for chain, _ in chains]
    shared = 0
    while len(branches) > 1 and all(len(one) > shared + 1 and one[shared] == branches[0][shared] for one in branches):
        shared += 1
    step = Step(shared=branches[0][:shared], branches=tuple(branch[shared:] for branch in branches), scale=added.scale)
    return [Step(through=through), step] if through else [step]


def _chain(point: _Point, taken: Sequence[_Point]) -> tuple[tuple[int, ...], int]:
    """The parts from the stream to a point, and which of the stream's states they begin at."""
    places: list[int] = []
    while point.part is not None:
        places.append(point.part)
        point = taken[point.part]
    assert point.stream is not None
    return tuple(reversed(places)), point.stream


def _known(target: Tensor, made: Sequence[Sequence[Tensor]], streams: Sequence[Tensor]) -> _Point | None:
    for part in reversed(range(len(made))):
        if any(_like(target, output) for output in made[part]):
            return _Point(part=part)
    return next((_Point(stream=at) for at in reversed(range(len(streams))) if _same(target, streams[at])), None)


def _sum(
    target: Tensor, made: Sequence[Sequence[Tensor]], streams: Sequence[Tensor], free: Sequence[int]
) -> _Sum | None:
    """Which known tensor with which outputs that nothing took yet makes the target."""
    bases = [(_Point(stream=len(streams) - 1), streams[-1])]
    bases += [(_Point(part=part), output) for part in reversed(range(len(made))) for output in made[part]]
    for count in (1, 2):
        for parts in combinations(reversed(free), count):
            for (base, tensor), outputs in product(bases, product(*(made[part] for part in parts))):
                if base.part in parts or any(output.shape != target.shape for output in (tensor, *outputs)):
                    continue
                total = outputs[0] if count == 1 else outputs[0] + outputs[1]
                scale = _scale(target, tensor, total)
                if scale is not None:
                    return _Sum(base=base, parts=tuple(sorted(parts)), scale=scale)
    return None


def _scale(target: Tensor, base: Tensor, output: Tensor) -> float | None:
    """The number s for which base + s output is the target; None where there is none."""
    if _like(target, base + output):
        return 1.0
    exact, difference = output.double(), target.double() - base.double()
    scale = float((difference * exact).sum() / (exact * exact).sum().clamp(min=1e-30))
    fits = float((difference - scale * exact).norm()) <= 0.05 * float(difference.norm())
    return float(f"{scale:.3g}") if fits else None


def _made(parts: Sequence[Sequence[Unit]], at: int, outputs: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """What a part may have given: its last unit's output first, then those of the modules that hold just this part."""
    names = [unit.name for unit in parts[at]]
    others = [unit.name for place, units in enumerate(parts) if place != at for unit in units]
    last = _flat(parts[at][-1].given)
    if last is not None:
        yield last
    path = names[0].split(".")
    for count in range(len(path) - 1, 0, -1):
        around = ".".join(path[:count])
        if any(name.startswith(f"{around}.") for name in others):
            return
        found = _flat(outputs.get(around))
        if found is not None and all(name.startswith(f"{around}.") for name in names):
            yield found


def _like(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return float((one.double() - other.double()).norm()) <= _LIKE * float(other.double().norm())


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit: a small branch that was added changes the stream by less than `_LIKE`."""
    return one.shape == other.shape and bool((one == other).all())


def _flat(tensor: Tensor | None) -> Tensor | None:
    """[T, D], whatever stood around; None where it isn't one text's states."""
    return None if tensor is None or tensor.dim() < 2 else tensor.reshape(-1, tensor.shape[-1])
