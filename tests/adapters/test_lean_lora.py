"""LoRA in one op: outputs and gradients of peft's own code, a base rounded as autocast rounds it, and ways around."""

import pytest
import torch
from torch import nn

from nbllm import adapters
from nbllm.adapters.lean import _Sum, make_lean
from nbllm.model import build

IDS = torch.arange(24).reshape(2, 12) * 5 % 97


def made(*, lean=True, monkeypatch=None, dropout=0.0, method="lora"):
    if not lean:
        monkeypatch.setattr("nbllm.adapters.lean.make_lean", lambda model: 0)
    model = build("llama-nano", vocab_size=97, max_length=64, bos_id=0, eos_id=0, pad_id=1, seed=3)
    adapters.create(model, r=4, alpha=8.0, dropout=dropout, method=method)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model.train()


def results(model, *, autocast=False):
    """Logits and every gradient, by name."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        logits = model(input_ids=IDS).logits
    logits.float().logsumexp(-1).sum().backward()
    return {"logits": logits, **{n: w.grad for n, w in model.named_parameters() if w.grad is not None}}


def taken(model):
    """How often the op stands in the graph of one forward pass."""
    seen, count, wave = set(), 0, [model(input_ids=IDS).logits.sum().grad_fn]
    while wave:
        node = wave.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        count += "_SumBackward" in type(node).__name__
        wave += [following for following, _ in node.next_functions]
    return count


def test_outputs_and_gradients_are_those_of_peft(monkeypatch):
    ours = made()
    assert taken(ours) == 7 * len(ours.model.layers)
    found = results(ours)
    theirs = made(lean=False, monkeypatch=monkeypatch)
    assert taken(theirs) == 0
    expected = results(theirs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_the_gradient_is_that_of_the_sum_also_under_dropout():
    generator = torch.Generator().manual_seed(0)
    shapes = {"rows": (5, 4), "weight": (6, 4), "bias": (6,), "a": (2, 4), "b": (6, 2)}
    made = {
        name: torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=name in ("rows", "a", "b"))
        for name, shape in shapes.items()
    }
    for mask in (None, torch.rand(5, 4, generator=generator) > 0.4):
        assert torch.autograd.gradcheck(lambda *tensors, m=mask: _Sum.apply(*tensors, 0.7, m), tuple(made.values()))
        x, w, bias, a, b = made.values()
        kept = x if mask is None else x * mask
        expected = x @ w.t() + bias + 0.7 * (kept @ a.t()) @ b.t()
        torch.testing.assert_close(_Sum.apply(*made.values(), 0.7, mask), expected)


def test_dropout_drops_inputs_of_the_update_alone_and_only_in_training():
    layer = made(dropout=0.5).model.layers[0].mlp.up_proj
    x = torch.randn(400, layer.in_features, generator=torch.Generator().manual_seed(1))
    base = layer.base_layer(x)
    calm = layer.eval()(x) - base
    torch.manual_seed(0)
    drops = torch.stack([layer.train()(x) - base for _ in range(200)])
    assert (drops.std(0) > 0).any()
    error = (drops.mean(0) - calm).abs().mean() / calm.abs().mean()
    assert error < 0.12  # of 200 draws; the mean is what evaluation gives
    torch.manual_seed(7)
    one = layer(x)
    torch.manual_seed(7)
    assert torch.equal(layer(x), one)


def test_a_base_kept_as_autocast_rounds_it_gives_the_same_bits():
    wide, narrow = made(), made()
    count = adapters.narrow_base(narrow, torch.bfloat16)
    assert count == 7 * len(narrow.model.layers)
    layer = narrow.model.layers[0].self_attn.q_proj
    assert (layer.base_layer.weight.dtype, layer.lora_A["default"].weight.dtype) == (torch.bfloat16, torch.float32)
    expected, found = results(wide, autocast=True), results(narrow, autocast=True)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert narrow(input_ids=IDS).logits.dtype == torch.float32  # also without autocast


def test_what_the_op_does_not_know_goes_the_way_of_peft(monkeypatch):
    dora = made(method="dora")
    assert taken(dora) == 0
    assert adapters.narrow_base(dora, torch.bfloat16) == 0
    model = made()
    inside = model.model.layers[0].self_attn.q_proj.base_layer
    whole = taken(model)
    handle = inside.register_forward_hook(lambda *_: None)
    assert taken(model) == whole - 1
    handle.remove()
    with_adapter = model(input_ids=IDS).logits
    adapters.set_scale(model, 0.0)
    without = model(input_ids=IDS).logits
    adapters.detach(model)
    torch.testing.assert_close(model.eval()(input_ids=IDS).logits, without)
    assert not torch.allclose(with_adapter, without)
    plain = nn.Sequential(nn.Linear(2, 2))
    assert make_lean(plain) == 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_with_checkpointing_every_adapted_layer_gets_the_same_gradients(reentrant):
    expected = results(made())
    model = made()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    found = results(model)
    names = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert names == found.keys() - {"logits"}
    for name in names:
        assert found[name].abs().sum() > 0
        torch.testing.assert_close(found[name], expected[name], msg=name)
