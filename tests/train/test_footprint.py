"""What a run will hold in memory: activations found without numbers, the rest counted, and what is suggested."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nbllm.train.config import TrainConfig
from nbllm.train.footprint import Footprint, empty_model, kept_bytes
from nbllm.train.forecast import Memory
from nbllm.train.rehearsal import suggest

META = {"vocab_size": 300, "bos_id": 0, "eos_id": 0, "pad_id": 1}


def config(**changes):
    return TrainConfig(shards="", store_root="", **{"seq_len": 32, "batch_size": 8, "precision": "fp32", **changes})


def footprint(asked, **changes):
    fields = {"precision": "fp32", "optimizer": "muon", "processes": 1, "base_bytes": 0, "device_type": "cpu"}
    return Footprint(asked, META, **{**fields, **changes})


@pytest.mark.parametrize("model", ["llama-nano", "gpt2-nano", "bert-nano"])
@pytest.mark.parametrize("fused", [True, False])
def test_tensors_without_numbers_keep_what_real_ones_keep(model, fused):
    asked = config(model=model)
    with FakeTensorMode():
        fake = kept_bytes(empty_model(asked, META), 2, 32, "fp32", "cpu", fused=fused)
    assert fake == kept_bytes(empty_model(asked, META), 2, 32, "fp32", "cpu", fused=fused)
    assert fake > 2 * 32 * 128 * 4 * 5  # at least each block's input


def test_a_router_that_looks_at_numbers_is_run_with_them():
    found = footprint(config(model="moe-nano")).memory(config(model="moe-nano"))
    assert found.activations > 8 * 32 * 128 * 4 * 5


def test_weights_gradients_and_state_are_counted():
    asked = config()
    found = footprint(asked)
    model = empty_model(asked, META)
    count = sum(weight.numel() for weight in model.parameters())
    matrices = sum(weight.numel() for weight in model.model.layers.parameters() if weight.ndim == 2)
    muon = found.memory(asked)
    assert (muon.weights, muon.gradients) == (4 * count, 4 * count)
    assert muon.optimizer == 4 * matrices + 8 * (count - matrices)
    assert muon.peak == muon.weights + muon.optimizer + muon.activations + muon.logits + muon.rest
    found.learn_rest(asked, muon.peak + 1000)
    assert found.memory(asked).peak == pytest.approx(muon.peak + 1000, abs=2)
    found.learn_rest(replace(asked, grad_accum=2, processes=2), muon.peak - 10**9)
    assert found.memory(asked).rest == 0
    muon = found.memory(asked)
    assert muon.logits == 4 * 8 * 32 * 300
    adamw = footprint(asked, optimizer="adamw").memory(asked)
    assert adamw.optimizer == 8 * count
    slow = found.memory(replace(asked, grad_accum=2))
    assert slow.peak == muon.peak + muon.gradients


def test_activations_grow_with_rows_and_shrink_by_checkpointing_and_half_precision():
    asked = config(seq_len=64)
    found = footprint(asked)
    whole = found.memory(asked).activations
    assert found.memory(replace(asked, batch_size=16)).activations == pytest.approx(2 * whole, rel=0.05)
    assert found.memory(replace(asked, checkpointing=True)).activations < 0.5 * whole
    bf16 = found.memory(replace(asked, precision="bf16", batch_size=64)).activations
    assert bf16 < 0.95 * found.memory(replace(asked, batch_size=64)).activations


@pytest.mark.parametrize("parallel", ["fsdp", "zero2", "zero3", "tp", "pp", "fsdp,tp"])
def test_plans_that_cut_hold_less_than_a_whole_model(parallel):
    asked = config(parallel=parallel, processes=4, grad_accum=4)
    cut = footprint(asked, processes=4, optimizer="adamw").memory(asked)
    together = replace(asked, parallel="ddp")
    whole = footprint(together, processes=4, optimizer="adamw").memory(together)
    assert cut.optimizer < 0.7 * whole.optimizer
    assert cut.weights < whole.weights or parallel == "zero2"
    assert cut.gradients < whole.gradients
    assert whole.gradients == 2 * whole.weights  # the buckets of the exchange


def test_the_cheapest_change_that_fits_is_suggested():
    asked = config(batch_size=8, fused="off")
    found = footprint(asked)

    def need(**changes):
        return int(found.memory(replace(asked, **changes)).peak / 0.95) + 1

    assert suggest(found, asked, need(fused="auto"), 1).startswith("--fused auto, which")
    halved = suggest(found, asked, need(fused="auto", batch_size=4, grad_accum=2), 1)
    assert halved == "--fused auto and --batch-size 4 --grad-accum 2: the same global batch"
    assert "--checkpointing" in suggest(found, asked, need(fused="auto", batch_size=1, grad_accum=8) - 200_000, 1)
    assert suggest(found, asked, 1000, 1).startswith("a smaller --model: it needs at least 0.0 GB")
    several = config(processes=2, batch_size=1)
    two = footprint(several, processes=2, optimizer="adamw")
    assert "--parallel fsdp" in suggest(two, several, need_of(two, replace(several, parallel="fsdp")), 2)


def need_of(found, asked):
    return int(found.memory(asked).peak / 0.95) + 1


def test_the_peak_is_at_the_loss_or_at_the_end_of_the_backward_pass():
    sizes = {"base": 1, "weights": 10, "gradients": 10, "optimizer": 20, "logits": 5}
    assert Memory(activations=100, **sizes).peak == 136
    assert Memory(activations=1, **sizes).peak == 41
    assert Memory(activations=100, gradients_first=True, **sizes).peak == 146


def test_the_fake_pass_leaves_no_gradients_and_no_threads_of_torch_changed():
    before = torch.get_num_threads()
    footprint(config()).memory(config())
    assert torch.get_num_threads() == before
    assert not torch.is_autocast_enabled("cpu")
