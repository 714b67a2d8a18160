"""Sampling: reproducible, the same random numbers whatever the settings, and the right distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import CONTEXT, reference

from nbllm.sample import SamplingParameters, generate, generate_batch
from nbllm.sample.filters import pipeline
from nbllm.tokenizer import Tokenizer

PROMPT = "The quick brown "


def next_logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[:, -1].float()


def test_a_seed_is_a_text(model: Any, tokenizer: Tokenizer) -> None:
    state = torch.get_rng_state()
    texts = [
        generate(model, tokenizer, PROMPT, SamplingParameters(seed=seed, max_new_tokens=20)).tokens
        for seed in (0, 0, 1, 2**63 - 1)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's random numbers are drawn


@pytest.mark.parametrize("zero", ["temperature", "top_p"])
def test_zero_is_greedy(model: Any, tokenizer: Tokenizer, zero: str) -> None:
    settings: dict[str, Any] = {zero: 0}
    found = generate(model, tokenizer, PROMPT, SamplingParameters(max_new_tokens=20, **settings))
    assert list(found.tokens) == reference(model, tokenizer.encode(PROMPT), 20)


def test_repetition_penalty_is_transformers_own(model: Any, tokenizer: Tokenizer) -> None:
    wanted = reference(model, tokenizer.encode(PROMPT), 20, repetition_penalty=1.7)
    plain = reference(model, tokenizer.encode(PROMPT), 20)
    settings = SamplingParameters(greedy=True, repetition_penalty=1.7, max_new_tokens=20)
    together = generate_batch(model, tokenizer, [PROMPT, "d"], settings)
    assert list(generate(model, tokenizer, PROMPT, settings).tokens) == wanted != plain
    assert list(together[0].tokens) == wanted
    assert together[1].tokens == generate(model, tokenizer, "d", settings).tokens  # padding isn't seen


def test_samples_and_prompts_keep_their_numbers_in_a_batch(model: Any, tokenizer: Tokenizer) -> None:
    three = SamplingParameters(n=3, max_new_tokens=15)
    alone = generate(model, tokenizer, PROMPT, three)
    assert len({sample.tokens for sample in alone.samples}) == 3
    one = generate(model, tokenizer, PROMPT, SamplingParameters(max_new_tokens=15))
    assert one.tokens == alone.tokens
    uncached = generate(model, tokenizer, PROMPT, three, use_cache=False)
    assert [sample.tokens for sample in uncached.samples] == [sample.tokens for sample in alone.samples]
    for size in (1, 3, 32):
        batch = generate_batch(model, tokenizer, ["d", PROMPT, "def next(self): return"], three, batch_size=size)
        assert [sample.tokens for sample in batch[1].samples] == [sample.tokens for sample in alone.samples]


def test_rows_that_end_early_leave_the_others_alone(model: Any, tokenizer: Tokenizer) -> None:
    prompts = [PROMPT, "d", "안녕", "return"]
    settings = SamplingParameters(greedy=True, max_new_tokens=30)
    whole = generate_batch(model, tokenizer, prompts, settings)
    end = whole[0].tokens[7]
    model.config.eos_token_id = [end, 10_000]
    try:
        for use_cache in (True, False):
            found = generate_batch(model, tokenizer, prompts, settings, use_cache=use_cache)
            for before, after in zip(whole, found, strict=True):
                cut = before.tokens.index(end) + 1 if end in before.tokens else 30
                assert after.tokens == before.tokens[:cut]
                assert after.stop_reason == ("eos" if end in before.tokens else "length")
    finally:
        model.config.eos_token_id = None


def test_a_cache_that_cannot_drop_rows_gives_the_same(
    model: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that ended run along, unseen, also where the context is full."""
    prompts = [[40] * (CONTEXT - 4), tokenizer.encode(PROMPT)]
    settings = SamplingParameters(n=2, max_new_tokens=12, repetition_penalty=1.2)
    wanted = generate_batch(model, tokenizer, prompts, settings)
    monkeypatch.setattr("nbllm.sample.rows.can_select", lambda cache: False)
    found = generate_batch(model, tokenizer, prompts, settings, trace=True)
    assert wanted[0].stop_reason == "context"
    for one, other in zip(wanted, found, strict=True):
        assert [sample.tokens for sample in one.samples] == [sample.tokens for sample in other.samples]
        assert other.trace is not None
        assert other.trace.steps.num_rows == sum(len(sample.tokens) for sample in other.samples)


def test_a_filter_does_not_shift_the_noise(llama: Any, tokenizer: Tokenizer) -> None:
    """Where two settings part, the one that is freer chose what the other forbids."""
    parted = 0
    for seed in range(6):
        free = generate(
            llama, tokenizer, PROMPT, SamplingParameters(seed=seed, temperature=1, top_p=1, max_new_tokens=25)
        )
        strict_settings = SamplingParameters(seed=seed, temperature=1, top_p=0.6, max_new_tokens=25)
        strict = generate(llama, tokenizer, PROMPT, strict_settings)
        ids = list(free.prompt_tokens)
        for one, other in zip(free.tokens, strict.tokens, strict=True):
            if one != other:
                logits = next_logits(llama, ids)
                for _, step in pipeline(strict_settings, None):
                    logits = step(logits)
                assert logits[0, one] == -torch.inf
                assert logits[0, other] > -torch.inf
                parted += 1
                break
            ids.append(one)
    assert parted > 3


@pytest.mark.parametrize(
    "settings", [{"temperature": 1.0, "top_p": 1.0}, {"temperature": 0.7, "top_k": 12}, {"top_p": 0.8, "min_p": 0.05}]
)
def test_tokens_are_drawn_with_their_probabilities(llama: Any, tokenizer: Tokenizer, settings: dict[str, Any]) -> None:
    draws = 4000
    parameters = SamplingParameters(n=draws, max_new_tokens=1, seed=5, **settings)
    found = generate(llama, tokenizer, PROMPT, parameters)
    logits = next_logits(llama, tokenizer.encode(PROMPT))
    raw = logits.log_softmax(-1)[0]
    for _, step in pipeline(parameters, None):
        logits = step(logits)
    probabilities = logits.double().softmax(-1)[0]
    counts = torch.tensor([sample.tokens[0] for sample in found.samples]).bincount(minlength=len(probabilities))
    assert counts[probabilities == 0].sum() == 0
    common = probabilities * draws >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]]).double()
    expected = torch.cat([probabilities[common], probabilities[~common].sum()[None]]) * draws
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    square = float(((observed - expected) ** 2 / expected).sum())
    assert square < freedom + 4 * (2 * freedom) ** 0.5
    first = found.samples[0]
    assert first.logprobs[0] == pytest.approx(float(raw[first.tokens[0]]), abs=1e-5)
