"""What the attention panel sends and saves, without a browser."""

from __future__ import annotations

import time
import zlib

import numpy as np
import pytest
from fake_attention import HOSTILE, TEXT, FakeLooking, FakeMaps

from nbllm.errors import UsageError
from nbllm.panels import attention_face, attention_scale, show_attention
from nbllm.panels.attention import AttentionPanel
from nbllm.panels.attention_view import Side, Wanted, encode


def side(text=TEXT, **options):
    return Side(wanted=Wanted(text=text), maps=FakeMaps(text, **options))


def wait_until(check, timeout_s=5):
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


@pytest.fixture
def panel(monkeypatch):
    session = FakeLooking()
    made = AttentionPanel(session, [side()], layer=2, head=1)
    made.told = []
    monkeypatch.setattr(made, "send", lambda content, buffers=None: made.told.append((content, buffers)), raising=False)
    monkeypatch.setattr(made.face, "_publish", lambda body, text, update: None)
    made.start()
    yield made
    made.close()


def ask(panel, **content):
    """Sends a message as the page does; returns the last answer and its buffers by name."""
    panel.told.clear()
    panel._receive(None, content, [])
    wait_until(lambda: panel.told and panel.told[-1][0].get("state", {"doing": "idle"})["doing"] == "idle")
    content, buffers = panel.told[-1]
    return content, dict(zip(content["names"], buffers, strict=True))


def test_a_map_travels_as_a_byte_a_weight():
    weights = side().weights(2, 1)
    coded, stats, stride = encode(weights)
    codes = np.frombuffer(zlib.decompress(coded), dtype=np.uint8).reshape(weights.shape)
    top, entropy, distance = np.frombuffer(stats, dtype=np.float32).reshape(3, -1)
    assert stride == 1
    np.testing.assert_allclose(top, weights.max(axis=1))
    # half a step of the square root at most, as a share of the row's largest
    assert np.abs(np.sqrt(weights / top[:, None]) - codes / 255).max() <= 0.5 / 255 + 1e-6
    np.testing.assert_allclose(entropy, FakeMaps(TEXT).entropy(2, 1), rtol=1e-5)
    places = np.arange(len(weights))
    np.testing.assert_allclose(distance, (weights * np.abs(places[:, None] - places)).sum(axis=1), rtol=1e-5)


def test_a_long_text_travels_as_block_maxima():
    rng = np.random.default_rng(0)
    weights = rng.random((2050, 2050), dtype=np.float32)
    weights /= weights.sum(axis=1, keepdims=True)
    coded, stats, stride = encode(weights)
    codes = np.frombuffer(zlib.decompress(coded), dtype=np.uint8)
    assert (stride, codes.size) == (3, 684 * 684)
    top = np.frombuffer(stats, dtype=np.float32).reshape(3, -1)[0]
    assert top[0] == top[1] == top[2] == weights[:3].max()
    assert len(top) == 2050


def test_choosing_a_head_sends_that_map_alone(panel):
    panel.sides[0].maps.made.clear()
    content, named = ask(panel, do="head", layer=4, head=0)
    assert content["map"] == {"layer": 4, "head": 0, "strides": [1]}
    assert sorted(named) == ["map0", "row0", "stats0"]
    assert panel.sides[0].maps.made == [(4, 0)]
    assert sum(map(len, named.values())) < 2_000


def test_a_row_is_exact(panel):
    _, named = ask(panel, do="row", query=7)
    row = np.frombuffer(named["row0"], dtype=np.float32)
    np.testing.assert_array_equal(row, panel.sides[0].weights(2, 1)[7])


def test_rollout_stands_beside_the_heads(panel):
    content, _ = ask(panel, do="head", layer=3, head=8)
    assert content["state"]["score"] is None
    np.testing.assert_array_equal(panel.sides[0].weights(3, 8), FakeMaps(TEXT).rollout(until=3))
    assert attention_face.facts(panel.sides[0], 3, 8) == "rollout up to layer 3 · 20 tokens"


