"""Every filter against a plain float64 reference, ties and equality at the border included."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nbllm.sample import SamplingParameters, generate_batch
from nbllm.sample.filters import (
    Counts,
    keep_min_p,
    keep_top_p,
    keep_typical_p,
    penalise_frequency,
    penalise_presence,
    penalise_repetition,
    pipeline,
)
from nbllm.tokenizer import Tokenizer

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


def smallest_set(ranking: list[int], probabilities: Array, p: float) -> set[int]:
    """The first of a ranking until their probability is p."""
    chosen, total = set(), 0.0
    for i in ranking:
        chosen.add(i)
        total += probabilities[i]
        if total >= p - 1e-7:
            break
    return chosen


def without(row: Array, chosen: set[int]) -> Array:
    return np.array([value if i in chosen else -np.inf for i, value in enumerate(row)])


def reference(name: str, row: Array, value: float, all_counts: Array, text_counts: Array) -> Array:
    """What a filter makes of a row, from its definition."""
    if name == "repetition_penalty":
        changed = np.where(row > 0, row / value, row * value)
        return np.where(all_counts > 0, changed, row)
    if name == "presence_penalty":
        return row - value * np.sign(text_counts)
    if name == "frequency_penalty":
        return row - value * text_counts
    if name == "temperature":
        return (row - row.max()) / value
    probabilities = softmax(row)
    if name == "top_k":
        return without(row, set(by_rank(row)[: int(value)]))
    if name == "top_p":
        return without(row, smallest_set(by_rank(row), probabilities, value))
    if name == "min_p":
        border = value * probabilities.max() * (1 - 1e-7)
        return without(row, {i for i, p in enumerate(probabilities) if p >= border})
    surprise = np.array([-math.log(p) if p else math.inf for p in probabilities])
    expected = sum(p * s for p, s in zip(probabilities, surprise, strict=True) if p)
    distance = [round(abs(s - expected) * 2**20) if s < math.inf else math.inf for s in surprise]
    ranking = sorted(range(len(row)), key=lambda i: (distance[i], i))
    return without(row, smallest_set([i for i in ranking if probabilities[i]], probabilities, value))


@pytest.fixture
def logits() -> torch.Tensor:
    """Rows that differ, that tie, where probabilities are powers of 2 (sums reach a border exactly), where earlier
    filters left tokens out, and one that says nothing."""
    generator = torch.Generator().manual_seed(0)
    smooth = torch.randn(16, 211, generator=generator) * 3
    tied = torch.randint(-3, 3, (16, 211), generator=generator).float()
    halves = torch.full((4, 211), -math.inf)
    halves[:, :6] = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125]).log()
    halves[1:] = torch.stack([row[torch.randperm(211, generator=generator)] for row in halves[1:]])
    left = smooth.masked_fill(torch.rand(16, 211, generator=generator) < 0.7, -math.inf)
    return torch.cat([smooth, tied, halves, left, torch.zeros(1, 211)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("repetition_penalty", value) for value in (0.5, 1.3, 3.0)),
        *((name, value) for name in ("presence_penalty", "frequency_penalty") for value in (-2.0, 0.3, 2.0)),
        *(("temperature", value) for value in (1e-30, 0.3, 2.0, 1e6)),
        *(("top_k", value) for value in (1, 2, 7, 50, 210, 211, 500)),
        *(("top_p", value) for value in (0.01, 0.1, 0.5, 0.75, 0.9, 0.95, 0.96875, 0.999)),
        *(("min_p", value) for value in (0.001, 0.0625, 0.1, 0.5, 1.0)),
        *(("typical_p", value) for value in (0.0, 0.01, 0.2, 0.25, 0.5, 0.75, 0.9, 0.95, 0.999)),
    ],
)
def test_every_filter_is_its_definition(logits: torch.Tensor, name: str, value: float) -> None:
    """The same tokens are left, and the rest have the same logits to float32's last digits."""
    generator = torch.Generator().manual_seed(1)
    text = torch.poisson(torch.rand(logits.shape, generator=generator), generator=generator).long()
    prompt = torch.randint(0, 2, logits.shape, generator=generator)
    neutral: dict[str, Any] = {"temperature": 1, "top_p": 1}
    parameters = SamplingParameters(**(neutral | {name: value}))
    [(found_name, step)] = pipeline(parameters, Counts(all=prompt + text, text=text))
    assert found_name == name
    found = step(logits)
    assert found.dtype == torch.float32
    numbers = (logits.double().numpy(), (prompt + text).double().numpy(), text.double().numpy())
    wanted = np.array([reference(name, row, value, *counts) for row, *counts in zip(*numbers, strict=True)])
    assert kept(found) == kept(torch.tensor(wanted))
    left = np.isfinite(wanted)
    np.testing.assert_allclose(found.numpy()[left], wanted[left], rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 4.0])
