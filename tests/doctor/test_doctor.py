"""Each finding where it should be and where it shouldn't, over models whose next token is a table's row."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig

from nbllm.doctor import Asked, Diagnosis, Finding, memory, slow
from nbllm.doctor.diagnose import diagnose
from nbllm.doctor.text import repeated_share, tail_period
from nbllm.sample import Generation, SamplingParameters, generate
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, train

TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}"


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many threads as cores, much memory, and no clock."""
    monkeypatch.setattr(slow, "cores", torch.get_num_threads)
    monkeypatch.setattr(slow, "pace", lambda model, ids: (1.0, []))
    monkeypatch.setattr(memory, "memory_of", lambda device: (10**10, 10**10))


class Table(torch.nn.Module):
    """Logits of the next token are the row of the newest one."""

    def __init__(self, table: torch.Tensor, **config: Any) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding.from_pretrained(table)
        self.config = PreTrainedConfig(vocab_size=table.shape[1], **config)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embedding

    def forward(
        self, input_ids: Any, attention_mask: Any, position_ids: Any, use_cache: bool, return_dict: bool
    ) -> Any:
        return SimpleNamespace(logits=self.embedding(input_ids))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    store = Store(tmp_path_factory.mktemp("store"))
    texts = ["The quick brown fox jumps over the lazy dog. "] * 60
    return train(store, texts, text_bytes=3000, vocab_size=300, special=["<|user|>"], name="tiny")


def said(tokenizer: Tokenizer, kind: str, rows: int | None = None, **config: Any) -> tuple[Any, Generation]:
    """A model and what it says: `loops` when greedy, `flat` where it is hot, `plain` else."""
    size = rows or tokenizer.vocab_size
    torch.manual_seed(0)
    table = torch.randn(size, size)
    table[:, tokenizer.eos_id] = -1000.0
    if kind == "loops":
        table[torch.arange(size), 100 + (torch.arange(size) + 1) % 3] += 5.0
        parameters = SamplingParameters(greedy=True, max_new_tokens=64)
    elif kind == "flat":
        table += 6 * torch.randn(size, size).clamp(min=1)
        parameters = SamplingParameters(temperature=50.0, top_p=1.0, max_new_tokens=64)
    else:
        table += 3 * torch.randn(size, size).clamp(min=1)
        parameters = SamplingParameters(temperature=1.0, max_new_tokens=40)
    model = Table(table, **config).eval()
    return model, generate(model, tokenizer, [70, 71], parameters, trace=True)


def names(model: Any, tokenizer: Tokenizer, generation: Generation) -> list[str]:
    return [one.name for one in diagnose(model, tokenizer, generation)]


def test_repeats_are_counted() -> None:
    assert repeated_share([1, 2, 3, 4, 5, 1, 2, 3, 4]) == pytest.approx(1 / 6)
    assert repeated_share([1, 2]) == 0
    assert tail_period([9, 8, 1, 2, 1, 2, 1, 2]) == (2, 6)
    assert tail_period([1, 2, 3, 4, 1, 2, 3, 4]) == (0, 0)


def test_a_loop_is_shown_with_what_mends_it(tokenizer: Tokenizer) -> None:
    model, generation = said(tokenizer, "loops")
    found = next(one for one in diagnose(model, tokenizer, generation) if one.name == "the text loops")
    assert found.severity == "serious"
    assert found.remedy == "Draw with a penalty"
    assert found.command == (
        "nbllm.session().generate([70, 71], max_new_tokens=64, greedy=False, repetition_penalty=1.1, "
        "temperature=0.8, top_p=0.95, beams=1)"
    )
    share = repeated_share(generation.tokens)
    assert found.evidence.startswith(f"{share:.0%} of the 4-grams of 64 tokens")


def test_a_hot_text_falls_apart(tokenizer: Tokenizer) -> None:
    model, generation = said(tokenizer, "flat")
    found = next(one for one in diagnose(model, tokenizer, generation) if one.name == "the text falls apart")
    assert found.severity == "serious"
    assert "at temperature 50; sampled again with these settings and the same seed, 0% and" in found.evidence
    assert found.command.endswith("max_new_tokens=64, temperature=0.7, top_p=0.9)")


def test_nothing_found_says_what_was_checked(tokenizer: Tokenizer) -> None:
    found = diagnose(*(lambda model, one: (model, tokenizer, one))(*said(tokenizer, "plain")))
    assert len(found) == 0
    assert str(found) == (
        "Nothing found · checked: loops, ranks and entropy, vocabulary and special tokens, unknown tokens, "
        "chat template, context, memory, attention, dtype, threads and compiled step"
    )


@pytest.mark.parametrize(("more", "severity"), [(-20, "serious"), (100, "warning"), (5, None)])
def test_vocabulary_and_embedding(tokenizer: Tokenizer, more: int, severity: str | None) -> None:
    model, generation = said(tokenizer, "plain", rows=tokenizer.vocab_size + more)
    found = [one for one in diagnose(model, tokenizer, generation) if "than the model" in one.name]
    assert [one.severity for one in found] == ([severity] if severity else [])


def test_special_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_id is not None
    model, generation = said(tokenizer, "plain", eos_token_id=[7, 8])
    assert "the model's eos token is another" in names(model, tokenizer, generation)
    model.config.eos_token_id = [7, tokenizer.eos_id]
    assert names(model, tokenizer, generation) == []


def test_a_chat_template_that_was_left_out(tokenizer: Tokenizer) -> None:
    model, generation = said(tokenizer, "plain")
    chat = Tokenizer(tokenizer.definition, config=tokenizer.config, chat_template=TEMPLATE, name="chat")
    asked = Asked(prompt="Why?", options={"model": "my model"})
    question = replace(generation, prompt="Why?")
    found = diagnose(model, chat, question, asked)
    assert [one.name for one in found] == ["a chat model without its template"]
    assert found.findings[0].command == (
        '%llm_generate "Why?" --model "my model" --chat --max-new-tokens 40 --temperature 1'
    )
    assert names(model, chat, generation) == []  # a text to continue is no question
    assert names(model, chat, replace(question, prompt_tokens=(chat.special_tokens["<|user|>"], 70))) == []


def test_the_context(tokenizer: Tokenizer) -> None:
    model, full = said(tokenizer, "plain", max_position_embeddings=20)
    assert full.stop_reason == "context"
    found = diagnose(model, tokenizer, full)
    assert [(one.name, one.severity) for one in found] == [("the context is full", "warning")]
    assert "2 tokens of prompt and 40 new ones are 42, the context has 20" in found.findings[0].evidence
    model.config.max_position_embeddings = 42
    assert names(model, tokenizer, full) == ["the context is full"]
    assert names(*(model, tokenizer, said(tokenizer, "plain")[1])) == []


def test_worst_first_and_escaped() -> None:
    one = Finding(name="<b>", severity="hint", evidence="<i>", remedy="<u>", command="<s>")
    found = Diagnosis(findings=(one, replace(one, name="bad", severity="serious")), checked=("<p>",))
    assert [finding.severity for finding in found] == ["serious", "hint"]
    html = found._repr_html_()
    assert not any(tag in html for tag in ("<i>", "<u>", "<s>", "<p>", "<b>"))
    assert html.index("serious") < html.index("&lt;b&gt;")
    assert str(found).splitlines()[1] == "[serious] bad: <i>. <u>: <s>"
