"""QLoRA: learns on a base in 4 bits, comes back, merges into what the 4 bits stand for, and gradients don't vanish."""

import importlib.util

import pytest
import torch

from nbllm import adapters
from nbllm.adapters.four_bit import base_of, dequantize_base, quantize_base
from nbllm.errors import UsageError
from nbllm.model import build, load, parameter_count

needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="the extra `quant` isn't installed"
)
IDS = torch.arange(24).reshape(2, 12) * 5 % 97


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


@pytest.fixture
def base(tmp_path):
    def make(preset="llama-nano"):
        model = build(preset, vocab_size=97, max_length=64, bos_id=0, eos_id=0, pad_id=1, seed=3)
        model.save_pretrained(tmp_path / preset)
        return tmp_path / preset

    return make


def test_without_bitsandbytes_the_extra_is_named(base, monkeypatch):
    model = load(base())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"nbllm\[quant\]"):
        quantize_base(model)


def test_an_adapter_of_a_base_in_four_bits_says_so(base, tmp_path):
    model = load(base())
    adapters.create(model, r=2, alpha=4)
    adapters.save(model, tmp_path / "a")
    assert adapters.wanted_base(tmp_path / "a") is None
    (tmp_path / "a" / "base_quantization.json").write_text('{"kind": "nf4"}')
    with pytest.raises(UsageError, match="4 bits"):
        adapters.attach(load(base()), tmp_path / "a")
    (tmp_path / "a" / "base_quantization.json").write_text('{"kind": "fp2"}')
    with pytest.raises(UsageError, match="fp2"):
        adapters.prepare_base(load(base()), tmp_path / "a")


@needs_bitsandbytes
@pytest.mark.parametrize("preset", ["llama-nano", "gpt2-nano"])
def test_it_learns_comes_back_and_merges(preset, base, tmp_path):
    folder = base(preset)
    model = load(folder)
    plain, count = logits(model), parameter_count(model)
    adapters.create(model, method="qlora", r=4, alpha=8, base=str(folder))
    assert adapters.in_four_bits(model)
    assert parameter_count(model) - parameter_count(model, trainable=True) == count
    rounded = logits(model)
    assert 1e-3 < (rounded - plain).abs().max() < 0.5
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=0.02)
    losses = []
    for _ in range(6):
        logits(model)  # in eval mode between the steps, as a run samples
        loss = model.train()(input_ids=IDS, labels=IDS).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(weight.grad.abs().max() > 0 for weight in weights)
    assert losses[-1] < losses[0]
    expected = logits(model)
    adapters.save(model, tmp_path / "a")
    adapters.detach(model)
    torch.testing.assert_close(logits(model), rounded)
    other = load(folder)
    adapters.prepare_base(other, tmp_path / "a")
    adapters.attach(other, tmp_path / "a")
    torch.testing.assert_close(logits(other), expected, rtol=1e-4, atol=1e-4)
    adapters.set_scale(other, 0)
    torch.testing.assert_close(logits(other), rounded, rtol=1e-4, atol=1e-4)
    merged = load(adapters.merge(None, tmp_path / "a", tmp_path / "merged"))
    assert base_of(merged) is None
    torch.testing.assert_close(logits(merged), expected, rtol=1e-4, atol=1e-4)


@needs_bitsandbytes
def test_dense_again_it_says_the_same(base):
    model = load(base("gpt2-nano"))
    names = {name for name, _ in model.named_parameters()}
    quantize_base(model)
    rounded = logits(model)
    dequantize_base(model)
    torch.testing.assert_close(logits(model), rounded, rtol=1e-4, atol=1e-4)
    assert {name for name, _ in model.named_parameters()} == names


@needs_bitsandbytes
def test_under_autocast_the_layers_compute_in_its_dtype(base):
    model = load(base())
    quantize_base(model)
    layer = model.model.layers[0].mlp.up_proj
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(3, 128)).dtype == torch.bfloat16
    assert layer(torch.randn(3, 128)).dtype == torch.float32
