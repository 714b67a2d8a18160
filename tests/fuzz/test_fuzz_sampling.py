"""Sampling settings over their whole range: refused in one line, or a distribution, and a text that ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fuzz_kit import CASES, MANY, bounded, cases, one_line
from hypothesis import given
from hypothesis import strategies as st

from nbllm.errors import NbllmError, UsageError
from nbllm.sample import SamplingParameters
from nbllm.sample.filters import Counts, pipeline

COUNTS = [pytest.param(CASES, id="some"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
ANY = st.one_of(
    st.integers(-3, 9),
    st.integers(),
    st.just(10**400),
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(0, 2),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.lists(st.text(max_size=2), max_size=2),
)
NUMBERS: dict[str, Any] = {
    "temperature": st.floats(0, allow_infinity=False) | st.floats(0, 2),
    "top_k": st.integers(0, 2**70) | st.integers(0, 9),
    "top_p": st.floats(0, 1),
    "min_p": st.floats(0, 1),
    "typical_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0, exclude_min=True, allow_infinity=False) | st.floats(0.5, 2),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "length_penalty": st.floats(-10, 10),
    "seed": st.integers(0, 2**63 - 1),
    "greedy": st.booleans(),
    "sliding": st.booleans(),
    "prompt_lookup": st.integers(0, 2**70) | st.integers(0, 9),
    "n": st.integers(1, 4),
    "beams": st.integers(1, 4),
    "stop": st.lists(st.text(min_size=1, max_size=3), max_size=3).map(tuple),
}
SETTINGS = st.fixed_dictionaries({}, optional=NUMBERS)


@pytest.mark.parametrize("count", COUNTS)
def test_any_value_is_taken_or_named(count: int) -> None:
    names = sorted(NUMBERS)

    @cases(count * 5)
    @given(st.sampled_from(names), ANY)
    def check(name: str, value: object) -> None:
        try:
            made = SamplingParameters(**{name: value})
        except UsageError as error:
            one_line(error, name)
        else:
            assert SamplingParameters(**{name: getattr(made, name)}) == made

    check()


@pytest.mark.parametrize("count", COUNTS)
def test_some_token_can_always_be_drawn(count: int) -> None:
    logits = st.lists(st.floats(-1e4, 1e4, width=32), min_size=8, max_size=8)

    @cases(count)
    @given(SETTINGS, logits, st.lists(st.integers(0, 7), min_size=1, max_size=9))
    def check(values: dict[str, Any], row: list[float], before: list[int]) -> None:
        try:
            parameters = SamplingParameters(**{**values, "n": 1, "beams": 1})
        except UsageError:
            return
        counts = Counts.start([before], 1, 8, torch.device("cpu"))
        counts.add(torch.tensor([before[0]]))
        tensor = torch.tensor([row])
        for name, filter in pipeline(parameters, counts):
            tensor = filter(tensor)
            assert not tensor.isnan().any(), name
            chances = torch.softmax(tensor.double(), -1)
            assert torch.isfinite(chances).all(), name
            assert abs(float(chances.sum()) - 1) < 1e-6, name

    check()


@pytest.mark.parametrize("count", COUNTS)
def test_a_text_always_comes_to_its_end(tiny_session: Any, count: int) -> None:
    session = tiny_session(max_position_embeddings=48)

    @cases(count)
    @given(SETTINGS, st.integers(1, 2**70) | st.integers(1, 12), st.text(max_size=20))
    def check(values: dict[str, Any], length: int, prompt: str) -> None:
        length = min(length, 12) if values.get("sliding") else length  # it would go on as long as it is asked to
        try:
            with bounded():
                made = session.generate(prompt, max_new_tokens=length, **values)
        except NbllmError as error:
            one_line(error)
            return
        for one in made if isinstance(made, list) else [made]:
            assert one.text.encode() is not None
            assert one.stop_reason

    check()


def test_a_temperature_below_what_float32_holds_is_greedy() -> None:
    ((_, scale),) = pipeline(SamplingParameters(temperature=5e-324, top_p=1.0), None)
    chances = torch.softmax(scale(torch.tensor([[1.0, 3.0, 2.0]])), -1)
    assert chances.tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("value", [10**400, 5e-324, 1e300])
def test_a_penalty_that_no_float_holds_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="repetition_penalty is"):
        SamplingParameters(repetition_penalty=value)
