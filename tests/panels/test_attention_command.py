"""`%llm_attention` over a session that only seems to look."""

from __future__ import annotations

import pytest
from fake_attention import FakeLooking

from nbllm.commands.attention import COMMAND
from nbllm.commands.base import Call
from nbllm.errors import UsageError
from nbllm.panels.attention import AttentionPanel


def run(line, session=None):
    return COMMAND.run(Call(session=session or FakeLooking(), arguments=COMMAND.parse(line)))


def test_a_text_and_what_it_is_looked_at_through():
    session = FakeLooking()
    request = run('"The cat sat" --checkpoint 400 --adapter pirate --layer 2 --head 1', session)
    assert session.looked == [{"text": "The cat sat", "model": None, "checkpoint": 400, "adapter": "pirate"}]
    assert request.maps.tokens == ("The", "␣cat", "␣sat")
    assert (request.layer, request.head, request.other) == (2, 1, None)


def test_a_second_text_through_the_same_model():
    session = FakeLooking()
    request = run('"The cat sat" --with "The dog sat" --model tiny', session)
    assert [look["text"] for look in session.looked] == ["The cat sat", "The dog sat"]
    assert [look["model"] for look in session.looked] == ["tiny", "tiny"]
    assert (request.other_text, request.other.tokens) == ("The dog sat", ("The", "␣dog", "␣sat"))


def test_what_is_no_text_is_refused():
    with pytest.raises(UsageError, match="There is no text"):
        run("")
    with pytest.raises(UsageError, match='%llm_attention "The cat sat"'):
        run("The cat sat")


def test_a_panel_without_a_text_takes_one(monkeypatch):
    panel = AttentionPanel(FakeLooking())
    told = []
    monkeypatch.setattr(panel, "send", lambda content, buffers=None: told.append(content), raising=False)
    panel._obey({"do": "snapshot", "view": "a"})
    assert told[-1]["sides"] == []
    panel._obey({"do": "head", "layer": 1, "head": 1})
    panel._obey({"do": "look", "wanted": {"text": "the cat and the cat"}})
    assert told[-1]["sides"][0]["tokens"] == ["the", "␣cat", "␣and", "␣the", "␣cat"]
    assert (panel.layer, panel.head) == panel.sides[0].telling_head()
    assert panel.pinned == 4
    panel.close()
