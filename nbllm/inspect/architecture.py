"""What a loaded model is made of: its parts in the order they run, with shapes, parameters, memory and FLOPs a token.

Read from the modules (`architecture_reading`), so that it is true to the model that is there: adapters attached,
weights quantised, heads tied. A model that can't be read so is shown as its tree. Draws nothing.

FLOPs of a forward pass, a multiplication and an addition counted as two (Kaplan et al. 2020, arXiv:2001.08361,
section 2.1; PyTorch's FlopCounterMode counts alike): 2 for each weight of each matrix that a token passes, an expert's
by the share of experts chosen; and 4 H C S in an attention layer for scores and sums over S tokens, as if each token
looked at all S (kernels that skip what lies ahead do about half). Norms, activations and rotations are left out.

Legend: D model width, H query heads, K key/value heads, C head size, S tokens that are looked at, E experts.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from nbllm.errors import NotFoundError
from nbllm.inspect.architecture_reading import Reading, Unit, read
from nbllm.inspect.residual import Step, adds_up, steps
from nbllm.inspect.weight_stats import WeightStats, weight_stats

_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class Part:
    """One box of the picture."""

    id: str
    """Unique in the model."""
    kind: str
    """`embedding`, `positions`, `norm`, `attention`, `feed_forward`, `head`, `adapter` or `other`."""
    title: str
    facts: tuple[str, ...]
    """What it is, in a few words each."""
    shapes: tuple[tuple[str, tuple[int, ...], str], ...]
    """Name within the part, shape and dtype of each weight, as stored."""
    names: tuple[str, ...]
    """Full names of the weights."""
    parameters: int
    """Weights that no earlier part has."""
    size_bytes: int
    """Their memory as stored."""
    flops: int
    """A token, at `ModelSummary.tokens` tokens."""
    heads: int = 0
    """H of an attention part."""
    groups: int = 0
    """K of an attention part."""


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Layers that are alike."""

    numbers: tuple[int, ...]
    parts: tuple[Part, ...]
    """Those of the first of them; all others have as many parameters, bytes and FLOPs."""
    steps: tuple[Step, ...]
    """How the parts hang on the residual stream (see `residual`); empty where that couldn't be read."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelSummary:
    """A model's architecture."""

    model: str
    """What was looked at."""
    kind: str
    """The model's class."""
    before: tuple[Part, ...]
    layers: tuple[Layers, ...]
    """Empty where the model couldn't be read into layers; see `tree`."""
    after: tuple[Part, ...]
    tree: tuple[tuple[str, str, int], ...]
    """Name, class and parameters of every module down to depth 4."""
    parameters: int
    """Tied ones counted once."""
    size_bytes: int
    """Memory of the weights as stored."""
    tokens: int
    """S of the FLOPs."""
    embeddings_added: bool = False
    """Whether several embeddings (tokens, positions) are added before the first layer."""
    _loaded: Any = field(default=None)

    @property
    def flops(self) -> int:
        """FLOPs a token of a forward pass at `tokens` tokens; 0 where only the tree is known."""
        inside = sum(len(group.numbers) * part.flops for group in self.layers for part in group.parts)
        return inside + sum(part.flops for part in (*self.before, *self.after))

    def part(self, id: str) -> Part:
        """The part of that id; raises NotFoundError."""
        for part in (*self.before, *(one for group in self.layers for one in group.parts), *self.after):
            if part.id == id:
                return part
        raise NotFoundError("The model has no such part", next="See the ids in .before, .layers and .after")

    def stats(self, id: str, *, layer: int | None = None, most: int | None = None) -> list[WeightStats]:
        """Statistics of a part's weights, computed now.

        Args:
            id: the part's id.
            layer: which of the layers that are like the part's; the first by default.
            most: how many weights at most; all by default.

        Raises:
            NotFoundError: the model isn't in memory now, or it has no such part or layer.
        """
        model = self._loaded() if self._loaded is not None else None
        if model is None:
            raise NotFoundError("The model isn't in memory any more", next="Type %llm_model again")
        names = self.part(id).names
        if layer is not None:
            group = next((group for group in self.layers if id in {part.id for part in group.parts}), None)
            if group is None or layer not in group.numbers:
                raise NotFoundError("No such layer has this part", received=layer, next="See .numbers in .layers")
            first = f".{group.numbers[0]}."
            names = tuple(name.replace(first, f".{layer}.", 1) for name in names)
        tensors = {**dict(model.named_buffers()), **dict(model.named_parameters(remove_duplicate=False))}
        return [weight_stats(name, tensors[name]) for name in names[:most] if name in tensors]

    def __repr__(self) -> str:
        layers = sum(len(group.numbers) for group in self.layers)
        return f"ModelSummary({self.model!r}, {self.kind}, {layers} layers, {self.parameters:,} parameters)"


