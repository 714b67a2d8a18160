"""Faults planted in small real runs: each is found while the run goes; a healthy run has no finding."""

import dataclasses
import time

import numpy as np
import pytest
import torch
from worker_kit import Kit, events, texts

from nbllm import shards as room
from nbllm.errors import RunError
from nbllm.findings import Curves, Finding, look
from nbllm.model import PRESETS
from nbllm.model.presets import Preset
from nbllm.shards import Loader
from nbllm.train import faults, setup, trainer, worker
from nbllm.train.watch import WatchedJournal

PICO = Preset(family="llama", width=32, layers=2, heads=2, kv_heads=2, ffn=64, tied=True, summary="for tests")
SHAPE = {"steps": 60, "batch_size": 8, "seq_len": 64, "optimizer": "adamw", "lr": 1e-2, "warmup": 5}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A preset of 30,000 parameters; a machine with memory, and one thread."""
    monkeypatch.setitem(PRESETS, "pico", PICO)
    monkeypatch.setattr(trainer, "memory_of", lambda device: (10**12, 2 * 10**12))
    monkeypatch.setattr(worker, "memory_of", lambda device: (10**12, 2 * 10**12))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A store with plenty of text, with twelve documents, and with those many times over."""
    kit = Kit(tmp_path_factory.mktemp("store"))
    few = texts(12, 2)
    for name, train in (("plenty", texts(2000, 2)), ("few", few), ("doubled", few * 100)):
        made = room.build(
            kit.store, kit.tokenizer, train=train, held_out=texts(40, 3),
            parents=[kit.tokenizer.manifest.as_parent()], parameters={"kind": name},
        )  # fmt: skip
        setattr(kit, name, made.name)
    return kit


def found(lab, name, **changes):
    """The findings of a run, by name."""
    folder = lab.run_folder(name, **{"model": "pico", "shards": lab.plenty, **SHAPE, **changes})
    try:
        from worker_kit import train

        train(folder)
    except RunError:
        assert events(folder, "nonfinite"), "only numbers that aren't finite end a run"
    return {event["title"]: Finding.from_event(event) for event in events(folder, "finding")}


def planted(monkeypatch, change):
    """Every model that is trained is changed first."""
    make = setup.make_model

    def changed(*arguments, **options):
        model = make(*arguments, **options)
        change(model)
        return model

    monkeypatch.setattr(setup, "make_model", changed)


def test_a_healthy_run_has_no_finding(lab):
    assert found(lab, "healthy", steps=100, eval_every=25) == {}
    assert found(lab, "muon", steps=100, eval_every=25, optimizer="muon", lr=None) == {}


def test_a_spike(lab, monkeypatch):
    take, taken = Loader.next_batch, []

    def bad(self):
        batch = take(self)
        taken.append(1)
        if len(taken) == 50:  # text of another kind
            rows = batch.micro_batches[0]
            draw = np.random.default_rng(0)
            garbage = dataclasses.replace(rows, targets=draw.integers(0, 300, rows.targets.shape))
            return dataclasses.replace(batch, micro_batches=[garbage])
        return batch

    monkeypatch.setattr(Loader, "next_batch", bad)
    one = found(lab, "spike", steps=70)["loss spike"]
    assert one.step == 50
    assert "and came back; the gradient norm was" in one.evidence
    assert "--lr 0.005 " in one.command


def test_numbers_that_are_not_finite_and_where_they_come_from(lab, monkeypatch):
    calls = []

    def change(model):
        def poison(module, inputs, output):
            calls.append(1)
            return output * float("nan") if len(calls) > 30 else output

        model.model.layers[1].mlp.register_forward_hook(poison)

    planted(monkeypatch, change)
    one = found(lab, "poisoned")["numbers that aren't finite"]
    assert one.severity == "serious"
    assert f"the loss of step {one.step} isn't finite" in one.evidence
    assert "first in the output of model.layers.1.mlp" in one.evidence


