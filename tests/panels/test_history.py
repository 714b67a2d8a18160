from __future__ import annotations

import itertools
import math

import pytest

from nbllm.panels.history import FRESH_LIMIT, RunHistory, Series, number


def test_a_series_stays_bounded_even_and_keeps_its_extremes():
    series = Series(capacity=400)
    for step in range(100_000):
        series.append(step, 99.0 if step == 12_345 else -99.0 if step == 77_777 else math.sin(step))
    steps, values = series.points()
    assert len(steps) == len(values) <= 403
    assert max(values) == 99.0
    assert min(values) == -99.0
    assert steps[0] < 1000
    assert steps[-1] == 99_999
    assert list(steps) == sorted(steps)
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert max(gaps) <= 2 * 2 * series.stride, "no part is thinner than the rest"


def test_a_gap_survives_thinning():
    series = Series(capacity=40)
    for step in range(5000):
        series.append(step, math.inf if step == 2500 else 1.0)
    steps, values = series.points()
    assert [step for step, value in zip(steps, values, strict=True) if math.isnan(value)] == [2500]


def test_a_smooth_series_keeps_the_last_of_each_bucket():
    series = Series("last", capacity=40)
    for step in range(1000):
        series.append(step, float(step))
    steps, values = series.points()
    assert list(steps) == list(values)
    assert steps[-1] == 999


def test_truncating_drops_later_points_of_store_and_bucket():
    series = Series(capacity=40)
    for step in range(105):
        series.append(step, 1.0)
    assert series.stride > 1
    series.truncate(50)
    assert series.points()[0][-1] <= 50


@pytest.mark.parametrize(
    ("value", "expected"), [("Infinity", math.inf), ("-Infinity", -math.inf), (2, 2.0), ("1.5", 1.5)]
)
def test_numbers(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize("value", ["NaN", None, True, "x", [], float("nan")])
def test_not_numbers(value):
    assert math.isnan(number(value))


def step_event(step, loss, **more):
    return {"kind": "step", "step": step, "loss": loss, "lr": 1e-3, "grad_norm": 1.0, "seconds": step / 2, **more}


def test_the_smoothed_curve_neither_lags_behind_a_slope_nor_follows_noise():
    slope, noisy = RunHistory(), RunHistory()
    for step in range(1, 501):
        slope.add(step_event(step, 10 - 0.01 * step))
        noisy.add(step_event(step, 5 + (0.5 if step % 2 else -0.5)))
    assert slope.latest("smooth") == pytest.approx(5.0, abs=0.02)
    assert noisy.latest("smooth") == pytest.approx(5.0, abs=0.05)


def test_fresh_points_come_once_and_many_ask_for_the_whole():
    history = RunHistory()
    for step in (1, 2):
        history.add(step_event(step, 5.0))
    fresh = history.take_fresh()
    assert list(fresh["loss"][0]) == [1, 2]
    assert set(fresh) == {"loss", "smooth", "grad_norm", "lr"}
    assert history.take_fresh() == {}
    for step in range(3, FRESH_LIMIT + 10):
        history.add(step_event(step, 5.0))
    assert history.take_fresh() is None
    assert history.take_fresh() == {}


def test_a_restart_drops_what_came_after_its_step():
    history = RunHistory()
    history.add({"kind": "start", "generation": 0, "step": 0, "total_steps": 100})
    assert history.take_fresh() == {}, "a first start drops nothing"
    for step in range(1, 61):
        history.add(step_event(step, math.nan if step == 55 else 5.0))
    for step in (20, 40, 60):
        history.add({"kind": "checkpoint", "step": step, "path": f"step-{step:08d}"})
    history.add({"kind": "eval", "step": 60, "eval_loss": 4.0, "bits_per_byte": 2.0})
    history.add({"kind": "sample", "step": 60, "text": "late"})
    assert history.first_bad_step == 55
    history.take_fresh()
    history.add({"kind": "start", "generation": 1, "step": 40, "total_steps": 100})
    assert history.take_fresh() is None
    assert history.step == 40
    assert history.checkpoints == [20, 40]
    assert history.sample is None
    assert history.first_bad_step is None
    assert history.latest("eval_loss") is None
    assert history.curves["loss"].points()[0][-1] == 40
    assert history.seconds_a_step() is None
    history.add(step_event(41, 5.0))
    history.add(step_event(42, 5.0))
    assert history.seconds_a_step() == pytest.approx(0.5)


def test_unknown_and_broken_events_are_passed_over():
    history = RunHistory()
    for event in ({}, {"kind": "new"}, {"kind": "step"}, {"kind": "step", "step": "x"}, {"kind": "end"}):
        history.add(event)
    assert history.step == 0
    assert history.latest("loss") is None


def test_restarts_rate_changes_and_findings_are_marked():
    history = RunHistory()
    history.add({"kind": "start", "step": 0, "generation": 0})
    for step in range(1, 11):
        history.add({"kind": "step", "step": step, "loss": 2.0, **({"lr_factor": 0.5} if 4 <= step < 8 else {})})
    history.add({"kind": "finding", "step": 9, "title": "spike"})
    assert history.happened == [(4, "rate × 0.5"), (8, "rate × 1"), (9, "spike")]
    history.add({"kind": "start", "step": 6, "generation": 1})
    assert history.happened == [(4, "rate × 0.5"), (6, "restart")]