def summarize(model: Any, *, name: str = "", tokens: int | None = None) -> ModelSummary:
    """Reads a model's architecture.

    Args:
        model: a model of transformers; any other module is shown as its tree.
        name: what to call it.
        tokens: S of the FLOPs; 1,024 by default, or the model's context where that is shorter.
    """
    context = _setting(model, "max_position_embeddings")
    tokens = tokens or min(_TOKENS, context or _TOKENS)
    seen: set[int] = set()
    hanging: list[tuple[Step, ...]] = []
    added = False
    try:
        reading = read(model)
        before = _parts(model, _grouped(model, reading.before), tokens, seen) + _rotary(model, reading)
        groups = [_grouped(model, units) for units in reading.blocks]
        blocks = [_parts(model, group, tokens, seen) for group in groups]
        after = _parts(model, _grouped(model, reading.after), tokens, seen)
        for group, given in zip(groups, reading.given, strict=True):
            hanging.append(steps([units for _, units in group], reading.outputs, given))
        embedded = [unit for unit in reading.before if isinstance(unit.module, nn.Embedding)]
        others = [unit for unit in (*reading.before, *reading.blocks[0]) if unit not in embedded]
        added = adds_up([unit.given for unit in embedded], others[0].taken)
    except Exception:  # whatever a model does with two tokens that it wasn't made for
        before, blocks, after = (), [], ()
    alike: dict[Any, list[int]] = {}
    for number, parts in enumerate(blocks):
        key = tuple((one.title, one.facts, one.parameters, one.flops) for one in parts), hanging[number]
        alike.setdefault(key, []).append(number)
    tensors = {id(weight): weight for weight in [*model.parameters(), *_packed(model)]}
    return ModelSummary(
        model=name or type(model).__name__,
        kind=type(model).__name__,
        before=before,
        layers=tuple(
            Layers(numbers=tuple(found), parts=blocks[found[0]], steps=hanging[found[0]]) for found in alike.values()
        ),
        after=after,
        tree=tuple(
            (path, type(module).__name__, sum(weight.numel() for weight in module.parameters()))
            for path, module in model.named_modules()
            if path and path.count(".") < 4
        ),
        parameters=sum(weight.numel() for weight in model.parameters()),
        size_bytes=sum(weight.nbytes for weight in tensors.values()),
        tokens=tokens,
        embeddings_added=added,
        _loaded=weakref.ref(model),
    )


def _packed(model: nn.Module) -> list[Any]:
    return [b for module in model.modules() if hasattr(module, "packed") for b in module.buffers(recurse=False)]


def _parts(model: Any, groups: Iterable[tuple[str, list[Unit]]], tokens: int, seen: set[int]) -> tuple[Part, ...]:
    return tuple(_part(model, kind, units, tokens, seen) for kind, units in groups)


def _rotary(model: Any, reading: Reading) -> tuple[Part, ...]:
    """Positions without weights, which turn queries and keys (Su et al. 2021, https://arxiv.org/abs/2104.09864)."""
    if not reading.rotary:
        return ()
    settings = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    found = settings if "rope_theta" in settings else next((s for s in settings.values() if isinstance(s, dict)), {})
    facts = ["turn queries and keys"]
    facts += [f"base {found['rope_theta']:,.0f}"] if found.get("rope_theta") else []
    facts += [str(found["rope_type"])] if found.get("rope_type") not in (None, "default") else []
    name, module = reading.rotary[0]
    tables = [(f"{name}.{key}", table) for key, table in module.named_buffers(recurse=False) if "original" not in key]
    return (
        Part(
            id=name,
            kind="positions",
            title="rotary positions",
            facts=tuple(facts),
            shapes=tuple((key, tuple(one.shape), str(one.dtype).removeprefix("torch.")) for key, one in tables),
            names=tuple(key for key, _ in tables),
            parameters=0,
            size_bytes=sum(one.nbytes for _, one in tables),
            flops=0,
        ),
    )


def _grouped(model: Any, units: Iterable[Unit]) -> list[tuple[str, list[Unit]]]:
    """Neighbouring units of one kind, together."""
    runs: list[tuple[str, list[Unit]]] = []
    for unit in units:
        kind = _kind(model, unit)
        if runs and runs[-1][0] == kind and kind in ("attention", "feed_forward", "other"):
            runs[-1][1].append(unit)
        else:
            runs.append((kind, [unit]))
    return runs


