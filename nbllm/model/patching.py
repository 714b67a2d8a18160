"""Fused ops in the layers of a transformers model: norm (with the residual before it), gate and rotary positions.

Found by what a module has, not by a list of models, and taken class by class only where a proof holds: with the inputs
that the model itself gives the first module of a class, results and gradients are those of its own code. What is taken
gets a subclass of its own class under the same name, so that weights, hooks, names in files and copies stay as they
are; `Patching.undo` gives the classes back. Rotary positions are a function of the model's source file: while a model
is patched, every model of that file in the process turns by the op. Sharded tensors (DTensor) and other shapes than an
op knows take the model's own code. Doesn't know training, nor which choice is faster.

Shapes: B batch, T time, D width.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nbllm.errors import UsageError, did_you_mean
from nbllm.ops import add_rms_norm, rms_norm, rope, swiglu

OPS = ("rms_norm", "swiglu", "rope")
"""What can be asked for; `rms_norm` takes the residual add before a norm along."""
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Of the largest entry: a few roundings, where the model's own code rounds more often."""
_TURN = "apply_rotary_pos_emb"
_PROOF_SHAPE = (2, 6)
_turning: Counter[str] = Counter()
_own_turns: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A class of which all modules were patched."""

    op: str
    """`rms_norm`, `add_rms_norm`, `swiglu` or `rope`."""
    kind: str
    """The class's name."""
    modules: int
    """How many."""


@dataclass(kw_only=True)
class Patching:
    """What was patched in a model, what wasn't and why, and the way back."""

    taken: tuple[Taken, ...]
    """The classes that were patched."""
    left: dict[str, str]
    """Why a class that looked fit was left alone, by its name."""
    _classes: list[tuple[nn.Module, type[nn.Module], type[nn.Module]]] = field(default_factory=list)
    _files: list[Any] = field(default_factory=list)
    """What gives a source file its function back: called, or when the model is gone."""

    def undo(self) -> None:
        """Gives every module its own class back; a second time does nothing."""
        for module, own, ours in reversed(self._classes):
            if type(module) is ours:
                module.__class__ = own
        self._classes.clear()
        while self._files:
            self._files.pop()()

    def __str__(self) -> str:
        """In one line."""
        words = [f"{taken.op} in {taken.modules} {taken.kind}" for taken in self.taken]
        return ", ".join(words) or "nothing was patched"


def patch(model: nn.Module, *, ops: Sequence[str] = OPS) -> Patching:
    """Patches a model in place, after proving each class.

    Args:
        model: a transformers model, on its device, not sharded yet.
        ops: of `OPS`.

    Raises:
        UsageError: an unknown op, or a model that is patched already.
    """
    for op in ops:
        if op not in OPS:
            raise UsageError(f"No op is named {op!r}", next=did_you_mean(op, OPS) or f"They are {', '.join(OPS)}")
    if any(hasattr(type(module), "_nbllm_op") for module in model.modules()):
        raise UsageError("This model is patched already", next="Call undo() of its patching first")
    found = Patching(taken=(), left={})
    taken = []
    for op, candidates, ours in _plans(ops):
        for own, modules in _by_class(model, candidates).items():
            made = ours(own)
            problem = _difference(model, modules[0], made)
            if problem is None:
                for module in modules:
                    module.__class__ = made
                    found._classes.append((module, own, made))
                taken.append(Taken(op=op, kind=own.__name__, modules=len(modules)))
            else:
                found.left[own.__name__] = problem
    if "rope" in ops:
        for own, modules in _by_class(model, _attends).items():
            problem = _turn_by_op(model, own, modules[0])
            if problem is None:
                found._files.append(weakref.finalize(model, _turn_as_before, own.__module__))
                taken.append(Taken(op="rope", kind=own.__name__, modules=len(modules)))
            else:
                found.left[own.__name__] = problem
    found.taken = tuple(taken)
    return found


def _plans(ops: Sequence[str]) -> Iterator[tuple[str, Callable[[nn.Module], bool], Callable[[type], type]]]:
    """Op, which modules look as if they had it, and the subclass that a class gets; norms before blocks."""
    if "rms_norm" in ops:
        yield "rms_norm", lambda module: _norm_settings(module) is not None, _norm_class
        yield "add_rms_norm", _adds_then_norms, _block_class
    if "swiglu" in ops:
        yield "swiglu", _gates, _gate_class
        yield "swiglu", _gates_experts, _experts_class


