"""Rules about the loss: thrown off at once, spike, divergence, plateau, overfitting, too good, worse than guessing.

Each says nothing before it has seen enough steps. The bounds are several times what healthy small runs show.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nbllm.findings.curves import Curves, Floats, medians, noise, window
from nbllm.findings.finding import Finding

_BEFORE = 24
"""Steps that a spike is compared with."""
_AFTER = 10
"""Steps within which a spike has to be over, or it is none."""
_SIGMAS = 8.0
_SPIKE_SHARE = 0.15
"""Of the loss: what a spike has to rise by at least."""
_RISE_SHARE = 0.12
"""Of the best loss: what a run has to lose for it to diverge."""
_FLAT_SHARE = 0.005
"""Of the loss: a fall below this over a third of the run is none."""
_FLAT_STEPS = 80
_LEARNT = 0.5
"""Nats below which a loss that stands still has nothing left to learn."""
_TOP_OF_SCHEDULE = 0.3
"""Of the peak: a learning rate below this is the schedule's end, where a loss may be flat."""
_OVERFIT_SHARE = 0.015
_GAP = 0.5
"""Nats by which a training loss lies below the held-out one where it is too good."""
_GAP_SHARE = 0.25
_GUESS = 1.15
_START = 20
"""Steps in which a rate that is far too high shows at once."""
_START_SHARE = 0.15
"""Of the first loss: what it has to rise by there."""


