"""Runs over one another, without a browser: what the panel sends, and its static face."""

from array import array
from types import SimpleNamespace

import pytest
from fake_run import FakeRun

from nbllm.panels import registry, run_face, show_comparison
from nbllm.panels.compare import ComparePanel, as_html
from nbllm.panels.history import RunHistory


def comparison(*runs, differences=None):
    rows = tuple((run.name, run.status) for run in runs)
    return SimpleNamespace(
        runs=runs, table=SimpleNamespace(head=("run", "status"), rows=rows), differences=differences or {}
    )


def test_it_sends_the_curves_of_each_run_and_what_is_new_when_asked(monkeypatch):
    one, other = FakeRun(name="one").steps_now(60).finish(), FakeRun(name="other").steps_now(120)
    other.status = "running"
    panel = ComparePanel(comparison(one, other, differences={"lr": ("0.01", "0.003")}))
    sent = []
    monkeypatch.setattr(panel, "send", lambda content, buffers=None: sent.append((content, buffers)), raising=False)
    panel._receive(None, {"ask": "snapshot", "view": "v"}, [])
    content, buffers = sent[-1]
    assert [run["name"] for run in content["runs"]] == ["one", "other"]
    assert content["live"] is True
    assert content["differences"] == [["lr", "0.01", "0.003"]]
    steps = [list(array("d", buffer))[: len(buffer) // 16] for buffer in buffers]
    assert [each[-1] for each in steps] == [60, 50, 120, 100]
    other.steps_now(5).finish()
    panel._receive(None, {"ask": "snapshot", "view": "v"}, [])
    content, buffers = sent[-1]
    assert content["live"] is False
    assert list(array("d", buffers[2]))[len(buffers[2]) // 16 - 1] == 125
    panel.close()


def test_the_static_face_has_a_curve_a_run_and_escapes_names():
    runs = [FakeRun(name="<b>bold</b>").steps_now(60), FakeRun(name="plain").steps_now(60)]
    histories = []
    for run in runs:
        histories.append(RunHistory())
        for event in run.events:
            histories[-1].add(event)
    body = as_html(comparison(*runs, differences={"lr": ("<i>", "2")}), histories)
    assert body.count("<polyline") + body.count("<path") >= 2
    assert "&lt;b&gt;bold" in body
    assert "<b>bold" not in body
    assert "&lt;i&gt;" in body


def test_in_plain_python_it_is_text(capsys):
    assert not registry.has_kernel()
    show_comparison("one | other")
    assert capsys.readouterr().out == "one | other\n"


@pytest.mark.parametrize(
    ("gpu", "memory", "busy"),
    [((None, None), "1.2 GB", "1.5 cores"), ((3_000_000_000, 0.97), "GPU 3.0 GB, 1.2 GB", "GPU 97% busy, 1.5 cores")],
)
def test_use_by_rank_in_words(gpu, memory, busy):
    use = SimpleNamespace(rank=1, memory_bytes=1_200_000_000, cores=1.5, gpu_bytes=gpu[0], gpu_share=gpu[1])
    assert run_face.usage(use) == {"rank": 1, "memory": memory, "busy": busy}
