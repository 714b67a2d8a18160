"""A model whose layers use the fused ops, as training wraps it: an adapter, checkpoints, autocast, compile, shards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm import adapters
from nbllm.model import patch, patching
from nbllm.train.loss_model import LossModel

IDS = torch.arange(4 * 9).view(4, 9) * 7919 % 96
OPS = ("rms_norm", "add_rms_norm", "swiglu", "rope")


def make(*, adapted: bool) -> Any:
    """The same model each time; an adapter that does something."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if adapted:
        adapters.create(model, r=4, alpha=8)
    for name, weight in model.named_parameters():
        if "norm" in name or "lora_B" in name:  # fresh ones are all equal and would hide a mistake
            weight.data += 0.3 * torch.randn_like(weight)
    return model.train()


def nats(whole: LossModel, rows: slice) -> Tensor:
    ids = IDS[rows]
    loss: Tensor = whole(ids, ids.roll(-1, 1), torch.arange(9).expand(ids.shape), torch.tensor(1 / IDS.numel()))
    return loss


def values(model: Any, *, autocast: bool = False) -> dict[str, Tensor]:
    """The loss, and the gradients by name."""
    whole = LossModel(model, fused="torch", settings={})
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = nats(whole, slice(None))
    loss.backward()
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {"loss": loss.detach(), **found}


def counted(set_attribute: Any) -> Counter[str]:
    """How often the patched layers call each op from now on."""
    calls: Counter[str] = Counter()

    def counting(name: str) -> Any:
        op = getattr(patching, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return op(*args, **kwargs)

        return call

    for name in OPS:
        set_attribute(patching, name, counting(name))
    return calls


@pytest.mark.parametrize(
    ("adapted", "way", "autocast"),
    [
        (True, "plain", False),
        (True, "plain", True),
        (False, "checkpointing", True),
        (True, "checkpointing", False),
        (False, "compile", True),
        (True, "compile", False),
    ],
)
def test_loss_and_gradients_are_those_of_the_models_own_code(
    adapted: bool, way: str, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = values(make(adapted=adapted), autocast=autocast)
    model = make(adapted=adapted)
    found = patch(model)
    calls = counted(monkeypatch.setattr)
    if way == "checkpointing":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    elif way == "compile":
        torch._dynamo.reset()
        for block in model.model.layers:
            block.compile(fullgraph=True, backend="aot_eager")
    got = values(model, autocast=autocast)
    found.undo()
    assert all(calls[name] for name in OPS)
    assert got.keys() == expected.keys()
    assert len(got) == 1 + (2 * 7 * 2 if adapted else 21)
    for name, wanted in expected.items():
        assert got[name].dtype == wanted.dtype
        scale = float(wanted.abs().max())
        near = {"rtol": 0.05, "atol": 0.05 * scale} if autocast else {"rtol": 1e-4, "atol": 1e-5 * scale}
        torch.testing.assert_close(got[name], wanted, **near)


def _worker(rank: int, folder: str) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    calls = counted(setattr)
    for adapted in (False, True):
        expected = values(make(adapted=adapted))
        assert not calls
        model = make(adapted=adapted)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        found = patch(model)
        whole = LossModel(model, fused="torch", settings={})
        for block in model.model.layers:
            fully_shard(block)
        fully_shard(whole)
        calls.clear()
        loss = 2 * nats(whole, slice(2 * rank, 2 * rank + 2))  # sharding averages over the two
        loss.backward()
        assert all(calls[name] for name in OPS), calls
        grads = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        assert grads.keys() == expected.keys() - {"loss"}
        for name, grad in grads.items():
            torch.testing.assert_close(grad.full_tensor(), expected[name], rtol=1e-4, atol=1e-6)
        found.undo()
        calls.clear()
    dist.barrier()  # gloo's threads abort a process whose neighbour has left already
    dist.destroy_process_group()


def test_two_processes_that_cut_a_patched_model_train_what_one_does(tmp_path: Path) -> None:
    mp.spawn(_worker, args=(str(tmp_path),), nprocs=2, join=True)
