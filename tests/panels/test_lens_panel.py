"""What the logit lens sends and saves, without a browser."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from nbllm.errors import UsageError
from nbllm.inspect.lens import LogitLens
from nbllm.panels import lens_face, show_lens
from nbllm.panels.lens import LensPanel

HOSTILE = '<img src=x onerror="window.hacked=1">'


def lens(tokens=7, rows=5, model="tiny", seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 9, (rows, tokens, 3)).astype(np.int32)
    ids[-2:, :, 0] = 4
    chances = -np.sort(-rng.dirichlet(np.ones(4), (rows, tokens)).astype(np.float32)[..., :3], axis=-1)
    names = np.array([*"abcdefg", HOSTILE, "␣h"], dtype=object)
    ranks = rng.integers(1, 9, (rows, tokens)).astype(np.int32)
    ranks[:, -1] = 0
    return LogitLens(
        model=model, tokens=tuple(names[np.arange(tokens) % 9]), token_ids=tuple(range(tokens)),
        rows=("embedding", *map(str, range(rows - 1))), predicts="next", top_ids=ids, top_texts=names[ids],
        top_probabilities=chances, final_probability=chances[..., 0], final_rank=ranks,
        actual_probability=chances[..., 1], actual_rank=ranks,
    )  # fmt: skip


class Session:
    model = SimpleNamespace(source="tiny")
    lock = threading.RLock()

    def __init__(self):
        self.asked = []

    def checkpoints(self):
        return [100, 200]

    def logit_lens(self, text, **wanted):
        self.asked.append((text, wanted))
        if wanted.get("checkpoint") == 5:
            raise UsageError("There is no such checkpoint")
        return lens(seed=1)


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
