"""Attention maps: equal to transformers' own, the model as before, heads switched off, planted heads found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from nbllm.errors import UsageError
from nbllm.inspect import capture
from nbllm.inspect.attention import AttentionMaps, attention
from nbllm.store import Store
from nbllm.tokenizer import train

TEXT = "The quick brown fox jumps over the lazy dog. The quick brown fox sleeps."
SHAPE = {
    "vocab_size": 300, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 96, "initializer_range": 0.2,
}  # fmt: skip
GROUPED = {**SHAPE, "num_key_value_heads": 2, "head_dim": 12}
KINDS = {
    "llama": ("Llama", {**SHAPE, "num_key_value_heads": 4}),
    "llama-grouped": ("Llama", {**SHAPE, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2", {**SHAPE, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3", GROUPED),
    "mistral-window": ("Mistral", {**GROUPED, "sliding_window": 5}),
    "mixtral": ("Mixtral", {**GROUPED, "num_local_experts": 4}),
    "gemma2-softcap": ("Gemma2", {**GROUPED, "sliding_window": 5, "attn_logit_softcapping": 3.0}),
    "gpt-oss-sinks": ("GptOss", {**GROUPED, "num_local_experts": 4, "sliding_window": 5}),
    "bert": ("Bert", SHAPE),
}


def build(kind, implementation="sdpa"):
    torch.manual_seed(1)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=300, n_embd=48, n_layer=3, n_head=4, n_positions=96, initializer_range=0.2
        )
        return transformers.GPT2LMHeadModel._from_config(config, attn_implementation=implementation).eval()
    name, shape = KINDS[kind]
    make = getattr(transformers, f"{name}ForMaskedLM" if kind == "bert" else f"{name}ForCausalLM")
    if kind in ("gemma2-softcap", "gpt-oss-sinks"):  # neither computes with sdpa
        implementation = "eager"
    return make._from_config(getattr(transformers, f"{name}Config")(**shape), attn_implementation=implementation).eval()


def eager_maps(model, ids, mask=None):
    """transformers' own maps [L, H, T, T] and logits [T, V]."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    given = None if mask is None else torch.tensor([mask])
    with torch.no_grad():
        found = model(input_ids=torch.tensor([ids]), attention_mask=given, output_attentions=True, use_cache=False)
    model.set_attn_implementation(before)
    return torch.stack(found.attentions)[:, 0].numpy(), found.logits[0]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return train(Store(tmp_path_factory.mktemp("store")), [TEXT] * 40, text_bytes=3000, vocab_size=300, name="tiny")


@pytest.mark.parametrize("kind", ["gpt2", *KINDS])
def test_maps_are_transformers_own(kind, tokenizer):
    model = build(kind)
    implementation = model.config._attn_implementation
    maps = attention(model, tokenizer, TEXT)
    assert model.config._attn_implementation == implementation
    expected, logits = eager_maps(model, maps.token_ids)
    found = np.stack([maps.layer(layer) for layer in maps.layer_indices])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(maps.weights(1, 3), found[1, 3])
    if kind == "gpt-oss-sinks":
        assert (found.sum(-1) < 1).all()
    else:
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    if kind != "bert":
        top = maps.next_tokens(top=3)
        best = logits[-1].softmax(-1).topk(3)
        assert [token.token_id for token in top] == best.indices.tolist()
        np.testing.assert_allclose([token.probability for token in top], best.values.numpy(), atol=1e-5)
    assert (maps.layers, maps.heads) == (3, 4)
    assert maps.tokens[1] == tokenizer.token_text(maps.token_ids[1])


@pytest.mark.parametrize("kind", ["llama-grouped", "gpt2", "qwen2", "bert", "mixtral", "mistral-window"])
def test_padding_gets_no_attention(kind, tokenizer):
    model = build(kind)
    ids = tokenizer.encode(TEXT)[:14]
    mask = [0, 0, 0, *[1] * 11]
    maps = AttentionMaps(model, tokenizer, ids, attention_mask=mask)
    expected, _ = eager_maps(model, ids, mask)
    found = np.stack([maps.layer(layer) for layer in maps.layer_indices])
    np.testing.assert_allclose(found[:, :, 3:], expected[:, :, 3:], atol=1e-5)
    assert found[:, :, 3:, :3].max() == 0


