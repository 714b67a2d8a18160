"""The definitions of norm, gate and rotary positions: their gradients, and that compile, autocast and checkpointing see
one op. What the kernels compute is in test_triton_kernels.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nbllm.errors import UsageError
from nbllm.ops import add_rms_norm, faster_here, keep_faster, rms_norm, rope, swiglu, use_triton
from nbllm.ops.backend import runs_in_triton

norm_room, swiglu_room, rope_room = (sys.modules[f"nbllm.ops.{name}"] for name in ("rms_norm", "swiglu", "rope"))


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def tables(time: int, size: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    angles = torch.arange(time * size).view(1, time, size) / 7.0
    return angles.cos().to(dtype), angles.sin().to(dtype)


def cases(dtype: torch.dtype) -> dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Tensor, ...]]]:
    """Op, definition and inputs by name; the inputs have odd shapes and strides."""
    x, residual = numbers(3, 5, 14, dtype=dtype)[:, ::2, 1:], numbers(13, 3, 3, dtype=dtype).permute(1, 2, 0)
    weight, halves = numbers(13, dtype=dtype), numbers(4, 22, dtype=dtype).chunk(2, -1)
    q, k = numbers(2, 5, 3, 6, dtype=dtype).transpose(1, 2), numbers(2, 1, 5, 6, seed=1, dtype=dtype)
    cos, sin = tables(5, 6, dtype)
    room = norm_room
    return {
        "rms_norm": (rms_norm, lambda a, w: room.reference(a, w)[0], (x, weight)),
        "gemma's norm": (
            lambda a, w: rms_norm(a, w, offset=1.0),
            lambda a, w: room.reference(a, w, offset=1.0)[0],
            (x, weight),
        ),
        "add_rms_norm": (
            add_rms_norm,
            lambda a, r, w: room.reference(a, w, residual=r),
            (x, residual, weight),
        ),
        "swiglu": (swiglu, swiglu_room.reference, halves),
        "rope": (
            lambda a, b: rope(a, b, cos, sin),
            lambda a, b: rope_room.reference(a, b, cos, sin),
            (q, k),
        ),
    }


NAMES = tuple(cases(torch.float32))


def leaves(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(tensor.detach().requires_grad_() for tensor in inputs)


def values(call: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Results, and gradients of a sum in which every entry has another weight."""
    found = leaves(inputs)
    outputs = call(*found)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    total = sum((out.double() * torch.arange(out.numel()).view(out.shape).sin()).sum() for out in outputs)
    return [*(out.detach() for out in outputs), *torch.autograd.grad(total, found)]


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck_of_definition_and_op(name: str) -> None:
    op, definition, inputs = cases(torch.float64)[name]
    assert torch.autograd.gradcheck(definition, leaves(inputs), fast_mode=True)
    assert torch.autograd.gradcheck(op, leaves(inputs), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_op_is_as_near_to_float64_as_plain_pytorch_and_writes_into_nothing(name: str, dtype: torch.dtype) -> None:
    op, definition, inputs = cases(dtype)[name]
    before = [tensor.clone() for tensor in inputs]
    exact = values(cases(torch.float64)[name][1], [tensor.double() for tensor in inputs])
    for true, plain, got in zip(exact, values(definition, inputs), values(op, inputs), strict=True):
        scale = float(true.abs().max())
        tiny = (1e-6 if dtype == torch.float32 else 4e-3) * scale
        assert got.dtype == plain.dtype
        assert (got.double() - true).abs().max() <= 2 * (plain.double() - true).abs().max() + tiny
    assert all(torch.equal(one, other) for one, other in zip(inputs, before, strict=True))


def test_opcheck() -> None:
    x, residual, weight = numbers(3, 5, 13), numbers(3, 5, 13, seed=2), numbers(13)
    grad, more, rstd = numbers(3, 5, 13, seed=3), numbers(3, 5, 13, seed=4), numbers(15).abs()
    opcheck: Any = torch.library.opcheck
    opcheck(norm_room._forward, (*leaves((x, residual, weight)), 1e-6, 0.0))
    opcheck(norm_room._forward, (leaves((x,))[0], None, leaves((weight,))[0], 1e-6, 1.0))
    opcheck(norm_room._backward, (grad, more, x, weight, rstd, 0.0))
    opcheck(swiglu_room._forward, leaves((x, residual)))
    opcheck(swiglu_room._backward, (grad, x, residual))
    q, k = numbers(2, 3, 5, 6), numbers(2, 1, 5, 6)
    opcheck(rope_room._turn, (*leaves((q, k)), *tables(5, 6), False))


@pytest.mark.parametrize("name", NAMES)
def test_compiles_as_one_graph_and_checkpoints(name: str) -> None:
    op, _, inputs = cases(torch.float32)[name]
    expected = values(op, inputs)
    torch._dynamo.reset()
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    for got, wanted in zip(values(compiled, inputs), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    again = values(lambda *given: checkpoint(op, *given, use_reentrant=False), inputs)
    assert all(torch.equal(got, wanted) for got, wanted in zip(again, expected, strict=True))


def test_dtypes_are_those_of_the_models_own_code_with_and_without_autocast() -> None:
    x, weight = numbers(4, 8).bfloat16(), numbers(8).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rms_norm(x, weight).dtype == torch.float32
        assert rms_norm(x, weight.bfloat16()).dtype == torch.bfloat16
        normed, total = add_rms_norm(x, x.float(), weight)
        assert (normed.dtype, total.dtype) == (torch.float32, torch.float32)
        assert swiglu(x, x).dtype == torch.bfloat16


def test_what_doesnt_fit_is_refused() -> None:
    x, cos = numbers(4, 8), tables(5, 6)[0]
    with pytest.raises(UsageError, match="a weight of"):
        rms_norm(x, numbers(7))
    with pytest.raises(UsageError, match="a weight of"):
        add_rms_norm(x, x[:2], numbers(8))
    with pytest.raises(UsageError, match="one shape"):
        swiglu(x, x[:2])
    with pytest.raises(UsageError, match="Shapes must be"):
        rope(numbers(2, 3, 5, 6), numbers(2, 3, 4, 6), cos, cos)
    with pytest.raises(UsageError, match="no gradient to cos"):
        rope(numbers(2, 3, 5, 6), numbers(2, 3, 5, 6), cos.clone().requires_grad_(), cos)


def test_the_kernels_wait_until_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    x = numbers(4, 8).float()
    assert not runs_in_triton("rope", x)
    use_triton(["rope"])
    try:
        assert runs_in_triton("rope", x)
        assert not runs_in_triton("swiglu", x)
        assert not runs_in_triton("rope", x, x.double())
    finally:
        use_triton([])


def test_what_was_measured_is_kept_for_this_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBLLM_CACHE", str(tmp_path))
    assert faster_here() is None
    path = keep_faster(["swiglu", "rope"])
    assert faster_here() == {"rope", "swiglu"}
    keep_faster([])
    assert faster_here() == frozenset()
    known = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({f"{name} of another year": ops for name, ops in known.items()}), encoding="utf-8")
    assert faster_here() is None
    path.write_text("not json", encoding="utf-8")
    assert faster_here() is None