def _kind(model: Any, unit: Unit) -> str:
    last = unit.name.rpartition(".")[2]
    if unit.module is model.get_output_embeddings():
        return "head"
    if isinstance(unit.module, nn.Embedding):
        return "embedding" if unit.module is model.get_input_embeddings() else "positions"
    if "Norm" in type(unit.module).__name__ and not last.startswith(("q_", "k_", "kv_")):  # those are attention's own
        return "norm"
    if _attention(model, unit) is not None:
        return "attention"
    return "feed_forward" if any(part.isdigit() for part in unit.name.split(".")) else "other"


def _attention(model: Any, unit: Unit) -> Any:
    """The innermost attention module around a unit."""
    parts = unit.name.split(".")
    above = [model.get_submodule(".".join(parts[:count])) for count in range(1, len(parts) + 1)]
    return next((module for module in reversed(above) if "Attention" in type(module).__name__), None)


def _part(model: Any, kind: str, units: list[Unit], tokens: int, seen: set[int]) -> Part:
    weights = [pair for unit in units for pair in unit.weights]
    shared = all(id(weight) in seen for _, weight in weights)
    new = {id(weight): weight for _, weight in weights if id(weight) not in seen}
    seen.update(new)
    own = {id(weight) for unit in units for weight in unit.module.parameters(recurse=False)}
    facts = ["tied: shares the embedding's weights"] if shared and kind == "head" else []
    experts, active = _experts(model, units)
    flops = heads = groups = 0
    for unit in units:
        if isinstance(unit.module, nn.Embedding):
            continue
        for _, weight in unit.module.named_parameters(recurse=False):
            many = experts > 1 and (weight.dim() == 3 or ".experts." in unit.name)
            flops += 2 * weight.numel() * active // experts if many and weight.dim() > 1 else 0
            flops += 2 * weight.numel() if not many and weight.dim() > 1 else 0
        if hasattr(unit.module, "packed") and unit.taken is not None and unit.given is not None:
            flops += 2 * unit.taken.shape[-1] * unit.given.shape[-1]
    if kind == "attention" and len(units) > 1:
        module = _attention(model, units[0])
        heads = int(getattr(module, "num_heads", None) or _setting(model, "num_attention_heads") or 1)
        names = ("head_dim", "attention_head_size", "head_size")
        size = next((n for name in names if (n := int(getattr(module, name, 0)))), 0)
        size = size or (_setting(model, "hidden_size") or 0) // heads
        groups = heads // int(getattr(module, "num_key_value_groups", 1))
        window = getattr(module, "sliding_window", None)
        facts += [f"{heads} heads of {size}", *([f"{groups} key/value heads"] if groups < heads else [])]
        facts += [f"window of {window:,} tokens"] if window else []
        flops += 4 * heads * size * tokens
    if kind == "feed_forward" and experts > 1:
        facts.append(f"{experts} experts, {active} a token")
    if kind == "feed_forward" and any("gate_proj" in name or "gate_up" in name for name, _ in weights):
        facts.append("gated")
    lora = sum(weight.numel() for name, weight in weights if ".lora_" in name)
    facts += [f"adapter: {lora:,} parameters"] if lora else []
    facts += ["quantised"] if any(hasattr(unit.module, "packed") for unit in units) else []
    return Part(
        id=units[0].name,
        kind=kind,
        title=_title(kind, units[0]),
        facts=tuple(facts),
        shapes=tuple((name, tuple(weight.shape), str(weight.dtype).removeprefix("torch.")) for name, weight in weights),
        names=tuple(name for name, _ in weights),
        parameters=sum(weight.numel() for key, weight in new.items() if key in own),
        size_bytes=sum(weight.nbytes for weight in new.values()),
        flops=flops,
        heads=heads,
        groups=groups,
    )


def _title(kind: str, unit: Unit) -> str:
    if kind in ("norm", "other"):
        return type(unit.module).__name__
    return "token types" if kind == "positions" and "type" in unit.name.rpartition(".")[2] else kind.replace("_", "-")


def _experts(model: Any, units: list[Unit]) -> tuple[int, int]:
    """E, and how many of them a token passes; 1 and 1 where there are none."""
    many = any(weight.dim() == 3 or ".experts." in name for unit in units for name, weight in unit.weights)
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    count = next((found for name in names if (found := _setting(model, name))), 1) if many else 1
    return count, (_setting(model, "num_experts_per_tok") or 1) if count > 1 else 1


def _setting(model: Any, name: str) -> int | None:
    config: Any = getattr(model, "config", None)
    found = getattr(config.get_text_config(), name, None) if hasattr(config, "get_text_config") else None
    return found if isinstance(found, int) else None
