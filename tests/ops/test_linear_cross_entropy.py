"""The linear loss against float64, and that compile, autocast, checkpointing and sharding see one op."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nbllm.errors import UsageError
from nbllm.ops import linear_cross_entropy as loss_of
from nbllm.ops.linear_cross_entropy import _losses, _sum, reference

EVERYTHING = {"label_smoothing": 0.1, "focal_gamma": 1.5, "z_loss": 1e-2, "softcap": 5.0}
KINDS: list[dict[str, Any]] = [
    {},
    {"label_smoothing": 0.1},
    {"focal_gamma": 2.0},
    {"focal_gamma": 0.5},
    {"z_loss": 1e-2},
    {"softcap": 3.0},
    EVERYTHING,
]


def case(n: int, d: int, v: int, dtype: torch.dtype = torch.float32, *, ignored: float = 0.3) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(n + v)
    hidden = torch.randn(n, d, generator=generator).to(dtype)
    weight = (torch.randn(v, d, generator=generator) / d**0.5).to(dtype)
    bias = torch.randn(v, generator=generator).to(dtype)
    targets = torch.randint(v, (n,), generator=generator)
    targets[torch.rand(n, generator=generator) < ignored] = -100
    return hidden, weight, targets, bias, torch.rand(n, generator=generator)


def run(call: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> list[Tensor]:
    """Loss and gradients, from leaves of that dtype."""
    leaves = [None if t is None else t.detach().to(dtype).requires_grad_() for t in (hidden, weight, bias)]
    loss = call(*(leaf for leaf in leaves if leaf is not None))
    loss.backward()
    return [loss.detach(), *(leaf.grad for leaf in leaves if leaf is not None)]


def check(n: int, d: int, v: int, kind: dict[str, Any], dtype: torch.dtype = torch.float32, **more: Any) -> None:
    """The error against float64 is at most twice that of plain PyTorch in the same dtype, and a trifle."""
    hidden, weight, targets, bias, weights = case(n, d, v, dtype, **more)

    def plain(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return reference(h, w, targets, bias=b, token_weights=weights, **kind).sum()

    def fused(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return loss_of(h, w, targets, bias=b, token_weights=weights, **kind).loss

    truth = run(plain, hidden, weight, bias, torch.float64)
    for exact, expected, got in zip(
        truth, run(plain, hidden, weight, bias, dtype), run(fused, hidden, weight, bias, dtype), strict=True
    ):
        scale = float(exact.abs().max()) + 1e-6
        allowed = (
            2 * float((expected.double() - exact).abs().max()) + (1e-6 if dtype == torch.float32 else 4e-3) * scale
        )
        assert float((got.double() - exact).abs().max()) <= allowed


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradients_are_as_near_to_float64_as_plain_pytorch(kind: dict[str, Any], dtype: torch.dtype) -> None:
    check(37, 31, 123, kind, dtype)


@pytest.mark.parametrize("shape", [(1, 1, 2), (1, 31, 123), (188, 47, 257), (4, 8, 50_257), (3, 16, 129_920)])
def test_odd_shapes_and_large_vocabularies(shape: tuple[int, int, int]) -> None:
    check(*shape, EVERYTHING, ignored=0.0)


def test_several_chunks_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["nbllm.ops.linear_cross_entropy"], "_CHUNK_ELEMENTS", 7 * 123)
    for dtype in (torch.float32, torch.bfloat16):
        check(37, 31, 123, EVERYTHING, dtype)


def test_nothing_to_predict_is_zero_with_zero_gradients() -> None:
    hidden, weight, targets, bias, _ = case(9, 5, 11, ignored=2.0)
    for reduction in ("sum", "mean"):

        def call(h: Tensor, w: Tensor, b: Tensor, reduction: str = reduction) -> Tensor:
            return loss_of(h, w, targets, bias=b, reduction=reduction).loss

        for value in run(call, hidden, weight, bias, torch.float32):
            assert not value.any()
    assert int(loss_of(hidden, weight, targets).counted) == 0


@pytest.mark.parametrize("kind", [{}, {"focal_gamma": 0.5}, EVERYTHING], ids=str)
def test_a_sure_model_gives_finite_gradients(kind: dict[str, Any]) -> None:
    weight, targets = torch.eye(6), torch.tensor([0, 3, 5])
    for height in (8.0, 20.0, 1e4):
        hidden = height * torch.eye(6)[targets]
        values = run(lambda h, w: loss_of(h, w, targets, **kind).loss, hidden, weight, None, torch.float32)
        exact = run(lambda h, w: reference(h, w, targets, **kind).sum(), hidden, weight, None, torch.float64)
        for value, true in zip(values, exact, strict=True):
            assert torch.isfinite(value).all()
            torch.testing.assert_close(value.double(), true, atol=2e-6 * max(height, 10), rtol=2e-3)


def test_rows_and_mean() -> None:
    hidden, weight, targets, bias, weights = (
        tensor.double() if tensor.is_floating_point() else tensor for tensor in case(12, 7, 19)
    )
    leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
    factors = torch.arange(12.0, dtype=torch.float64)
    rows = loss_of(
        leaves[0], leaves[1], targets, bias=leaves[2], token_weights=weights, reduction="none", **EVERYTHING
    ).loss
    expected = reference(*leaves[:2], targets, bias=leaves[2], token_weights=weights, **EVERYTHING)
    torch.testing.assert_close(rows, expected)
    got = torch.autograd.grad((rows * factors).sum(), leaves)
    for value, true in zip(got, torch.autograd.grad((expected * factors).sum(), leaves), strict=True):
        torch.testing.assert_close(value, true)
    mean, count = loss_of(hidden, weight, targets, reduction="mean")
    assert int(count) == int((targets != -100).sum())
    torch.testing.assert_close(mean, nn.functional.cross_entropy(hidden @ weight.T, targets))


def test_gradcheck_of_the_definition_and_of_the_op() -> None:
    hidden, weight, targets, bias, _ = (
        tensor.double() if tensor.is_floating_point() else tensor for tensor in case(5, 4, 7)
    )
    leaves = tuple(tensor.requires_grad_() for tensor in (hidden, weight, bias))
    for kind in KINDS:
        assert torch.autograd.gradcheck(
            lambda h, w, b, kind=kind: reference(h, w, targets, bias=b, **kind), leaves, fast_mode=True
        )
        assert torch.autograd.gradcheck(
            lambda h, w, b, kind=kind: loss_of(h, w, targets, bias=b, **kind).loss, leaves, fast_mode=True
        )


def test_inputs_that_arent_contiguous_are_read_right_and_never_written() -> None:
    hidden, weight, targets, _, _ = case(2 * 13, 10, 17)
    h, w, y = hidden[::2, 1:], weight.T.contiguous().T[:, 1:], targets.reshape(13, 2)[:, 1]
    before = [tensor.clone() for tensor in (hidden, weight, targets)]
    got = run(lambda a, b: loss_of(a, b, y).loss, h, w, None, torch.float32)
    assert not any(tensor.is_contiguous() for tensor in (h, w, y))
    torch.testing.assert_close(loss_of(h, w, y).loss, got[0])
    true = run(lambda a, b: reference(a, b, y).sum(), h, w, None, torch.float32)
    for value, expected in zip(got, true, strict=True):
        torch.testing.assert_close(value, expected)
    for tensor, old in zip((hidden, weight, targets), before, strict=True):
        assert torch.equal(tensor, old)


def test_labels_and_rows_that_begin_anywhere_in_memory() -> None:
    hidden, weight, targets, _, _ = case(14, 9, 17)
    h, w, y = (torch.cat((tensor.flatten()[:1], tensor.flatten()))[1:] for tensor in (hidden, weight, targets))
    h, w = h.view(14, 9), w.view(17, 9)
    assert all(tensor.data_ptr() % 16 for tensor in (h, w, y))
    got = run(lambda a, b: loss_of(a, b, y[1:]).loss, h[1:], w, None, torch.float32)
    true = run(lambda a, b: reference(a, b, y[1:]).sum(), h[1:], w, None, torch.float64)
    for value, expected in zip(got, true, strict=True):
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)


def test_offsets_past_two_to_the_31() -> None:
    stride = 2**30 + 3
    store = torch.empty(2 * stride + 8)  # pages that nobody touches cost nothing
    hidden = store.as_strided((3, 8), (stride, 1))
    small, weight, targets, _, _ = case(3, 8, 11, ignored=0.0)
    hidden.copy_(small)
    torch.testing.assert_close(loss_of(hidden, weight, targets).loss, loss_of(small, weight, targets).loss)


def test_backward_twice_gives_twice_the_gradient() -> None:
    hidden, weight, targets, _, _ = case(6, 5, 9)
    weight.requires_grad_()
    loss = loss_of(hidden, weight, targets).loss
    loss.backward(retain_graph=True)
    once = weight.grad.clone()  # type: ignore[union-attr]
    (3 * loss).backward()
    torch.testing.assert_close(weight.grad, 4 * once)


def test_opcheck() -> None:
    hidden, weight, targets, bias, weights = case(6, 5, 9)
    leaves = (hidden.requires_grad_(), weight.requires_grad_(), targets, bias.requires_grad_(), weights)
    options = (0.1, 1.5, 0.01, 5.0, -100, torch.float32)
    torch.library.opcheck(_losses, (*leaves, *options))
    plain = tuple(tensor.detach() for tensor in leaves)
    torch.library.opcheck(_sum, (*plain, *options, True, True, True))


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_compiles_as_one_graph(backend: str) -> None:
    hidden, weight, targets, bias, weights = case(12, 7, 19)

    def call(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return 2 * loss_of(h, w, targets, bias=b, token_weights=weights, **EVERYTHING).loss

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    got = run(compiled, hidden, weight, bias, torch.float32)
    for value, expected in zip(got, run(call, hidden, weight, bias, torch.float32), strict=True):
        torch.testing.assert_close(value, expected)


def test_autocast_takes_products_in_its_dtype_and_keeps_the_gradients_dtype() -> None:
    hidden, weight, targets, _, _ = case(40, 32, 123)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = run(lambda h, w: loss_of(h, w, targets).loss, hidden, weight, None, torch.float32)
    exact = run(lambda h, w: reference(h, w, targets).sum(), hidden, weight, None, torch.float64)
    assert [value.dtype for value in got] == [torch.float32] * 3
    assert not torch.equal(got[0], loss_of(hidden, weight, targets).loss)
    for value, true in zip(got, exact, strict=True):
        torch.testing.assert_close(value.double(), true, rtol=0.02, atol=0.02 * float(true.abs().max()))


def test_checkpointing_gives_the_same() -> None:
    hidden, weight, targets, _, _ = case(12, 7, 19)

    def call(h: Tensor, w: Tensor) -> Tensor:
        return loss_of(h, w, targets).loss

    got = run(lambda h, w: checkpoint(call, h, w, use_reentrant=False), hidden, weight, None, torch.float32)
    for value, expected in zip(got, run(call, hidden, weight, None, torch.float32), strict=True):
        assert torch.equal(value, expected)


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight, targets, _, _ = case(6, 5, 9)
    loss_of(hidden.requires_grad_(), weight, targets).loss.backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_what_doesnt_fit_is_refused() -> None:
    hidden, weight, targets, bias, _ = case(6, 5, 9)
    with pytest.raises(UsageError, match="Shapes must be"):
        loss_of(hidden, weight.T, targets)
    with pytest.raises(UsageError, match="reduction is one of"):
        loss_of(hidden, weight, targets, reduction="average")
    with pytest.raises(UsageError, match="one entry a row"):
        loss_of(hidden, weight, targets, bias=bias[1:])


class Head(nn.Module):
    """Owns the head, so that sharding gathers it before the loss."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.body = nn.Linear(weight.shape[1], weight.shape[1], bias=False)
        self.weight = nn.Parameter(weight)
        nn.init.eye_(self.body.weight)

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return loss_of(self.body(hidden), self.weight, targets).loss


def _worker(rank: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    hidden, weight, targets, _, _ = case(12, 8, 20)
    whole = Head(weight.clone())
    whole(hidden, targets).backward()
    part = Head(weight.clone())
    fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
    half = slice(6 * rank, 6 * rank + 6)
    (2 * part(hidden[half], targets[half])).backward()  # sharding averages over the two
    for name, parameter in part.named_parameters():
        torch.testing.assert_close(parameter.grad.full_tensor(), whole.get_parameter(name).grad)
    try:
        loss_of(hidden, part.weight, targets)
    except UsageError:
        dist.barrier()  # gloo's threads abort a process whose neighbour has left already
        dist.destroy_process_group()
        return
    raise AssertionError("a sharded weight was taken")


def test_two_processes_with_a_sharded_head(tmp_path: Any) -> None:
    mp.spawn(_worker, args=(str(tmp_path),), nprocs=2, join=True)
