"""The kernel's half of the sampling panel, without a browser."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from fake_session import FakeModel, FakeSampling, FakeSession

from nbllm.errors import NotFoundError, UsageError
from nbllm.panels import show_generate
from nbllm.panels.generate import GeneratePanel


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
        panel.messages, panel.buffers = [], []

        def send(content, buffers=None):
            panel.messages.append(content)
            panel.buffers.append(buffers or [])

        monkeypatch.setattr(panel, "send", send, raising=False)
        monkeypatch.setattr(panel.face, "_publish", lambda body, text, update: None)
        panels.append(panel)
        panel.start()
        return panel

    yield one
    for panel in panels:
        panel.close()


def do(panel, command, **content):
    panel._receive(None, {"do": command, **content}, [])


def ended(panel):
    return panel.sampler.doing == "idle" and panel.messages[-1]["kind"] == "state" and panel.messages[-1]["facts"]


def sample(panel, command="sample", **content):
    """Asks for a sampling and waits until it has ended."""
    panel.messages.clear()
    panel.buffers.clear()
    do(panel, command, **content)
    wait_until(lambda: any(m["kind"] == "begin" for m in panel.messages) and ended(panel))
    return panel.sampler.tree.current


def of(panel, kind):
    return [message for message in panel.messages if message["kind"] == kind]


def test_tokens_stream_and_are_whole(make):
    session = FakeSession(token_s=0.002)
    session.sampling = replace(session.sampling, n=3, beams=4)
    panel = make(session)
    branch = sample(panel, prompt="Go")
    sent = of(panel, "tokens")
    assert len(sent[0]["texts"]) == 1, "the first at once"
    assert 1 < len(sent) < 40, "not a message a token"
    assert [m["at"] for m in sent] == [sum(len(n["texts"]) for n in sent[:i]) for i in range(len(sent))]
    assert "".join(text for m in sent for text in m["texts"]) == branch.text
    assert len(branch.tokens) == 40
    assert session.calls[0]["prompt"] == "Go"
    assert (session.calls[0]["sampling"].n, session.calls[0]["sampling"].beams) == (1, 1)


def test_a_newer_wish_cancels_the_older_and_its_tokens(make):
    session = FakeSession(token_s=0.02)
    panel = make(session)
    do(panel, "sample")
    wait_until(lambda: session.calls)
    for temperature in (0.5, 0.6, 0.7):
        do(panel, "settings", value={"temperature": temperature})
    wait_until(lambda: session.calls[-1]["sampling"].temperature == 0.7 and ended(panel))
    assert session.calls[0]["stopped"]
    assert session.sampling.temperature == 0.7
    last = max(m["job"] for m in of(panel, "begin"))
    shown = "".join(text for m in of(panel, "tokens") if m["job"] == last for text in m["texts"])
    assert panel.sampler.tree.current.text == shown
    assert len(panel.sampler.tree) == 1, "moving a slider makes no branch"


def test_stop_keeps_what_there_is_and_says_so(make):
    session = FakeSession(token_s=0.02)
    panel = make(session)
    do(panel, "sample")
    wait_until(lambda: of(panel, "tokens"))
    do(panel, "stop")
    wait_until(lambda: session.calls[0]["stopped"] and ended(panel))
    assert panel.sampler.tree.current.text
    assert panel.messages[-1]["facts"]["stop_reason"] == "interrupted"


def test_settings_without_sampling_and_changes_from_elsewhere(make):
    session = FakeSession()
    panel = make(session)
    do(panel, "settings", value={"top_k": "40"}, sample=False)
    wait_until(lambda: session.sampling.top_k == 40)
    session.sampling = replace(session.sampling, min_p=0.1)
    assert panel.messages[-1]["settings"]["min_p"] == 0.1
    assert session.calls == []


def test_moving_the_temperature_ends_greedy(make):
    session = FakeSession()
    session.sampling = replace(session.sampling, greedy=True)
    panel = make(session)
    do(panel, "settings", value={"temperature": 0.5}, sample=False)
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
    do(panel, "settings", value=value)
    wait_until(lambda: panel.messages and panel.messages[-1].get("error") == line)
    assert session.sampling == FakeSampling()
    assert panel.messages[-1]["settings"]["temperature"] == 0.8


def test_errors_of_the_model_show_and_the_panel_goes_on(make):
    session = FakeSession()
    panel = make(session)
    session.fail_next = NotFoundError("There is no model yet", next="Train one with %llm_train")
    do(panel, "sample")
    wait_until(lambda: panel.messages and panel.messages[-1].get("error"))
    assert panel.messages[-1]["error"] == "There is no model yet. Train one with %llm_train."
    sample(panel)
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
    do(panel, "sample")
    panel._receive(None, {"ask": "snapshot", "view": "v"}, [])
    assert thread.is_alive()  # the callbacks came back while the cell still held the lock
    wait_until(lambda: panel.sampler.doing == "waiting")
    assert session.calls == []
    release.set()
    wait_until(lambda: ended(panel))
    thread.join()


def test_an_alternative_makes_a_branch_that_goes_on_from_it(make):
    session = FakeSession(token_s=0)
    panel = make(session)
    root = sample(panel)
    other = next(int(row) for row in root.tokens[3].packed[7::4] if int(row) != root.tokens[3].id)
    branch = sample(panel, "fork", branch=root.id, at=3, id=other)
    ids = [token.id for token in root.tokens[:3]] + [other]
    assert session.calls[-1]["prompt"] == list(root.prompt_tokens) + ids
    assert [token.id for token in branch.tokens[:4]] == ids
    assert len(branch.tokens) == 4 + 40
    assert of(panel, "begin")[0]["keep"] == 3
    first = of(panel, "tokens")[0]
    assert (first["at"], first["texts"]) == (3, [branch.tokens[3].text])
    assert [(row["depth"], row["current"]) for row in of(panel, "tree")[-1]["rows"]] == [(0, False), (1, True)]

    # a slider samples the branch again, after the same tokens, and leaves the other alone
    before = list(root.tokens)
    again = sample(panel, "settings", value={"seed": 5})
    assert again is branch
    assert session.calls[-1]["prompt"] == list(root.prompt_tokens) + ids
    assert root.tokens == before

    # back: the old text is shown as it was, and sampling it again makes a text beside it
    do(panel, "go", branch=root.id)
    assert of(panel, "shown")[-1]["texts"] == [token.text for token in root.tokens]
    beside = sample(panel, "settings", value={"temperature": 1.2})
    assert beside is not root
    assert root.tokens == before
    assert [row["depth"] for row in of(panel, "tree")[-1]["rows"]] == [0, 1, 0]


def test_branching_while_it_samples_stops_it(make):
    session = FakeSession(token_s=0.01)
    panel = make(session)
    do(panel, "sample")
    wait_until(lambda: panel.sampler.tree.current and len(panel.sampler.tree.current.own) > 3)
    root = panel.sampler.tree.current
    other = next(int(row) for row in root.tokens[1].packed[7::4] if int(row) != root.tokens[1].id)
    branch = sample(panel, "fork", branch=root.id, at=1, id=other)
    assert session.calls[0]["stopped"]
    assert branch.parent is root
    assert branch.tokens[1].id == other


def test_what_is_no_alternative_is_refused(make):
    panel = make(FakeSession(token_s=0))
    root = sample(panel)
    for wrong in ({"at": 3, "id": 999}, {"at": 4000, "id": 1}):
        panel.messages.clear()
        do(panel, "fork", branch=root.id, **wrong)
        wait_until(lambda: panel.messages and panel.messages[-1].get("error"))
    assert panel.sampler.tree.current is root


def test_pins_keep_text_and_settings_and_give_them_back(make):
    session = FakeSession(token_s=0)
    panel = make(session)
    do(panel, "pin")
    assert panel.messages[-1]["error"] == "There is no text to pin yet. Press Sample."
    session.sampling = replace(session.sampling, greedy=True)
    sample(panel)
    do(panel, "pin")
    text = panel.sampler.tree.current.text
    do(panel, "source", value={"checkpoint": 200, "adapter": "pirate"})
    sample(panel, "settings", value={"temperature": 1.5, "seed": 3})
    assert "".join(of(panel, "state") and panel.pins[0].tokens[i].text for i in range(40)) == text
    assert (session.model.checkpoint, session.adapter) == (200, "pirate")
    sample(panel, "restore", pin=panel.pins[0].id)
    assert session.sampling == replace(FakeSampling(), greedy=True)
    assert (session.model.checkpoint, session.adapter) == (None, None)
    for _ in range(3):
        do(panel, "pin")
    assert len(of(panel, "pins")[-1]["pins"]) == 4
    do(panel, "pin")
    assert panel.messages[-1]["error"] == "4 texts are pinned, and no more fit. Remove one."
    do(panel, "unpin", pin=panel.pins[0].id)
    assert [pin.id for pin in panel.pins] == [2, 3, 4]


def test_checkpoint_and_adapter_are_the_sessions(make):
    session = FakeSession(token_s=0)
    panel = make(session)
    sample(panel, "source", value={"checkpoint": 400})
    assert session.model == FakeModel(checkpoint=400)
    assert panel.messages[-1]["model"] == "pydocs-nano · step 400 · adapter off"
    sample(panel, "source", value={"adapter": "pirate"})
    assert session.calls[-1]["adapter"] == "pirate"
    session.adapter = None
    assert panel.messages[-1]["source"] == {
        "checkpoints": [200, 400, 600],
        "adapters": ["pirate", "<i>terse</i>"],
        "checkpoint": 400,
        "adapter": None,
    }
    sample(panel, "source", value={"checkpoint": None})
    assert panel.messages[-1]["model"] == "pydocs-nano · step 600 · adapter off"


def test_a_snapshot_holds_everything(make):
    panel = make(FakeSession(token_s=0))
    branch = sample(panel)
    do(panel, "pin")
    do(panel, "colour", value="rank")
    panel._receive(None, {"ask": "snapshot", "view": "v"}, [])
    content, buffers = panel.messages[-1], panel.buffers[-1]
    assert content["texts"] == [token.text for token in branch.tokens]
    assert [len(buffer) for buffer in buffers] == [40 * 47 * 4] * 2
    assert content["pins"][0]["texts"] == content["texts"]
    assert (content["colour"], content["branch"], content["prompt"]) == ("rank", branch.id, "Return")


def test_the_cell_is_of_what_is_seen(make):
    session = FakeSession(token_s=0)
    panel = make(session)
    root = sample(panel)
    other = next(int(row) for row in root.tokens[0].packed[7::4] if int(row) != root.tokens[0].id)
    branch = sample(panel, "fork", branch=root.id, at=0, id=other)
    session.sampling = replace(session.sampling, temperature=1.9)  # not what was seen
    do(panel, "cell")
    first, body = panel.messages[-1]["text"].split("\n", 1)
    assert "--model pydocs-nano --checkpoint 600 --adapter off --temperature 0.8 " in first
    assert body == "Return" + branch.tokens[0].text
    session.exact = False  # no text has just these tokens
    do(panel, "cell")
    assert panel.messages[-1]["text"].startswith("import nbllm\n\nnbllm.session().generate(\n    [10082, ")


def test_no_more_tokens_than_the_page_can_bear(make):
    session = FakeSession(token_s=0)
    panel = make(session)
    session.sampling = replace(session.sampling, max_new_tokens=100_000)
    session.fail_next = UsageError("enough")
    do(panel, "sample")
    wait_until(lambda: panel.messages and panel.messages[-1].get("error"))
    session.sampling = replace(session.sampling, max_new_tokens=4100)
    sample(panel)
    assert len(panel.sampler.tree.current.tokens) == 4000


def test_outside_jupyter_the_line_says_what_to_type():
    with pytest.raises(UsageError, match="llm_generate"):
        show_generate(FakeSession())
