"""Gumbel noise from a counter: a number for each (seed, sample, position, token), always the same.

No generator with a state: whichever tokens a filter leaves, whatever the temperature, each token keeps its number, so
that a changed setting changes a text only where it changes a choice. The integers are those of SplitMix64 (Steele, Lea
and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): a stream over tokens, whose start is the hash
of seed, sample and position. `argmax(logits + noise)` draws from softmax(logits) (Gumbel 1954; Maddison et al. 2014).

Legend: B rows, V tokens of the vocabulary. int64 arithmetic wraps as 64-bit unsigned arithmetic does.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 that has it."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


_STEP = _signed(0x9E3779B97F4A7C15)  # odd, near 2^64 / golden ratio
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)
_BELOW_ONE = 1.0 - 2.0**-24


def _shift(bits: Tensor, count: int) -> Tensor:
    """Logical shift to the right; torch's own copies the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def mix(bits: Tensor) -> Tensor:
    """SplitMix64's output function on int64 of any shape; a bijection."""
    bits = (bits ^ _shift(bits, 30)) * _FIRST
    bits = (bits ^ _shift(bits, 27)) * _SECOND
    return bits ^ _shift(bits, 31)


def sample_keys(seed: int, samples: Tensor) -> Tensor:
    """The key of each row: a hash of the seed and the sample's number.

    Args:
        seed: from 0 to 2^63 - 1.
        samples: int64 [B].

    Returns:
        int64 [B].
    """
    start = mix(torch.tensor(_signed(seed + _STEP), device=samples.device))
    return mix(start + (samples + 1) * _STEP)


def add_noise(logits: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """Logits [B, V] plus their tokens' noise; tokens that are left out (-inf) stay so.

    On a CPU only the noise of tokens that are left is computed, which after a filter are few.
    """
    if logits.device.type == "cpu":
        rows, tokens = torch.nonzero(logits > -torch.inf, as_tuple=True)
        if 8 * len(tokens) < logits.numel():
            noisy = torch.full_like(logits, -torch.inf)
            start = mix(keys + (positions + 1) * _STEP)
            noisy[rows, tokens] = logits[rows, tokens] + _from_bits(mix(start[rows] + (tokens + 1) * _STEP))
            return noisy
    return logits + gumbel(keys, positions, logits.shape[-1])


def gumbel(keys: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise for the token at each row's position.

    Args:
        keys: from `sample_keys`, int64 [B].
        positions: place of the new token in its text, prompt included, int64 [B].
        vocab_size: V.

    Returns:
        float32 [B, V]; the largest value that can come is 37, so that tokens of probability 1e-16 can be drawn.
    """
    start = mix(keys + (positions + 1) * _STEP)
    tokens = torch.arange(1, vocab_size + 1, device=keys.device)
    return _from_bits(mix(start[:, None] + tokens * _STEP))


def _from_bits(bits: Tensor) -> Tensor:
    uniform = _shift(bits, 11).to(torch.float32)  # 53 bits
    uniform = ((uniform + 0.5) * 2.0**-53).clamp_(max=_BELOW_ONE)
    # -log(1 - u) is exponential; written so that small values, which make the large noise, keep their digits
    return -torch.log(-torch.log1p(-uniform))
