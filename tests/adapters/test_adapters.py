"""LoRA on a model: found targets, exact detaching, swapping, and merging that keeps the logits."""

import pytest
import torch
from peft import PeftModel

from nbllm import adapters
from nbllm.errors import NotFoundError, StoreError, UsageError
from nbllm.model import build, load

IDS = torch.arange(12)[None] * 5 % 97


def made(preset="llama-nano", **changes):
    return build(
        preset, **{"vocab_size": 97, "max_length": 64, "bos_id": 0, "eos_id": 0, "pad_id": 1, "seed": 3, **changes}
    )


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def trained_adapter(model, folder, *, seed=0, **changes):
    """An adapter with weights that change something, written to a folder."""
    adapters.create(model, **{"r": 4, "alpha": 8.0, "seed": seed, **changes})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    adapters.save(model, folder)
    return folder


def test_targets_are_all_linear_layers_of_the_blocks():
    assert set(adapters.find_targets(made())) == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    assert set(adapters.find_targets(made("gpt2-nano"))) == {"c_attn", "c_proj", "c_fc"}


def test_only_the_adapter_is_trained_and_it_starts_as_nothing():
    model = made()
    before = logits(model)
    adapters.create(model, r=4, alpha=8)
    assert all(("lora_" in name) == weight.requires_grad for name, weight in model.named_parameters())
    torch.testing.assert_close(logits(model), before)


def test_an_unknown_target_is_named():
    with pytest.raises(UsageError, match="Did you mean q_proj"):
        adapters.create(made(), r=4, alpha=8, targets=["q_prj", "v_proj"])
    with pytest.raises(UsageError, match="No linear layer"):
        adapters.create(made(), r=4, alpha=8, targets=["input_layernorm"])


@pytest.mark.parametrize("preset", ["llama-nano", "gpt2-nano"])
def test_attach_swap_and_detach(preset, tmp_path):
    model = made(preset)
    base = logits(model)
    one = trained_adapter(model, tmp_path / "one", seed=1)
    with_one = logits(model)
    two = trained_adapter(model, tmp_path / "two", seed=2, r=2, targets=adapters.find_targets(made(preset))[:1])
    with_two = logits(model)
    adapters.detach(model)
    assert torch.equal(logits(model), base)
    assert adapters.attached(model) is None
    assert all("lora_" not in name for name, _ in model.named_parameters())
    adapters.attach(model, one)
    torch.testing.assert_close(logits(model), with_one)
    adapters.attach(model, two)  # nothing of the first one stays
    torch.testing.assert_close(logits(model), with_two)
    assert not torch.allclose(with_one, with_two)
    assert not torch.allclose(with_two, base)
    assert adapters.attached(model).hash == adapters.content_hash(two) != adapters.content_hash(one)
    adapters.detach(model)
    assert torch.equal(logits(model), base)


def test_peft_itself_reads_the_folder(tmp_path):
    model = made("gpt2-nano")
    folder = trained_adapter(model, tmp_path / "a")
    expected = logits(model)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(made("gpt2-nano"), str(folder))), expected)


def test_an_adapter_of_another_model_is_refused_and_leaves_the_model_alone(tmp_path):
    folder = trained_adapter(made("llama-micro"), tmp_path / "a")
    model = made()
    before = logits(model)
    with pytest.raises(UsageError, match="doesn't fit this model"):
        adapters.attach(model, folder)
    assert torch.equal(logits(model), before)
    with pytest.raises(NotFoundError, match="no adapter"):
        adapters.attach(model, tmp_path)


@pytest.mark.parametrize(
    ("preset", "targets"),
    [("llama-nano", "auto"), ("gpt2-nano", "auto"), ("llama-nano", ["lm_head"]), ("llama-nano", ["lm_head", "q_proj"])],
)
def test_merging_keeps_the_logits_also_where_weights_are_tied(preset, targets, tmp_path):
    made(preset).save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    model = load(tmp_path / "base")
    trained_adapter(model, tmp_path / "a", targets=targets, base=str(tmp_path / "base"))
    expected = logits(model)
    merged = adapters.merge(None, tmp_path / "a", tmp_path / "merged")
    torch.testing.assert_close(logits(load(merged)), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="holds an adapter"):
        load(tmp_path / "a")
    assert (merged / "tokenizer.json").is_file()
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(StoreError, match="--overwrite"):
        adapters.merge(None, tmp_path / "a", tmp_path / "merged")
