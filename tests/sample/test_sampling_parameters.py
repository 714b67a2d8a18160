"""Settings are checked, and an error names the setting and what was received."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from nbllm.errors import UsageError
from nbllm.sample import SamplingParameters


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0), ("max_new_tokens", 1.5), ("max_new_tokens", True), ("temperature", -0.1),
        ("temperature", math.nan), ("temperature", math.inf), ("temperature", "hot"),
        ("top_k", -1), ("top_k", 2.0), ("top_p", 1.1), ("top_p", -0.1), ("min_p", 2), ("repetition_penalty", 0),
        ("repetition_penalty", -1), ("seed", -1), ("seed", 2**63), ("n", 0), ("stop", ("",)), ("stop", (1,)),
        ("stop", 3), ("greedy", 1), ("sliding", 1), ("sliding", "yes"), ("typical_p", 1.1), ("typical_p", -0.1),
        ("presence_penalty", 2.1), ("presence_penalty", -2.1), ("frequency_penalty", "much"),
        ("frequency_penalty", math.nan), ("beams", 0), ("beams", 2.5), ("beams", True), ("length_penalty", 11),
        ("length_penalty", -math.inf), ("prompt_lookup", -1), ("prompt_lookup", 1.5),
    ],
)  # fmt: skip
def test_wrong_values_are_named(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingParameters(**{name: value})
    assert str(caught.value).startswith(f"{name} ")
    assert repr(value) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_greedy() -> None:
    assert not SamplingParameters().is_greedy
    assert SamplingParameters(temperature=0).is_greedy
    assert SamplingParameters(top_p=0).is_greedy
    assert SamplingParameters(greedy=True).is_greedy
    assert SamplingParameters(beams=2).is_greedy


def test_what_penalises() -> None:
    assert not SamplingParameters(typical_p=0.5, beams=2, length_penalty=2).penalises
    for name, value in {"repetition_penalty": 0.9, "presence_penalty": -0.1, "frequency_penalty": 0.1}.items():
        assert SamplingParameters(**{name: value}).penalises  # type: ignore[arg-type]


def test_no_more_samples_than_beams() -> None:
    assert SamplingParameters(beams=3, n=3).n == 3
    assert SamplingParameters(n=9).n == 9  # samples are drawn
    with pytest.raises(UsageError, match=r"n is at most the number of beams, 3 \(received 4\)"):
        SamplingParameters(beams=3, n=4)


def test_one_stop_text_may_be_a_string() -> None:
    assert SamplingParameters(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingParameters(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_settings_load_no_torch() -> None:
    code = "import sys, nbllm.sample; nbllm.sample.SamplingParameters(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
