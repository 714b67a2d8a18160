"""What comes back: plain values that show themselves, escaped."""

from __future__ import annotations

import pickle
from typing import Any

from nbllm.sample import Generation, Sample, SamplingParameters, generate
from nbllm.tokenizer import Tokenizer


def made(*texts: str, reason: str = "length") -> Generation:
    samples = tuple(Sample(text=text, tokens=(1, 2), logprobs=(-0.5, -1.0), stop_reason=reason) for text in texts)
    return Generation(
        prompt="<b>&", prompt_tokens=(3,), samples=samples, parameters=SamplingParameters(), tokens_per_s=95.6,
        first_token_ms=41.2,
    )  # fmt: skip


def test_faces() -> None:
    one = made("<script>alert(1)</script>")
    assert str(one) == "<script>alert(1)</script>"
    assert one.summary == "2 tokens · length · 96 tokens/s · first token 41 ms"
    html = one._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html
    assert "&lt;b&gt;&amp;</span>&lt;script&gt;" in html
    assert repr(made("x" * 200)).count("x") == 79
    several = made("a", "b")
    assert several.texts == ["a", "b"]
    assert several.summary.startswith("4 tokens in 2 samples · length")
    assert made("a", reason="interrupted").stop_reason == "interrupted"


def test_it_holds_nothing_of_the_model(llama: Any, tokenizer: Tokenizer) -> None:
    found = generate(llama, tokenizer, "a", SamplingParameters(max_new_tokens=4, n=2), trace=True)
    assert b"torch" not in pickle.dumps(found)
    assert found.tokens_per_s > 0
    assert found.first_token_ms is not None
    assert found.first_token_ms > 0
