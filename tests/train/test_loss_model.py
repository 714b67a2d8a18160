"""The model with its loss: fused and plain agree, what is active is said, what can't be fused is refused."""

import pytest
import torch
from torch import nn
from worker_kit import Kit, events, kit, losses

from nbllm import adapters
from nbllm.errors import UsageError
from nbllm.model import build
from nbllm.train.loss_model import LossModel

__all__ = ["kit"]  # a fixture

SETTINGS = {"focal_gamma": 2.0, "label_smoothing": 0.1, "z_loss": 1e-3}


def model_of(preset="llama-nano"):
    return build(preset, vocab_size=300, max_length=32, bos_id=0, eos_id=1, pad_id=2, seed=0).train()


def batch():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(300, (3, 16), generator=generator)
    targets = ids.roll(-1, 1)
    targets[:, -4:] = -100
    return ids, targets, torch.arange(16).expand(3, 16)


@pytest.mark.parametrize("preset", ["llama-nano", "gpt2-nano"])
@pytest.mark.parametrize("settings", [{}, SETTINGS])
def test_the_fused_loss_and_its_gradients_are_those_of_all_logits(preset, settings):
    found = {}
    for fused in ("off", "auto"):
        model = model_of(preset)
        whole = LossModel(model, fused=fused, settings=settings)
        assert whole.fused == ("off" if fused == "off" else "torch")
        loss = whole(*batch(), torch.tensor(0.5))
        loss.backward()
        found[fused] = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
    for fused, plain in zip(found["auto"], found["off"], strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)


def test_an_adapter_on_the_head_is_not_left_out():
    model = model_of()
    model.tie_weights = lambda *_, **__: None
    adapters.create(model, r=2, alpha=4, targets=["lm_head"])
    whole = LossModel(model, fused="auto", settings={})
    assert whole.fused == "off"
    assert "adapter" in whole.why
    with pytest.raises(UsageError, match="fused loss can't be used"):
        LossModel(model, fused="torch", settings={})


def test_a_model_that_does_more_than_a_linear_head_is_found_out():
    model = model_of()
    forward = model.forward

    def scaled(**inputs):
        output = forward(**inputs)
        output.logits = output.logits * 3
        return output

    model.forward = scaled
    whole = LossModel(model, fused="auto", settings={})
    assert whole.fused == "off"
    assert "more with its hidden states" in whole.why


def test_a_softcap_is_taken_from_the_config():
    model = model_of()
    assert LossModel(model, fused="torch", settings={}).softcap is None
    nn.init.normal_(model.get_output_embeddings().weight)
    forward = model.forward

    def capped(**inputs):
        output = forward(**inputs)
        output.logits = 2 * torch.tanh(output.logits / 2)
        return output

    model.forward = capped
    model.config.final_logit_softcapping = 2.0
    assert LossModel(model, fused="auto", settings={}).fused == "torch"


def test_a_run_says_what_is_active_and_loses_nothing(kit: Kit):
    runs = {fused: kit.train(f"fused-{fused}", fused=fused) for fused in ("off", "torch")}
    assert [events(folder, "start")[0]["fused"] for folder in runs.values()] == ["off", "torch"]
    assert events(runs["torch"], "start")[0]["fused_why"] == "asked for"
    assert losses(runs["torch"]) == pytest.approx(losses(runs["off"]), rel=1e-4)
    last = [events(folder, "eval")[-1]["eval_loss"] for folder in runs.values()]
    assert last[1] == pytest.approx(last[0], rel=1e-4)
