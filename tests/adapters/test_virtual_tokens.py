"""Prompt and prefix: the logits that peft gives, packed documents alike, our cache, saving and loading, the scale."""

import copy

import pytest
import torch
from peft import PeftModel

from nbllm import adapters
from nbllm.adapters.outline import outline
from nbllm.errors import UsageError
from nbllm.model import build, check_packing, load
from nbllm.sample.forward import Forward

IDS = torch.arange(24).reshape(2, 12) * 5 % 97
METHODS = ["prompt", "prefix"]
PRESETS = ["llama-nano", "gpt2-nano"]


def made(preset="llama-nano", **changes):
    model = build(preset, vocab_size=97, max_length=64, bos_id=0, eos_id=0, pad_id=1, seed=3)
    if changes:  # grouped keys and values, say
        config = copy.deepcopy(model.config)
        for name, value in changes.items():
            setattr(config, name, value)
        torch.manual_seed(3)
        model = type(model)(config)
    return model.eval()


def logits(model, ids=IDS, **options):
    with torch.no_grad():
        return model.eval()(input_ids=ids, **options).logits


def with_virtual(model, method, count=5):
    adapters.create(model, method=method, r=1, alpha=1, virtual_tokens=count)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                assert name == "virtual_tokens.embedding.weight"
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_peft_reads_the_folder_and_gives_the_same_logits(method, preset, tmp_path):
    ours = with_virtual(made(preset), method)
    base = logits(made(preset))
    adapters.save(ours, tmp_path / "a")
    theirs = PeftModel.from_pretrained(made(preset), str(tmp_path / "a"))
    expected = logits(theirs)[:, -IDS.shape[1] :]
    torch.testing.assert_close(logits(ours), expected, rtol=1e-4, atol=1e-4)
    assert (expected - base).abs().max() > 0.01
    other = made(preset)
    adapters.attach(other, tmp_path / "a")
    torch.testing.assert_close(logits(other), expected, rtol=1e-4, atol=1e-4)
    adapters.detach(other)
    assert torch.equal(logits(other), base)
    assert other.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("method", METHODS)
def test_grouped_heads(method, tmp_path):
    ours = with_virtual(made(num_key_value_heads=2), method)
    adapters.save(ours, tmp_path / "a")
    theirs = PeftModel.from_pretrained(made(num_key_value_heads=2), str(tmp_path / "a"))
    torch.testing.assert_close(logits(ours), logits(theirs)[:, -IDS.shape[1] :], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_every_document_of_a_packed_row_sees_them(method, preset):
    model = with_virtual(made(preset), method)
    check_packing(model, vocab_size=97)
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    packed = logits(model, IDS[:1], position_ids=positions, use_cache=False)[:, 5:]
    torch.testing.assert_close(packed, logits(model, IDS[:1, 5:]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_our_cache_counts_real_tokens_only(method, preset):
    model = with_virtual(made(preset), method)
    forward = Forward.of(model)
    assert forward.context == 64 - 5
    batch = forward.rows()
    steps = [batch.start([IDS[0, :4].tolist()], 1)]
    steps += [batch.advance(IDS[:1, place]) for place in range(4, 12)]
    torch.testing.assert_close(torch.stack(steps, 1), logits(model, IDS[:1])[:, 3:], rtol=1e-4, atol=1e-4)
    batch.keep()
    again = forward.rows()  # from the keys and values of the call before
    torch.testing.assert_close(again.start([IDS[0].tolist()], 1), steps[-1], rtol=1e-4, atol=1e-4)
    assert again.reused >= 11
    both = forward.rows()  # padded on the left
    found = both.start([IDS[0, :4].tolist(), IDS[1].tolist()], 1)
    torch.testing.assert_close(found[0], steps[0][0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", METHODS)
def test_they_learn_and_nothing_else_does(method, preset):
    model = made(preset)
    before = logits(model)
    adapters.create(model, method=method, r=1, alpha=1, virtual_tokens=4)
    planned = outline_of(preset, method)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    assert planned.trainable == sum(weight.numel() for weight in weights)
    optimizer = torch.optim.AdamW(weights, lr=0.05)
    losses = []
    for _ in range(8):
        loss = model.train()(input_ids=IDS, labels=IDS, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(weight.grad.abs().sum(-1).min() > 0 for weight in weights)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.02
    adapters.detach(model)
    assert torch.equal(logits(model), before)


def outline_of(preset, method):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        made(preset).save_pretrained(folder)
        return outline(folder, {"method": method, "r": 1, "alpha": 1, "virtual_tokens": 4})


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_the_same_with_checkpointing(method):
    found = []
    for checkpointing in (False, True):
        model = with_virtual(made(), method)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
        found.append(model.virtual_tokens.embedding.weight.grad)
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("method", METHODS)
def test_their_scale_goes_from_the_base_through_what_was_trained(method):
    base, model = logits(made()), with_virtual(made(), method)
    trained = logits(model)
    adapters.set_scale(model, 0)
    torch.testing.assert_close(logits(model), base)
    adapters.set_scale(model, 0.01)
    near = (logits(model) - base).abs().max()
    adapters.set_scale(model, 1)
    torch.testing.assert_close(logits(model), trained)
    assert 0 < near < 0.3 * (trained - base).abs().max()


def test_what_they_cannot_do_is_one_line(tmp_path):
    folder = tmp_path / "base"
    made().save_pretrained(folder)
    model = load(folder)
    adapters.create(model, method="prompt", r=1, alpha=1, base=str(folder))
    adapters.save(model, tmp_path / "a")
    with pytest.raises(UsageError, match="can't be merged"):
        adapters.merge(None, tmp_path / "a", tmp_path / "merged")
    with pytest.raises(UsageError, match="sdpa"):
        adapters.create(load(folder, attention="eager"), method="prefix", r=1, alpha=1)
    other = load(folder)
    adapters.create(other, method="prefix", r=1, alpha=1, virtual_tokens=3)
    adapters.save(other, tmp_path / "b")
    narrow = made(hidden_size=64, head_dim=16)
    before = logits(narrow)
    with pytest.raises(UsageError, match="doesn't fit this model"):
        adapters.attach(narrow, tmp_path / "b")
    assert torch.equal(logits(narrow), before)
