from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from fake_run import FakeRun

from nbllm.panels import show_run, static_html, static_text, svg, text


def svg_of(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


def test_text_says_the_final_state():
    run = FakeRun().steps_now(600).finish()
    line = static_text(run, reference_bits_per_byte=2.27)
    assert line.startswith("pydocs-nano: done, step 600 / 600 · loss 4.")
    assert re.search(r"held-out 4\.55 \(1\.98 bits a byte; xz −9 needs 2\.27\)", line)
    assert line.endswith("3,180 tokens/s · 1 min 24 s")
    assert "\n" not in line


def test_html_has_the_chart_and_the_numbers():
    page = static_html(FakeRun().steps_now(600).finish())
    chart = svg_of(page)
    assert len(chart.findall("circle")) == 12
    assert "held-out 4.55" in chart.attrib["aria-label"]
    assert "2 processes, ddp, bf16, cpu" in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert len(page) < 30_000


def test_a_plan_shows_what_proves_it():
    run = FakeRun().steps_now(3)
    run.events[0] |= {"parallel": "fsdp", "parameters_by_rank": [500_000, 499_000], "machines": 2}
    assert "2 processes, fsdp, 500,000 parameters a process at most, 2 machines, bf16, cpu" in static_html(run.finish())


def test_a_run_without_events_shows():
    run = FakeRun(start_event=False, total_steps=None)
    assert static_text(run) == "pydocs-nano: starting, step 0"
    svg_of(static_html(run))


def test_a_very_long_run_gives_a_small_face():
    run = FakeRun(total_steps=30_000).steps_now(30_000).finish()
    assert len(static_html(run)) < 60_000


@pytest.mark.parametrize("hostile", ['"><script>alert(1)</script>', "</style><img src=x onerror=alert(1)>", "a&b<c"])
def test_text_from_data_is_never_html(hostile):
    run = FakeRun(name=hostile).steps_now(60).finish("failed", error=hostile)
    run.events.append({"kind": "sample", "step": 60, "text": hostile})
    page = static_html(run)
    assert hostile not in page
    assert "<script" not in page
    assert "<img" not in page
    svg_of(page)


def test_a_dead_run_names_its_checkpoint_and_the_way_on():
    run = FakeRun(name="my run").steps_now(450).finish("died")
    assert static_text(run).splitlines()[1] == (
        'The run died at step 450. Its last checkpoint is step 400. Go on with %llm_train --resume "my run".'
    )
    said = "Run x failed: no memory. Its last good checkpoint is step 400. Go on with %llm_train --resume x."
    run = FakeRun(name="x").steps_now(450).finish("failed", error=said)
    assert static_text(run).splitlines()[1] == said


def test_losses_that_are_not_finite_leave_gaps_and_all_of_them_still_draw():
    run = FakeRun().steps_now(30)
    for event in run.events:
        if event["kind"] == "step" and event["step"] in (10, 11):
            event["loss"] = "NaN"
    paths = [path.attrib["d"] for path in svg_of(static_html(run)).findall("path") if "fill" in path.attrib]
    assert [path.count("M") for path in paths] == [2, 2]
    for event in run.events:
        if event["kind"] == "step":
            event["loss"] = math.inf
    svg_of(static_html(run))
    assert "loss" not in static_text(run)


def test_in_plain_python_a_run_is_shown_as_text(capsys):
    show_run(FakeRun().steps_now(10).finish())
    assert capsys.readouterr().out.startswith("pydocs-nano: done, step 10 / 600 · loss ")


def test_the_axis_ends_where_the_curve_can_be_seen():
    assert svg.right_end(600, 600) == 600
    assert svg.right_end(450, 600) == 600
    assert svg.right_end(455, 100_000) == 781.25
    assert svg.right_end(0, 600) <= 40
    assert svg.right_end(700, 600) == 700
    assert svg.right_end(50, None) == 50


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (4.2, 7.9, [4.5, 5, 5.5, 6, 6.5, 7, 7.5]), (1, 1, []), (0, math.nan, [])],
)
def test_ticks_are_round(low, high, expected):
    assert svg.ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (24.4, "24 s"), (200, "3 min 20 s"), (1800, "30 min"), (7500, "2 h 5 min"), (273_600, "3 d 4 h")],
)
def test_durations(seconds, expected):
    assert text.duration(seconds) == expected


def test_numbers_are_written_shortly():
    assert text.loss(None) == "–"
    assert text.size(1.1e9) == "1.1 GB"
    assert text.typed("my run") == '"my run"'
    assert text.typed("run-1") == "run-1"
