"""What an adapter changed, against the weights themselves; and which tokens moved."""

import pytest
import torch

from nbllm import adapters
from nbllm.errors import DataError, UsageError
from nbllm.model import build

IDS = torch.arange(24).reshape(2, 12) * 5 % 97


def made(preset="llama-nano"):
    return build(preset, vocab_size=97, max_length=64, bos_id=0, eos_id=0, pad_id=1, seed=3).eval()


def moved(model):
    """Gives every trained weight something to say."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


@pytest.mark.parametrize("preset", ["llama-nano", "gpt2-nano"])
@pytest.mark.parametrize("method", ["lora", "dora", "ia3"])
def test_norms_are_those_of_the_merged_weights(method, preset):
    model = made(preset)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    adapter = adapters.create(model, method=method, r=3, alpha=6)
    found = adapters.changes(moved(model))
    names = [name for name, module in model.named_modules() if hasattr(module, "base_layer")]
    adapter.tuner.merge_and_unload()
    after = dict(model.named_parameters())
    assert len(found) == len(names)
    for name, one in zip(names, found, strict=True):
        own = before[f"{name}.weight"]
        expected = float((after[f"{name}.weight"] - own).norm())
        assert one.norm == pytest.approx(expected, rel=1e-4)
        assert one.share == pytest.approx(expected / float(own.norm()), rel=1e-4)
        assert (one.layer, one.module) == (int(name.split(".")[2]), name.split(".")[-1])


def test_norms_follow_the_scale_and_other_methods_have_no_share():
    model = made()
    adapters.create(model, r=2, alpha=4)
    one = adapters.changes(moved(model))[0].norm
    adapters.set_scale(model, 2)
    assert adapters.changes(model)[0].norm == pytest.approx(2 * one)
    for method, names in (("adapter", {"mlp"}), ("prefix", {"keys", "values"}), ("prompt", {"embeddings"})):
        adapters.create(model, method=method, r=1, alpha=1, width=4, virtual_tokens=3)
        found = adapters.changes(moved(model))
        assert {change.module for change in found} == names
        assert all(change.norm > 0 and change.share is None for change in found)
    adapters.detach(model)
    with pytest.raises(UsageError, match="no adapter"):
        adapters.changes(model)


@pytest.mark.parametrize("method", ["lora", "dora", "ia3", "adapter", "prefix"])
def test_scaled_to_nothing_a_model_is_its_base_and_half_way_lies_between(method):
    model = made()
    ids = IDS[:1]

    def logits():
        with torch.no_grad():
            return model(input_ids=ids).logits

    base = logits()
    adapters.create(model, method=method, r=2, alpha=4, width=4, virtual_tokens=3)
    moved(model).eval()
    trained = logits()
    adapters.set_scale(model, 0)
    torch.testing.assert_close(logits(), base, rtol=1e-4, atol=1e-4)
    adapters.set_scale(model, 0.05)
    near = (logits() - base).abs().max()
    assert 0 < near < (trained - base).abs().max()
    adapters.set_scale(model, 1)
    torch.testing.assert_close(logits(), trained, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match="0 or above"):
        adapters.set_scale(model, -1)


def test_tokens_move_by_what_the_models_say():
    model = made()
    adapters.create(model, r=2, alpha=4)
    moved(model)
    documents = [IDS[0].tolist(), [5], IDS[1, :4].tolist()]
    found = adapters.shifts(model, documents)
    assert [(one.document, one.position, one.token) for one in found[10:13]] == [
        (0, 11, int(IDS[0, 11])), (2, 1, int(IDS[1, 1])), (2, 2, int(IDS[1, 2])),
    ]  # fmt: skip
    with torch.no_grad():
        after = model(input_ids=IDS[:1]).logits[0].log_softmax(-1)
        adapters.detach(model)
        before = model(input_ids=IDS[:1]).logits[0].log_softmax(-1)
    assert found[3].after == pytest.approx(float(after[3, IDS[0, 4]]), abs=1e-4)
    assert found[3].before == pytest.approx(float(before[3, IDS[0, 4]]), abs=1e-4)
    adapters.create(model, r=2, alpha=4)
    with pytest.raises(DataError, match="no text"):
        adapters.shifts(model, [[1]])
