"""The logit lens: its last row is the model; every row is the model cut there."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from nbllm.errors import UsageError
from nbllm.inspect.lens import logit_lens
from nbllm.inspect.lens_states import LayerStates
from nbllm.store import Store
from nbllm.tokenizer import train

sys.path.insert(0, str(Path(__file__).parents[1] / "sample"))
from tiny_models import family

TEXT = "The quick brown fox jumps over the lazy dog."
SHAPE = {
    "vocab_size": 300, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 96, "initializer_range": 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return train(Store(tmp_path_factory.mktemp("store")), [TEXT] * 40, text_bytes=3000, vocab_size=300, name="tiny")


def build(kind, tokenizer):
    if kind == "bert":
        torch.manual_seed(1)
        return transformers.BertForMaskedLM(transformers.BertConfig(**SHAPE)).eval()
    if kind == "softcap":
        torch.manual_seed(1)
        more = {"num_key_value_heads": 2, "head_dim": 12, "final_logit_softcapping": 5.0}
        return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SHAPE, **more)).eval()
    return family(kind, tokenizer)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3", "mistral", "mixtral", "gemma3", "softcap", "bert"])
def test_the_last_row_is_the_models_own(kind, tokenizer):
    model = build(kind, tokenizer)
    ids = tokenizer.encode(TEXT)
    with torch.no_grad():
        states = LayerStates(model, ids)
        own = model(input_ids=torch.tensor([ids])).logits[0]
        assert torch.equal(states.logits(-1), own)
        assert len(states.states) == 4
        torch.testing.assert_close(states.logits(-1, 3, 5), own[3:5], rtol=1e-4, atol=1e-4)
        assert torch.equal(model(input_ids=torch.tensor([ids])).logits[0], own), "the model is left as it was"


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
def test_a_row_is_the_model_with_its_later_layers_cut_off(kind, tokenizer):
    model = build(kind, tokenizer)
    ids = tokenizer.encode(TEXT)
    with torch.no_grad():
        states = LayerStates(model, ids)
        blocks = model.transformer.h if kind == "gpt2" else model.model.layers
        kept = states.logits(2)  # after layer 1
        del blocks[2]
        if kind != "gpt2":
            model.config.num_hidden_layers = 2
        torch.testing.assert_close(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0], kept)


def test_numbers_agree_with_the_logits(tokenizer):
    model = build("llama", tokenizer)
    lens = logit_lens(model, tokenizer, TEXT, top=4)
    ids = torch.tensor([tokenizer.encode(TEXT)])
    with torch.no_grad():
        chances = model(input_ids=ids).logits[0].softmax(-1)
    count = ids.shape[1]
    assert lens.top_ids.shape == (4, count, 4)
    assert lens.rows == ("embedding", "0", "1", "2")
    np.testing.assert_array_equal(lens.top_ids[-1, :, 0], chances.argmax(-1))
    np.testing.assert_allclose(lens.top_probabilities[-1], chances.topk(4).values, rtol=1e-5)
    assert (lens.final_rank[-1] == 1).all()
    here, following = torch.arange(count - 1), ids[0, 1:]
    np.testing.assert_allclose(lens.actual_probability[-1, :-1], chances[here, following], rtol=1e-5)
    assert np.isnan(lens.actual_probability[:, -1]).all()
    assert (lens.actual_rank[:, -1] == 0).all()
    ranks = 1 + (chances[:-1] > chances[here, following][:, None]).sum(-1)
    np.testing.assert_array_equal(lens.actual_rank[-1, :-1], ranks)


def test_settles_is_where_the_top_token_stays(tokenizer):
    lens = logit_lens(build("llama", tokenizer), tokenizer, TEXT)
    first = lens.top_ids[:, :, 0]
    for place, row in enumerate(lens.settles):
        assert (first[row:, place] == first[-1, place]).all()
        assert row == 0 or first[row - 1, place] != first[-1, place]


def test_a_masked_model_predicts_the_token_itself(tokenizer):
    lens = logit_lens(build("bert", tokenizer), tokenizer, TEXT)
    assert lens.predicts == "this"
    assert np.isfinite(lens.actual_probability).all()


def test_what_cant_be_read_is_said(tokenizer):
    with pytest.raises(UsageError, match="longer than the model's context"):
        logit_lens(build("llama", tokenizer), tokenizer, [5] * 97)
    torch.manual_seed(1)
    shape = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 300}
    model = transformers.T5EncoderModel(transformers.T5Config(**shape)).eval()
    with pytest.raises(UsageError, match="can't be put after another layer"):
        logit_lens(model, tokenizer, TEXT)
