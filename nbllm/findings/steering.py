"""Rules about how a run is steered: learning rate, warm-up, clipping, gradient scale, batch, finite numbers.

Sources: the noise of a batch's gradient falls with the root of its size (McCandlish et al. 2018,
https://arxiv.org/abs/1812.06162), and so does the loss's.
"""

from __future__ import annotations

import math

import numpy as np

from nbllm.findings.curves import Curves
from nbllm.findings.finding import Finding

_LONG_WARMUP = 0.3
"""Of the run; a twentieth is usual."""
_WARMUP_STEPS = 30
_DEAD_SHARE = 0.005
_CLIPPED = 0.98
_CLIPPED_BY = 5.0
"""Times the limit: gradients a few times as long as it are usual in the first minutes of a small model."""
_CLIP_STEPS = 50
_NOISY = 0.05
"""Of the loss: a swing from step to step that hides what a step gains."""
_SWING = 0.1
_QUIET = 0.03
_SMALL_TOKENS = 2048
_MOST_ACCUMULATION = 64
_SKIPS = 6
_COLLAPSED = 2.0**-8


def not_finite(curves: Curves) -> list[Finding]:
    """A loss or gradient that isn't a number."""
    loss, norm, scale = curves.of("loss"), curves.of("grad_norm"), curves.of("scale")
    bad = ~np.isfinite(loss) | ~np.isfinite(norm)
    if np.isfinite(scale).any():  # fp16's scaler looks for its scale by steps whose gradient overflows
        bad = ~np.isfinite(loss)
    places = np.flatnonzero(bad)
    if not len(places):
        return []
    place = int(places[0])
    step = int(curves.steps[place])
    what = "loss" if not math.isfinite(loss[place]) else "gradient"
    place_of = curves.nowhere.get(step, {})
    where = f"; {place_of['where']}" if place_of.get("where") else ""
    before = f", after a loss of {loss[place - 1]:.3f}" if place and math.isfinite(loss[place - 1]) else ""
    weights = bool(place_of.get("weights"))
    return [
        Finding(
            name="numbers that aren't finite",
            severity="serious",
            evidence=f"the {what} of step {step:,} isn't finite{before}{where}; {len(places):,} of {len(loss):,} steps "
            "are so, and weren't taken",
            remedy="Start from weights that are finite" if weights else "Take a third of the learning rate",
            command=curves.line.again(lr=curves.peak_lr / 3),
            step=step,
        )
    ]


