"""The compiled step: the module it is made from gives the model's logits; made, loaded and used it changes no text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tiny_models import build, family

from nbllm.model import quantize
from nbllm.sample import SamplingParameters, generate
from nbllm.sample import compiled as compiling
from nbllm.sample.compiled import Compiled
from nbllm.sample.forward import Forward
from nbllm.sample.slots import Slots
from nbllm.sample.step import Step
from nbllm.tokenizer import Tokenizer

PROMPT = "The quick brown fox jumps over the lazy dog."


def steps(model: Any, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits after each of the ids but the first four: the model's own, and its step's."""
    forward, step = Forward(model), Step(model)
    slots = Slots(Slots.layers_of(model.config) or 0)
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, 4:].float()
        forward(torch.tensor([ids[:4]]), positions=torch.arange(4)[None], mask=None, cache=slots)
        keys, values = [layer.keys for layer in slots.layers], [layer.values for layer in slots.layers]
        found = [step(torch.tensor([[id]]), torch.tensor([place]), keys, values) for place, id in enumerate(ids[4:], 4)]
    return wanted, torch.cat(found)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3", "mixtral", "gemma3", "mistral"])
def test_a_step_is_the_model(kind: str, tokenizer: Tokenizer) -> None:
    """Also past a sliding window of 16."""
    wanted, found = steps(family(kind, tokenizer), tokenizer.encode(PROMPT)[:40])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_lora_is_merged_into_the_step_alone(tokenizer: Tokenizer) -> None:
    model = build("llama", tokenizer)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    config = peft.LoraConfig(target_modules=["q_proj", "down_proj"], r=2, init_lora_weights=False)
    peft.inject_adapter_in_model(config, model)
    wanted, found = steps(model, tokenizer.encode(PROMPT)[:20])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    after = {name.replace("base_layer.", ""): weight for name, weight in model.named_parameters()}
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


@pytest.mark.parametrize("kind", [None, "int4"])
def test_made_loaded_and_used(
    kind: str | None, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBLLM_CACHE", str(tmp_path))
    monkeypatch.delenv("NBLLM_COMPILE")
    model = build("llama", tokenizer, layers=1, width=64, vocab_size=320)
    model = quantize(model, kind) if kind else model
    plain = generate(model, tokenizer, PROMPT, SamplingParameters(seed=2, max_new_tokens=30))
    assert not plain.compiled
    state = Forward.of(model).compiled
    assert state.wait(240), state.why_not
    found = generate(model, tokenizer, PROMPT, SamplingParameters(seed=2, max_new_tokens=30))
    assert found.compiled
    assert state.why_not is None
    assert found.tokens == plain.tokens
    assert found.logprobs == pytest.approx(plain.logprobs, abs=1e-3)
    model.model.norm.weight = torch.nn.Parameter(torch.full_like(model.model.norm.weight, -2.0))  # put in its place
    changed = generate(model, tokenizer, PROMPT, SamplingParameters(seed=2, max_new_tokens=30))
    assert changed.compiled
    assert changed.tokens == generate(
        model, tokenizer, PROMPT, SamplingParameters(seed=2, max_new_tokens=30), use_cache=False
    ).tokens  # fmt: skip
    other = build("llama", tokenizer, layers=1, width=64, vocab_size=320)  # the package is on disk
    with torch.no_grad():
        other.lm_head.weight.neg_()
    other = quantize(other, kind) if kind else other
    fresh = generate(other, tokenizer, PROMPT, SamplingParameters(seed=2, max_new_tokens=30))
    assert fresh.compiled
    assert (
        fresh.tokens
        == generate(other, tokenizer, PROMPT, SamplingParameters(seed=2, max_new_tokens=30), use_cache=False).tokens
    )


def test_what_fails_leaves_the_plain_step(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBLLM_CACHE", str(tmp_path))
    monkeypatch.delenv("NBLLM_COMPILE")
    monkeypatch.setattr(compiling, "PATIENCE", 4)
    monkeypatch.setattr(compiling, "_LOOK_S", 0.0)
    model = build("llama", tokenizer)
    state = Forward.of(model).compiled
    monkeypatch.setattr(Compiled, "_start", lambda *_: (_ for _ in ()).throw(OSError("no room left")))
    wanted = generate(model, tokenizer, PROMPT, SamplingParameters(seed=2, max_new_tokens=30), use_cache=False)
    found = generate(model, tokenizer, PROMPT, SamplingParameters(seed=2, max_new_tokens=30))
    assert found.tokens == wanted.tokens
    assert not found.compiled
    assert state.why_not == "OSError: no room left"


def test_a_failure_is_remembered_until_it_is_cleared(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBLLM_CACHE", str(tmp_path))
    monkeypatch.delenv("NBLLM_COMPILE")
    started = []

    def fails(self: Compiled, job: Any) -> None:
        assert self._folder is not None
        started.append(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "log.txt").open("w") as log:
            code = "import sys; sys.exit('no room left on the device')"
            self._process = subprocess.Popen([sys.executable, "-c", code], stderr=log)

    monkeypatch.setattr(Compiled, "_start", fails)
    model = build("llama", tokenizer)
    first = Compiled(model)
    assert not first.wait(20)
    assert first.failed
    assert first.why_not == "compiling failed: no room left on the device"
    later = Compiled(model)  # as the next kernel has it
    assert not later.wait(20)
    assert (later.failed, later.why_not, len(started)) == (True, first.why_not, 1)
    later.try_again()
    assert not later.failed
    assert not later.wait(20)
    assert len(started) == 2
    other = Compiled(model)
    monkeypatch.setattr(compiling, "_compiler", lambda: "/another/g++")
    assert not other.wait(20)
    assert len(started) == 3


def test_being_stopped_is_no_failure(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBLLM_CACHE", str(tmp_path))
    monkeypatch.delenv("NBLLM_COMPILE")
    model = build("llama", tokenizer)
    state = Compiled(model)

    def stopped(self: Compiled, job: Any) -> None:
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "log.txt").write_text("Terminated")
        self._process = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"])

    monkeypatch.setattr(Compiled, "_start", stopped)
    assert not state.wait(20)
    assert not state.failed
    assert not list(tmp_path.rglob("failed.json"))
