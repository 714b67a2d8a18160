"""The fused ops on a real GPU: every kernel against float64, in a model, and what auto takes after a measurement."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm import ops
from nbllm.train import fused
from nbllm.train.loss_model import LossModel

pytestmark = pytest.mark.gpu
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TRIFLE = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}
definitions = {
    name: sys.modules[f"nbllm.ops.{name}"].reference for name in ("linear_cross_entropy", "rms_norm", "rope", "swiglu")
}


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    problem = ops.triton_problem()
    if problem is not None:
        pytest.fail(f"{problem}: nothing was checked")
    ops.use_triton(ops.KERNELS)
    yield
    ops.use_triton(())


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda")


def check(ours: Any, definition: Any, inputs: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    """The error is at most twice that of the definition in the same dtype, and a trifle."""

    def values(call: Any, kind: torch.dtype) -> list[Tensor]:
        leaves = [tensor.to(dtype).to(kind).requires_grad_() for tensor in inputs]
        outputs = call(*leaves)
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        total = sum(
            (out.double() * torch.arange(out.numel(), device="cuda").view(out.shape).sin()).sum() for out in outputs
        )
        return [*(out.detach() for out in outputs), *torch.autograd.grad(total, leaves)]

    for true, plain, got in zip(
        values(definition, torch.float64), values(definition, dtype), values(ours, dtype), strict=True
    ):
        allowed = 2 * (plain.double() - true).abs().max() + TRIFLE[dtype] * true.abs().max()
        assert (got.double() - true).abs().max() <= allowed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (37, 31), (513, 576), (300, 8192), (4096, 4096)])
def test_norm_and_gate(rows: int, width: int, dtype: torch.dtype) -> None:
    norm = definitions["rms_norm"]
    x, residual, weight = random(rows, width), random(rows, width), random(width)
    check(ops.rms_norm, lambda a, w: norm(a, w)[0], (x, weight), dtype)
    check(ops.add_rms_norm, lambda a, r, w: norm(a, w, residual=r), (x, residual, weight), dtype)
    check(ops.swiglu, definitions["swiglu"], (x, residual), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "key_heads", "size"), [(1, 1, 2), (9, 3, 64), (33, 5, 34), (32, 8, 128)])
def test_rotary_positions(heads: int, key_heads: int, size: int, dtype: torch.dtype) -> None:
    angles = torch.rand(1, 47, size, device="cuda") * 6
    q, k = random(2, 47, heads, size).transpose(1, 2), random(2, key_heads, 47, size)

    def tables(like: Tensor) -> tuple[Tensor, Tensor]:
        return angles.cos().to(dtype).to(like.dtype), angles.sin().to(dtype).to(like.dtype)

    check(lambda a, b: ops.rope(a, b, *tables(a)), lambda a, b: definitions["rope"](a, b, *tables(a)), (q, k), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", [123, 50_257, 129_920])
@pytest.mark.parametrize(
    "kind", [{}, {"label_smoothing": 0.1, "focal_gamma": 1.5, "z_loss": 1e-3, "softcap": 15.0}], ids=["plain", "every"]
)
def test_linear_loss(kind: dict[str, float], vocabulary: int, dtype: torch.dtype) -> None:
    targets = torch.randint(vocabulary, (98,), device="cuda")[1:]
    targets[::3] = -100
    hidden, weight = random(97, 64), random(vocabulary, 64) / 8
    check(
        lambda h, w: ops.linear_cross_entropy(h, w, targets, **kind).loss,
        lambda h, w: definitions["linear_cross_entropy"](h, w, targets, **kind).sum(),
        (hidden, weight), dtype,
    )  # fmt: skip


def test_offsets_past_two_to_the_31() -> None:
    store = torch.empty(2**31 + 4096, device="cuda", dtype=torch.bfloat16)
    x = store.as_strided((3, 576), (2**30 + 7, 1))
    x.copy_(random(3, 576))
    weight = random(576).bfloat16()
    assert torch.equal(ops.rms_norm(x, weight), ops.rms_norm(x.contiguous(), weight))
    assert torch.equal(ops.swiglu(x, x), ops.swiglu(x.contiguous(), x.contiguous()))


def test_a_patched_model_has_the_loss_and_gradients_of_its_own_code() -> None:
    shape = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=500, **shape)).to("cuda")
    ids = torch.randint(500, (2, 33), device="cuda")
    found = {}
    for form in ("off", "triton"):
        taken = fused.choose(model, fused=form)
        whole = LossModel(model, fused="torch" if form == "triton" else form, settings={})
        model.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = whole(ids, ids.roll(-1, 1), torch.arange(33, device="cuda").expand_as(ids))
        loss.backward()
        found[form] = [loss.detach(), *(weight.grad.clone() for weight in model.parameters())]
    assert taken.loss
    assert len(taken.layers) == 4
    for own, ours in zip(found["off"], found["triton"], strict=True):
        torch.testing.assert_close(ours, own, rtol=0.05, atol=0.05 * float(own.abs().max()))


def test_auto_takes_what_the_measurement_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbllm.bench.op_forms import Shapes
    from nbllm.bench.ops import compare_ops

    monkeypatch.setenv("NBLLM_CACHE", str(tmp_path))
    bench = compare_ops(shapes=Shapes(rows=4096), compile=False)
    assert not bench.wrong
    assert ops.faster_here() is not None
    assert {row.form for row in bench.rows} >= {"eager", "nbllm", "nbllm Triton"}
    assert all(row.problem is None for row in bench.rows)
