"""The noise is SplitMix64's, uniform, independent across what it is keyed by, and draws from the right distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nbllm.sample.noise import gumbel, mix, sample_keys

MASK = 2**64 - 1
EULER = 0.5772156649


def splitmix(z: int) -> int:
    """The published function, on Python's own integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_integers_are_the_published_ones() -> None:
    values = [0, 1, 2, 2**31, 2**32 + 5, 2**63, 2**63 - 1, MASK, 0x9E3779B97F4A7C15, 0xDEADBEEFCAFEF00D]
    signed = torch.tensor([value - 2**64 if value >= 2**63 else value for value in values])
    assert [int(value) & MASK for value in mix(signed)] == [splitmix(value) for value in values]
    # the first output for seed 1234567, from the reference implementation's test vector
    assert splitmix((1234567 + 0x9E3779B97F4A7C15) & MASK) == 6457827717110365317


def noise(seed: int = 0, samples: int = 1, positions: int = 1, vocab_size: int = 1000) -> torch.Tensor:
    """[samples, positions, V]"""
    keys = sample_keys(seed, torch.arange(samples))
    places = [gumbel(keys, torch.full((samples,), place), vocab_size) for place in range(positions)]
    return torch.stack(places, 1)


def test_uniform_and_gumbel_moments() -> None:
    values = noise(positions=50, vocab_size=20_000).double().flatten().numpy()
    uniform = np.exp(-np.exp(-values))
    counts, _ = np.histogram(uniform, bins=100, range=(0, 1))
    expected = len(values) / 100
    assert ((counts - expected) ** 2 / expected).sum() < 150  # chi-square, 99 degrees of freedom: p = 0.0007
    assert abs(values.mean() - EULER) < 5 * math.pi / math.sqrt(6 * len(values))
    assert abs(values.var() - math.pi**2 / 6) < 0.02


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_neighbours_are_independent(seed: int) -> None:
    found = noise(seed, samples=8, positions=8, vocab_size=4000).double()
    pairs = {
        "token": (found[..., :-1], found[..., 1:]),
        "position": (found[:, :-1], found[:, 1:]),
        "sample": (found[:-1], found[1:]),
        "seed": (found, noise((seed + 1) % 2**63, samples=8, positions=8, vocab_size=4000).double()),
        # sample 1 at position 0 against sample 0 at position 1: keys that add up alike must not collide
        "crossed": (found[1:, :-1], found[:-1, 1:]),
    }
    for name, (one, other) in pairs.items():
        correlation = float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])
        assert abs(correlation) < 5 / math.sqrt(one.numel()), name
        assert not torch.equal(one, other), name


def test_noise_is_keyed_not_drawn() -> None:
    keys = sample_keys(7, torch.arange(3))
    together = gumbel(keys, torch.tensor([5, 6, 7]), 500)
    alone = gumbel(sample_keys(7, torch.tensor([1])), torch.tensor([6]), 900)
    assert torch.equal(together[1], alone[0, :500])


def test_noise_is_finite_and_has_a_tail() -> None:
    values = noise(positions=20, vocab_size=200_000)
    assert values.isfinite().all()
    assert values.max() > 13  # four million draws: about 15 is expected


def test_draws_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])
    draws = 100_000
    found = gumbel(sample_keys(3, torch.zeros(draws, dtype=torch.long)), torch.arange(draws), 6)
    counts = (probabilities.log() + found).argmax(-1).bincount(minlength=6).double()
    expected = probabilities.double() * draws
    assert float(((counts - expected) ** 2 / expected).sum()) < 20.5  # 5 degrees of freedom: p = 0.001
