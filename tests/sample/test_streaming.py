"""Text streams in whole characters, ends at stop texts over token borders, and survives an interrupt at any moment."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tiny_models import Scripted

from nbllm.sample import Generation, SamplingParameters, generate
from nbllm.tokenizer import Tokenizer

TEXT = "안녕하세요 👩‍🚀 né, über\n  return self"
PROMPT = [40, 41, 42]


def say(tokenizer: Tokenizer, text: str, *, end: bool = True, **settings: Any) -> tuple[Generation, list[str]]:
    """What comes of a model that says `text`, and the pieces that were streamed."""
    script = tokenizer.encode(text) + ([tokenizer.eos_id] if end and tokenizer.eos_id is not None else [])
    pieces: list[str] = []
    model: Any = Scripted(tokenizer.vocab_size, len(PROMPT), script)
    parameters = SamplingParameters(greedy=True, max_new_tokens=200, **settings)
    found = generate(model, tokenizer, PROMPT, parameters, on_text=lambda _, text: pieces.append(text))
    return found, pieces


def test_characters_come_whole(tokenizer: Tokenizer) -> None:
    found, pieces = say(tokenizer, TEXT)
    assert found.text == TEXT
    assert "".join(pieces) == TEXT
    assert len(pieces) > 10  # it did stream
    assert not any("\ufffd" in piece or not piece for piece in pieces)
    assert found.stop_reason == "eos"
    assert list(found.tokens) == [*tokenizer.encode(TEXT), tokenizer.eos_id]
    assert len(found.logprobs) == len(found.tokens)
    assert max(found.logprobs) <= 0


@pytest.mark.parametrize("stop", ["\n", "né", "é, ü", "세요 👩", "🚀", "self", "urn s"])
def test_stop_texts_over_token_borders(tokenizer: Tokenizer, stop: str) -> None:
    found, pieces = say(tokenizer, TEXT, stop=(stop, "never"))
    wanted = TEXT[: TEXT.index(stop)]
    assert (found.text, found.stop_reason) == (wanted, "stop")
    assert "".join(pieces) == wanted
    said = tokenizer.decode(found.tokens)
    assert stop in said
    assert stop not in tokenizer.decode(found.tokens[:-1])  # ended with the token that completed it


def test_a_stop_text_that_only_began_is_text(tokenizer: Tokenizer) -> None:
    found, pieces = say(tokenizer, "almost EN", stop=("END",))
    assert found.text == "".join(pieces) == "almost EN"
    assert found.stop_reason == "eos"


def test_length_is_counted_in_tokens(tokenizer: Tokenizer) -> None:
    model: Any = Scripted(tokenizer.vocab_size, len(PROMPT), tokenizer.encode(TEXT))
    found = generate(model, tokenizer, PROMPT, SamplingParameters(greedy=True, max_new_tokens=5))
    assert (len(found.tokens), found.stop_reason) == (5, "length")
    assert found.text == tokenizer.decode(found.tokens).removesuffix("\ufffd")  # a cut character is left out


@pytest.mark.parametrize("moment", range(8))
def test_an_interrupt_while_the_model_runs_keeps_text(tokenizer: Tokenizer, moment: int) -> None:
    def strike(number: int) -> None:
        if number == moment:
            raise KeyboardInterrupt

    script = tokenizer.encode(TEXT)
    pieces: list[str] = []
    model: Any = Scripted(tokenizer.vocab_size, len(PROMPT), script, strike)
    found = generate(
        model, tokenizer, PROMPT, SamplingParameters(greedy=True), on_text=lambda _, text: pieces.append(text)
    )
    assert found.stop_reason == "interrupted"
    assert list(found.tokens) == script[:moment]
    assert found.text == "".join(pieces) == tokenizer.decode(script[:moment]).removesuffix("\ufffd")
    assert len(found.logprobs) == moment


@pytest.mark.parametrize("moment", range(4))
@pytest.mark.parametrize("count", [6, 4])
def test_an_interrupt_while_text_is_shown_keeps_it(tokenizer: Tokenizer, moment: int, count: int) -> None:
    script = tokenizer.encode("abcdefgh")
    pieces: list[str] = []

    def show(_: int, text: str) -> None:
        pieces.append(text)
        if len(pieces) == moment + 1:
            raise KeyboardInterrupt

    model: Any = Scripted(tokenizer.vocab_size, len(PROMPT), script)
    found = generate(model, tokenizer, PROMPT, SamplingParameters(greedy=True, max_new_tokens=count), on_text=show)
    assert found.stop_reason == "interrupted"  # also where it came with the last piece
    assert found.text == "".join(pieces)
    assert len(found.tokens) >= moment + 1


def test_an_interrupt_inside_a_layer_leaves_the_model_usable(llama: Any, tokenizer: Tokenizer) -> None:
    parameters = SamplingParameters(greedy=True, max_new_tokens=12)
    whole = generate(llama, tokenizer, "The quick ", parameters)
    calls = 0

    def strike(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt

    handle = llama.model.layers[1].register_forward_hook(strike)
    llama.train()
    try:
        found = generate(llama, tokenizer, "The quick ", parameters)
    finally:
        handle.remove()
        was_training = llama.training
        llama.eval()
    assert was_training
    assert (found.tokens, found.stop_reason) == (whole.tokens[:4], "interrupted")
    assert generate(llama, tokenizer, "The quick ", parameters).tokens == whole.tokens


def test_should_stop_is_asked_before_every_step(llama: Any, tokenizer: Tokenizer) -> None:
    answers = iter([False, False, False, True])
    found = generate(llama, tokenizer, "The ", SamplingParameters(n=2), should_stop=lambda: next(answers))
    assert [len(sample.tokens) for sample in found.samples] == [3, 3]
    assert found.stop_reason == "interrupted"
    never = generate(llama, tokenizer, "The ", SamplingParameters(), should_stop=lambda: True)
    assert (never.tokens, never.text, never.stop_reason, never.first_token_ms) == ((), "", "interrupted", None)


def test_other_errors_of_a_callback_are_raised(llama: Any, tokenizer: Tokenizer) -> None:
    def fail(_: int, text: str) -> None:
        raise RuntimeError(text)

    with pytest.raises(RuntimeError):
        generate(llama, tokenizer, "The ", SamplingParameters(), on_text=fail)


@pytest.mark.parametrize("text", ["👩‍🚀 안녕하세요", "né ü 🚀🚀"])
def test_a_text_that_is_cut_ends_with_a_whole_character(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    model: Any = Scripted(tokenizer.vocab_size, len(PROMPT), ids)
    assert any(tokenizer.decode(ids[:count]).endswith("\ufffd") for count in range(len(ids))), "some cuts are inside"
    for length in range(1, len(ids) + 1):
        pieces: list[tuple[int, str]] = []
        parameters = SamplingParameters(greedy=True, max_new_tokens=length)
        on_text = partial(_keep, pieces)
        found = generate(model, tokenizer, PROMPT, parameters, on_text=on_text)
        assert "".join(piece for _, piece in pieces) == found.text
        assert "\ufffd" not in found.text
        assert text.startswith(found.text)
        assert len(found.tokens) == length, "the tokens say all that was drawn"


def _keep(pieces: list[tuple[int, str]], number: int, piece: str) -> None:
    pieces.append((number, piece))
