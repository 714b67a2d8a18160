"""Models with fused ops in their layers: equal losses and gradients, listed, and given back as they were."""

from __future__ import annotations

import copy
import gc
import sys
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from nbllm.errors import UsageError
from nbllm.model import patch, patching

SHAPE = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None, "initializer_range": 0.2,
}  # fmt: skip
KINDS = ("Llama", "Qwen2", "Qwen3", "Mixtral", "Gemma", "Gemma3")
IDS = torch.arange(18).view(2, 9) * 7919 % 96


def make(kind: str, **options: Any) -> Any:
    torch.manual_seed(3)
    more = {"num_local_experts": 4} if kind == "Mixtral" else {}
    config = getattr(transformers, "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config")
    model = getattr(transformers, f"{kind}ForCausalLM")(config(**(SHAPE | more | options)))
    for name, weight in model.named_parameters():
        if "norm" in name:  # fresh ones are all equal and would hide a mistake
            weight.data += 0.3 * torch.randn_like(weight)
    return model.eval()


def values(model: Any, *, autocast: bool = False) -> list[Tensor]:
    """Loss and gradients, in the order of the names."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        logits = model(input_ids=IDS, use_cache=False).logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).to(model.dtype), IDS.roll(-1, 1).flatten())
    loss.backward()
    return [loss.detach(), *(weight.grad.clone() for _, weight in sorted(model.named_parameters()))]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the patched layers called each op."""
    counted = dict.fromkeys(("rms_norm", "add_rms_norm", "swiglu", "rope"), 0)

    def counting(name: str) -> Any:
        op = getattr(patching, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counted[name] += 1
            before = [argument.clone() for argument in args]
            out = op(*args, **kwargs)
            assert all(torch.equal(one, other) for one, other in zip(args, before, strict=True))  # inputs stay
            return out

        return call

    for name in counted:
        monkeypatch.setattr(patching, name, counting(name))
    return counted


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_as_near_to_float64_as_the_models_own(kind: str, calls: dict[str, int]) -> None:
    model = make(kind)
    plain = values(model)
    exact_model = copy.deepcopy(model).double()
    exact_model.config._experts_implementation = "eager"  # the others know no float64
    exact_patching = patch(exact_model)  # the models' own norms go through fp32 even in float64; the ops don't
    exact = values(exact_model)
    exact_patching.undo()
    found = patch(model)
    calls.update(dict.fromkeys(calls, 0))
    got = values(model)
    for true, own, ours in zip(exact, plain, got, strict=True):
        tiny = 1e-6 * float(true.abs().max()) + 1e-9
        assert (ours.double() - true).abs().max() <= 2 * (own.double() - true).abs().max() + tiny
    taken = {(one.op, one.modules) for one in found.taken}
    norms = {"Gemma3": 13, "Qwen3": 9}.get(kind, 5)
    assert ("rms_norm", norms) in taken
    assert ("rope", 2) in taken
    assert calls["rope"] == 2
    assert ("swiglu", 2) in taken or kind.startswith("Gemma")  # whose gate is a GELU
    assert (calls["swiglu"] > 0) is not kind.startswith("Gemma")
    pairs = 0 if kind == "Gemma3" else 2  # Gemma 3 norms what it then adds
    assert calls["add_rms_norm"] == pairs
    assert calls["rms_norm"] == norms - pairs
    assert found.left == {}
    found.undo()


def test_undone_everything_is_as_before() -> None:
    model = make("Llama")
    file = sys.modules[type(model).__module__]
    classes, turn, before = [type(module) for module in model.modules()], file.apply_rotary_pos_emb, values(model)  # type: ignore[attr-defined]
    found = patch(model)
    assert str(found) == (
        "rms_norm in 5 LlamaRMSNorm, add_rms_norm in 2 LlamaDecoderLayer, swiglu in 2 LlamaMLP, "
        "rope in 2 LlamaAttention"
    )
    assert [type(module) for module in model.modules()] != classes
    assert [type(module).__name__ for module in model.modules()] == [kind.__name__ for kind in classes]
    assert file.apply_rotary_pos_emb is not turn  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="patched already"):
        patch(model)
    found.undo()
    found.undo()
    assert [type(module) for module in model.modules()] == classes
    assert file.apply_rotary_pos_emb is turn  # type: ignore[attr-defined]
    for one, other in zip(values(model), before, strict=True):
        assert torch.equal(one, other)


def test_one_of_two_patched_models_given_back_leaves_the_other() -> None:
    models = [make("Llama"), make("Llama")]
    file: Any = sys.modules[type(models[0]).__module__]
    turn = file.apply_rotary_pos_emb
    found = [patch(model) for model in models]
    found[0].undo()
    assert file.apply_rotary_pos_emb is not turn
    found.clear()
    models.clear()  # a model that is gone gives it back by itself
    gc.collect()
    assert file.apply_rotary_pos_emb is turn


def test_only_what_was_asked_for(calls: dict[str, int]) -> None:
    model = make("Llama")
    found = patch(model, ops=("swiglu",))
    assert [one.op for one in found.taken] == ["swiglu"]
    found.undo()
    with pytest.raises(UsageError, match="rms_norm"):
        patch(make("Llama"), ops=("rmsnorm",))


def test_a_class_that_computes_something_else_is_left_alone() -> None:
    class OddRMSNorm(nn.Module):
        def __init__(self, own: Any) -> None:
            super().__init__()
            self.weight, self.eps = own.weight, own.variance_epsilon

        def forward(self, x: Tensor) -> Tensor:
            return x / (x.abs().mean(-1, keepdim=True) + self.eps) * self.weight

    model = make("Llama")
    model.model.norm = OddRMSNorm(model.model.norm)
    before = values(model)
    found = patch(model)
    assert found.left == {"OddRMSNorm": "the results differ"}
    assert ("rms_norm", "LlamaRMSNorm", 4) in {(one.op, one.kind, one.modules) for one in found.taken}
    for one, other in zip(values(model), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    found.undo()


def test_a_watched_norm_still_shows_its_results(calls: dict[str, int]) -> None:
    model = make("Llama")
    found = patch(model)
    seen: list[Tensor] = []
    handle = model.model.layers[0].post_attention_layernorm.register_forward_hook(lambda *got: seen.append(got[2]))
    calls.update(dict.fromkeys(calls, 0))
    values(model)
    handle.remove()
    assert len(seen) == 1
    assert calls["add_rms_norm"] == 1  # the other block's
    found.undo()


def test_autocast_checkpointing_and_compile_give_the_same() -> None:
    model = make("Llama")
    plain, cast = values(model), values(model, autocast=True)
    found = patch(model)
    for one, other in zip(values(model, autocast=True), cast, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05 * float(other.abs().max()))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again = values(model.train())
    model.gradient_checkpointing_disable()
    torch._dynamo.reset()
    compiled = torch.compile(model.eval(), backend="aot_eager", fullgraph=True)
    logits = compiled(input_ids=IDS, use_cache=False).logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), IDS.roll(-1, 1).flatten())
    for one, other in zip([loss.detach(), *again], [plain[0], *plain], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    found.undo()


def test_proving_leaves_no_trace() -> None:
    model = make("Llama", attention_dropout=0.5).train()
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    found = patch(model)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(weight.grad is None for weight in model.parameters())
    found.undo()
