"""What the fine-tuning panel sends, saves and samples again, without a browser."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from fake_tuning import HOSTILE, FakeTuning

from nbllm.errors import UsageError
from nbllm.panels import registry, show_finetune
from nbllm.panels.finetune import FinetunePanel


@pytest.fixture
def panel(monkeypatch):
    session = FakeTuning()
    made = FinetunePanel(session, ("polite", "curt"), prompt="What is a list?")
    made.told, made.faces = [], []
    monkeypatch.setattr(made, "send", lambda content, buffers=None: made.told.append(content), raising=False)
    monkeypatch.setattr(made.face, "_publish", lambda body, text, update: made.faces.append((body, text)))
    made.start()
    yield made
    made.close()


def wait_until(check, timeout_s=5):
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def do(panel, **content):
    panel._receive(None, content, [])


def sampled(panel, **content):
    """Does it, and waits until the columns are there."""
    before = panel.shown
    do(panel, **content)
    wait_until(lambda: panel.shown is not before and panel.doing == "idle")
    return panel.shown


def test_a_moved_weight_samples_its_own_column_only(panel):
    first = sampled(panel, do="sample", prompt="Why?")
    assert [column.title for column in first.columns] == ["base", "polite", "curt"]
    assert first.prompt == "Why?"
    assert panel.session.asked == [(None, 1.0), ("polite", 1.0), ("curt", 1.0)]
    pieces = [told for told in panel.told if told["kind"] == "piece" and told["column"] == 1]
    assert "".join(told["text"] for told in pieces) == first.columns[1].text
    second = sampled(panel, do="scale", adapter="curt", value=0)
    assert panel.session.asked[3:] == [("curt", 0.0)]
    assert second.columns[1] == first.columns[1]
    assert second.columns[2].text == second.columns[0].text, "weight 0 is the base"
    sampled(panel, do="settings", value={"seed": 3, "top_k": 5})
    assert panel.session.sampling.seed == 3
    assert panel.session.sampling.top_k == 0, "not a setting of this panel"
    assert len(panel.session.asked) == 7


def test_a_newer_wish_ends_what_is_under_way_and_stop_ends_it_too(panel):
    panel.session.pace_s = 0.02
    do(panel, do="sample")
    wait_until(lambda: panel.doing == "sampling")
    do(panel, do="stop")
    wait_until(lambda: panel.doing == "idle")
    assert panel.shown is None
    panel.session.pace_s = 0
    assert sampled(panel, do="sample").columns


def test_a_snapshot_holds_everything_and_the_face_follows(panel):
    sampled(panel, do="sample")
    do(panel, do="changes", value="polite")
    wait_until(lambda: panel.report is not None and panel.doing == "idle")
    do(panel, ask="snapshot", view="v")
    content = panel.told[-1]
    assert content["state"]["chosen"] == ["polite", "curt"]
    assert content["state"]["chat"] is True
    assert content["columns"][1]["runs"][0][0]
    assert len(content["report"]["changes"]) == 210
    panel.settle()
    body, text = panel.faces[-1]
    assert body.count("<rect") == 210
    assert "<ins>" in body
    assert "<img" not in body
    assert "<b>odd" not in body
    assert "⟦" in text
    assert "q_proj" in text
    assert len(body.encode()) < 60_000


def test_other_adapters_and_mistakes(panel):
    shown = sampled(panel, do="choose", value=["<b>odd</b>"])
    assert [column.adapter for column in shown.columns] == [None, "<b>odd</b>"]
    for wrong in ({"do": "scale", "adapter": "curt", "value": -1}, {"do": "scale", "adapter": "curt", "value": "x"}):
        do(panel, **wrong)
        assert panel.told[-1]["state"]["error"].startswith("A weight")
    do(panel, do="fly")
    assert "doesn't know" in panel.told[-1]["state"]["error"]
    do(panel, do="changes", value="polite")
    wait_until(lambda: "isn't shown" in panel.told[-1]["state"]["error"])


def test_a_setting_moved_elsewhere_is_told(panel):
    panel.session.sampling = replace(panel.session.sampling, temperature=0.1)
    assert panel.told[-1]["state"]["settings"]["temperature"] == 0.1


def test_outside_jupyter_the_command_is_named():
    with pytest.raises(UsageError, match="%llm_adapter compare"):
        show_finetune(FakeTuning())


def test_its_cell_run_again_closes_the_one_before(monkeypatch):
    monkeypatch.setattr(registry, "has_kernel", lambda: True)
    monkeypatch.setattr("nbllm.panels.place.present", lambda panel: None)
    monkeypatch.setattr("nbllm.panels.face.Face._publish", lambda *_, **__: None)
    session = FakeTuning()
    for prompt in ("one", ""):
        show_finetune(session, prompt=prompt)
    (panel,) = registry.live("finetune")
    assert panel.prompt == "one"
    panel.close()
    assert HOSTILE not in panel._as_face()[0]