def _by_class(model: nn.Module, candidates: Callable[[nn.Module], bool]) -> dict[type[nn.Module], list[nn.Module]]:
    found: dict[type[nn.Module], list[nn.Module]] = {}
    for module in model.modules():
        if candidates(module):
            found.setdefault(type(module), []).append(module)
    return found


def _subclass(own: type, op: str, **methods: Any) -> type:
    """A class that says it is `own`, so that what looks at names finds what it looks for."""
    body = {"_nbllm_op": op, "__module__": own.__module__, "__qualname__": own.__qualname__, **methods}
    return type(own.__name__, (own,), body)


def _plain(*tensors: Any) -> bool:
    """Whether ops can take these: ordinary tensors, no shards."""
    return all(isinstance(tensor, Tensor) and not hasattr(tensor, "full_tensor") for tensor in tensors)


# Norms


def _norm_settings(module: nn.Module) -> float | None:
    """The eps of an RMSNorm with a weight; None for another module."""
    weight = getattr(module, "weight", None)
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, nn.Parameter) or weight.ndim != 1:
        return None
    if next(module.children(), None) is not None or len(list(module.parameters(recurse=False))) != 1:
        return None
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return float(eps) if isinstance(eps, float) else None


@functools.cache
def _norm_class(own: Any) -> type:
    # Gemma's norms, whose weight starts at 0, keep the type of what they norm
    offset = 1.0 if "1.0 + self.weight" in _source(own.forward) else 0.0

    def forward(self: Any, x: Tensor) -> Tensor:
        if not _plain(x, self.weight):
            return own.forward(self, x)
        y = rms_norm(x, self.weight, eps=_norm_settings(self) or 0.0, offset=offset)
        return y.to(x.dtype) if offset else y

    return _subclass(own, "rms_norm", forward=forward, _nbllm_offset=offset)


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""


def _adds_then_norms(module: nn.Module) -> bool:
    """A block whose second norm follows a residual add; its norms are patched already."""
    parts = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    others = ("pre_feedforward_layernorm", "post_feedforward_layernorm", "resid_attn_dropout")
    norm = getattr(module, "post_attention_layernorm", None)
    return (
        all(isinstance(getattr(module, part, None), nn.Module) for part in parts)
        and not any(hasattr(module, part) for part in others)
        and getattr(type(norm), "_nbllm_op", None) == "rms_norm"
    )


@functools.cache
def _block_class(own: Any) -> type:
    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        norm = self.post_attention_layernorm
        offset = getattr(type(norm), "_nbllm_offset", None)
        watched = norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks
        if args or offset is None or watched or "past_key_values" in kwargs or not _plain(hidden_states, norm.weight):
            return own.forward(self, hidden_states, *args, **kwargs)
        attended = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)[0]
        normed, total = add_rms_norm(
            attended, hidden_states, norm.weight, eps=_norm_settings(norm) or 0.0, offset=offset
        )
        return total + self.mlp(normed.to(total.dtype) if offset else normed)

    return _subclass(own, "add_rms_norm", forward=forward)


# Gates


def _silu(module: nn.Module) -> bool:
    act = getattr(module, "act_fn", None)
    return isinstance(act, nn.SiLU) or type(act).__name__ == "SiLUActivation" or act is nn.functional.silu


def _gates(module: nn.Module) -> bool:
    parts = ("gate_proj", "up_proj", "down_proj")
    return all(isinstance(getattr(module, part, None), nn.Module) for part in parts) and _silu(module)


@functools.cache
def _gate_class(own: Any) -> type:
    def forward(self: Any, x: Tensor) -> Any:
        gate, up = self.gate_proj(x), self.up_proj(x)
        inside = swiglu(gate, up) if _plain(gate, up) else self.act_fn(gate) * up
        return self.down_proj(inside)

    return _subclass(own, "swiglu", forward=forward)


def _gates_experts(module: nn.Module) -> bool:
    """Experts as one stack of weights, whose gate is a method of its own; eager ones go by without it."""
    gate = getattr(type(module), "_apply_gate", None)
    eager = getattr(getattr(module, "config", None), "_experts_implementation", "eager") in (None, "eager")
    return getattr(gate, "__name__", "") == "_default_apply_gate" and not eager and _silu(module)


@functools.cache
def _experts_class(own: Any) -> type:
    def apply_gate(self: Any, both: Tensor) -> Tensor:
        return swiglu(*both.chunk(2, dim=-1)) if _plain(both) else own._apply_gate(self, both)

    return _subclass(own, "swiglu", _apply_gate=apply_gate)


# Rotary positions