def test_a_gradient_that_is_not_finite(lab, monkeypatch):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(context, states):
            return states.clone()

        @staticmethod
        def backward(context, gradient):
            calls.append(1)
            return gradient * float("inf") if len(calls) > 10 else gradient

    calls = []
    planted(monkeypatch, lambda model: model.model.norm.register_forward_hook(lambda m, i, o: Broken.apply(o)))
    one = found(lab, "overflowing", steps=14)["numbers that aren't finite"]
    assert one.step == 11
    assert "the gradient of step 11 isn't finite" in one.evidence
    assert "first in the gradient of model.norm.weight" in one.evidence


def test_looking_for_the_fault_changes_nothing(lab):
    from nbllm.model import build
    from nbllm.train.loss_model import LossModel

    model = build("pico", vocab_size=300, max_length=64, bos_id=0, eos_id=0, pad_id=0, seed=1)
    inner = LossModel(model, fused="off", settings={})
    ids = torch.zeros(1, 4, dtype=torch.int64)
    before, state = [one.detach().clone() for one in model.parameters()], torch.get_rng_state()
    with torch.no_grad():
        model.model.layers[0].input_layernorm.weight[0] = float("inf")
    assert faults.locate(inner, [(ids, ids, ids)], autocast=torch.enable_grad)["weights"]
    with torch.no_grad():
        model.model.layers[0].input_layernorm.weight[0] = 1.0
    assert "too large" in faults.locate(inner, [(ids, ids, ids)], autocast=torch.enable_grad)["where"]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_divergence(lab):
    one = found(lab, "hot", lr=3.0, clip=0)["the loss diverges"]
    assert one.severity == "serious"
    assert "--lr 1 " in one.command


def test_a_rate_that_throws_the_model_off_at_once(lab, monkeypatch):
    # wide enough to suffer from a rate that a smaller model bears
    monkeypatch.setitem(PRESETS, "pico", dataclasses.replace(PICO, width=128, ffn=256, layers=3))
    have = found(lab, "thrown", lr=0.1, warmup=0)
    one = have["the first steps throw the model off"]
    assert one.severity == "serious"
    assert one.step < 20
    assert "after 0 steps of warm-up" in one.evidence
    assert "--lr 0.01 " in one.command
    assert "--warmup 10" in one.command


def test_a_first_loss_of_an_easy_text_is_no_rise():
    swings = np.random.default_rng(0).normal(2.5, 0.4, 100)
    easy = run_of(loss=lambda step: 1.5 if step == 1 else float(swings[step]))
    assert "the first steps throw the model off" not in [finding.name for finding in look(easy)]
    rise = run_of(loss=lambda step: {1: 7.6, 2: 8.2}.get(step, 12.0 if step < 9 else 6.5 - step / 200 + step % 3 / 50))
    one = {finding.name: finding for finding in look(rise)}["the first steps throw the model off"]
    assert one.step == 3
    assert "began at 7.600 and was 12.000" in one.evidence


def test_a_plateau(lab):
    assert "the loss stands still" in found(lab, "flat", steps=100, lr=1e-7, schedule="constant")


def test_overfitting(lab):
    one = found(lab, "overfit", steps=120, eval_every=15, shards=lab.few, schedule="constant")["overfitting"]
    assert one.command.endswith("--early-stop 2")


def test_a_warm_up_that_is_dead_or_too_long(lab):
    assert "dead warm-up" in found(lab, "dead", warmup=50, lr=1e-6)
    one = found(lab, "long", warmup=40, lr=3e-3)["the warm-up is too long"]
    assert one.command.endswith("--warmup 10")


def test_a_learning_rate_of_nothing(lab, monkeypatch):
    share = trainer.lr_share
    monkeypatch.setattr(trainer, "lr_share", lambda step, **more: 0.0 if step >= 20 else share(step, **more))
    assert found(lab, "stopped")["the learning rate is 0"].step == 21


def test_clipping_that_never_stops(lab):
    one = found(lab, "clipped", clip=0.01)["clipping is always on"]
    assert "100% of the" in one.evidence


def test_a_batch_that_is_too_small(lab):
    one = found(lab, "tiny", steps=160, batch_size=1, seq_len=12, lr=1e-3)["the global batch is small"]
    assert "a step sees 12 tokens" in one.evidence
    assert "--grad-accum" in one.command


