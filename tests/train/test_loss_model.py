"""The model with its loss: fused and plain agree, what is active is said, what can't be fused is refused."""

import pytest
import torch
import transformers
from torch import nn
from worker_kit import Kit, events, kit, losses

from nbllm import adapters
from nbllm.errors import UsageError
from nbllm.model import build
from nbllm.train import checkpoint as disk
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


def gemma(kind):
    shape = {
        "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 32, "initializer_range": 0.5,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "final_logit_softcapping": 3.0,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**shape)
    torch.manual_seed(0)
    return getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).train()


@pytest.mark.parametrize("kind", ["Gemma2", "Gemma3Text"])
def test_gemmas_capped_logits_go_through_the_linear_loss(kind):
    found = {}
    for fused in ("off", "torch"):
        model = gemma(kind)
        whole = LossModel(model, fused=fused, settings={})
        assert (whole.fused, whole.softcap) == (fused, 3.0)
        loss = whole(*batch())
        loss.backward()
        found[fused] = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
    for fused, plain in zip(found["torch"], found["off"], strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    capped = LossModel(gemma(kind), fused="torch", settings={})
    capped.softcap = None
    assert capped(*batch()).item() != pytest.approx(found["torch"][0].item(), rel=1e-2)


def test_a_run_says_what_is_active_and_loses_nothing(kit: Kit):
    runs = {fused: kit.train(f"fused-{fused}", fused=fused) for fused in ("off", "torch")}
    assert [events(folder, "start")[0]["fused"] for folder in runs.values()] == ["off", "torch"]
    assert events(runs["torch"], "start")[0]["fused_why"] == "asked for"
    assert losses(runs["torch"]) == pytest.approx(losses(runs["off"]), rel=1e-4)
    last = [events(folder, "eval")[-1]["eval_loss"] for folder in runs.values()]
    assert last[1] == pytest.approx(last[0], rel=1e-4)


@pytest.mark.parametrize("targets", ["auto", "lm_head"])
def test_fine_tuning_takes_the_linear_loss_unless_the_head_is_adapted(kit: Kit, targets):
    base = kit.train(f"base-of-{targets}", steps=1)
    model = str(disk.newest(base).path)
    setting = {"model": model, "steps": 4, "lr": 0.01, "adapter": {"targets": targets, "dropout": 0.0}}
    runs = {fused: kit.train(f"{targets}-{fused}", fused=fused, **setting) for fused in ("off", "auto")}
    start = events(runs["auto"], "start")[0]
    assert start["fused"] == ("torch" if targets == "auto" else "off")
    assert ("adapter" in start["fused_why"]) == (targets == "lm_head")
    assert losses(runs["auto"]) == pytest.approx(losses(runs["off"]), rel=1e-4)
    assert losses(runs["auto"])[4] < losses(runs["auto"])[1]