@pytest.mark.parametrize("p", [0.3, 0.95])
@pytest.mark.parametrize("name", ["top_p", "typical_p"])
def test_a_large_vocabulary(name: str, spread: float, p: float) -> None:
    """Few tokens have the probability (spread 4), or thousands, or all alike."""
    logits = torch.randn(2, 9001, generator=torch.Generator().manual_seed(0)) * spread
    logits = torch.cat([logits, logits.round()])
    keep = keep_top_p if name == "top_p" else keep_typical_p
    none = np.zeros(9001)
    for ids, row in zip(kept(keep(logits, p)), logits.double().numpy(), strict=True):
        assert ids == np.isfinite(reference(name, row, p, none, none)).nonzero()[0].tolist()


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


@pytest.mark.parametrize(
    ("probabilities", "p", "wanted"),
    [
        # all are half a bit from the entropy of 1.5 bits: the lower ids
        ([0.5, 0.25, 0.25], 0.5, [0]),
        ([0.25, 0.5, 0.25], 0.25, [0]),
        ([0.25, 0.5, 0.25], 0.26, [0, 1]),
        ([0.1] * 10, 0.3, [0, 1, 2]),
        # 1.75 bits: those of 2 bits are the most typical, before the most probable one
        ([0.5, 0.25, 0.125, 0.125], 0.25, [1]),
        ([0.5, 0.25, 0.125, 0.125], 0.251, [0, 1]),
        ([0.5, 0.25, 0.125, 0.125], 0.75, [0, 1]),
        ([0.0, 1.0], 0.999, [1]),
        ([0.6, 0.0, 0.4], 0.999, [0, 2]),  # never one that is left out already
        ([0.0, 0.4, 0.6], 0.0, [2]),  # never none
    ],
)
def test_typical_p_at_the_border(probabilities: list[float], p: float, wanted: list[int]) -> None:
    assert kept(keep_typical_p(torch.tensor([probabilities]).log(), p)) == [wanted]


def test_min_p_at_the_border() -> None:
    assert kept(keep_min_p(torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log(), 0.5)) == [[0, 1]]
    assert kept(keep_min_p(torch.tensor([[0.5, 0.5]]).log(), 1.0)) == [[0, 1]]


def test_repetition_penalty_makes_seen_tokens_less_probable_whatever_their_sign() -> None:
    logits = torch.tensor([[2.0, -2.0, 0.0, 2.0, -2.0]])
    seen = torch.tensor([[True, True, True, False, False]])
    assert penalise_repetition(logits, seen, 2.0).tolist() == [[1.0, -4.0, 0.0, 2.0, -2.0]]
    assert penalise_repetition(logits, seen, 0.5).tolist() == [[4.0, -1.0, 0.0, 2.0, -2.0]]


def test_presence_counts_once_and_frequency_each_time() -> None:
    logits, counts = torch.tensor([[1.0, 1.0, 1.0, -1.0]]), torch.tensor([[0, 1, 3, 2]])
    assert penalise_presence(logits, counts, 0.5).tolist() == [[1.0, 0.5, 0.5, -1.5]]
    assert penalise_frequency(logits, counts, 0.5).tolist() == [[1.0, 0.5, -0.5, -2.0]]