def test_memory_near_its_limit(lab, monkeypatch):
    monkeypatch.setattr(trainer, "memory_of", lambda device: (10**7, 10**9))
    monkeypatch.setattr(worker, "memory_of", lambda device: (10**7, 10**9))
    one = found(lab, "full", steps=24)["memory is near its limit"]
    assert "0.01 of 1.00 GB are free" in one.evidence
    assert "--batch-size 4 --grad-accum 2" in one.command


def test_a_device_that_waits_for_its_data(lab, monkeypatch):
    take = Loader.next_batch
    monkeypatch.setattr(Loader, "next_batch", lambda self: (time.sleep(0.15), take(self))[1])
    assert "the device waits for its data" in found(lab, "idle", steps=42, batch_size=1)


def test_duplicates_behind_a_loss_that_falls_too_fast(lab):
    one = found(lab, "doubled", eval_every=30, shards=lab.doubled, lr=2e-2)
    assert one["the training loss is too good to be true"].command == "%llm_doctor doubled"


def test_parts_that_are_frozen_untied_or_unreached(lab, monkeypatch):
    def change(model):
        model.model.layers[0].mlp.requires_grad_(False)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.model.layers[1].self_attn.register_forward_hook(lambda m, i, o: (o[0] * 0, *o[1:]))

    planted(monkeypatch, change)
    have = found(lab, "parts", steps=6)
    assert "3 tensors take no gradient" in have["a part is frozen"].evidence
    assert "model.layers.0.mlp.gate_proj.weight" in have["a part is frozen"].evidence
    assert "model.layers.1.self_attn.q_proj.weight" in have["a part gets no gradient"].evidence
    assert "the head is untied" in have


def test_a_model_that_does_not_know_the_tokens(lab, tmp_path):
    from nbllm.model import build

    build("pico", vocab_size=300, max_length=64, bos_id=0, eos_id=0, pad_id=0, seed=1).save_pretrained(tmp_path / "m")
    one = found(lab, "foreign", steps=4, model=str(tmp_path / "m"))["the model doesn't know these tokens"]
    assert one.severity == "serious"


def run_of(count=80, **fields):
    """A made-up log."""
    curves = Curves({"clip": 1.0, "lr": 1e-3}, {"method": "train", "arguments": {"corpus": "web", "lr": 1e-3}})
    curves.add({"kind": "start", "step": 0, "lr": 1e-3, "total_steps": count})
    for step in range(1, count + 1):
        event = {"kind": "step", "step": step, "loss": 5 - step / count, "lr": 1e-3, "grad_norm": 0.5}
        curves.add(event | {name: value(step) for name, value in fields.items()})
    return curves


def test_a_scale_that_collapses():
    curves = run_of(scale=lambda step: 65536.0 / 2 ** max(0, step - 40), skipped=lambda step: step > 40)
    one = {finding.name: finding for finding in look(curves)}["the gradient scale collapses"]
    assert one.step == 41
    assert one.command == "%llm_train --corpus web --lr 0.001 --precision bf16"
    assert not look(run_of(scale=lambda step: 65536.0 / 2 ** min(step, 4), skipped=lambda step: step < 5))


def test_a_finding_is_written_once_and_not_again_by_a_resumed_run(tmp_path):
    for generation in (0, 1):
        journal = WatchedJournal(tmp_path, generation=generation, config={"clip": 1.0})
        journal.write("start", step=80 * generation, lr=1e-3, total_steps=160, vocab_size=0)
        for step in range(80 * generation + 1, 80 * generation + 81):
            journal.write("step", step=step, loss=5 - step / 80, lr=1e-3, grad_norm=50.0)
        journal.write("end", step=80 * generation + 80)
        journal.close()
    (one,) = events(tmp_path, "finding")
    fields = {"title", "severity", "evidence", "remedy", "command", "step"}
    assert one["title"] == "clipping is always on"
    assert Finding.from_event(one).as_event() == {key: value for key, value in one.items() if key in fields}


def test_a_long_log_is_looked_at_quickly_enough():
    curves = run_of(30_000)
    began = time.process_time()
    assert look(curves) == []
    assert time.process_time() - began < 5
