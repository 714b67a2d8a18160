"""The Triton kernels under Triton's interpreter, against float64: `TRITON_INTERPRET=1 python kernel_checks.py NAME …`.

An error may be twice that of plain PyTorch in fp32, and a trifle. Run by test_triton_kernels.py in a process of its
own, since Triton reads the variable when a kernel is defined.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nbllm.ops import add_rms_norm, linear_cross_entropy, rms_norm, rope, swiglu, use_triton
from nbllm.ops.kernels import rms_norm as norm_kernels
from nbllm.ops.kernels import rope as rope_kernels
from nbllm.ops.kernels import swiglu as swiglu_kernels
from nbllm.ops.kernels import token_losses as loss_kernels
from nbllm.ops.linear_cross_entropy import Settings, chunks
from nbllm.ops.triton_linear_loss import rows_by_kernel

definitions = {
    name: sys.modules[f"nbllm.ops.{name}"] for name in ("linear_cross_entropy", "rms_norm", "rope", "swiglu")
}
for op, kernel in (
    (definitions["rms_norm"]._forward, norm_kernels.forward),
    (definitions["rms_norm"]._backward, norm_kernels.backward),
    (definitions["swiglu"]._forward, swiglu_kernels.forward),
    (definitions["swiglu"]._backward, swiglu_kernels.backward),
    (definitions["rope"]._turn, rope_kernels.turn),
):
    op.register_kernel("cpu")(kernel)  # what a GPU would run


def leaves(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]


def values(call: Any, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
    """Results and gradients."""
    outputs = call(*inputs)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    pairs = [(output, grad.to(output.dtype)) for output, grad in zip(outputs, grads, strict=True)]
    found = torch.autograd.grad([one for one, _ in pairs], inputs, [other for _, other in pairs])
    return [*(output.detach() for output in outputs), *found]


def compare(exact: Sequence[Tensor], plain: Sequence[Tensor], got: Sequence[Tensor]) -> None:
    for true, expected, value in zip(exact, plain, got, strict=True):
        assert value.shape == true.shape
        assert value.dtype == expected.dtype
        if not true.numel():
            continue
        allowed = 2 * (expected.double() - true).abs().max() + 1e-6 * (true.abs().max() + 0.1)
        error = (value.double() - true).abs().max()
        assert error <= allowed, f"error {float(error):.2e}, allowed {float(allowed):.2e}"


def check(ours: Any, definition: Any, inputs: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
    before = [tensor.clone() for tensor in inputs]
    exact = values(definition, leaves(inputs, torch.float64), [grad.double() for grad in grads])
    plain = values(definition, leaves(inputs, torch.float32), grads)
    got = values(ours, [tensor.detach().requires_grad_() for tensor in inputs], grads)
    compare(exact, plain, got)
    assert all(torch.equal(one, other) for one, other in zip(inputs, before, strict=True)), "an input was written to"


def check_rms_norm() -> None:
    reference = definitions["rms_norm"].reference
    for shape in ((1, 1), (1, 31), (4, 47, 123), (2, 3, 576), (0, 8)):
        x, residual, grad, more = (torch.randn(shape) for _ in range(4))
        weight = torch.randn(shape[-1])
        for offset in (0.0, 1.0):
            settings = {"eps": 1e-5, "offset": offset}
            check(
                lambda a, w, s=settings: rms_norm(a, w, **s),
                lambda a, w, s=settings: reference(a, w, **s)[0],
                (x, weight), (grad,),
            )  # fmt: skip
            check(
                lambda a, r, w, s=settings: add_rms_norm(a, r, w, **s),
                lambda a, r, w, s=settings: reference(a, w, residual=r, **s),
                (x, residual, weight), (grad, more),
            )  # fmt: skip
    # neither side by side nor in order, and only one of the two results used
    x, residual = torch.randn(5, 9, 34)[:, ::2, 1:], torch.randn(33, 5, 5).permute(1, 2, 0)
    weight = torch.randn(66)[::2]
    check(
        lambda a, r, w: add_rms_norm(a, r, w)[0],
        lambda a, r, w: reference(a, w, residual=r)[0],
        (x, residual, weight), (torch.randn(33, 5, 5).permute(1, 2, 0),),
    )  # fmt: skip
    half = rms_norm(x.half(), weight)
    assert half.dtype == torch.float32


def check_swiglu() -> None:
    reference = definitions["swiglu"].reference
    for shape in ((1, 1), (4, 47, 31), (3, 2049), (0, 5)):
        check(swiglu, reference, (torch.randn(shape), torch.randn(shape)), (torch.randn(shape),))
    both = torch.randn(3, 7, 62)
    check(swiglu, reference, both.chunk(2, -1), (torch.randn(3, 7, 62)[..., ::2],))
    large = torch.tensor([[-90.0, -20.0, 0.0, 20.0, 90.0]])
    check(swiglu, reference, (large, torch.ones_like(large)), (torch.ones_like(large),))


def check_rope() -> None:
    reference = definitions["rope"].reference
    for batch, heads, key_heads, time, size, tables in ((1, 1, 1, 1, 2, 1), (2, 3, 1, 5, 6, 1), (3, 33, 4, 7, 34, 3)):
        angles = torch.rand(tables, time, size) * 6
        cos, sin = angles.cos(), angles.sin() * 1.1
        q, k = torch.randn(batch, time, heads, size).transpose(1, 2), torch.randn(batch, key_heads, time, size)
        grads = torch.randn(batch, heads, time, size), torch.randn(batch, time, key_heads, size).transpose(1, 2)
        tables_of = {torch.float32: (cos, sin), torch.float64: (cos.double(), sin.double())}
        check(
            lambda a, b, c=cos, s=sin: rope(a, b, c, s),
            lambda a, b, t=tables_of: reference(a, b, *t[a.dtype]),
            (q, k), grads,
        )  # fmt: skip
        made = rope(q, k, cos, sin)[0]
        assert made.stride() == torch.empty_like(q).stride()


KINDS = (
    {},
    {"label_smoothing": 0.1},
    {"focal_gamma": 2.0},
    {"focal_gamma": 0.5},
    {"z_loss": 1e-2},
    {"softcap": 3.0},
    {"label_smoothing": 0.1, "focal_gamma": 1.5, "z_loss": 1e-2, "softcap": 5.0},
)


def through_the_kernel(h: Tensor, w: Tensor, y: Tensor, b: Tensor | None, weights: Tensor | None, **kind: Any) -> Any:
    values = {"label_smoothing": 0.0, "focal_gamma": 0.0, "z_loss": 0.0, "softcap": 0.0} | kind
    settings = Settings(**values, ignore_index=-100, dtype=torch.float32)
    return chunks(h, w, y, b, weights, settings, (True, True, b is not None), rows_of=rows_by_kernel)


def check_loss(n: int, d: int, v: int, kind: dict[str, Any], *, ignored: float = 0.3, extras: bool = True) -> None:
    definition = definitions["linear_cross_entropy"].reference
    hidden, weight, bias = torch.randn(n, d), torch.randn(v, d) / d**0.5, torch.randn(v)
    targets = torch.randint(v, (n + 1,))[1:]
    targets[torch.rand(n) < ignored] = -100
    weights = torch.rand(n) if extras else None
    inputs = (hidden, weight, bias) if extras else (hidden, weight)

    def plain(h: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return definition(h, w, targets, bias=b, token_weights=weights, **kind)

    def summed(dtype: torch.dtype) -> list[Tensor]:
        found = leaves(inputs, dtype)
        rows = plain(*found)
        return [rows.detach(), *torch.autograd.grad(rows.sum(), found)]

    before = [tensor.clone() for tensor in inputs]
    losses, *gradients = through_the_kernel(hidden, weight, targets, bias if extras else None, weights, **kind)
    got = [losses, *gradients[: len(inputs)]]
    compare(summed(torch.float64), summed(torch.float32), got)
    assert all(torch.equal(one, other) for one, other in zip(inputs, before, strict=True))


def check_linear_loss() -> None:
    for kind in KINDS:
        check_loss(37, 31, 123, kind)
        check_loss(37, 31, 123, kind, extras=False)
    for shape in ((1, 1, 2), (3, 8, 4097), (2, 4, 50_257), (2, 4, 129_920)):
        check_loss(*shape, KINDS[-1], ignored=0.0)
    check_loss(9, 5, 11, KINDS[-1], ignored=2.0)  # nothing counts


def check_linear_loss_chunks() -> None:
    sys.modules["nbllm.ops.linear_cross_entropy"]._CHUNK_ROWS = 7  # type: ignore[attr-defined]
    check_loss(37, 31, 123, KINDS[-1])
    check_loss(37, 31, 123, KINDS[-1], ignored=0.0)


def check_sure_rows() -> None:
    """As p goes to 1 nothing is lost or becomes infinite."""
    weight, targets = torch.eye(6), torch.tensor([0, 3, 5])
    for kind in KINDS:
        for height in (8.0, 20.0, 1e4):
            hidden = height * torch.eye(6)[targets]
            losses, d_hidden, d_weight, _ = through_the_kernel(hidden, weight, targets, None, None, **kind)
            exact = [tensor.double().requires_grad_() for tensor in (hidden, weight)]
            rows = definitions["linear_cross_entropy"].reference(*exact, targets, **kind)
            true = [rows.detach(), *torch.autograd.grad(rows.sum(), exact)]
            for value, wanted in zip((losses, d_hidden, d_weight), true, strict=True):
                assert torch.isfinite(value).all()
                torch.testing.assert_close(value.double(), wanted, atol=2e-6 * max(height, 10), rtol=2e-3)


def check_far_offsets() -> None:
    """Rows that lie more than 2^31 elements apart; pages that nobody touches cost nothing."""
    stride = 2**30 + 3
    store = torch.empty(2 * stride + 64)
    x, small = store.as_strided((3, 31), (stride, 1)), torch.randn(3, 31)
    x.copy_(small)
    weight = torch.randn(31)
    assert torch.equal(rms_norm(x, weight), rms_norm(small, weight))
    assert torch.equal(swiglu(x, x), swiglu(small, small))
    q, few = store.as_strided((1, 3, 1, 8), (0, stride, 8, 1)), small[None, :, None, :8].contiguous()
    tables = torch.rand(1, 1, 8), torch.rand(1, 1, 8)
    assert torch.equal(
        rope_kernels.turn(few, few, *tables, False)[0], rope_kernels.turn(q[..., :8], few, *tables, False)[0]
    )
    losses = torch.empty(2, 3)
    options: dict[str, Any] = {
        "label_smoothing": 0.1, "focal_gamma": 1.0, "z_loss": 0.1, "softcap": 0.0, "ignore_index": -100,
        "gradient": True,
    }  # fmt: skip
    for z, found in ((x, losses[0]), (small, losses[1])):
        loss_kernels.rows_in_place(z, torch.tensor([1, 0, 30]), None, None, found, **options)
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(x, small)


def check_ignored_rows_in_a_chunk() -> None:
    """The kernel itself leaves a row out: no loss, a gradient of zeros, whatever its logits."""
    z, losses = torch.randn(3, 5000), torch.full((3,), 7.0)
    z[1] = float("nan")
    loss_kernels.rows_in_place(
        z, torch.tensor([4, -100, 4999]), None, None, losses, label_smoothing=0.0, focal_gamma=0.0, z_loss=0.0,
        softcap=0.0, ignore_index=-100, gradient=True,
    )  # fmt: skip
    assert losses[1] == 0
    assert not z[1].any()
    assert torch.isfinite(z).all()
    torch.testing.assert_close(z.sum(-1), torch.zeros(3), atol=1e-5, rtol=0)


def check_through_autograd() -> None:
    """The op's own gradients by way of the kernel, as a GPU would run it."""
    module = sys.modules["nbllm.ops.triton_linear_loss"]
    for op in (module._sum, module._losses):  # type: ignore[attr-defined]
        cuda = op._backend_fns["cuda"]
        op.register_kernel("cpu")(cuda)
    use_triton(["linear_loss"])
    called = []
    original = module.rows_by_kernel  # type: ignore[attr-defined]
    module.rows_by_kernel = lambda *args: called.append(1) or original(*args)  # type: ignore[attr-defined]
    hidden, weight = torch.randn(12, 7, requires_grad=True), torch.randn(19, 7, requires_grad=True)
    targets = torch.randint(19, (12,))
    for reduction in ("sum", "mean", "none"):
        loss = linear_cross_entropy(hidden, weight, targets, reduction=reduction).loss
        got = torch.autograd.grad(loss.sum(), (hidden, weight))
        plain = torch.nn.functional.cross_entropy(hidden @ weight.T, targets, reduction=reduction)
        torch.testing.assert_close(loss, plain)
        for one, other in zip(got, torch.autograd.grad(plain.sum(), (hidden, weight)), strict=True):
            torch.testing.assert_close(one, other)
    assert len(called) == 4  # a chunk each: sum, mean, rows, and the rows again for their gradients


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        globals()[f"check_{name}"]()