def test_counts_follow_the_rows() -> None:
    prompts, n = [[1, 1, 2], [0]], 2
    texts: list[tuple[list[int], list[int]]] = [(prompt, []) for prompt in prompts for _ in range(n)]
    counts = Counts.start(prompts, n, 5, torch.device("cpu"))

    def check() -> None:
        for found, wanted in (
            (counts.all, [prompt + text for prompt, text in texts]),
            (counts.text, [text for _, text in texts]),
        ):
            assert found.dtype == torch.int64
            assert found.tolist() == [[ids.count(token) for token in range(5)] for ids in wanted]

    check()
    for tokens, places in [([1, 2, 3, 4], [0, 1, 2, 3]), ([1, 1, 1, 3], [3, 0, 0]), ([0, 1, 2], [1])]:
        counts.add(torch.tensor(tokens))
        texts = [(prompt, [*text, token]) for (prompt, text), token in zip(texts, tokens, strict=True)]
        check()
        counts.select(torch.tensor(places))
        texts = [texts[place] for place in places]
        check()


def test_penalties_count_the_new_text_alone(model: Any, tokenizer: Tokenizer) -> None:
    """Presence and frequency against a plain loop; in a batch with a longer prompt, and through the cache."""
    settings = SamplingParameters(greedy=True, presence_penalty=1.0, frequency_penalty=0.7, max_new_tokens=20)
    prompts = ["def next(self): return self.value", "d"]
    for prompt, generation in zip(prompts, generate_batch(model, tokenizer, prompts, settings), strict=True):
        ids, text = tokenizer.encode(prompt), list[int]()
        for _ in range(20):
            row = model(torch.tensor([ids + text])).logits[0, -1].double().detach().numpy()
            for token in set(text):
                row[token] -= 1.0 + 0.7 * text.count(token)
            text.append(int(row.argmax()))
        assert list(generation.tokens) == text
        free = generate_batch(model, tokenizer, [prompt], SamplingParameters(greedy=True, max_new_tokens=20))
        assert list(free[0].tokens) != text


def test_filters_leave_their_input_alone(logits: torch.Tensor) -> None:
    before = logits.clone()
    settings = SamplingParameters(
        repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, temperature=0.7, top_k=40, top_p=0.9,
        min_p=0.01, typical_p=0.9,
    )  # fmt: skip
    ones = torch.ones_like(logits, dtype=torch.int64)
    steps = pipeline(settings, Counts(all=ones, text=ones))
    assert [name for name, _ in steps] == [
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "temperature", "top_k", "top_p", "min_p"),
        "typical_p",
    ]
    for silent in ({"greedy": True}, {"beams": 2}):  # nothing is drawn: the penalties alone
        assert [name for name, _ in pipeline(replace(settings, **silent), Counts(all=ones, text=ones))] == [
            *("repetition_penalty", "presence_penalty", "frequency_penalty"),
        ]
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
        TypicalLogitsWarper,
    )

    smooth = logits[:16]
    ids = torch.arange(20).repeat(16, 1)
    wanted = RepetitionPenaltyLogitsProcessor(1.3)(ids, smooth.clone())
    for warper in (
        *(TemperatureLogitsWarper(0.7), TopKLogitsWarper(40), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)),
        TypicalLogitsWarper(0.8),
    ):
        wanted = warper(ids, wanted)
    counts = Counts.start([list(range(20))], 16, 211, torch.device("cpu"))
    settings = SamplingParameters(
        repetition_penalty=1.3, temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, typical_p=0.8
    )
    found = smooth
    for _, step in pipeline(settings, counts):
        found = step(found)
    assert kept(found) == kept(wanted)
    assert (found.softmax(-1) - wanted.softmax(-1)).abs().max() < 1e-6
    assert math.isinf(float(found.min()))