def test_heads_switch_off_and_on(panel):
    content, _ = ask(panel, do="off", layer=2, head=1)
    assert content["state"]["off"] == [[2, 1]]
    assert content["state"]["next"][0] == {"text": "␣was", "before": 0.4, "after": pytest.approx(0.36)}
    content, _ = ask(panel, do="off", layer=2, head=1)
    assert (content["state"]["off"], content["state"]["next"]) == ([], None)


def test_another_checkpoint_and_a_second_text(panel):
    content, _ = ask(panel, do="look", wanted={"checkpoint": 200})
    assert content["sides"][0]["model"] == "pydocs-nano · step 200 · adapter off"
    assert (panel.layer, panel.head) == (2, 1), "the chosen head stays"
    content, named = ask(panel, do="compare", wanted={"text": "The dog sat", "checkpoint": 600})
    assert [one["same"] for one in content["sides"]] == [True, False]
    assert {"map0", "map1", "row0"} <= set(named)
    assert panel.session.looked[-1] == {"text": "The dog sat", "model": None, "checkpoint": 600, "adapter": None}
    content, _ = ask(panel, do="compare", wanted={})
    assert len(content["sides"]) == 1


def test_trouble_is_told(panel):
    content, _ = ask(panel, do="look", wanted={"checkpoint": 5})
    assert "There is no such checkpoint" in content["state"]["error"]
    content, _ = ask(panel, do="head", layer=40, head=0)
    assert "There is no such head" in content["state"]["error"]


def test_the_face_escapes_text_and_stays_small():
    short = side()
    html = attention_face.as_html([short], 2, 1, pinned=15)
    assert HOSTILE.split()[0] not in html
    assert "&lt;img" in html
    assert "layer 2 · head 1 · induction 0.61" in html
    long = side(" ".join(f"<b>{i % 300}</b>" for i in range(600)), layers=8, heads=8)
    html = attention_face.as_html([long], 2, 1, pinned=500)
    assert "<b>" not in html
    assert len(html) < 300_000
    text = attention_face.as_text([short], 2, 1, pinned=15)
    assert "induction        5.4 0.79" in text


def test_two_texts_with_hostile_names_stay_text():
    hostile = side(model="<script>alert(1)</script>")
    html = attention_face.as_html(
        [hostile, hostile], 0, 0, pinned=0, off=[(0, 1)], following=[{"text": HOSTILE, "before": 0.5, "after": 0.25}]
    )
    assert "<script" not in html
    assert "<img" not in html
    assert "without 0.1" in html


def test_begins_with_the_most_telling_head():
    assert side().telling_head() == (5, 4)
    with pytest.raises(UsageError, match="Choose 0 to 7"):
        show_attention(FakeLooking(), wanted=Wanted(text=TEXT), maps=FakeMaps(TEXT), head=12)
    with pytest.raises(UsageError, match="Choose 0 to 5"):
        show_attention(FakeLooking(), wanted=Wanted(text=TEXT), maps=FakeMaps(TEXT), layer=12)


def test_outside_jupyter_it_is_text(capsys):
    show_attention(FakeLooking(), wanted=Wanted(text=TEXT), maps=FakeMaps(TEXT), layer=2, head=1)
    assert capsys.readouterr().out.startswith("Attention of tiny: layer 2 · head 1 · induction 0.61")
    with pytest.raises(UsageError, match="needs a Jupyter notebook"):
        show_attention(FakeLooking())


def test_images_are_small_and_keep_thin_lines():
    line = np.zeros((1000, 1000), dtype=np.float32)
    line[np.arange(1, 1000), np.arange(999)] = 1
    small = attention_scale.pooled(line, 100)
    assert small.shape == (100, 100)
    assert (np.diag(small) == 1).all()
    image = attention_scale.png(attention_scale.levels(small, 1.0))
    assert image.startswith(b"\x89PNG")
    assert attention_scale.palette()[:3] == bytes.fromhex("00224e")
    assert attention_scale.palette()[-3:] == bytes.fromhex("fee838")
