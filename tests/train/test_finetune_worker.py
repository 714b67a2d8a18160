"""Fine-tuning through the worker: every method resumes exactly, and a sentence learnt with pad = eos ends by itself."""

import importlib.util
import json

import pytest
import torch
from group_kit import train_group
from test_worker_runs import Crash, crash_after
from worker_kit import Kit, events, kit, losses, train

from nbllm import shards as shards_room
from nbllm.adapters import attach, merge
from nbllm.chat import find_records, make_examples
from nbllm.errors import RunError
from nbllm.export import export
from nbllm.model import load
from nbllm.sample import SamplingParameters, chat_prompt, generate
from nbllm.store import Parent
from nbllm.tokenizer import Tokenizer
from nbllm.train import checkpoint as disk
from nbllm.train.loss_model import LossModel
from nbllm.train.silence import SilenceWatch

__all__ = ["kit"]  # the fixture


QLORA = ("qlora",) if importlib.util.find_spec("bitsandbytes") else ()
METHODS = ["lora", "dora", "ia3", "adapter", "prompt", "prefix", *QLORA]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_and_resumes_exactly(kit: Kit, monkeypatch, method):
    setting = {"shards": kit.examples.name, "steps": 8, "save_every": 4, "eval_every": 2, "lr": 0.02}
    setting["adapter"] = {"method": method, "dropout": 0.2}
    whole = kit.train(f"whole-{method}", **setting)
    held_out = [event["eval_loss"] for event in events(whole, "eval")]
    assert held_out[-1] < held_out[0]
    broken = kit.run_folder(f"broken-{method}", **setting)
    with monkeypatch.context() as patch:
        crash_after(patch, 6)
        with pytest.raises(Crash):
            train(broken)
    train(broken, resume=True)
    assert losses(broken) == losses(whole)
    last = [disk.newest(folder).path / "adapter_model.safetensors" for folder in (whole, broken)]
    assert last[0].read_bytes() == last[1].read_bytes()


@pytest.mark.parametrize(
    "methods",
    [("lora", "prefix", "prompt"), pytest.param(("dora", "ia3", "adapter", *QLORA), marks=pytest.mark.slow)],
)
def test_two_processes_train_the_adapter_that_one_does(kit: Kit, methods):
    base = kit.train(f"base-{methods[0]}", steps=1, seq_len=64)
    setting = {"model": str(disk.newest(base).path), "shards": kit.examples.name, "steps": 4, "lr": 0.01}
    pairs = []
    for method in methods:
        adapter = {"adapter": {"method": method, "dropout": 0.0, "virtual_tokens": 4}}
        one = kit.train(f"one-{method}", batch_size=8, **setting, **adapter)
        pairs.append((one, kit.run_folder(f"two-{method}", batch_size=4, processes=2, **setting, **adapter)))
    train_group([(two, False) for _, two in pairs])
    for one, two in pairs:
        assert events(two, "start")[0]["world_size"] == 2
        assert losses(two) == pytest.approx(losses(one), rel=1e-4), one.name


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_frozen_base_lies_in_the_precision_of_the_run_and_no_loss_changes_for_it(kit: Kit, monkeypatch, precision):
    setting = {"shards": kit.examples.name, "adapter": {"dropout": 0.1}, "precision": precision, "lr": 0.01}
    kept = []
    real = LossModel.__init__

    def looking(self, model, **rest):
        kept.append(model.model.layers[0].mlp.up_proj.base_layer.weight.dtype)
        real(self, model, **rest)

    monkeypatch.setattr(LossModel, "__init__", looking)
    narrow = kit.train(f"narrow-{precision}", **setting)
    assert kept == [{"bf16": torch.bfloat16, "fp32": torch.float32}[precision]]
    assert events(narrow, "start")[0]["weights"] == "fp32"  # of what is trained
    if precision == "bf16":
        monkeypatch.setattr("nbllm.adapters.narrow_base", lambda *_: 0)
        assert losses(kit.train("wide", **setting)) == losses(narrow)


def test_a_gguf_file_is_a_base_like_another(kit: Kit, tmp_path):
    base = disk.newest(kit.train("for-gguf", steps=1, seq_len=64)).path
    file = export(base, tmp_path / "out", to="gguf", gguf_type="f32").file
    setting = {"shards": kit.examples.name, "steps": 4, "lr": 0.01, "adapter": {"dropout": 0.0}}
    from_file = kit.train("on-gguf", model=str(file), **setting)
    from_folder = kit.train("on-folder", model=str(base), **setting)
    assert losses(from_file) == pytest.approx(losses(from_folder), rel=1e-4)
    adapter = disk.newest(from_file).path
    model = load(file)
    attach(model, adapter)
    ids = torch.arange(12)[None] * 5 % 97
    merged = load(merge(None, adapter, tmp_path / "merged"))  # the adapter names the file
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


def test_a_run_whose_adapter_gets_no_gradient_stops_and_says_so(kit: Kit, monkeypatch):
    own = LossModel.from_hidden

    def silenced(self, hidden, *rest):
        return own(self, hidden * 0 + hidden.detach(), *rest)

    monkeypatch.setattr(LossModel, "from_hidden", silenced)
    folder = kit.run_folder("silent", adapter={"method": "lora"}, shards=kit.examples.name)
    with pytest.raises(RunError, match="70 of 70 trained tensors got no gradient"):
        train(folder)
    assert not events(folder, "step")


def test_half_of_the_tensors_without_a_gradient_are_noticed_after_three_steps():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(4)]
    watch = SilenceWatch({id(weight): f"w{number}" for number, weight in enumerate(weights)})
    for weight in weights:
        weight.grad = torch.ones(2)
    weights[0].grad, weights[1].grad = None, torch.zeros(2)
    watch.look(weights)
    watch.look(weights)
    with pytest.raises(RunError, match=r"2 of 4 .* 3 steps, such as w0"):
        watch.look(weights)


def test_a_sentence_learnt_with_pad_as_eos_is_said_and_ends_by_itself(kit: Kit, tmp_path):
    tokenizer = kit.tokenizer
    config = {**tokenizer.config, "pad_token": tokenizer.config["eos_token"]}
    tokenizer = Tokenizer(tokenizer.definition, config=config, name="same")
    assert tokenizer.pad_id == tokenizer.eos_id
    rows = [{"instruction": "the cat", "output": "sat on a mat and ran."}]
    found = make_examples(find_records(rows), tokenizer, format="instruction", held_out=0.0, seq_len=64)
    shards = shards_room.build(
        kit.store,
        kit.tokenizer,
        train=found.train,
        parents=[Parent(kind="file", name="rows", hash=found.hash), kit.tokenizer.as_parent()],
        parameters={},
    )
    meta = shards.folder / "train" / "meta.json"
    assert json.loads(meta.read_text())["eos_id"] == tokenizer.eos_id
    setting = {"shards": shards.name, "tokenizer": kit.tokenizer.name, "seq_len": 64, "batch_size": 1, "lr": 0.01}
    base = kit.train("before-sentence", steps=1, seq_len=128)
    folder = kit.train(
        "sentence", model=str(disk.newest(base).path), steps=60, adapter={"dropout": 0.0, "r": 16}, **setting
    )
    model = load(disk.newest(base).path)
    attach(model, disk.newest(folder).path)
    prompt = chat_prompt(found.tokenizer, "the cat")
    made = generate(model, found.tokenizer, prompt, SamplingParameters(max_new_tokens=40, greedy=True))
    assert made.text == "sat on a mat and ran."
    assert made.stop_reason == "eos"
