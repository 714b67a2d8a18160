"""Losses, the schedule, the split of parameters between optimizers: numbers that can be worked out by hand."""

import json
import math

import pytest
import torch

from nbllm.errors import UsageError
from nbllm.model import build
from nbllm.train.journal import Journal
from nbllm.train.losses import loss_sum, target_count
from nbllm.train.optimizer import Optimizers
from nbllm.train.precision import choose
from nbllm.train.schedule import lr_share


def case(seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 7, 13, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 13, (2, 7), generator=generator)
    targets[0, 2:5] = -100
    return logits, targets


def by_hand(logits, targets, gamma, smoothing, z):
    total = 0.0
    for row, target in zip(logits.reshape(-1, 13).tolist(), targets.reshape(-1).tolist(), strict=True):
        if target != -100:
            partition = math.log(sum(math.exp(x) for x in row))
            nats = partition - row[target]
            total += (1 - smoothing) * (1 - math.exp(-nats)) ** gamma * nats
            total += smoothing * (partition - sum(row) / 13) + z * partition**2
    return total


@pytest.mark.parametrize(
    ("gamma", "smoothing", "z"), [(0, 0, 0), (0, 0.1, 0), (2, 0, 0), (0.5, 0.2, 1e-3), (0, 0, 0.01)]
)
def test_the_loss_is_the_formulas_sum_and_its_gradient_is_right(gamma, smoothing, z):
    logits, targets = case()
    settings = {"focal_gamma": gamma, "label_smoothing": smoothing, "z_loss": z}
    loss = loss_sum(logits, targets, **settings)
    assert loss.item() == pytest.approx(by_hand(logits, targets, gamma, smoothing, z), rel=1e-10)
    assert target_count(targets) == 11
    assert torch.autograd.gradcheck(lambda x: loss_sum(x, targets, **settings), logits)


@pytest.mark.parametrize("settings", [{}, {"focal_gamma": 0.5}, {"z_loss": 0.1, "label_smoothing": 0.1}])
def test_all_targets_ignored_is_zero_with_zero_gradients(settings):
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = loss_sum(logits, torch.full((2, 3), -100), **settings)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_a_certain_prediction_has_a_finite_focal_gradient():
    logits = torch.tensor([[[200.0, 0, 0]]], requires_grad=True)
    loss_sum(logits, torch.tensor([[0]]), focal_gamma=0.5).backward()
    assert torch.isfinite(logits.grad).all()


def test_schedules_begin_and_end_where_they_should():
    def shares(name, low=0.0):
        return [lr_share(k, total_steps=100, warmup=10, schedule=name, min_ratio=low) for k in range(100)]

    for name in ("cosine", "linear", "wsd", "constant"):
        assert shares(name)[:10] == pytest.approx([k / 10 for k in range(1, 11)])
        assert max(shares(name)) == 1
    assert shares("constant")[-1] == 1
    assert shares("wsd")[79] == 1
    assert shares("wsd")[80] < 1
    for name in ("cosine", "linear", "wsd"):
        assert 0 < shares(name)[-1] < 0.06
        assert shares(name, 0.1)[-1] >= 0.1
        assert shares(name)[80:] == sorted(shares(name)[80:], reverse=True)
    assert lr_share(0, total_steps=3, warmup=10, schedule="cosine") == pytest.approx(1 / 3)


def model(preset="llama-nano"):
    return build(preset, vocab_size=97, max_length=64, bos_id=0, eos_id=0, pad_id=1, seed=3)


@pytest.mark.parametrize("preset", ["llama-nano", "gpt2-nano"])
def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest(preset):
    bare = model(preset)
    optimizers = Optimizers(bare, kind="muon", weight_decay=0.1)
    names = {
        key: {optimizers.names[id(w)] for g in member.param_groups for w in g["params"]}
        for key, member in optimizers.members.items()
    }
    assert names["muon"] | names["adamw"] == {name for name, _ in bare.named_parameters()}
    assert not names["muon"] & names["adamw"]
    assert all(".layers." in name or ".h." in name for name in names["muon"])
    assert not any("embed" in name or "wte" in name or "norm" in name or "bias" in name for name in names["muon"])
    assert all(group["weight_decay"] == 0 for group in optimizers.members["adamw"].param_groups)
    optimizers.set_lr(0.5)
    assert {group["lr"] for member in optimizers for group in member.param_groups} == {0.5}


def test_muon_and_adamw_move_weights_alike_at_one_learning_rate():
    moved = {}
    for kind in ("muon", "adamw"):
        bare = model()
        weight = bare.model.layers[0].mlp.up_proj.weight
        before = weight.detach().clone()
        optimizers = Optimizers(bare, kind=kind, weight_decay=0.0)
        optimizers.set_lr(0.01)
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        for member in optimizers:
            member.step()
        moved[kind] = float((weight.detach() - before).square().mean().sqrt())
    # AdamW's first step is one learning rate a weight; Muon's a fifth of it, as AdamW's later ones are
    assert moved["adamw"] == pytest.approx(0.01, rel=0.05)
    assert moved["muon"] == pytest.approx(0.002, rel=0.3)


def test_precision_on_a_cpu():
    assert choose("auto", "cpu") in ("bf16", "fp32")
    assert choose("fp32", "cpu") == "fp32"
    with pytest.raises(UsageError, match="fp16 needs a GPU"):
        choose("fp16", "cpu")


def test_non_finite_numbers_are_strings_and_a_torn_line_is_cut(tmp_path):
    journal = Journal(tmp_path, generation=2)
    journal.write("step", step=1, loss=float("nan"), nested=[float("inf"), -math.inf, 1.5])
    journal.close()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "st')
    Journal(tmp_path, generation=3).write("step", step=2)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0] == {
        "kind": "step",
        "generation": 2,
        "step": 1,
        "loss": "NaN",
        "nested": ["Infinity", "-Infinity", 1.5],
    }
    assert lines[1] == {"kind": "step", "generation": 3, "step": 2}