def _attends(module: nn.Module) -> bool:
    """An attention whose source file turns queries and keys by the usual function."""
    if not type(module).__name__.endswith("Attention") or not hasattr(module, "q_proj"):
        return False
    turn = _own_turns.get(type(module).__module__) or getattr(sys.modules[type(module).__module__], _TURN, None)
    return turn is not None and list(inspect.signature(turn).parameters)[:4] == ["q", "k", "cos", "sin"]


def _turn_by_op(model: nn.Module, own: type[nn.Module], attention: nn.Module) -> str | None:
    """Puts the op into the class's file; None, or why it can't be there."""
    file = own.__module__
    if file in _own_turns:
        _turning[file] += 1
        return None
    room: Any = sys.modules[file]
    original = getattr(room, _TURN)
    turned: list[bool] = []

    @functools.wraps(original)
    def turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not args and not kwargs and _fit(q, k, cos, sin):
            return rope(q, k, cos, sin)
        return original(q, k, cos, sin, *args, **kwargs)

    def watched(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
        turned.append(not args and not kwargs and _fit(q, k, cos, sin))
        return turn(q, k, cos, sin, *args, **kwargs)

    problem = _compared(model, attention, lambda inside: setattr(room, _TURN, watched if inside else original))
    if problem is None and not any(turned):
        problem = "it turns in another way"
    if problem is None:
        _own_turns[file], _turning[file] = original, 1
        setattr(room, _TURN, turn)
    return problem


def _fit(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    whole = cos.ndim == 3 and q.ndim == k.ndim == 4 and cos.shape[-1] == q.shape[-1] == k.shape[-1]
    return _plain(q, k, cos, sin) and whole and cos.shape[1] == q.shape[2] and not cos.requires_grad


def _turn_as_before(file: str) -> None:
    _turning[file] -= 1
    if not _turning[file]:
        setattr(sys.modules[file], _TURN, _own_turns.pop(file))


# The proof


def _difference(model: nn.Module, module: nn.Module, ours: type[nn.Module]) -> str | None:
    own = type(module)

    def swap(inside: bool) -> None:
        module.__class__ = ours if inside else own

    return _compared(model, module, swap)


def _compared(model: nn.Module, module: nn.Module, swap: Callable[[bool], None]) -> str | None:
    """None where a module gives the same results and gradients both ways, else what happens."""
    try:
        with _quietly(model):
            given = _given(model, module)
            if given is None:
                return "the model doesn't run it"
            own = _run(module, *given)
            swap(True)
            ours = _run(module, *given)
    except Exception as error:  # a class that isn't what it looks like fails in any way; it is then left alone
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    finally:
        swap(False)
    if len(own) != len(ours):
        return "other gradients come out"
    for one, other in zip(own, ours, strict=True):
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"{other.dtype} comes out instead of {one.dtype}"
        scale = one.abs().max().clamp(min=1e-12).double()
        if not (one.double() - other.double()).abs().max() <= _TOLERANCE.get(one.dtype, 1e-5) * scale:
            return "the results differ"
    return None


@contextmanager
def _quietly(model: nn.Module) -> Iterator[None]:
    """Without dropout and checkpoints, and with the random numbers untouched."""
    modes = [(module, module.training) for module in model.modules()]
    device = next(model.parameters()).device
    with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
        model.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training


def _given(model: nn.Module, module: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments that a module gets when the model runs."""
    got: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = module.register_forward_pre_hook(lambda _, args, kwargs: got.append((args, kwargs)), with_kwargs=True)
    embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
    ids = torch.arange(_PROOF_SHAPE[0] * _PROOF_SHAPE[1], device=embeddings.weight.device).view(_PROOF_SHAPE)
    try:
        with torch.no_grad():
            model(input_ids=ids * 7919 % embeddings.num_embeddings, use_cache=False)
    finally:
        hook.remove()
    return got[0] if got else None


def _run(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Results, and the gradients of a sum in which entries have different weights."""
    leaves: list[Tensor] = []

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 2:
            value = value.detach().clone().requires_grad_()
            leaves.append(value)
        return value

    args = tuple(leaf(value) for value in args)
    kwargs = {name: leaf(value) if name == "hidden_states" else value for name, value in kwargs.items()}
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    with torch.enable_grad():
        out = module(*args, **kwargs)
        out = out if isinstance(out, Tensor) else out[0]
        factors = torch.arange(out.numel(), device=out.device, dtype=torch.float32).sin().view(out.shape)
        grads = torch.autograd.grad((out.float() * factors).sum(), [*leaves, *weights], allow_unused=True)
    return [out.detach(), *(grad for grad in grads if grad is not None)]
