"""How parts hang on the residual stream: norms before, after and between, side by side, shared, scaled, in place."""

from __future__ import annotations

import pytest
import torch
import transformers

from nbllm.inspect.architecture import summarize
from nbllm.inspect.residual import adds_up

SHAPE = {
    "vocab_size": 300, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 96,
}  # fmt: skip
BEFORE = [([(0, 1)], (), ()), ([(2, 3)], (), ())]
KINDS = {
    "Llama": ({}, BEFORE),
    "Mixtral": ({"num_local_experts": 4, "num_key_value_heads": 2}, BEFORE),
    "GptOss": ({"num_local_experts": 4, "num_key_value_heads": 2, "head_dim": 12}, BEFORE),
    "Bloom": ({"n_layer": 2, "n_head": 4}, BEFORE),
    "Olmo2": ({}, BEFORE),
    "Gemma2": ({"num_key_value_heads": 2, "head_dim": 12}, [([(0, 1, 2)], (), ()), ([(3, 4, 5)], (), ())]),
    "Bert": ({}, [([(0,)], (), ()), ([], (), (1,)), ([(2,)], (), ()), ([], (), (3,))]),
    "GPTNeoX": ({}, [([(0, 1), (2, 3)], (), ())]),
    "Phi": ({}, [([(1,), (2,)], (0,), ())]),
    "Falcon": ({}, [([(1,), (2,)], (0,), ())]),
}


def summary(kind, **more):
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**SHAPE, **KINDS.get(kind, ({},))[0], **more)
    model = getattr(transformers, f"{kind}ForMaskedLM" if kind == "Bert" else f"{kind}ForCausalLM")(config).eval()
    made = summarize(model)
    return made, model


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_the_models(kind):
    found = summary(kind)[0].layers[0].steps
    assert [(list(step.branches), step.shared, step.through) for step in found] == KINDS[kind][1]
    assert {step.scale for step in found} == {1.0}


def test_what_is_added_may_be_scaled():
    found = summary("Granite", residual_multiplier=0.22)[0].layers[0].steps
    assert [round(step.scale, 3) for step in found] == [0.22, 0.22]


def test_positions_are_added_or_turn():
    bert, _ = summary("Bert")
    assert [part.kind for part in bert.before] == ["embedding", "positions", "positions", "norm"]
    assert bert.embeddings_added
    llama, _ = summary("Llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    assert [part.kind for part in llama.before] == ["embedding", "positions"]
    assert llama.before[1].facts == ("turn queries and keys", "base 500")
    assert not llama.embeddings_added
    assert not adds_up([torch.ones(1, 2, 3), torch.ones(1, 2, 3)], torch.ones(1, 2, 3))


def test_each_layer_has_its_own_statistics():
    made, model = summary("Llama")
    attention = made.layers[0].parts[1]
    name = attention.names[0].replace(".0.", ".1.")
    stats = made.stats(attention.id, layer=1)[0]
    assert stats.name == name
    assert stats.norm == pytest.approx(float(dict(model.named_parameters())[name].detach().norm()), rel=1e-5)
    assert (attention.heads, attention.groups) == (4, 4)
