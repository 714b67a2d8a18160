"""Every filter against a plain float64 reference, ties and equality at the border included."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nbllm.sample import SamplingParameters
from nbllm.sample.filters import (
    Counts,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    pipeline,
    scale_temperature,
)  # fmt: skip

Array = NDArray[np.float64]


def softmax(row: Array) -> Array:
    """In float64."""
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def kept(logits: torch.Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero()[:, 0].tolist() for row in logits]


def by_rank(row: Array) -> list[int]:
    """Ids from the most probable on, ties by the lower id."""
    return sorted(range(len(row)), key=lambda i: (-row[i], i))


def reference_top_p(row: Array, p: float) -> set[int]:
    probabilities = softmax(row)
    chosen, total = set(), 0.0
    for i in by_rank(row):
        chosen.add(i)
        total += probabilities[i]
        if total >= p - 1e-7:
            break
    return chosen


@pytest.fixture
def logits() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    smooth = torch.randn(20, 211, generator=generator) * 3
    tied = torch.randint(-3, 3, (20, 211), generator=generator).float()
    return torch.cat([smooth, tied, torch.zeros(1, 211)])


@pytest.mark.parametrize("k", [1, 2, 7, 50, 210, 211, 500])
def test_top_k_keeps_exactly_k(logits: torch.Tensor, k: int) -> None:
    found = keep_top_k(logits, k)
    for ids, row in zip(kept(found), logits.double().numpy(), strict=True):
        assert set(ids) == set(by_rank(row)[:k])
    assert torch.equal(found[found.isfinite()], logits[found.isfinite()])


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9, 0.95, 0.999])
def test_top_p_keeps_the_smallest_set(logits: torch.Tensor, p: float) -> None:
    for ids, row in zip(kept(keep_top_p(logits, p)), logits.double().numpy(), strict=True):
        assert set(ids) == reference_top_p(row, p)


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 4.0])
@pytest.mark.parametrize("p", [0.3, 0.95])
def test_top_p_of_a_large_vocabulary(spread: float, p: float) -> None:
    """Few tokens have the probability (spread 4), or thousands, or all alike."""
    logits = torch.randn(2, 9001, generator=torch.Generator().manual_seed(0)) * spread
    logits = torch.cat([logits, logits.round()])
    for ids, row in zip(kept(keep_top_p(logits, p)), logits.double().numpy(), strict=True):
        assert set(ids) == reference_top_p(row, p)


@pytest.mark.parametrize(
    ("probabilities", "p", "wanted"),
    [
        ([0.5, 0.25, 0.25], 0.5, [0]),  # reached exactly: not one token more
        ([0.5, 0.25, 0.25], 0.75, [0, 1]),
        ([0.25, 0.5, 0.25], 0.7500001, [0, 1]),
        ([0.25, 0.5, 0.25], 0.76, [0, 1, 2]),
        ([0.1] * 10, 0.3, [0, 1, 2]),
        ([0.1] * 10, 0.8, list(range(8))),
        ([0.2] * 5, 0.6, [0, 1, 2]),
        ([0.0, 1.0], 0.999, [1]),
        ([0.4, 0.6], 1e-9, [1]),  # never none
    ],
)
def test_top_p_at_the_border(probabilities: list[float], p: float, wanted: list[int]) -> None:
    assert kept(keep_top_p(torch.tensor([probabilities]).log(), p)) == [wanted]


@pytest.mark.parametrize("min_p", [0.001, 0.1, 0.5, 1.0])
def test_min_p(logits: torch.Tensor, min_p: float) -> None:
    for ids, row in zip(kept(keep_min_p(logits, min_p)), logits.double().numpy(), strict=True):
        probabilities = softmax(row)
        assert ids == [i for i, p in enumerate(probabilities) if p >= min_p * probabilities.max() * (1 - 1e-7)]


def test_min_p_at_the_border() -> None:
    assert kept(keep_min_p(torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log(), 0.5)) == [[0, 1]]
    assert kept(keep_min_p(torch.tensor([[0.5, 0.5]]).log(), 1.0)) == [[0, 1]]


def test_repetition_penalty_makes_seen_tokens_less_probable_whatever_their_sign() -> None:
    logits = torch.tensor([[2.0, -2.0, 0.0, 2.0, -2.0]])
    seen = torch.tensor([[True, True, True, False, False]])
    assert penalise_repetition(logits, seen, 2.0).tolist() == [[1.0, -4.0, 0.0, 2.0, -2.0]]
    assert penalise_repetition(logits, seen, 0.5).tolist() == [[4.0, -1.0, 0.0, 2.0, -2.0]]


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 0.3, 2.0, 1e6])
def test_temperature_keeps_numbers(logits: torch.Tensor, temperature: float) -> None:
    found = scale_temperature(logits, temperature).double().softmax(-1).numpy()
    assert np.isfinite(found).all()
    for ours, row in zip(found, logits.double().numpy(), strict=True):
        assert np.abs(ours - softmax((row - row.max()) / temperature)).max() < 1e-6


def test_filters_leave_their_input_alone(logits: torch.Tensor) -> None:
    before = logits.clone()
    settings = SamplingParameters(
        repetition_penalty=1.3, temperature=0.7, top_k=40, top_p=0.9, min_p=0.01, max_new_tokens=1
    )
    ones = torch.ones_like(logits, dtype=torch.int64)
    steps = pipeline(settings, Counts(all=ones, text=ones))
    assert [name for name, _ in steps] == ["repetition_penalty", "temperature", "top_k", "top_p", "min_p"]
    found = logits
    for _, step in steps:
        found = step(found)
    assert torch.equal(logits, before)
    assert found.isfinite().any(-1).all()


def test_order_and_result_are_transformers_own(logits: torch.Tensor) -> None:
    from transformers import (
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    smooth = logits[:20]
    ids = torch.arange(20).repeat(20, 1)
    wanted = RepetitionPenaltyLogitsProcessor(1.3)(ids, smooth.clone())
    for warper in (TemperatureLogitsWarper(0.7), TopKLogitsWarper(40), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)):
        wanted = warper(ids, wanted)
    counts = Counts.start([list(range(20))], 20, 211, torch.device("cpu"))
    settings = SamplingParameters(repetition_penalty=1.3, temperature=0.7, top_k=40, top_p=0.9, min_p=0.05)
    found = smooth
    for _, step in pipeline(settings, counts):
        found = step(found)
    assert kept(found) == kept(wanted)
    assert (found.softmax(-1) - wanted.softmax(-1)).abs().max() < 1e-6
    assert math.isinf(float(found.min()))
