"""What the logit lens sends and saves, without a browser."""

from __future__ import annotations

import time

import numpy as np
import pytest
from fake_lens import Session, lens

from nbllm.panels import lens_face, show_lens
from nbllm.panels.lens import LensPanel


@pytest.fixture
def panel(monkeypatch):
    made = LensPanel(Session(), lens(), text="abc", wanted={"top": 3})
    made.told = []
    monkeypatch.setattr(made, "send", lambda content, buffers=None: made.told.append((content, buffers)), raising=False)
    monkeypatch.setattr(made.face, "_publish", lambda body, text, update: None)
    made.start()
    yield made
    made.close()


def wait_until(check, timeout_s=5):
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def test_the_face_escapes_text_and_stays_small():
    html = lens_face.as_html(lens(model="<script>"))
    assert "<img" not in html
    assert "<script" not in html
    assert "&lt;img" in html
    long = lens_face.as_html(lens(tokens=1024, rows=100))
    assert len(long.encode()) < 290_000
    assert "of 1,024 tokens" in long
    assert "64 of 100 rows" in long


def test_the_face_marks_where_the_prediction_settles():
    shown = lens()
    assert lens_face.as_html(shown).count(' s" title=') == len(shown.tokens)


def test_a_snapshot_holds_every_number(panel):
    panel._receive(None, {"ask": "snapshot", "view": "v"}, [])
    content, buffers = panel.told[-1]
    shown = content["lens"]
    places = np.frombuffer(buffers[0], dtype="<i4").reshape(5, 7, 3)
    assert (np.array(shown["strings"], dtype=object)[places] == panel.lens.top_texts).all()
    np.testing.assert_array_equal(np.frombuffer(buffers[1], "<f4").reshape(5, 7, 3), panel.lens.top_probabilities)
    assert content["state"]["checkpoints"] == [100, 200]


def test_another_checkpoint_and_trouble(panel):
    panel._receive(None, {"do": "look", "checkpoint": 100}, [])
    wait_until(lambda: panel.told and "lens" in panel.told[-1][0])
    assert panel.session.asked == [("abc", {"top": 3, "checkpoint": 100})]
    assert panel.told[-1][0]["state"]["checkpoint"] == 100
    panel._receive(None, {"do": "look", "checkpoint": 5}, [])
    wait_until(lambda: panel.told[-1][0]["state"]["error"])
    assert "no such checkpoint" in panel.told[-1][0]["state"]["error"]
    assert panel.wanted["checkpoint"] == 100, "what is shown stays"


def test_outside_jupyter_it_is_text(capsys):
    show_lens(Session(), lens(), text="abc")
    said = capsys.readouterr().out
    assert said.startswith("Logit lens of tiny: 7 tokens · 4 layers · settles at layer")
    assert "settles" in said.splitlines()[-1]
