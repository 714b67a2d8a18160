"""Slow paths and memory: found where a remedy helps, measured by a clock that the test sets; the model is put back."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from nbllm.doctor import Asked, Finding, memory, pace, slow
from nbllm.doctor.fit import prompt_findings
from nbllm.model import quantize
from nbllm.sample import Generation, SamplingParameters
from nbllm.sample.forward import Forward
from nbllm.sessions import Session

Gain = pace.Gain


@pytest.fixture
def session(tiny_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> Session:
    """With a tiny random model, a remedy that always doubles the speed, and as many threads as cores."""
    monkeypatch.setattr(slow, "in_turns", doubled)
    monkeypatch.setattr(slow, "cores", torch.get_num_threads)
    monkeypatch.setattr(memory, "memory_of", lambda device: (10**10, 10**10))
    return tiny_session(bos_token_id=None, eos_token_id=None, pad_token_id=None)


def doubled(ids: list[int], before: Any, after: Any, compiled: bool = False) -> Gain:
    before(), after()
    return Gain(before=10.0, after=20.0, sure=True, same=17, compared=17)


def made(session: Session, **options: Any) -> tuple[Any, Generation, list[Finding]]:
    found = session.diagnose("the queue", max_new_tokens=6, **options)
    assert session.last_generation is not None
    return session.load_model()[0], session.last_generation, list(found)


def named(found: list[Finding], name: str) -> Finding:
    return next(one for one in found if one.name == name)


def test_a_clock_that_swings_shows_no_gain() -> None:
    assert not Gain(before=10, after=30, sure=False, same=5, compared=5).worth
    assert not Gain(before=10, after=11, sure=True, same=5, compared=5).worth
    assert Gain(before=10, after=12, sure=True, same=5, compared=5).worth


def test_two_ways_are_measured_in_turns(session: Session) -> None:
    model, _ = session.load_model()
    gain = pace.in_turns([70, 71], lambda: model, lambda: model)
    assert gain.same == gain.compared > 1
    assert gain.before > 0
    assert gain.after > 0


def test_eager_attention_and_float32(session: Session) -> None:
    folder = session.models.path(session.model)  # type: ignore[arg-type]
    session.load_model(model=folder)[0].set_attn_implementation("eager")
    model, _, found = made(session, model=folder)
    one = named(found, "attention is written out")
    assert one.severity == "warning"
    assert "10 tokens/s now, 20 with the remedy (2.0×), measured" in one.evidence
    assert one.command == f'nbllm.session().load_model(model={folder!r})[0].set_attn_implementation("sdpa")'
    assert model.config._attn_implementation == "eager", "it is put back"
    assert "the first 17 of 17 greedy tokens stay the same" in named(found, "float32 where bfloat16 would do").evidence
    assert model.dtype is torch.float32


def test_threads(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(slow, "cores", lambda: before + 1)
    _, _, found = made(session)
    assert named(found, "cores that do nothing").command.endswith(f"torch.set_num_threads({before + 1})")
    assert torch.get_num_threads() == before


def test_a_remedy_that_gives_nothing_is_no_finding(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    slower = Gain(before=10.0, after=9.0, sure=False, same=17, compared=17)
    monkeypatch.setattr(slow, "in_turns", lambda *_, **__: slower)
    session.load_model()[0].set_attn_implementation("eager")
    assert not [one for one in made(session)[2] if "attention" in one.name or "float32" in one.name]


def test_compiling_that_failed_or_is_off(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = session.load_model()
    state = Forward.of(model).compiled
    state._give_up("compiling failed: no g++", failed=True)
    one = named(made(session)[2], "the decode step isn't compiled")
    assert one.evidence.startswith("compiling failed: no g++")
    assert one.command == "nbllm.session().compile_again()"
    state.try_again()
    assert not [one for one in made(session)[2] if "compiled" in one.name]
    monkeypatch.setattr(type(state), "on_disk", property(lambda _: True))
    assert "(2.0×), measured" in named(made(session)[2], "the compiled step is switched off").evidence
    assert os.environ["NBLLM_COMPILE"] == "off"


def test_memory(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    model, generation, found = made(session)
    assert not [one for one in found if "memory" in one.name]
    assert memory.cache_bytes_per_token(model.config) == 2 * 1 * 2 * 16 * 4  # layers, heads, size, float32
    need = 256 * 256
    monkeypatch.setattr(memory, "memory_of", lambda device: (need - 1, 10**10))
    one = named(memory.memory_findings(model, generation, Asked(prompt="x")), "the text won't fit into memory")
    assert one.severity == "serious"
    assert one.command.startswith('%llm_generate "x" --max-new-tokens ')
    monkeypatch.setattr(memory, "memory_of", lambda device: (2 * need, 11 * need))
    gain = nbytes(model) - nbytes(quantize(model, "int8"))  # measured; the tied embedding stays
    near = memory.memory_findings(model, generation, Asked(prompt="x", defaults=generation.parameters))
    assert [(one.name, one.command) for one in near] == [
        ("memory is near its limit", '%llm_generate "x" --quantize int8')
    ]
    assert near[0].evidence.endswith(f"int8 weights would give {memory._gb(gain)} of the weights back")
    small = session.load_model(quantize="int8")[0]
    assert not [one for one in memory.memory_findings(small, generation, Asked(prompt="x")) if "int8" in one.evidence]


def nbytes(model: Any) -> int:
    return sum({one.data_ptr(): one.nbytes for one in (*model.parameters(), *model.buffers())}.values())


def test_chat_without_a_template(session: Session) -> None:
    one = named(made(session, chat=True)[2], "--chat without a chat template")
    assert one.command == '%llm_generate "the queue" --max-new-tokens 6'


def test_lines_ask_for_the_same() -> None:
    parameters = SamplingParameters(temperature=0.5, stop=("a b", "c"), seed=3)
    generation = Generation(
        prompt="", prompt_tokens=(1, 2), samples=(), parameters=parameters, tokens_per_s=0, first_token_ms=None
    )
    asked = Asked(prompt='say "x"', options={"adapter": "off", "chat": True, "model": None}, defaults=parameters)
    assert asked.line(generation, top_k=5) == "%llm_generate 'say \"x\"' --adapter off --chat --top-k 5"
    asked = Asked(prompt="two\nlines", options={"quantize": "int8"})
    assert asked.line(generation) == (
        "nbllm.session().generate('two\\nlines', quantize='int8', temperature=0.5, stop=('a b', 'c'), seed=3)"
    )
    asked = Asked(prompt="x")
    assert asked.line(generation) == '%llm_generate "x" --temperature 0.5 --stop "a b" --stop c --seed 3'


def test_unknown_and_changed_letters(tmp_path: Any) -> None:
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers

    from nbllm.tokenizer import Tokenizer

    plain = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "fox": 1, "the": 2}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    plain.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    plain.add_special_tokens(["<unk>"])
    tokenizer = Tokenizer(plain.to_str(), config={"unk_token": "<unk>"}, name="words")

    def found(prompt: str) -> list[Finding]:
        generation = Generation(
            prompt=prompt, prompt_tokens=tuple(tokenizer.encode(prompt)), samples=(), parameters=SamplingParameters(),
            tokens_per_s=0, first_token_ms=None,
        )  # fmt: skip
        return prompt_findings(tokenizer, generation, Asked(prompt=prompt))

    (one,) = found("the zebra fox")
    assert one.name == "the prompt has unknown tokens"
    assert "1 of the prompt's 3 tokens is <unk>: 'zebra'" in one.evidence
    (one,) = found("The fox")
    assert one.name == "the tokenizer changes the prompt"
    assert "'The fox' comes back as 'the fox'" in one.evidence
    assert found("the fox") == []
