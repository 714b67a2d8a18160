"""The kernel's half of the panel of a run, without a browser: what it sends, and what it does when told."""

from __future__ import annotations

import threading
import time
from array import array
from types import SimpleNamespace

import pytest
from fake_run import FakeRun

from nbllm.errors import RunError
from nbllm.panels import registry
from nbllm.panels.train import TrainPanel


class Sent:
    """The messages of a panel, and its static face, as a page would get them."""

    def __init__(self, panel, monkeypatch):
        self.messages, self.faces = [], []
        monkeypatch.setattr(
            panel, "send", lambda content, buffers=None: self.messages.append((content, buffers or [])), raising=False
        )
        monkeypatch.setattr(panel.face, "_publish", self._publish)
        self._face = panel.face

    def _publish(self, body, text, *, update):
        self._face._shown = body, text
        self.faces.append((text, update))

    def of(self, kind):
        return [message for message in self.messages if message[0]["kind"] == kind]


def wait_until(check, timeout_s=5):
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


@pytest.fixture
def make(monkeypatch):
    panels = []

    def one(run):
        panel = TrainPanel(run)
        panels.append(panel)
        return panel, Sent(panel, monkeypatch)

    yield one
    for panel in panels:
        panel.close()


def values(buffer):
    numbers = array("d", buffer)
    return list(numbers[: len(numbers) // 2]), list(numbers[len(numbers) // 2 :])


def test_news_goes_as_binary_and_only_once(make):
    run = FakeRun().steps_now(3)
    panel, sent = make(run)
    panel.update()
    content, buffers = sent.of("delta")[0]
    assert content["sequence"] == 1
    steps, losses = values(buffers[content["curves"].index("loss")])
    assert steps == [1, 2, 3]
    assert losses == [event["loss"] for event in run.events if event["kind"] == "step"]
    assert content["head"]["status"] == "starting"
    panel.update()
    assert len(sent.messages) == 1, "nothing new, nothing sent"
    run.steps_now(1)
    panel.update()
    content, buffers = sent.of("delta")[1]
    assert values(buffers[0])[0] == [4]
    assert "name" not in content["head"], "only what changed"


def test_a_snapshot_answers_the_view_that_asks(make):
    run = FakeRun(total_steps=20_000).steps_now(20_000)
    panel, sent = make(run)
    panel._receive(None, {"ask": "snapshot", "view": "abc"}, [])
    content, buffers = sent.of("snapshot")[-1]
    assert content["view"] == "abc"
    assert content["head"]["step"] == 20_000
    assert content["face"] == panel.face.id
    assert sum(len(buffer) for buffer in buffers) < 500_000
    assert values(buffers[0])[0][-1] == 20_000


def test_the_widgets_state_holds_no_history(make):
    panel, _ = make(FakeRun().steps_now(5000))
    panel.update()
    state = panel.get_state()
    assert sum(len(str(value)) for key, value in state.items() if key not in ("_esm", "_css")) < 1500
    assert len(state["_esm"]) < 45_000


def test_the_watcher_ends_with_the_run_and_leaves_the_final_numbers(make):
    run = FakeRun(total_steps=100, pace=1000).begin()
    panel, sent = make(run)
    panel.start()
    assert sent.faces[0][1] is False
    wait_until(lambda: not panel._watcher.is_alive())
    assert sent.faces[-1][1] is True
    assert sent.faces[-1][0].startswith("pydocs-nano: done, step 100 / 100")


def test_after_a_cell_the_face_holds_the_end_of_a_run_waited_for(make):
    run = FakeRun()
    panel, sent = make(run)
    panel.start()
    run.steps_now(600).finish()
    panel.settle()
    assert sent.faces[-1][0].startswith("pydocs-nano: done, step 600 / 600")


def test_commands_reach_the_run_and_none_waits(make):
    run = FakeRun().begin()
    panel, _ = make(run)
    panel.start()
    slow = threading.Event()
    ended = threading.Event()
    run.checkpoint = lambda wait=True: slow.wait(60) and ended.set()
    for command in ("checkpoint", "pause"):
        panel._receive(None, {"do": command}, [])
    panel._receive(None, {"do": "lr_factor", "value": 7}, [])
    assert not ended.is_set()  # the commands came back while the slow one was still at work
    slow.set()
    wait_until(lambda: run.lr_factor == 2.0)
    assert run.commands[0] == "pause"
    panel._receive(None, {"do": "stop"}, [])
    wait_until(lambda: run.status == "stopped")


def test_an_error_shows_until_a_command_works(make):
    run = FakeRun().begin()
    panel, sent = make(run)
    panel.start()
    run.fail_next = RunError("Run x is over", next="Start it again")
    panel._receive(None, {"do": "pause"}, [])
    wait_until(lambda: any(m[0]["head"].get("trouble") == "Run x is over. Start it again." for m in sent.messages))
    panel._receive(None, {"do": "nonsense"}, [])
    wait_until(lambda: any("doesn't know" in str(m[0]["head"].get("trouble")) for m in sent.messages))
    panel._receive(None, {"do": "pause"}, [])
    wait_until(lambda: sent.messages[-1][0]["head"].get("trouble", "") is None or run.status == "paused")


def test_resuming_a_stopped_run_wakes_the_watcher(make):
    run = FakeRun(total_steps=100_000, pace=500).begin()
    panel, _ = make(run)
    panel.start()
    panel._receive(None, {"do": "stop"}, [])
    wait_until(lambda: not panel._watcher.is_alive())
    panel._receive(None, {"do": "resume"}, [])
    wait_until(lambda: panel._watcher.is_alive())
    run.status = "stopped"


def test_a_paused_run_gives_a_sign_of_life(make, monkeypatch):
    monkeypatch.setattr("nbllm.panels.train._HERE_S", 0.2)
    monkeypatch.setattr("nbllm.panels.train._POLL_PAUSED_S", 0.05)
    run = FakeRun().steps_now(3)
    run.status = "paused"
    panel, sent = make(run)
    panel.start()
    wait_until(lambda: len(sent.of("here")) > 2)
    run.status = "stopped"


def test_a_reader_that_fails_is_shown_and_the_panel_goes_on(make):
    run = FakeRun().begin()
    panel, sent = make(run)
    panel.start()
    panel._reader.poll = lambda: (_ for _ in ()).throw(OSError("disk is away"))
    wait_until(lambda: any("disk is away" in str(m[0]["head"].get("trouble")) for m in sent.messages))
    assert panel._watcher.is_alive()
    run.status = "stopped"


def test_another_panel_of_the_run_closes_the_first(make):
    run = FakeRun()
    first, _ = make(run)
    second, _ = make(run)
    other, _ = make(FakeRun(name="other"))
    registry.enter("train", run.name, first)
    registry.enter("train", "other", other)
    registry.enter("train", run.name, second)
    assert registry.live("train") == [other, second]
    assert first._closed
    registry.close_all()
    assert registry.live() == []


class LongReader:
    """A reader of a file too long to be read before the panel shows."""

    def __init__(self, events):
        self.events, self.pieces = events, 4

    @property
    def unread(self):
        return self.pieces * 5_000_000

    def skim(self):
        return [self.events[0], *self.events[1:-5:50], *self.events[-5:]]

    def poll(self, most_bytes=None):
        if not self.pieces:
            return []
        assert most_bytes is not None
        self.pieces -= 1
        quarter = len(self.events) // 4 + 1
        return self.events[(3 - self.pieces) * quarter : (4 - self.pieces) * quarter]


def test_a_long_history_opens_from_a_preview_and_is_completed(make, monkeypatch):
    run = FakeRun(total_steps=8000).steps_now(8000).finish()
    monkeypatch.setattr(run, "reader", lambda: LongReader(run.events))
    panel, sent = make(run)
    panel.update()
    assert len(panel.history.curves["loss"]) < 300
    assert panel._head["step"] == 8000
    panel.start()
    wait_until(lambda: sent.of("snapshot"))
    assert len(panel.history.curves["loss"]) > 2000
    assert max(panel.history.curves["grad_norm"].points()[1]) == 4.0, "the spike that the preview passed over"
    assert sent.of("snapshot")[0][0]["view"] is None


def test_use_by_rank_is_sent_while_the_run_lives(make, monkeypatch):
    run = FakeRun().steps_now(3)
    run.status = "running"
    use = SimpleNamespace(rank=0, memory_bytes=5e8, cores=None, gpu_bytes=None, gpu_share=None)
    monkeypatch.setattr(FakeRun, "usage", lambda self: [use], raising=False)
    panel, sent = make(run)
    panel.update()
    assert sent.of("delta")[0][0]["head"]["ranks"] == [{"rank": 0, "memory": "500.0 MB", "busy": "–"}]
    run.finish()
    panel.update()
    assert sent.of("delta")[1][0]["head"]["ranks"] == []
