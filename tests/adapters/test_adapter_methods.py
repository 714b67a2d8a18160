"""Every method on a small model: starts as nothing, learns, comes back from its folder, merges where it can."""

import pytest
import torch

from nbllm import adapters
from nbllm.adapters.outline import outline
from nbllm.errors import UsageError
from nbllm.model import build, load

IDS = torch.arange(24).reshape(2, 12) * 5 % 97


@pytest.fixture
def base(tmp_path):
    def make(preset="llama-nano"):
        model = build(preset, vocab_size=97, max_length=64, bos_id=0, eos_id=0, pad_id=1, seed=3)
        model.save_pretrained(tmp_path / preset)
        return tmp_path / preset

    return make


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def learn(model, steps=8):
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=0.02)
    losses = []
    for _ in range(steps):
        loss = model.train()(input_ids=IDS, labels=IDS).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(weight.grad is not None for weight in weights)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("preset", ["llama-nano", "gpt2-nano"])
@pytest.mark.parametrize("method", ["lora", "dora", "ia3", "adapter"])
def test_a_method_learns_comes_back_and_merges(method, preset, base, tmp_path):
    folder = base(preset)
    model = load(folder)
    before = logits(model)
    adapters.create(model, method=method, r=4, alpha=8, width=8, base=str(folder))
    torch.testing.assert_close(logits(model), before, rtol=1e-4, atol=1e-4)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    planned = outline(str(folder), {"method": method, "r": 4, "alpha": 8, "width": 8})
    assert planned.trainable == sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert not any("base_layer" in name for name in trained)
    losses = learn(model)
    assert losses[-1] < losses[0]
    expected = logits(model)
    adapters.save(model, tmp_path / "a")
    adapters.detach(model)
    torch.testing.assert_close(logits(model), before)
    other = load(folder)
    adapters.attach(other, tmp_path / "a")
    torch.testing.assert_close(logits(other), expected, rtol=1e-4, atol=1e-4)
    if method == "adapter":
        with pytest.raises(UsageError, match="can't be merged"):
            adapters.merge(None, tmp_path / "a", tmp_path / "merged")
        return
    merged = adapters.merge(None, tmp_path / "a", tmp_path / "merged")
    torch.testing.assert_close(logits(load(merged)), expected, rtol=1e-4, atol=1e-4)


def test_gradient_checkpointing_reaches_every_adapted_layer(base):
    model = load(base())
    adapters.create(model, r=4, alpha=8)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()(input_ids=IDS, labels=IDS).loss.backward()
    up = {name: weight for name, weight in model.named_parameters() if "lora_B" in name}
    assert len(up) == 7 * model.config.num_hidden_layers
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in up.values())


def test_the_outline_names_layers_shapes_and_the_share(base):
    found = outline(str(base()), {"method": "lora", "r": 4, "alpha": 8, "targets": ("q_proj",)})
    ((name, shape, count),) = found.layers
    assert name == "q_proj"
    assert found.trainable == count * 4 * sum(shape)
    assert "q_proj" in found.summary
    assert "%" in found.summary
    assert outline(str(base()), None).trainable == found.total


def test_a_bottleneck_of_another_model_is_refused(base, tmp_path):
    model = load(base())
    adapters.create(model, method="adapter", r=1, alpha=1, width=8)
    adapters.save(model, tmp_path / "a")
    other = load(base("gpt2-nano"))
    before = logits(other)
    with pytest.raises(UsageError, match="doesn't fit this model"):
        adapters.attach(other, tmp_path / "a")
    assert torch.equal(logits(other), before)
