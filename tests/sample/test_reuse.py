"""What is kept between calls, guessed ahead, slid over or quantised changes no text that it shouldn't."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import CONTEXT, build, family, reference
from torch._subclasses.fake_tensor import FakeTensorMode

from nbllm.errors import UsageError
from nbllm.model import quantize
from nbllm.model.quantization import Int4Linear, Int8Linear, cast_product, quantized_bytes
from nbllm.sample import SamplingParameters, generate, generate_batch
from nbllm.sample.forward import Forward
from nbllm.sample.prefixes import Prefixes
from nbllm.sample.slots import Slots, places_for
from nbllm.sample.speculate import prompt_lookup
from nbllm.tokenizer import Tokenizer

PROMPT = "The quick brown fox jumps over the lazy dog. def next"
DRAWN = SamplingParameters(temperature=1.0, top_p=0.9, max_new_tokens=24, seed=3)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3", "mixtral", "gemma3", "mistral"])
def test_greedy_tokens_are_transformers_own(kind: str, tokenizer: Tokenizer) -> None:
    """Also past a sliding window, from a known prompt, and from the middle of a text."""
    model = family(kind, tokenizer)
    ids = tokenizer.encode(PROMPT)
    wanted = reference(model, ids, 40)
    settings = SamplingParameters(greedy=True, max_new_tokens=40)
    for _ in range(2):
        assert list(generate(model, tokenizer, ids, settings).tokens) == wanted
    rest = generate(model, tokenizer, ids + wanted[:20], SamplingParameters(greedy=True, max_new_tokens=20))
    assert list(rest.tokens) == wanted[20:]
    assert rest.prompt_tokens_reused >= len(ids)


def test_no_prompt_token_is_run_twice(tokenizer: Tokenizer) -> None:
    model = build("llama", tokenizer)
    runs: list[int] = []
    model.model.embed_tokens.register_forward_hook(lambda _, given, __: runs.append(given[0].shape[1]))
    first = generate(model, tokenizer, PROMPT, DRAWN)
    size = len(first.prompt_tokens)
    assert runs == [size, *[1] * 23]
    runs.clear()
    other = generate(model, tokenizer, PROMPT, SamplingParameters(temperature=0.5, max_new_tokens=10, seed=3))
    assert runs == [1] * 9  # the prompt and the logits at its end are known
    assert other.prompt_tokens_reused == size
    runs.clear()
    branch = [*first.prompt_tokens, *first.tokens[:10], 7]
    generate(model, tokenizer, branch, SamplingParameters(max_new_tokens=1))
    assert runs == [1]


def test_a_branch_goes_on_with_the_same_random_numbers(llama: Any, tokenizer: Tokenizer) -> None:
    whole = generate(llama, tokenizer, PROMPT, DRAWN)
    rest = generate(llama, tokenizer, [*whole.prompt_tokens, *whole.tokens[:9]], DRAWN)
    assert rest.tokens[:15] == whole.tokens[9:]


def test_changed_weights_are_other_weights(tokenizer: Tokenizer) -> None:
    model = build("llama", tokenizer)
    before = generate(model, tokenizer, PROMPT, DRAWN)
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.mul_(-1.5)
    found = generate(model, tokenizer, PROMPT, DRAWN)
    assert found.prompt_tokens_reused == 0
    assert found.tokens == generate(model, tokenizer, PROMPT, DRAWN, use_cache=False).tokens != before.tokens


def test_weights_written_through_data_are_other_weights(tokenizer: Tokenizer) -> None:
    """Neither the place nor the version of a weight changes then."""
    model = build("llama", tokenizer)
    parameters = SamplingParameters(greedy=True, max_new_tokens=8)
    generate(model, tokenizer, PROMPT, parameters)
    model.model.layers[0].mlp.down_proj.weight.data.mul_(-3.0)
    found = generate(model, tokenizer, PROMPT, parameters)
    assert found.prompt_tokens_reused == 0
    assert found.tokens == generate(model, tokenizer, PROMPT, parameters, use_cache=False).tokens
    again = generate(model, tokenizer, PROMPT, parameters)
    assert again.prompt_tokens_reused == len(again.prompt_tokens)


@pytest.mark.parametrize("training", [True, False])
def test_weights_that_are_trained_leave_nothing_behind(tokenizer: Tokenizer, training: bool) -> None:
    """Neither keys and values that the next step makes worthless, nor a step that would be compiled beside it."""
    model = build("llama", tokenizer).train(training)
    first = generate(model, tokenizer, PROMPT, DRAWN, keep=training)
    assert generate(model, tokenizer, PROMPT, DRAWN, keep=training).tokens == first.tokens
    assert model.training == training
    assert Forward.of(model).prefixes.tokens == 0
    assert Forward.of(model).compiled._steps == 0


def test_several_samples_leave_the_kept_prompt_alone(llama: Any, tokenizer: Tokenizer) -> None:
    alone = generate(llama, tokenizer, PROMPT, DRAWN)
    several = generate(
        llama, tokenizer, PROMPT, SamplingParameters(max_new_tokens=24, seed=3, n=3, temperature=1.0, top_p=0.9)
    )
    assert several.samples[0].tokens == alone.tokens
    assert generate(llama, tokenizer, PROMPT, DRAWN).tokens == alone.tokens


def test_buffers_grow_and_keep_what_they_hold(tokenizer: Tokenizer) -> None:
    assert [places_for(size) for size in (1, 256, 257, 1000)] == [256, 256, 512, 1024]
    model = build("llama", tokenizer, context=700)
    settings = SamplingParameters(greedy=True, max_new_tokens=20)
    ids = (tokenizer.encode(PROMPT) * 40)[:250]
    assert generate(model, tokenizer, ids, settings).tokens == generate(
        model, tokenizer, ids, settings, use_cache=False
    ).tokens  # fmt: skip


def test_kept_texts_are_bounded(tokenizer: Tokenizer) -> None:
    def text(length: int) -> Slots:
        slots = Slots(1)
        slots.layers[0].update(torch.ones(1, 1, length, 4), torch.ones(1, 1, length, 4))
        slots.length = length
        return slots

    one = text(10).size_bytes
    kept = Prefixes(most_bytes=2 * one)
    for start in range(3):
        kept.put("w", [start, 1, 2], text(3), {})
    assert kept.size_bytes == 2 * one
    assert kept.take("w", [0, 1, 2, 3]) == (None, None)  # the oldest has gone
    slots, _ = kept.take("w", [2, 1, 2, 3])
    assert slots is not None
    assert slots.length == 3
    assert kept.take("other weights", [2, 1, 2, 3]) == (None, None)


def test_prompt_lookup_takes_what_followed_last_time() -> None:
    assert prompt_lookup([1, 2, 3, 4, 5, 1, 2, 3], 2) == [4, 5]
    assert prompt_lookup([7, 9, 7, 8, 7], 3) == [8, 7]
    assert prompt_lookup([1, 2, 3], 2) == []


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_guessing_changes_nothing(tokenizer: Tokenizer, greedy: bool, penalty: float) -> None:
    model, draft = build("llama", tokenizer), build("llama", tokenizer, layers=1)
    plain = {"greedy": greedy, "temperature": 0.7, "repetition_penalty": penalty, "seed": 11, "max_new_tokens": 40}
    prompt = PROMPT + PROMPT
    prompt_ids = tokenizer.encode(prompt)[: CONTEXT - 30]  # it also runs into the context
    wanted = generate(model, tokenizer, prompt_ids, SamplingParameters(**plain), trace=True)
    looked_up = generate(model, tokenizer, prompt_ids, SamplingParameters(**plain, prompt_lookup=5), trace=True)
    drafted = generate(model, tokenizer, prompt_ids, SamplingParameters(**plain), draft=draft)
    assert looked_up.tokens == drafted.tokens == wanted.tokens
    assert looked_up.stop_reason == wanted.stop_reason
    assert looked_up.trace is not None
    assert wanted.trace is not None
    assert looked_up.trace.steps["rank"] == wanted.trace.steps["rank"]
    perfect = generate(model, tokenizer, prompt_ids, SamplingParameters(**plain), draft=model)
    assert perfect.tokens == wanted.tokens


def test_a_draft_of_other_words_is_refused(llama: Any, tokenizer: Tokenizer) -> None:
    other = build("llama", tokenizer, vocab_size=tokenizer.vocab_size + 1)
    with pytest.raises(UsageError, match="tokens"):
        generate(llama, tokenizer, PROMPT, DRAWN, draft=other)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_sliding_goes_on_past_the_context(kind: str, tokenizer: Tokenizer) -> None:
    model = family(kind, tokenizer)
    settings = SamplingParameters(greedy=True, max_new_tokens=2 * CONTEXT, sliding=True)
    found = generate(model, tokenizer, PROMPT, settings)
    assert found.stop_reason == "length"
    assert len(found.tokens) == 2 * CONTEXT
    # it is what the newer half of the context gives by itself
    ids = [*found.prompt_tokens, *found.tokens]
    start = CONTEXT + 1 - CONTEXT // 2
    fresh = generate(model, tokenizer, ids[start : CONTEXT + 1], SamplingParameters(greedy=True, max_new_tokens=20))
    assert list(fresh.tokens) == ids[CONTEXT + 1 : CONTEXT + 21]
    batch = generate_batch(model, tokenizer, [PROMPT, "d"], settings)
    assert batch[0].tokens == found.tokens
    long = generate(model, tokenizer, [5] * (2 * CONTEXT), SamplingParameters(sliding=True, max_new_tokens=3))
    assert len(long.tokens) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised_weights_are_rounded_to_the_nearest_step(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 48, dtype=dtype)
    layer = (Int8Linear if kind == "int8" else Int4Linear)(linear)
    with torch.no_grad():
        # the rows of the identity read the weights out
        weights = (layer(torch.eye(64, dtype=dtype)) - linear.bias).T.double()
        groups = linear.weight.double().reshape(48, 1 if kind == "int8" else 2, -1)
        step = groups.abs().amax(-1) / 127 if kind == "int8" else (groups.amax(-1) - groups.amin(-1)) / 15
        wrong = (weights.reshape(groups.shape) - groups).abs().amax(-1)
        rounding = 0.02 if dtype == torch.bfloat16 else 1e-4
        assert (wrong <= step / 2 + rounding * groups.abs().amax()).all()
        assert wrong.max() > step.min() / 4  # it is quantised
        states = torch.randn(5, 64, dtype=dtype)
        torch.testing.assert_close(
            layer(states).double(), states.double() @ weights.T + linear.bias.double(), rtol=0.02, atol=0.02
        )


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_quantised_model_shares_what_it_can(kind: str, tokenizer: Tokenizer) -> None:
    model = build("llama", tokenizer, width=64, vocab_size=320)
    small = quantize(model, kind)
    assert small.model.embed_tokens.weight is model.model.embed_tokens.weight
    assert type(model.lm_head) is torch.nn.Linear  # the model is as it was
    found = generate(small, tokenizer, PROMPT, DRAWN)
    assert found.tokens == generate(small, tokenizer, PROMPT, DRAWN, use_cache=False).tokens
    several = generate(small, tokenizer, PROMPT, replace(DRAWN, n=3))  # rows that are views
    assert several.samples[0].tokens == found.tokens


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_quantised_weights_take_is_known_before(
    kind: str, tied: bool, dtype: torch.dtype, tokenizer: Tokenizer
) -> None:
    model = build("llama", tokenizer, width=64, vocab_size=320).to(dtype)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    small = quantize(model, kind)
    measured = {one.data_ptr(): one.nbytes for one in (*small.parameters(), *small.buffers())}
    assert quantized_bytes(model, kind) == sum(measured.values())


@pytest.mark.parametrize("inputs", [96, 64, 128])
def test_a_gpus_layers_have_the_shapes_that_its_products_take(inputs: int) -> None:
    """On a device without numbers; the numbers are checked in tests/gpu."""
    linear = torch.nn.Linear(inputs, 48, dtype=torch.bfloat16, device="meta")
    eight, four = Int8Linear(linear), Int4Linear(linear)
    assert (eight.packed.nbytes, four.packed.nbytes) == (48 * inputs, 48 * inputs // 2)
    assert eight(torch.empty(3, 5, inputs, dtype=torch.bfloat16, device="meta")).shape == (3, 5, 48)
    with FakeTensorMode():
        for name, buffer in four.named_buffers():
            setattr(four, name, torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda"))
        four.bias = None
        found = four(torch.empty(3, 5, inputs, dtype=torch.bfloat16, device="cuda"))
        assert (found.shape, found.dtype, found.device.type) == ((3, 5, 48), torch.bfloat16, "cuda")


def test_int8_by_a_cast_is_int8_by_the_packed_product() -> None:
    torch.manual_seed(0)
    layer = Int8Linear(torch.nn.Linear(64, 48, bias=False))
    states = torch.randn(5, 64)
    torch.testing.assert_close(cast_product(states, layer.packed, layer.scale), layer(states), rtol=1e-4, atol=1e-4)


def test_a_kind_of_quantisation_that_there_is_not(llama: Any) -> None:
    with pytest.raises(UsageError, match="int8 or int4"):
        quantize(llama, "int5")


def test_the_runtime_lives_as_long_as_the_model(tokenizer: Tokenizer) -> None:
    model = build("llama", tokenizer)
    assert Forward.of(model) is Forward.of(model)
    generate(model, tokenizer, PROMPT, DRAWN)
    weight, buffers = weakref.ref(model.lm_head.weight), weakref.ref(Forward.of(model).prefixes)
    del model
    gc.collect()
    assert weight() is None
    assert buffers() is None