@pytest.mark.parametrize("kind", ["llama-grouped", "gpt2", "qwen3", "mixtral", "gemma2-softcap", "gpt-oss-sinks"])
def test_a_head_switched_off_is_zeroed_before_the_output_projection(kind, tokenizer):
    model = build(kind)
    maps = attention(model, tokenizer, TEXT)
    off = [(1, 0), (1, 2), (2, 3)]
    projections = [module for name, module in model.named_modules() if name.endswith((".o_proj", "attn.c_proj"))]
    hooks = []
    for layer in {layer for layer, _ in off}:
        heads = [head for number, head in off if number == layer]

        def zeroed(_, inputs, heads=heads):
            joined = inputs[0].clone()
            size = joined.shape[-1] // 4
            for head in heads:
                joined[..., head * size : (head + 1) * size] = 0
            return (joined,)

        hooks.append(projections[layer].register_forward_pre_hook(zeroed))
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([maps.token_ids])).logits[0, -1].softmax(-1)
    for hook in hooks:
        hook.remove()
    found = maps.next_tokens(without=off, top=300)
    np.testing.assert_allclose([t.without for t in found], expected[[t.token_id for t in found]].numpy(), atol=1e-5)
    assert max(abs(t.without - t.probability) for t in found) > 1e-3
    with torch.no_grad():  # and the model is whole again
        after = model(input_ids=torch.tensor([maps.token_ids])).logits[0, -1].softmax(-1)
    np.testing.assert_allclose([t.probability for t in found], after[[t.token_id for t in found]].numpy(), atol=1e-5)


def test_the_model_is_as_before_after_an_error(tokenizer):
    model = build("llama")
    model.train()

    def broken(*_):
        raise ValueError("broken")

    hook = model.model.layers[1].register_forward_pre_hook(broken)
    with pytest.raises(ValueError, match="broken"):
        attention(model, tokenizer, TEXT)
    hook.remove()
    assert model.config._attn_implementation == "sdpa"
    assert model.training
    assert all(layer.self_attn.config._attn_implementation == "sdpa" for layer in model.model.layers)


def test_what_cant_be_looked_at_is_refused(tokenizer):
    model = build("llama")
    with pytest.raises(UsageError, match="context"):
        attention(model, tokenizer, [1] * 97)
    with pytest.raises(UsageError, match="vocabulary has 300"):
        attention(model, tokenizer, [1, 300])
    maps = attention(model, tokenizer, TEXT)
    for layer, head in [(3, 0), (-1, 0), (0, 4), (0, -1)]:
        with pytest.raises(UsageError):
            maps.weights(layer, head)
    with pytest.raises(UsageError):
        maps.next_tokens(without=[(0, 4)])


def test_thumbnails_are_block_maxima(tokenizer):
    model = build("llama")
    ids = (tokenizer.encode(TEXT) * 9)[:96]
    maps = attention(model, tokenizer, ids)
    small = maps.thumbnails(32)
    assert small.shape == (3, 4, 32, 32)
    assert small.dtype == np.uint8
    weights = maps.layer(2)
    blocks = weights.reshape(4, 32, 3, 32, 3).max(axis=(2, 4))
    expected = np.round(255 * blocks / blocks.max(axis=(1, 2), keepdims=True))
    np.testing.assert_allclose(small[2], expected, atol=1)
    assert (small.max(axis=(2, 3)) == 255).all()
    assert maps.thumbnails(64).shape == (3, 4, 64, 64)


def test_scores_by_their_definition(tokenizer):
    model = build("llama")
    ids = [5, 9, 7, 5, 9, 9, 8, 5]
    maps = attention(model, tokenizer, ids)
    rows = maps.scores.to_pylist()
    assert maps.scores.column_names == [
        "layer", "head", "previous_token", "first_token", "duplicate_token", "induction", "entropy", "distance",
    ]  # fmt: skip
    assert [(row["layer"], row["head"]) for row in rows] == [(la, he) for la in range(3) for he in range(4)]
    row, weights = rows[6], maps.weights(1, 2)
    at = np.arange(8)
    assert row["previous_token"] == pytest.approx(np.mean([weights[q, q - 1] for q in range(1, 8)]), abs=1e-5)
    assert row["first_token"] == pytest.approx(weights[1:, 0].mean(), abs=1e-5)
    same = {3: [0], 4: [1], 5: [1, 4], 7: [0, 3]}
    assert row["duplicate_token"] == pytest.approx(np.mean([weights[q, k].sum() for q, k in same.items()]), abs=1e-5)
    after = {3: [1], 4: [2], 5: [2], 7: [1, 4]}  # 9 follows itself at 5: that is no look back
    assert row["induction"] == pytest.approx(np.mean([weights[q, k].sum() for q, k in after.items()]), abs=1e-5)
    assert row["distance"] == pytest.approx((weights * abs(at[:, None] - at)).sum(1).mean(), abs=1e-4)
    assert row["entropy"] == pytest.approx(maps.entropy(1, 2).mean(), abs=1e-5)
    seen = np.where(weights > 0, weights, 1)
    np.testing.assert_allclose(maps.entropy(1, 2), -(weights * np.log(seen)).sum(1), atol=1e-5)


