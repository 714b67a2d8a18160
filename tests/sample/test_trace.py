"""The trace tells what the model and each filter thought, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nbllm.errors import UsageError
from nbllm.sample import SamplingParameters, generate, generate_batch
from nbllm.sample.filters import pipeline
from nbllm.tokenizer import Tokenizer

SETTINGS = SamplingParameters(temperature=0.7, top_k=20, top_p=0.9, max_new_tokens=6, n=2)


def test_numbers_are_the_models(llama: Any, tokenizer: Tokenizer) -> None:
    found = generate(llama, tokenizer, "The quick ", SETTINGS, trace=True)
    assert found.trace is not None
    assert found.trace.filters == ("temperature", "top_k", "top_p")
    steps = found.trace.steps.to_pylist()
    assert [(row["sample"], row["step"]) for row in steps] == [(s, i) for s in range(2) for i in range(6)]
    for row in steps:
        sample = found.samples[row["sample"]]
        assert row["token"] == sample.tokens[row["step"]]
        assert row["text"] == tokenizer.token_text(row["token"])
        ids = [*found.prompt_tokens, *sample.tokens[: row["step"]]]
        with torch.no_grad():
            logits = llama(torch.tensor([ids])).logits[:, -1]
        stages = {"model": logits}
        for name, step in pipeline(SETTINGS, None):
            stages[name] = logits = step(logits)
        stages = {name: stage.softmax(-1)[0] for name, stage in stages.items()}
        model, final = stages["model"], stages["top_p"]
        assert row["probability"] == pytest.approx(float(model[row["token"]]), abs=1e-5)
        assert row["final"] == pytest.approx(float(final[row["token"]]), abs=1e-5)
        assert row["rank"] == 1 + int((model > model[row["token"]]).sum())
        assert row["entropy"] == pytest.approx(float(torch.special.entr(model).sum()), abs=1e-4)
        assert row["final_entropy"] == pytest.approx(float(torch.special.entr(final).sum()), abs=1e-4)
        assert sample.logprobs[row["step"]] == pytest.approx(float(model[row["token"]].log()), abs=1e-4)
        alternatives = found.trace.at(row["step"], row["sample"])
        assert [one["token"] for one in alternatives] == model.topk(10).indices.tolist()
        for one in alternatives:
            for name, stage in stages.items():
                assert one[name] == pytest.approx(float(stage[one["token"]]), abs=1e-5)
            assert one["final"] == one["top_p"]
            assert one["chosen"] == (one["token"] == row["token"])


def test_a_trace_changes_nothing_and_is_each_prompts_own(llama: Any, tokenizer: Tokenizer) -> None:
    prompts = ["d", "The quick brown fox "]
    plain = generate_batch(llama, tokenizer, prompts, SETTINGS)
    traced = generate_batch(llama, tokenizer, prompts, SETTINGS, trace=True)
    for one, other in zip(plain, traced, strict=True):
        assert one.trace is None
        assert other.trace is not None
        assert one.samples == other.samples
        said = [token for sample in other.samples for token in sample.tokens]
        assert other.trace.steps["token"].to_pylist() == said


def test_greedy_has_a_trace_without_filters(llama: Any, tokenizer: Tokenizer) -> None:
    found = generate(llama, tokenizer, "d", SamplingParameters(greedy=True, max_new_tokens=3), trace=True)
    assert found.trace is not None
    assert found.trace.filters == ()
    assert found.trace.steps["rank"].to_pylist() == [1, 1, 1]
    with pytest.raises(UsageError, match="no step 3"):
        found.trace.at(3)


def test_an_interrupted_trace_has_the_steps_that_count(llama: Any, tokenizer: Tokenizer) -> None:
    answers = iter([False, False, True])
    found = generate(llama, tokenizer, "d", SETTINGS, trace=True, should_stop=lambda: next(answers))
    assert found.trace is not None
    assert found.trace.steps["step"].to_pylist() == [0, 1, 0, 1]
    nothing = generate(llama, tokenizer, "d", SETTINGS, trace=True, should_stop=lambda: True)
    assert nothing.trace is not None
    assert nothing.trace.steps.num_rows == nothing.trace.alternatives.num_rows == 0
