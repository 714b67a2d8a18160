"""Many prompts over paged attention: each prompt's text is the one it gets alone; files that are taken up again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import CONTEXT, build
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from nbllm.errors import DataError, NotFoundError, StoreError, UsageError
from nbllm.sample import Answer, SamplingParameters, generate, generate_many
from nbllm.sample.answers import AnswerFile, read_answers
from nbllm.tokenizer import Tokenizer

PROMPTS = ["The quick", "def next(self): ret", "안녕", "The lazy dog jumps over", "a " * 20, "x", "The quick"]
SETTINGS = {
    "greedy": SamplingParameters(greedy=True, max_new_tokens=12),
    "filters": SamplingParameters(temperature=1.2, top_p=0.9, top_k=50, min_p=0.01, n=2, seed=4, max_new_tokens=12),
    "penalties": SamplingParameters(
        temperature=1.0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.3, typical_p=0.9,
        max_new_tokens=12,
    ),
    "stop": SamplingParameters(temperature=1.0, seed=7, stop=("e", "xx"), max_new_tokens=60),
    "context": SamplingParameters(temperature=0.7, max_new_tokens=1000),
}  # fmt: skip


def check_alone(model: Any, tokenizer: Tokenizer, answers: Any, parameters: SamplingParameters) -> None:
    """Each answer against `generate` of its prompt alone."""
    for answer in answers:
        alone = generate(model, tokenizer, answer.prompt, parameters).samples[answer.sample]
        assert (answer.text, answer.tokens, answer.stop_reason) == (alone.text, alone.tokens, alone.stop_reason)


@pytest.mark.parametrize("name", SETTINGS)
def test_each_prompt_gets_its_own_text(model: Any, tokenizer: Tokenizer, name: str) -> None:
    parameters = SETTINGS[name]
    prompts = PROMPTS[3:] if name == "context" else PROMPTS
    found = generate_many(model, tokenizer, prompts, parameters, batch_size=5)  # fewer than rows: some wait
    assert found.note is None
    assert [(one.index, one.sample) for one in found] == [
        (i, j) for i in range(len(prompts)) for j in range(parameters.n)
    ]
    check_alone(model, tokenizer, found, parameters)
    assert found.tokens == sum(len(one.tokens) for one in found) > 0
    assert (found.done, found.failed, found.found, found.interrupted) == (len(prompts), 0, 0, False)


def test_a_text_ends_where_the_model_ends_it(tokenizer: Tokenizer) -> None:
    model = build("llama", tokenizer, end=True)
    parameters = SamplingParameters(temperature=3.0, top_p=1.0, max_new_tokens=80, seed=1)
    found = list(generate_many(model, tokenizer, [f"{i} The" for i in range(4)], parameters))
    check_alone(model, tokenizer, found, parameters)
    assert "eos" in {one.stop_reason for one in found}


def test_keys_and_values_that_do_not_all_fit_make_no_difference(
    llama: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbllm.sample.paged as paged

    monkeypatch.setattr(paged, "_CACHED", 1)  # one page a row where two are needed: rows make room and begin again
    parameters = SamplingParameters(temperature=0.9, frequency_penalty=0.4, max_new_tokens=70)
    found = generate_many(llama, tokenizer, PROMPTS, parameters)
    check_alone(llama, tokenizer, found, parameters)


def test_prompts_share_long_beginnings(llama: Any, tokenizer: Tokenizer) -> None:
    parameters = SamplingParameters(greedy=True, max_new_tokens=4)
    found = generate_many(llama, tokenizer, ["ab" * 36 + tail for tail in ("x", "y", "z")], parameters, batch_size=1)
    check_alone(llama, tokenizer, found, parameters)


def test_a_model_without_paged_attention_falls_back_and_says_so(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model: Any = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=tokenizer.vocab_size, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=CONTEXT, bos_token_id=None, eos_token_id=None,
            initializer_range=0.2,
        )
    ).eval()  # fmt: skip
    parameters = SETTINGS["filters"]
    found = generate_many(model, tokenizer, PROMPTS, parameters, batch_size=4)
    assert found.note is not None
    assert "padded batches" in found.note
    assert "GPTNeoX" in str(found)
    assert found.done == 7
    check_alone(model, tokenizer, found, parameters)


def test_beams_and_sliding_run_apart(llama: Any, tokenizer: Tokenizer) -> None:
    for parameters in (
        SamplingParameters(beams=3, n=2, max_new_tokens=5),
        SamplingParameters(greedy=True, sliding=True, max_new_tokens=CONTEXT),
    ):
        found = generate_many(llama, tokenizer, PROMPTS[:2], parameters)
        assert "beams and sliding" in (found.note or "")
        check_alone(llama, tokenizer, found, parameters)


def test_a_bad_prompt_fails_alone(llama: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    file, to = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    lines = [
        '{"prompt": "The quick", "id": "fox"}',
        "{not json",
        "",
        '{"text": "' + "x" * 300 + '"}',
        '{"prompt": [1, 2, 3]}',
        '{"prompt": [100000]}',
        '{"messages": [{"role": "user", "content": "hello"}]}',
        '{"prompt": "a", "text": "b"}',
        '"only text"',
        '{"prompt": "line\u2028separator"}',
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    parameters = SamplingParameters(greedy=True, max_new_tokens=4)
    found = generate_many(llama, tokenizer, file, parameters, to=to)
    assert (found.prompts, found.done, found.failed) == (9, 9, 6)
    answers = list(found)
    assert [one.index for one in answers] == list(range(9))
    assert [one.id for one in answers][:2] == ["fox", 1]
    good = [one for one in answers if one.error is None]
    assert [one.index for one in good] == [0, 3, 8]
    check_alone(llama, tokenizer, good, parameters)
    said = {one.index: one.error or "" for one in answers}
    for index, words in {
        1: "line 2: not valid JSON",
        2: "more than the model's context of 96",
        4: "vocabulary has 300",
        5: "messages need --chat",
        6: "line 8: it needs one of prompt, text and messages",
        7: "not an object",
    }.items():
        assert words in said[index]
    written = [json.loads(line) for line in to.read_bytes().splitlines()]
    assert set(written[0]) == {"index", "id", "sample", "prompt", "text", "tokens", "stop_reason", "error"}


def test_conversations(llama: Any, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "hello"}\n', encoding="utf-8")
    parameters = SamplingParameters(greedy=True, max_new_tokens=4)
    found = list(generate_many(llama, tokenizer, file, parameters, chat=True))
    assert "has no chat template" in (found[0].error or "")
    monkeypatch.setattr("nbllm.sample.many.chat_prompt", lambda _, message: tokenizer.encode(f"<{message}>"))
    found = list(generate_many(llama, tokenizer, file, parameters, chat=True))
    assert found[0].tokens == generate(llama, tokenizer, tokenizer.encode("<hello>"), parameters).tokens
    talk = [[{"role": "user", "content": "hi"}]]
    found = list(generate_many(llama, tokenizer, talk, parameters, chat=True))
    assert found[0].tokens == generate(llama, tokenizer, tokenizer.encode(f"<{talk[0]}>"), parameters).tokens
    assert found[0].prompt == talk[0]


def test_the_same_call_goes_on(llama: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    file, to = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    file.write_text("\r\n".join(PROMPTS) + "\n", encoding="utf-8")
    parameters = SETTINGS["filters"]
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return to.exists() and to.stat().st_size > 0

    first = generate_many(llama, tokenizer, file, parameters, to=to, batch_size=3, should_stop=stop)
    assert first.interrupted
    assert asked > 1
    assert 0 < len(list(first)) < 14
    before = to.read_bytes()
    to.write_bytes(before + b'{"index": 6, "id": 6, "samp')  # the process died while it wrote
    seen: list[tuple[int, int]] = []
    second = generate_many(
        llama, tokenizer, file, parameters, to=to, progress=lambda done, total, _: seen.append((done, total))
    )
    assert to.read_bytes().startswith(before)
    assert (second.done, second.found, second.interrupted) == (7, first.done, False)
    assert seen[-1] == (7, 7)
    assert [(one.index, one.sample) for one in second] == [(i, j) for i in range(7) for j in range(2)]
    check_alone(llama, tokenizer, second, parameters)
    whole = to.read_bytes()
    third = generate_many(llama, tokenizer, file, parameters, to=to)
    assert (third.done, third.found, third.tokens) == (7, 7, 0)
    assert to.read_bytes() == whole


def test_an_interrupt_keeps_what_is_done(llama: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    to = tmp_path / "answers.jsonl"

    def interrupt(done: int, total: int, tokens_per_s: float) -> None:
        if done == 2:
            raise KeyboardInterrupt

    found = generate_many(llama, tokenizer, PROMPTS, SETTINGS["greedy"], to=to, batch_size=2, progress=interrupt)
    assert found.interrupted
    assert (found.done, len(list(found))) == (2, 2)
    again = generate_many(llama, tokenizer, PROMPTS, SETTINGS["greedy"], to=to)
    assert (again.done, again.found) == (7, 2)
    check_alone(llama, tokenizer, again, SETTINGS["greedy"])


def test_other_settings_or_prompts_are_refused(llama: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    to = tmp_path / "answers.jsonl"
    parameters = SamplingParameters(greedy=True, max_new_tokens=2)
    made_with = {"model": "a"}
    generate_many(llama, tokenizer, ["a", "b"], parameters, to=to, made_with=made_with)
    whole = to.read_bytes()
    other = SamplingParameters(greedy=True, max_new_tokens=3)
    with pytest.raises(UsageError, match=r"another max_new_tokens \(2, not 3\).*--overwrite"):
        generate_many(llama, tokenizer, ["a", "b"], other, to=to, made_with=made_with)
    with pytest.raises(UsageError, match=r"another model \(a, not b\)"):
        generate_many(llama, tokenizer, ["a", "b"], parameters, to=to, made_with={"model": "b"})
    with pytest.raises(UsageError, match="the prompts have changed"):
        generate_many(llama, tokenizer, ["a", "c"], parameters, to=to, made_with=made_with)
    assert to.read_bytes() == whole
    longer = generate_many(llama, tokenizer, ["a", "b", "c"], parameters, to=to, made_with=made_with)
    assert (longer.done, longer.found) == (3, 2)
    anew = generate_many(llama, tokenizer, ["a", "c"], other, to=to, overwrite=True)
    assert [one.prompt for one in anew] == ["a", "c"]


def test_a_line_that_was_mended_is_asked_again(llama: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    file, to = tmp_path / "p.jsonl", tmp_path / "a.jsonl"
    parameters = SamplingParameters(greedy=True, max_new_tokens=2)
    file.write_text('{"prompt": "a"}\n{"promt": "b"}\n', encoding="utf-8")
    assert generate_many(llama, tokenizer, file, parameters, to=to).failed == 1
    again = generate_many(llama, tokenizer, file, parameters, to=to)
    assert (again.failed, again.found) == (1, 2)
    file.write_text('{"prompt": "a"}\n{"prompt": "b"}\n', encoding="utf-8")
    mended = generate_many(llama, tokenizer, file, parameters, to=to)
    assert (mended.failed, mended.found, mended.done) == (0, 1, 2)
    assert [one.error for one in mended] == [None, None]


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    to = tmp_path / "a.jsonl"
    to.write_text("my notes\n", encoding="utf-8")
    with pytest.raises(UsageError, match="doesn't say what it was made with"), AnswerFile(to, {}):
        pass
    assert to.read_text(encoding="utf-8") == "my notes\n"
    other = tmp_path / "b.jsonl"
    with AnswerFile(other, {}) as file, pytest.raises(StoreError, match="Another process"), AnswerFile(other, {}):
        file.add(Answer(index=0, id=0, prompt="\ud83d", text="x"))
    with AnswerFile(other, {}) as file:
        file.add(Answer(index=0, id=0, prompt="\ud83d", text="x"))
    assert read_answers(other) == [Answer(index=0, id=0, prompt="\ud83d", text="x")]
    other.write_bytes(b"{}\n" + other.read_bytes())
    with pytest.raises(DataError, match="Line 1"):
        read_answers(other)


def test_files_without_prompts(llama: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no file"):
        generate_many(llama, tokenizer, tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(DataError, match="no prompts"):
        generate_many(llama, tokenizer, tmp_path / "empty.txt")


def test_logits_that_are_no_numbers(tokenizer: Tokenizer) -> None:
    model = build("llama", tokenizer)
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("nan")
    with pytest.raises(DataError, match="finite"):
        generate_many(model, tokenizer, PROMPTS, SETTINGS["greedy"])
