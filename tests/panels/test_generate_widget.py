"""The kernel's half of the sampling panel, without a browser."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from fake_session import FakeSampling, FakeSession

from nbllm.errors import NotFoundError, UsageError
from nbllm.panels import show_generate
from nbllm.panels.generate import GeneratePanel, as_cell


def wait_until(check, timeout_s=5):
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


@pytest.fixture
def make(monkeypatch):
    panels = []

    def one(session, prompt="Return"):
        panel = GeneratePanel(session, prompt=prompt)
        panel.messages = []
        monkeypatch.setattr(panel, "send", lambda content, buffers=None: panel.messages.append(content), raising=False)
        monkeypatch.setattr(panel.face, "_publish", lambda body, text, update: None)
        panels.append(panel)
        panel.start()
        return panel

    yield one
    for panel in panels:
        panel.close()


def ended(panel):
    return any(m["kind"] == "state" and m["facts"].get("tokens") for m in panel.messages) and panel._doing == "idle"


def test_text_streams_and_is_whole(make):
    session = FakeSession(token_s=0.002)
    panel = make(session)
    panel._receive(None, {"do": "sample", "prompt": "Go"}, [])
    wait_until(lambda: ended(panel))
    pieces = [m["text"] for m in panel.messages if m["kind"] == "text"]
    assert "".join(pieces) == panel.text
    assert 1 < len(pieces) < 40, "not a message a token"
    assert session.calls[0]["prompt"] == "Go"
    assert session.calls[0]["sampling"].n == 1


def test_a_newer_wish_cancels_the_older_and_its_pieces(make):
    session = FakeSession(token_s=0.02)
    panel = make(session)
    panel._receive(None, {"do": "sample"}, [])
    wait_until(lambda: session.calls)
    for temperature in (0.5, 0.6, 0.7):
        panel._receive(None, {"do": "settings", "value": {"temperature": temperature}}, [])
    wait_until(lambda: ended(panel))
    assert session.calls[0]["stopped"]
    assert session.sampling.temperature == 0.7
    assert session.calls[-1]["sampling"].temperature == 0.7
    last = max(m["job"] for m in panel.messages if m["kind"] == "begin")
    assert panel.text == "".join(m["text"] for m in panel.messages if m["kind"] == "text" and m["job"] == last)


def test_stop_keeps_what_there_is(make):
    session = FakeSession(token_s=0.02)
    panel = make(session)
    panel._receive(None, {"do": "sample"}, [])
    wait_until(lambda: panel.text)
    panel._receive(None, {"do": "stop"}, [])
    wait_until(lambda: session.calls[0]["stopped"])
    assert panel.text
    assert panel._doing == "idle"


def test_settings_without_sampling_and_changes_from_elsewhere(make):
    session = FakeSession()
    panel = make(session)
    panel._receive(None, {"do": "settings", "value": {"top_k": "40"}, "sample": False}, [])
    wait_until(lambda: session.sampling.top_k == 40)
    session.sampling = replace(session.sampling, min_p=0.1)
    assert panel.messages[-1]["settings"]["min_p"] == 0.1
    assert session.calls == []


def test_moving_the_temperature_ends_greedy(make):
    session = FakeSession()
    session.sampling = replace(session.sampling, greedy=True)
    panel = make(session)
    panel._receive(None, {"do": "settings", "value": {"temperature": 0.5}, "sample": False}, [])
    wait_until(lambda: session.sampling.temperature == 0.5)
    assert not session.sampling.greedy


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"temperature": -1}, "temperature must be 0 or more (received -1.0)."),
        ({"temperature": "warm"}, "temperature must be a number (received 'warm')."),
        ({"n": 3}, "The panel doesn't know this setting (received 'n')."),
    ],
)
def test_wrong_settings_show_and_change_nothing(make, value, line):
    session = FakeSession()
    panel = make(session)
    panel._receive(None, {"do": "settings", "value": value}, [])
    wait_until(lambda: panel.messages and panel.messages[-1].get("error") == line)
    assert session.sampling == FakeSampling()
    assert panel.messages[-1]["settings"]["temperature"] == 0.8


def test_errors_of_the_model_show_and_the_panel_goes_on(make):
    session = FakeSession()
    panel = make(session)
    session.fail_next = NotFoundError("There is no model yet", next="Train one with %llm_train")
    panel._receive(None, {"do": "sample"}, [])
    wait_until(lambda: panel.messages and panel.messages[-1].get("error"))
    assert panel.messages[-1]["error"] == "There is no model yet. Train one with %llm_train."
    panel._receive(None, {"do": "sample"}, [])
    wait_until(lambda: ended(panel))
    assert panel.messages[-1]["error"] is None


def test_the_panel_waits_for_a_cell_that_holds_the_lock_and_no_callback_does(make):
    session = FakeSession()
    panel = make(session)
    release = threading.Event()

    def cell():
        with session.lock:
            release.wait(60)

    thread = threading.Thread(target=cell)
    thread.start()
    wait_until(lambda: not session.lock.acquire(blocking=False) or session.lock.release())
    panel._receive(None, {"do": "sample"}, [])
    panel._receive(None, {"ask": "snapshot", "view": "v"}, [])
    assert thread.is_alive()  # the callbacks came back while the cell still held the lock
    wait_until(lambda: panel._doing == "waiting")
    assert session.calls == []
    release.set()
    wait_until(lambda: ended(panel))
    thread.join()


def test_the_cell_says_everything():
    sampling = FakeSampling(temperature=0.7, top_p=0.9, seed=7, stop=("\n\n", "END"), greedy=True)
    assert as_cell("{'a': $x}", sampling) == (
        "%%llm_generate --temperature 0.7 --top-p 0.9 --top-k 0 --min-p 0 --repetition-penalty 1 --seed 7 "
        "--max-new-tokens 40 --greedy --stop \"END\"\n{'a': $x}"
    )


def test_the_face_escapes_prompt_and_text(make):
    panel = make(FakeSession(), prompt="<b>")
    panel.text = "<img src=x>"
    body, text = panel._as_face()
    assert "<img" not in body
    assert "&lt;b&gt;" in body
    assert text.endswith("<b><img src=x>")


def test_outside_jupyter_the_line_says_what_to_type():
    with pytest.raises(UsageError, match="llm_generate"):
        show_generate(FakeSession())
