"""Every rule about a run's curves, in one call."""

from __future__ import annotations

from collections.abc import Callable

from nbllm.findings import loss, machine, steering
from nbllm.findings.curves import Curves
from nbllm.findings.finding import Finding

RULES: tuple[tuple[str, Callable[[Curves], list[Finding]]], ...] = (
    ("finite numbers", steering.not_finite),
    ("first steps", loss.thrown_off),
    ("spikes", loss.spikes),
    ("divergence", loss.divergence),
    ("plateau", loss.plateau),
    ("overfitting", loss.overfitting),
    ("loss too good", loss.too_good),
    ("first loss", loss.worse_than_guessing),
    ("warm-up", steering.learning_rate),
    ("clipping", steering.clipping),
    ("gradient scale", steering.scaler),
    ("batch", steering.batch),
    ("memory", machine.memory),
    ("waiting", machine.waiting),
    ("parts of the model", machine.parts),
)
"""What is looked at, and by which rule."""


def look(curves: Curves) -> list[Finding]:
    """What the curves show, in the order of the rules."""
    return [finding for _, rule in RULES for finding in rule(curves)]
