"""Which kernels a run takes: asked for, measured as faster, or none, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm import ops
from nbllm.errors import UsageError
from nbllm.ops import backend
from nbllm.train import fused


def model() -> Any:
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, **shape))


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model that says it lies on a GPU, where Triton could be used."""
    monkeypatch.setenv("NBLLM_CACHE", str(tmp_path))
    monkeypatch.setattr(backend, "_chosen", frozenset())
    monkeypatch.setattr(ops, "triton_problem", lambda: None)
    made = model()
    monkeypatch.setattr(fused, "_device", lambda model: "cuda")
    return made


def test_without_a_gpu_nothing_is_patched_and_asking_is_refused() -> None:
    made = model()
    classes = [type(module) for module in made.modules()]
    found = fused.choose(made, fused="auto")
    assert (found.loss, found.layers, found.why) == (False, (), "no GPU")
    assert [type(module) for module in made.modules()] == classes
    with pytest.raises(UsageError, match="no GPU"):
        fused.choose(made, fused="triton")
    said = found.event("torch", "asked for")
    assert said["fused"] == "torch"
    assert said["fused_summary"] == "loss without logits in PyTorch (asked for), layers the model's own (no GPU)"


def test_auto_takes_nothing_that_was_not_measured_on_this_gpu(gpu: Any) -> None:
    found = fused.choose(gpu, fused="auto")
    assert found.layers == ()
    assert "%llm_bench --ops" in found.why
    ops.keep_faster([])
    assert "none faster" in fused.choose(gpu, fused="auto").why
    assert not backend.runs_in_triton("rope", torch.zeros(1))


def test_auto_takes_what_was_measured_as_faster(gpu: Any) -> None:
    ops.keep_faster(["swiglu", "linear_loss"])
    found = fused.choose(gpu, fused="auto")
    assert found.loss
    assert found.layers == ("swiglu in 1 LlamaMLP",)
    assert backend._chosen == {"swiglu", "linear_loss"}
    assert found.event("torch", "equal")["fused"] == "triton"
    assert found.event("off", "no plain head")["fused"] == "off"


def test_asked_for_every_kernel_is_taken_and_off_takes_them_back(gpu: Any) -> None:
    found = fused.choose(gpu, fused="triton")
    assert found.loss
    assert [words.split()[0] for words in found.layers] == ["rms_norm", "add_rms_norm", "swiglu", "rope"]
    assert backend._chosen == set(ops.KERNELS)
    assert fused.choose(model(), fused="torch").layers == ()
    assert backend._chosen == frozenset()


def test_a_plan_that_cuts_matrices_is_refused(gpu: Any) -> None:
    with pytest.raises(UsageError, match="aren't proven under --parallel tp"):
        fused.choose(gpu, fused="triton", parallel="tp")
    assert fused.choose(gpu, fused="auto", parallel="tp").layers == ()
