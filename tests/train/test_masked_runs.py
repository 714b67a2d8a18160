"""Masked models and mixtures of experts in training: the loss without logits, the worker, and what is refused."""

import pytest
import torch
from worker_kit import Kit, events, kit, losses, texts

from nbllm import shards as shards_room
from nbllm import tokenizer as tokenizer_room
from nbllm.errors import UsageError
from nbllm.model import build, load, separate_documents
from nbllm.shards import IGNORED
from nbllm.train import checkpoint as disk
from nbllm.train import objective
from nbllm.train.experts import ExpertBalance
from nbllm.train.loss_model import LossModel
from nbllm.train.optimizer import Optimizers

__all__ = ["kit"]  # a fixture


def model_of(preset):
    return build(preset, vocab_size=300, max_length=32, bos_id=0, eos_id=1, pad_id=2, seed=0).train()


@pytest.fixture(scope="module")
def masked_shards(kit: Kit):
    """Shards of a tokenizer with a mask token."""
    tokenizer = tokenizer_room.train(kit.store, texts(200, 1), vocab_size=300, special=["[MASK]"], name="masking")
    return shards_room.build(
        kit.store,
        tokenizer,
        train=texts(60, 2),
        held_out=texts(12, 3),
        parents=[tokenizer.manifest.as_parent()],
        parameters={"kind": "masked"},
    ).name


def batch(hidden=0.2):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(300, (3, 16), generator=generator)
    targets = ids.masked_fill(torch.rand(ids.shape, generator=generator) >= hidden, IGNORED)
    positions = torch.cat([torch.arange(10), torch.arange(6)]).expand(3, 16)
    return ids, targets, positions


@pytest.mark.parametrize("settings", [{}, {"focal_gamma": 2.0, "label_smoothing": 0.1, "z_loss": 1e-3}])
def test_the_masked_loss_without_logits_is_that_of_all_logits(settings):
    found = {}
    for fused in ("off", "auto"):
        model = model_of("bert-nano")
        separate_documents(model)
        whole = LossModel(model, fused=fused, settings=settings)
        assert whole.fused == ("off" if fused == "off" else "torch")
        loss = whole(*batch(), torch.tensor(0.5))
        loss.backward()
        found[fused] = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
    for fused, plain in zip(found["auto"], found["off"], strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("preset", ["bert-nano", "llama-nano", "moe-nano"])
def test_a_batch_with_nothing_to_predict_costs_nothing(preset):
    model = model_of(preset)
    whole = LossModel(model, fused="auto", settings={"label_smoothing": 0.1, "z_loss": 1e-3})
    loss = whole(*batch(hidden=0.0), torch.tensor(1.0))
    loss.backward()
    assert loss.item() == 0.0
    assert all(not weight.grad.any() for weight in model.parameters() if weight.grad is not None)


def test_experts_used_alike_have_a_balancing_loss_of_the_coefficient_a_token():
    model = model_of("moe-nano")
    balance = ExpertBalance(model)
    assert (balance.experts, balance.coefficient) == (4, 0.01)
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.weight.data.zero_()  # all experts are equally likely
    ids, targets, positions = batch(hidden=0.5)
    with balance.watching():
        model(input_ids=ids, position_ids=positions)
    loss = balance.loss_sum(targets != IGNORED)
    count = int((targets != IGNORED).sum())
    assert loss.item() == pytest.approx(0.01 * count, rel=1e-5)  # E * sum f p, with p = 1/E and sum f = 1
    total = balance.take().tolist()
    assert total[-1] == count
    assert sum(total[1:-1]) == pytest.approx(count)
    assert balance.take() is None


def test_a_mixture_logs_what_its_experts_get_and_a_loss_without_their_balance(kit: Kit):
    one = kit.train("experts", model="moe-nano", steps=4, batch_size=4)
    halves = kit.train("experts-halves", model="moe-nano", steps=4, batch_size=2, grad_accum=2)
    for event in events(one, "step"):
        assert sum(event["expert_shares"]) == pytest.approx(1, abs=1e-3)
        assert len(event["expert_shares"]) == 4
        assert 0.009 < event["balance_loss"] < 0.03
    first = [events(folder, "step")[0] for folder in (one, halves)]
    assert first[0]["loss"] == pytest.approx(first[1]["loss"], rel=1e-4)
    assert first[0]["loss"] == pytest.approx(torch.tensor(float(kit.tokenizer.vocab_size)).log().item(), rel=0.1)


def test_a_stack_of_experts_is_decayed_by_adamw_under_either_optimizer():
    model = model_of("moe-nano")
    stacks = {id(weight) for weight in model.parameters() if weight.ndim == 3}
    assert len(stacks) == 10
    for kind in ("muon", "adamw"):
        members = Optimizers(model, kind=kind, weight_decay=0.1).members
        decayed = {id(w) for group in members["adamw"].param_groups if group["weight_decay"] for w in group["params"]}
        assert stacks <= decayed
        if kind == "muon":
            assert all(w.ndim == 2 for group in members["muon"].param_groups for w in group["params"])
    assert len(Optimizers(model, kind="muon", weight_decay=0.1).parameters) == len(list(model.parameters()))


def test_a_masked_model_learns_and_shows_what_it_fills_in(kit: Kit, masked_shards):
    setting = {"shards": masked_shards, "model": "bert-nano", "optimizer": "adamw", "lr": 3e-3, "eval_every": 12}
    one = kit.train("masked", steps=24, batch_size=8, **setting)
    halves = kit.train("masked-halves", steps=3, batch_size=4, grad_accum=2, **{**setting, "warmup": 2})
    assert losses(halves)[1] == pytest.approx(losses(one)[1], rel=1e-4)
    (start,) = events(one, "start")
    assert (start["objective"], start["fused"]) == ("mlm", "torch")
    evaluations = events(one, "eval")
    assert evaluations[-1]["eval_loss"] < evaluations[0]["eval_loss"] < losses(one)[1]
    assert evaluations[-1]["bits_per_byte"] is None
    sample = events(one, "sample")[-1]
    assert "[…]" in sample["prompt"]
    assert "[…]" not in sample["text"]
    assert type(load(disk.newest(one).path)).__name__ == "BertForMaskedLM"


def test_what_a_masked_model_needs_is_said(kit: Kit):
    with pytest.raises(UsageError, match=r"needs a mask token.*--special"):
        kit.train("no-mask", model="bert-nano")
    with pytest.raises(UsageError, match="bert-nano predicts hidden tokens"):
        objective.choose("clm", "bert-nano")
    with pytest.raises(UsageError, match="llama-nano predicts the next token"):
        objective.choose("mlm", "llama-nano")
    assert [objective.choose("auto", name) for name in ("bert-nano", "moe-nano")] == ["mlm", "clm"]
    for model, what in (("bert-nano", "masked models"), (model_of("moe-nano"), "mixtures of experts")):
        with pytest.raises(UsageError, match=f"isn't proven for {what}"):
            objective.check_parallel("fsdp", model)
        objective.check_parallel("ddp", model)
    objective.check_parallel("fsdp", "llama-nano")