def thrown_off(curves: Curves) -> list[Finding]:
    """The first steps make a fresh model worse than it was: it comes back, and most of the run is lost."""
    loss, steps = curves.of("loss"), curves.steps
    if len(loss) < 2 * _START or steps[0] != 1 or not np.isfinite(loss[: 2 * _START]).all():
        return []
    threes = np.median(sliding_window_view(loss[:_START], 3), axis=1)
    place = int(np.argmax(threes)) + 1
    rise = float(threes.max() - loss[0])
    if rise < max(_START_SHARE * loss[0], _SIGMAS * noise(loss[_START:])):
        return []
    total, warm = int(curves.start.get("total_steps") or 0), curves.warm or 0
    return [
        Finding(
            name="the first steps throw the model off",
            severity="serious",
            evidence=f"the loss began at {loss[0]:.3f} and was {threes.max():.3f} around step {steps[place]:,}, at a "
            f"learning rate of {curves.of('lr')[place]:.2g} after {warm:,} steps of warm-up; at step {steps[-1]:,} it "
            f"is {loss[-1]:.3f}",
            remedy="Take a tenth of the learning rate, and warm up",
            command=curves.line.again(lr=curves.peak_lr / 10, warmup=max(10, warm, total // 20)),
            step=int(steps[place]),
        )
    ]


def spikes(curves: Curves) -> list[Finding]:
    """The loss jumps and comes back."""
    loss, steps = curves.of("loss"), curves.steps
    if len(loss) < _BEFORE + 2:
        return []
    filled = _filled(loss)
    usual = np.median(sliding_window_view(filled, _BEFORE), axis=1)[:-1]  # of the steps before each, from _BEFORE on
    swings = np.median(sliding_window_view(np.abs(np.diff(filled)), _BEFORE - 1), axis=1)[: len(usual)]
    for back in range(_BEFORE, 4 * _BEFORE, _BEFORE):  # a quiet stretch before it doesn't make a step a spike
        swings[back:] = np.maximum(swings[back:], swings[:-back])
    bound = np.maximum(_SIGMAS * 1.4826 / math.sqrt(2) * swings, _SPIKE_SHARE * usual)
    found: list[tuple[int, float]] = []
    free = 0
    for place in (np.flatnonzero(loss[_BEFORE:] > usual + bound) + _BEFORE).tolist():
        if place < free:
            continue
        limit = usual[place - _BEFORE] + 0.5 * bound[place - _BEFORE]
        after = loss[place + 1 : place + 1 + _AFTER]
        if bool((after <= limit).any()):
            found.append((place, float(usual[place - _BEFORE])))
        free = place + _AFTER
    if not found:
        return []
    place, normal = max(found, key=lambda one: loss[one[0]] - one[1])
    norms = curves.of("grad_norm")
    typical = float(np.nanmedian(norms[max(0, place - _BEFORE) : place]))
    norm = f"; the gradient norm was {norms[place]:.3g} where {typical:.3g} is usual" if norms[place] > 0 else ""
    count = f"{len(found)} spikes, the largest" if len(found) > 1 else "it rose"
    early = curves.warm is not None and place < 2 * curves.warm + _BEFORE
    warmup = max(20, 4 * ((curves.warm or 0) + 1))
    return [
        Finding(
            name="loss spike",
            severity="warning",
            evidence=f"{count} from {normal:.3f} to {loss[place]:.3f} at step {steps[place]:,}, at a learning rate of "
            f"{curves.of('lr')[place]:.2g}, and came back{norm}",
            remedy="Warm up for longer" if early else "Take a lower learning rate, or clip gradients lower",
            command=curves.line.again(warmup=warmup) if early else curves.line.again(lr=curves.peak_lr / 2),
            step=int(steps[place]),
        )
    ]


def divergence(curves: Curves) -> list[Finding]:
    """The loss goes up and stays up."""
    loss, steps = _finite(curves)
    width = window(len(loss))
    if len(loss) < 4 * width:
        return []
    offset = len(loss) % width
    # the beginning counts too: a rate that is far too high spoils the first steps already
    smooth = np.concatenate([[float(np.median(loss[:3]))], medians(loss, width)])
    best = int(np.argmin(smooth))
    rise = float(smooth[-1] - smooth[best])
    if best >= len(smooth) - 2 or rise < max(
        _RISE_SHARE * smooth[best], 4 * noise(loss[: max(3, offset + best * width)])
    ):
        return []
    far = smooth[-1] > 2 * smooth[best]
    if not (far or curves.over) and smooth[-1] < smooth[-2] - 0.25 * rise:  # it is coming back
        return []
    step = int(steps[offset + best * width - 1] if best else steps[0])
    return [
        Finding(
            name="the loss diverges",
            severity="serious",
            evidence=f"it was {smooth[best]:.3f} around step {step:,} and is {smooth[-1]:.3f} around step "
            f"{steps[-1]:,} (medians of {width} steps), at a learning rate of up to {curves.peak_lr:.2g}",
            remedy="Take a third of the learning rate",
            command=curves.line.again(lr=curves.peak_lr / 3),
            step=step,
        )
    ]


def plateau(curves: Curves) -> list[Finding]:
    """The loss stands still though the learning rate is up."""
    loss, steps, lr = curves.of("loss"), curves.steps, curves.of("lr")
    warm = curves.warm
    use = np.isfinite(loss) & (lr >= _TOP_OF_SCHEDULE * curves.peak_lr)
    if warm is None or curves.peak_lr <= 0:
        return []
    use[:warm] = False
    loss, steps = loss[use], steps[use]
    part = max(_FLAT_STEPS, len(loss) // 3)
    if len(loss) < part:
        return []
    loss, steps = loss[-part:], steps[-part:]
    quarter = part // 4
    first, last = float(np.mean(loss[:quarter])), float(np.mean(loss[-quarter:]))
    doubt = 2 * float(np.std(loss)) * math.sqrt(2 / quarter)
    if last < _LEARNT or abs(first - last) > _FLAT_SHARE * first or first - last > doubt:
        return []
    return [
        Finding(
            name="the loss stands still",
            severity="warning",
            evidence=f"from step {steps[0]:,} to {steps[-1]:,} it went from {first:.3f} to {last:.3f}, less than it "
            f"swings, at a learning rate of {curves.of('lr')[-1]:.2g} (peak {curves.peak_lr:.2g})",
            remedy="Raise the learning rate; if that does nothing, the model is too small for the text",
            command=curves.line.again(lr=3 * curves.peak_lr),
            step=int(steps[0]),
        )
    ]


def overfitting(curves: Curves) -> list[Finding]:
    """The held-out loss rises while the training loss falls."""
    evals = curves.evals
    if len(evals) < 4:
        return []
    best = min(range(len(evals)), key=lambda i: evals[i][1])
    since = evals[best + 1 :]
    step, lowest = evals[best]
    if len(since) < 2 or since[-1][1] < lowest * (1 + _OVERFIT_SHARE) or min(loss for _, loss in since) <= lowest:
        return []
    then, now = _around(curves, step), _around(curves, since[-1][0])
    if then is None or now is None or now >= then:
        return []
    return [
        Finding(
            name="overfitting",
            severity="warning",
            evidence=f"the held-out loss was lowest at step {step:,} ({lowest:.3f}) and is {since[-1][1]:.3f} at step "
            f"{since[-1][0]:,}, while the training loss went from {then:.3f} to {now:.3f}",
            remedy="Stop when the held-out loss does; more text, or a smaller model, helps further",
            command=curves.line.again(early_stop=2),
            step=step,
        )
    ]


def too_good(curves: Curves) -> list[Finding]:
    """The training loss lies far below the held-out one though no text was seen twice."""
    whole = float(curves.start.get("train_tokens") or 0)
    tokens = curves.of("tokens")
    if not curves.evals or not whole or not len(tokens) or tokens[-1] > 1.5 * whole:
        return []
    step, held_out = curves.evals[-1]
    train = _around(curves, step)
    if train is None or held_out - train < max(_GAP, _GAP_SHARE * held_out):
        return []
    return [
        Finding(
            name="the training loss is too good to be true",
            severity="warning",
            evidence=f"after {tokens[-1] / whole:.1f} passes it is {train:.3f} and the held-out loss {held_out:.3f}: "
            "text that is learnt by heart so soon is in the corpus more than once",
            remedy="Look for duplicates, and clean them away",
            command=f"%llm_doctor {curves.name}".rstrip(),
            step=step,
        )
    ]


def worse_than_guessing(curves: Curves) -> list[Finding]:
    """The first loss is above that of a uniform guess, or a trained model's is near it."""
    loss, entries = curves.of("loss")[:3], float(curves.start.get("vocab_size") or 0)
    if len(loss) < 3 or not np.isfinite(loss).all() or entries < 2 or curves.steps[0] != 1:
        return []
    guess, first = math.log(entries), float(np.median(loss))
    trained = bool(curves.start.get("trained_before"))
    if first < (0.85 if trained else _GUESS) * guess:
        return []
    evidence = f"the first steps' loss is {first:.2f}, that of guessing among {entries:,.0f} tokens {guess:.2f}"
    return [
        Finding(
            name="the model doesn't know these tokens" if trained else "the run begins worse than guessing",
            severity="serious" if trained else "warning",
            evidence=evidence,
            remedy="Use the tokenizer that the model was trained with" if trained else "Check how the model is begun",
            command=curves.line.again(tokenizer=curves.config.get("model")) if trained else "%llm_model",
            step=1,
        )
    ]


def _finite(curves: Curves) -> tuple[Floats, np.ndarray]:
    loss = curves.of("loss")
    good = np.isfinite(loss)
    return loss[good], curves.steps[good]


def _filled(values: Floats) -> Floats:
    """The values with the last finite one in the place of those that aren't; 0 where there was none before."""
    places = np.where(np.isfinite(values), np.arange(len(values)), -1)
    newest = np.maximum.accumulate(places)
    return np.where(newest >= 0, values[newest], 0.0)


def _around(curves: Curves, step: int) -> float | None:
    """The training loss around a step: the mean of the last steps up to it."""
    loss, steps = _finite(curves)
    before = loss[steps <= step][-window(len(loss)) :]
    return float(np.mean(before)) if len(before) else None
