"""The trace tells what the model and each filter thought, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nbllm.errors import UsageError
from nbllm.sample import SamplingParameters, generate, generate_batch
from nbllm.sample.filters import pipeline
from nbllm.sample.trace import Recorder
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


def test_the_newest_step_is_the_row_that_the_tables_will_have(llama: Any, tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    recorder, steps, said = Recorder(), {7: [], 3: []}, {7: [], 3: []}
    assert recorder.last(tokenizer) == []
    for number in range(70):  # past the steps that stay on the device
        logits = torch.randn(2, tokenizer.vocab_size) * 3
        after = {"temperature": logits / 0.7, "top_k": logits.masked_fill(logits < 1, -torch.inf)}
        chosen = torch.tensor([number, 299 - number])
        recorder.add([7, 3], logits, after, chosen)
        if number % 9 == 0 or number > 60:
            first, second = recorder.last(tokenizer)
            assert recorder.last(tokenizer, places=[1]) == [second]
            steps[7].append(first)
            steps[3].append(second)
        said[7].append(number)
        said[3].append(299 - number)
    trace = recorder.trace(tokenizer, [3, 7], [said[3], said[7]])
    assert trace.steps.num_rows == 140
    for row, sample in ((3, 0), (7, 1)):
        for step in steps[row]:
            table = trace.steps.to_pylist()[sample * 70 + step.step]
            assert {name: getattr(step, name) for name in table if name != "sample"} == {
                name: value for name, value in table.items() if name != "sample"
            }
            assert [{"sample": sample, "step": step.step, **one} for one in step.alternatives] == trace.at(
                step.step, sample
            )


def test_equals_stand_in_the_order_that_a_greedy_choice_has(tokenizer: Tokenizer) -> None:
    recorder = Recorder(alternatives=3)
    logits = torch.zeros(1, tokenizer.vocab_size + 5)
    logits[0, [302, 2, 4]] = 5.0
    recorder.add([0], logits, {}, torch.tensor([4]))
    trace = recorder.trace(tokenizer, [0], [[4]])
    assert trace.alternatives["token"].to_pylist() == [2, 4, 302]
    assert trace.alternatives["text"].to_pylist()[2] == ""  # the model's vocabulary is larger than the tokenizer's
    assert trace.steps["rank"].to_pylist() == [2]


def test_pieces_of_characters_are_shown_as_their_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🙂")
    assert len(ids) > 1
    recorder = Recorder(alternatives=2)
    for id in ids:
        recorder.add([0], torch.zeros(1, tokenizer.vocab_size), {}, torch.tensor([id]))
    texts = recorder.trace(tokenizer, [0], [ids]).steps["text"].to_pylist()
    assert "".join(texts).replace(">", "").split("<")[1:] == ["F0", "9F", "99", "82"]


def test_what_stays_on_the_device_is_bounded(tokenizer: Tokenizer) -> None:
    recorder, vocab_size = Recorder(), 50
    after = {name: torch.randn(1, vocab_size) for name in ("a", "b", "c", "d", "e")}
    most = 0
    for _ in range(2000):
        recorder.add([0], torch.randn(1, vocab_size), after, torch.tensor([1]))
        most = max(most, sum(lines.nbytes for lines in recorder._pending))
    assert most < 64 * 4 * (6 + 7 * 10)
    trace = recorder.trace(tokenizer, [0], [[1] * 2000])
    assert trace.alternatives.num_rows == 20_000


def test_a_trace_shows_its_tokens_coloured(tokenizer: Tokenizer) -> None:
    recorder, said = Recorder(alternatives=3), {0: [40, 41, 42], 1: [43]}
    for number in range(3):
        logits = torch.arange(tokenizer.vocab_size).float().repeat(2, 1) / 30
        recorder.add([0, 1], logits, {"top_k": logits}, torch.tensor([40 + number, 43 + number]))
    trace = recorder.trace(tokenizer, [0, 1], [said[0], said[1]])
    found = trace.coloured("rank")
    assert [[token.id for token in text] for text in found.texts] == [[40, 41, 42], [43]]
    best = trace.at(0)[0]
    assert found.texts[1][0].alternatives[0] == (best["text"], best["model"])
    assert found.texts[0][2].rank == trace.steps["rank"].to_pylist()[2]
    assert found.heading == "4 tokens in 2 samples, before top k"
    assert ">sample 2 of 2<" in trace._repr_html_()
    assert str(trace).splitlines()[0] == "4 tokens in 2 samples, before top k"
    assert repr(trace) == "Trace(4 tokens, filters top_k)"
    nothing = recorder.trace(tokenizer, [0], [[]])
    assert nothing.coloured().texts == ((),)
    assert "<table" not in nothing._repr_html_()
