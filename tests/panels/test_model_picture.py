"""The architecture's picture: true to the summary, escaped, the same in text; a part's weights on demand."""

from __future__ import annotations

import gc
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from nbllm.inspect.architecture import summarize
from nbllm.panels import model_face, show_model
from nbllm.panels.model import ModelPanel
from nbllm.panels.model_drawing import WIDTH, draw

SHAPE = {
    "vocab_size": 300, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
}  # fmt: skip
HOSTILE = '<img src=x onerror="window.hacked=1">'


def tiny():
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2)).eval()


def drawn(model):
    summary = summarize(model)
    return summary, draw(summary, model_face.cost, model_face.layers_label)


def test_the_picture_is_escaped_and_small(capsys):
    model = tiny()
    summary = summarize(model, name=HOSTILE)
    page = model_face.as_html(summary)
    assert "<img" not in page
    assert page.count("<svg") == 1
    assert page.count('<g class="part') == 8
    assert "4 heads of 12 · 2 key/value heads" in page
    assert len(page) < 30_000
    show_model(SimpleNamespace(lock=threading.RLock()), summary)
    said = capsys.readouterr().out
    assert "3 × layer (0 to 2)" in said
    assert f"{model.num_parameters():,} parameters" in said


def test_every_part_is_a_box_and_every_addition_a_plus():
    summary, picture = drawn(tiny())
    parts = [*summary.before, *summary.layers[0].parts, *summary.after]
    assert [group.part for group in picture.groups if group.part] == [part.id for part in parts]
    pluses = [group for group in picture.groups if any(s.attributes.get("class") == "plus" for s in group.shapes)]
    assert len(pluses) == 2
    attention = next(group for group in picture.groups if group.kind == "attention")
    kinds = [shape.attributes["class"] for shape in attention.shapes]
    assert (kinds.count("query"), kinds.count("key")) == (4, 2)
    boxes = [s for group in picture.groups for s in group.shapes if s.attributes.get("class") == "box"]
    assert all(s.attributes["x"] + s.attributes["width"] < WIDTH for s in boxes)
    ends = [s.attributes["y"] + s.attributes["height"] for s in boxes]
    assert all(end < following.attributes["y"] for end, following in zip(ends, boxes[1:], strict=False))
    assert picture.height > ends[-1]


def test_parts_side_by_side_stand_so():
    _, picture = drawn(GPTNeoXForCausalLM(GPTNeoXConfig(**SHAPE)).eval())
    boxes = {
        group.kind: group.shapes[0].attributes for group in picture.groups if group.part and "layers" in group.part
    }
    left, right = boxes["attention"], boxes["feed_forward"]
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] < right["x"]


def test_a_model_without_layers_is_a_tree():
    page = model_face.as_html(summarize(torch.nn.Sequential(torch.nn.Linear(3, 4))))
    assert "no layers that could be read" in page
    assert "Linear" in page


@pytest.fixture
def panel(monkeypatch):
    model = tiny()
    made = ModelPanel(SimpleNamespace(lock=threading.RLock()), summarize(model, name="tiny"))
    made.model, made.told, made.faces = model, [], []
    del model  # only the panel's test holds it
    monkeypatch.setattr(made, "send", lambda content, buffers=None: made.told.append(content), raising=False)
    monkeypatch.setattr(made.face, "_publish", lambda body, text, update: made.faces.append((body, text)))
    made.start()
    yield made
    made.close()


def wait_until(true):
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_chosen_part_shows_its_weights(panel):
    part = panel.summary.layers[0].parts[1]
    panel._receive(None, {"ask": "snapshot", "view": "v"}, [])
    assert panel.told[0]["parts"][part.id]["layers"] == [0, 1, 2]
    assert len(panel.told[0]["drawing"]["groups"]) > 8
    panel._receive(None, {"do": "look", "part": part.id, "layer": 2}, [])
    wait_until(lambda: panel.told[-1]["state"]["weights"])
    state = panel.told[-1]["state"]
    assert (state["chosen"], state["layer"], state["error"]) == (part.id, 2, "")
    query = panel.model.model.layers[2].self_attn.q_proj.weight
    assert state["weights"][0]["name"] == "model.layers.2.self_attn.q_proj.weight"
    assert f"norm {float(query.detach().norm()):.4g}" in state["weights"][0]["lines"][1]
    panel.settle()
    body, said = panel.faces[-1]
    assert "model.layers.2.self_attn.q_proj.weight" in body
    assert "chosen" in body
    assert "model.layers.2.self_attn.q_proj.weight" in said


def test_what_goes_wrong_is_said(panel):
    panel._receive(None, {"do": "look", "part": "nothing"}, [])
    wait_until(lambda: panel.told and panel.told[-1]["state"]["error"])
    assert "no such part" in panel.told[-1]["state"]["error"]
    part = panel.summary.after[0].id
    panel.model = None
    gc.collect()
    panel._receive(None, {"do": "look", "part": part}, [])
    wait_until(lambda: "memory" in panel.told[-1]["state"]["error"])
