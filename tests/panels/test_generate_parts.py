"""Tokens, the tree of texts, the cell and the static face of the sampling panel."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from fake_session import FakeSampling, FakeStep

from nbllm.panels import generate_face
from nbllm.panels.generate_settings import Source, as_cell, values
from nbllm.panels.generate_tokens import EACH, HEAD, STRIDE, Stream, encode, mean_logprob, token_of
from nbllm.panels.generate_tree import KEPT, Pin, Tree

SOURCE = Source(model="pydocs-nano", checkpoint=600, chosen=None, adapter=None)


def row(token, text, model, final, **filters):
    return {"token": token, "text": text, "chosen": False, "model": model, **filters, "final": final}


def step(token=7, text="␣item", probability=0.5, alternatives=None, **more):
    rows = [
        row(7, "␣item", 0.5, 0.75, top_p=0.75),
        row(9, "↵", 0.25, 0.25, top_p=0.25),
        row(3, "␣<b>", 0.1, 0, top_p=0),
    ]
    fields = {"step": 0, "final": 0.75, "rank": 1, "entropy": 1.5, "final_entropy": 0.5} | more
    return FakeStep(token=token, text=text, probability=probability, alternatives=alternatives or rows, **fields)


def test_a_token_packs_its_numbers_and_what_dropped_its_alternatives():
    token = token_of(step(), " item")
    numbers = list(token.packed)
    assert len(numbers) == STRIDE
    assert numbers[:HEAD] == [7, 0.5, 0.75, 1, 1.5, 0.5, 3]
    assert numbers[HEAD : HEAD + EACH] == [7, 0.5, 0.75, 0]
    assert numbers[HEAD + 2 * EACH : HEAD + 3 * EACH] == pytest.approx([3, 0.1, 0, 6])  # top-p
    assert token.names == ("␣item", "↵", "␣<b>")


def test_an_alternative_takes_a_tokens_place():
    token = token_of(step(), " item").instead(9)
    assert (token.id, token.text, token.name, token.rank, token.probability) == (9, "\n", "↵", 2, 0.25)
    assert list(token.packed[:HEAD]) == [9, 0.25, 0.25, 2, 1.5, 0.5, 3]
    assert token_of(step(), " item").instead(8) is None


def test_messages_hold_every_name_once():
    header, numbers = encode([token_of(step(), " item")] * 3)
    assert header == {"texts": [" item"] * 3, "names": {"7": "␣item", "9": "↵", "3": "␣<b>"}}
    assert len(numbers) == 3 * STRIDE * 4


def test_a_stream_gives_each_token_its_piece_of_the_text_and_the_first_at_once():
    sent = []
    stream = Stream(lambda tokens: sent.append([token.text for token in tokens]))
    for piece in (" a", "", "é", " b"):
        stream.step(0, step())
        if piece:
            stream.text(0, piece)
    stream.flush()
    assert sent == [[" a"], ["", "é", " b"]]


def test_the_mean_is_of_logarithms():
    tokens = [token_of(step(probability=p), "") for p in (0.5, 0.125)]
    assert mean_logprob(tokens) == pytest.approx(-2 * math.log(2))
    assert mean_logprob([]) is None


def test_a_forest_is_bounded_and_keeps_the_way_to_what_is_shown():
    tree = Tree()
    root = tree.from_prompt("a")
    root.own.append(token_of(step(), " item"))
    branch = tree.fork(root, 0, root.tokens[0].instead(9))
    for number in range(KEPT + 10):
        tree.fork(branch, 0, root.tokens[0])
        assert tree.current.id == 3 + number
    assert len(tree) == KEPT
    assert tree.get(root.id) is root
    assert tree.get(branch.id) is branch
    assert tree.get(3) is None, "the oldest leaf went"
    rows = tree.rows()
    assert [r["depth"] for r in rows] == [0, 1, *[2] * (KEPT - 2)]
    assert rows[0]["text"] == "item"


def test_another_prompt_is_another_root_and_the_same_one_is_sampled_in_place():
    tree = Tree()
    first = tree.from_prompt("a")
    assert tree.from_prompt("a") is first
    second = tree.from_prompt("b")
    assert second is not first
    assert [r["prompt"] for r in tree.rows()] == ["a", "b"]


def test_settings_that_the_dataclass_does_not_have_are_left_out():
    assert list(values(FakeSampling())) == [
        *("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty"),
        *("frequency_penalty", "max_new_tokens", "seed"),
    ]

    class Older:
        temperature = 0.5
        seed = 1

    assert values(Older()) == {"temperature": 0.5, "seed": 1}


def test_the_cell_says_everything():
    sampling = FakeSampling(temperature=0.7, top_p=0.9, seed=7, stop=("END",), greedy=True, n=3)
    source = replace(SOURCE, model="my run", adapter="pirate")
    assert as_cell("{'a': $x}", sampling, source) == (
        '%%llm_generate --model "my run" --checkpoint 600 --adapter pirate --temperature 0.7 --top-p 0.9 --top-k 0 '
        "--min-p 0 --typical-p 1 --repetition-penalty 1 --presence-penalty 0 --frequency-penalty 0 "
        "--max-new-tokens 40 --seed 7 --greedy --n 1 --beams 1 --stop \"END\"\n{'a': $x}"
    )


def test_what_no_line_can_hold_becomes_python():
    cell = as_cell([1, 2], FakeSampling(stop=("\n\n",)), SOURCE)
    calls = []
    fake = type("nbllm", (), {"session": staticmethod(lambda: Recorder(calls))})
    exec(cell.removeprefix("import nbllm"), {"nbllm": fake})
    (prompt, arguments), = calls  # fmt: skip
    assert prompt == [1, 2]
    assert arguments == {
        "model": "pydocs-nano", "checkpoint": 600, "adapter": "off", **values(FakeSampling()), "greedy": False,
        "sliding": False, "stop": ("\n\n",), "n": 1, "beams": 1,
    }  # fmt: skip


class Recorder:
    def __init__(self, calls):
        self.calls = calls

    def generate(self, prompt, **arguments):
        self.calls.append((prompt, arguments))


@pytest.mark.parametrize(
    ("colour", "fields", "level"),
    [
        ("probability", {"probability": 1.0}, 7),
        ("probability", {"probability": 0.49}, 3),
        ("rank", {"rank": 1}, 7),
        ("rank", {"rank": 2}, 6),
        ("rank", {"rank": 3}, 5),
        ("rank", {"rank": 64}, 1),
        ("rank", {"rank": 30_000}, 0),
        ("entropy", {"entropy": 0.1}, 7),
        ("entropy", {"entropy": 9.0}, 0),
        ("none", {}, None),
    ],
)
def test_levels_of_colour(colour, fields, level):
    assert generate_face.level(token_of(step(**fields), ""), colour) == level


def test_the_face_shows_coloured_text_and_pins_and_escapes_all_of_it():
    tree = Tree()
    branch = tree.from_prompt("<b>")
    branch.sampling, branch.source = FakeSampling(), SOURCE
    branch.own = [token_of(step(probability=p), text) for p, text in ((0.9, "<img src=x>"), (0.9, " a"), (0.2, " b"))]
    pin = Pin.of(branch, 1)
    parts = {"prompt": "typed", "branch": branch, "sampling": FakeSampling(), "source": SOURCE, "pins": [pin]}
    body = generate_face.as_html(**parts, colour="probability")
    assert "<img" not in body
    assert body.count('&lt;b&gt;</span><span class="nbllm-v7">&lt;img src=x&gt; a</span><span class="nbllm-v1"> b') == 2
    assert "nbllm-v" not in generate_face.as_html(**parts, colour="none")
    text = generate_face.as_text(**parts)
    assert text.count("<b><img src=x> a b") == 2
    assert "pydocs-nano · step 600 · adapter off" in text