def learning_rate(curves: Curves) -> list[Finding]:
    """A learning rate that is 0; a warm-up that takes too much of the run, or in which nothing is learnt."""
    lr, loss, steps = curves.of("lr"), curves.of("loss"), curves.steps
    if len(lr) >= 10 and not lr[-10:].any() and not curves.over:
        first = int(np.flatnonzero(lr)[-1]) + 1 if lr.any() else 0
        return [
            Finding(
                name="the learning rate is 0",
                severity="serious",
                evidence=f"since step {steps[first]:,}: steps are taken, and change nothing",
                remedy="Set the panel's learning-rate slider above 0, or start again",
                command=curves.line.again(lr=curves.peak_lr or None),
                step=int(steps[first]),
            )
        ]
    total, warm = int(curves.start.get("total_steps") or 0), curves.warm
    taken = len(lr) if warm is None else warm
    rising = len(lr) > 1 and bool((np.diff(lr[: max(2, taken)]) >= 0).all())
    if not rising or taken < _WARMUP_STEPS:
        return []
    usual = max(10, total // 20)
    again = curves.line.again(warmup=usual)
    half = taken // 2
    first_loss, then = float(np.median(loss[:5])), float(np.median(loss[half - 3 : half + 3]))
    if first_loss - then < _DEAD_SHARE * first_loss:
        return [
            Finding(
                name="dead warm-up",
                severity="warning",
                evidence=f"after {half:,} of its {'at least ' if warm is None else ''}{taken:,} steps the loss is "
                f"{then:.3f}, and it began at {first_loss:.3f}: nothing is learnt at {lr[half]:.2g}",
                remedy="Warm up for a twentieth of the run",
                command=again,
                step=int(steps[half]),
            )
        ]
    if total and taken > _LONG_WARMUP * total:
        return [
            Finding(
                name="the warm-up is too long",
                severity="warning",
                evidence=f"it takes {'at least ' if warm is None else ''}{taken:,} of the run's {total:,} steps "
                f"({taken / total:.0%}); a twentieth is usual",
                remedy="Warm up for a twentieth of the run",
                command=again,
                step=int(steps[taken - 1]),
            )
        ]
    return []


def clipping(curves: Curves) -> list[Finding]:
    """Nearly every gradient is clipped, by far."""
    limit, warm = float(curves.config.get("clip") or 0), curves.warm
    if not limit or warm is None:
        return []
    norm = curves.of("grad_norm")[warm:]
    norm = norm[np.isfinite(norm)]
    if len(norm) < _CLIP_STEPS or np.mean(norm > limit) < _CLIPPED or np.median(norm) < _CLIPPED_BY * limit:
        return []
    high = float(np.quantile(norm, 0.9))
    return [
        Finding(
            name="clipping is always on",
            severity="hint",
            evidence=f"{np.mean(norm > limit):.0%} of the {len(norm):,} steps after the warm-up had a gradient norm "
            f"above --clip {limit:g}; the median is {np.median(norm):.3g}: outliers weigh as much as every other step",
            remedy="Clip only outliers",
            command=curves.line.again(clip=float(f"{high:.1g}")),
            step=int(curves.steps[warm]),
        )
    ]


def scaler(curves: Curves) -> list[Finding]:
    """fp16's gradient scale falls and falls."""
    scale, skipped = curves.of("scale"), curves.of("skipped")
    if not np.isfinite(scale).any() or len(scale) < 20:
        return []
    late = np.flatnonzero(skipped[10:] > 0) + 10
    top = float(np.nanmax(scale))
    last = float(scale[-1])
    if len(late) < _SKIPS or last > max(1.0, _COLLAPSED * top):
        return []
    return [
        Finding(
            name="the gradient scale collapses",
            severity="serious",
            evidence=f"it went from {top:g} to {last:g}, and {len(late):,} steps after the tenth weren't taken: "
            "gradients overflow in fp16 whatever the scale",
            remedy="Compute in bf16, whose range is that of fp32",
            command=curves.line.again(precision="bf16"),
            step=int(curves.steps[late[0]]),
        )
    ]


def batch(curves: Curves) -> list[Finding]:
    """The loss swings by more than the run gains, since a step sees little text."""
    loss, tokens, warm = curves.of("loss"), curves.of("tokens"), curves.warm
    good = np.isfinite(loss) & np.isfinite(tokens)
    loss, tokens, steps = loss[good], tokens[good], curves.steps[good]
    part = len(loss) // 2
    if warm is None or part < 40 or warm > part:
        return []
    size = float(np.median(np.diff(tokens)))
    tail = loss[-part:]
    swing, level = float(np.std(np.diff(tail))) / math.sqrt(2), float(np.median(tail))
    gained = float(np.mean(tail[: part // 4]) - np.mean(tail[-part // 4 :]))
    if size >= _SMALL_TOKENS or swing < max(_NOISY * level, _SWING) or gained > swing:
        return []
    more = min(_MOST_ACCUMULATION, 2 ** math.ceil(math.log2((swing / level / _QUIET) ** 2)))
    accumulation = int(curves.config.get("grad_accum") or 1)
    return [
        Finding(
            name="the global batch is small",
            severity="hint",
            evidence=f"a step sees {size:,.0f} tokens, and the loss swings by {swing:.2f} ({swing / level:.0%}) from "
            f"step to step, more than the last {part:,} steps gained ({gained:.2f})",
            remedy=f"Add up {more} times as many micro-steps: the swing falls with the root",
            command=curves.line.again(grad_accum=more * accumulation),
            step=int(steps[-part]),
        )
    ]