def test_a_text_without_repetition_has_no_induction(tokenizer):
    scores = attention(build("gpt2"), tokenizer, [1, 2, 3, 4]).scores
    assert np.isnan(np.array(scores["induction"].to_pylist(), dtype=float)).all()
    assert not np.isnan(np.array(scores["previous_token"].to_pylist(), dtype=float)).any()


def test_rollout_multiplies_the_layers(tokenizer):
    maps = attention(build("llama"), tokenizer, TEXT)
    joint = np.eye(len(maps.tokens))
    by_layer = []
    for layer in range(3):
        joint = (0.5 * maps.layer(layer).mean(0) + 0.5 * np.eye(len(maps.tokens))) @ joint
        by_layer.append(joint)
    for layer in (1, 2, 0):
        np.testing.assert_allclose(maps.rollout(until=layer), by_layer[layer], atol=1e-5)
    np.testing.assert_allclose(maps.rollout(), by_layer[2], atol=1e-5)
    np.testing.assert_allclose(maps.rollout().sum(1), 1, atol=1e-5)


def planted():
    """A model whose head 0.0 looks at the previous token, and 1.0 at what followed the token's last occurrence.

    The residual stream holds the token (24 places), the position (48) and, written by 0.0, the token before (24).
    """
    tokens, positions, width = 24, 48, 96
    config = transformers.GPT2Config(
        vocab_size=tokens, n_embd=width, n_layer=2, n_head=2, n_positions=positions, resid_pdrop=0, attn_pdrop=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
        embedding, places = model.transformer.wte.weight, model.transformer.wpe.weight
        embedding[:, :tokens] = torch.eye(tokens)
        places[:, tokens : tokens + positions] = torch.eye(positions)
        previous, induction = model.transformer.h[0].attn, model.transformer.h[1].attn
        query, key, value = previous.c_attn.weight.split(width, 1)
        place = torch.arange(positions)
        query[tokens + place[1:], place[:-1]] = 30.0
        key[tokens + place, place] = 1.0
        token = torch.arange(tokens)
        value[token, token] = 1.0
        previous.c_proj.weight[token, tokens + positions + token] = 1.0
        query, key, _ = induction.c_attn.weight.split(width, 1)
        query[token, token] = 30.0
        key[tokens + positions + token, token] = 1.0
    return model


def test_planted_heads_are_found(tokenizer):
    ids = torch.randperm(24, generator=torch.manual_seed(2))[:20].tolist() * 2
    scores = attention(planted(), tokenizer, ids).scores.to_pylist()
    found = {(row["layer"], row["head"]): row for row in scores}
    assert max(found, key=lambda head: found[head]["previous_token"]) == (0, 0)
    assert max(found, key=lambda head: found[head]["induction"]) == (1, 0)
    assert found[0, 0]["previous_token"] > 0.9
    assert found[1, 0]["induction"] > 0.9
    assert max(row["induction"] for head, row in found.items() if head != (1, 0)) < 0.2


def test_nothing_of_all_maps_is_kept(tokenizer):
    """What is kept grows with the text's length, not with its square."""
    model = build("llama-grouped")

    def kept(count):
        return sum(layer.query.nbytes + layer.key.nbytes for layer in capture.run(model, [1] * count).layers)

    assert kept(80) == 2 * kept(40)
    assert kept(80) == 3 * 80 * (4 + 2) * 12 * 4


def test_a_masked_model_says_what_the_mask_hides(tmp_path):
    store = Store(tmp_path / "store")
    masking = train(store, [TEXT] * 40, text_bytes=3000, vocab_size=300, name="masking", special=["[MASK]"])
    model = build("bert")
    model.resize_token_embeddings(masking.vocab_size)
    maps = attention(model, masking, "The quick [MASK] fox jumps")
    place = maps.tokens.index("[MASK]")
    assert 0 < place < len(maps.tokens) - 1
    assert maps.predicts == "token in place of [MASK]"
    hooks = []

    def zeroed(_, inputs):
        joined = inputs[0].clone()
        joined[..., 12:24] = 0
        return (joined,)

    with torch.no_grad():
        expected = model(input_ids=torch.tensor([maps.token_ids])).logits[0, place].softmax(-1)
        hooks.append(model.bert.encoder.layer[1].attention.output.dense.register_forward_pre_hook(zeroed))
        without = model(input_ids=torch.tensor([maps.token_ids])).logits[0, place].softmax(-1)
    hooks[0].remove()
    found = maps.next_tokens(without=[(1, 1)], top=masking.vocab_size)
    ids = [token.token_id for token in found]
    np.testing.assert_allclose([token.probability for token in found], expected[ids].numpy(), atol=1e-5)
    np.testing.assert_allclose([token.without for token in found], without[ids].numpy(), atol=1e-5)
    with pytest.raises(UsageError, match="has none.*Put \\[MASK\\]"):
        attention(model, masking, "The quick fox").next_tokens()
