"""Comparing adapters through a session: columns, marks, scales, what one changed, and mistakes in one line."""

import pytest
import torch

from nbllm import adapters
from nbllm.commands.base import Call
from nbllm.commands.registry import COMMANDS
from nbllm.errors import NotFoundError, UsageError
from nbllm.sessions.comparison import Column, Comparison, differences

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def session(tiny_session, tmp_path):
    found = tiny_session(num_hidden_layers=2, initializer_range=0.5)
    base = found.models.path(found.model)
    model, _ = found.load_model()
    for seed, name in enumerate(("one", "two")):
        adapters.create(model, r=2, alpha=4, base=base, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.requires_grad:
                    weight.add_(torch.randn(weight.shape, generator=generator))
        with found.store.create("adapter", name, parameters={"model": base, "adapter": {"method": "lora"}}) as draft:
            adapters.save(model, draft.folder)
        adapters.detach(model)
    return found


def test_columns_share_the_random_numbers_and_differences_are_marked(session):
    streamed = {}
    made = session.compare_adapters(
        "one", "two", prompt="the fox", max_new_tokens=12, seed=3,
        on_text=lambda place, text: streamed.update({place: streamed.get(place, "") + text}),
    )  # fmt: skip
    base = session.generate("the fox", max_new_tokens=12, seed=3)
    assert [column.title for column in made.columns] == ["base", "one", "two"]
    assert made.columns[0].text == base.text == streamed[0]
    assert made.columns[1].text == session.generate("the fox", adapter="one", max_new_tokens=12, seed=3).text
    assert streamed[2] == made.columns[2].text
    assert not any(differs for _, differs in made.columns[0].runs)
    assert any(differs for _, differs in made.columns[1].runs)
    assert "".join(text for text, _ in made.columns[1].runs) == made.columns[1].text
    assert "⟦" in str(made)
    assert "2 of 2 say something else" in made.summary


def test_an_adapter_at_scale_nothing_is_the_base_and_its_scale_does_not_stay(session):
    made = session.compare_adapters("one", prompt="the fox", scales={"one": 0}, max_new_tokens=12)
    assert made.columns[0].text == made.columns[1].text
    assert "0 of 1" in made.summary
    full = session.generate("the fox", adapter="one", max_new_tokens=12)
    assert full.text == session.compare_adapters("one", prompt="the fox", max_new_tokens=12).columns[1].text
    beyond = session.compare_adapters("one", prompt="the fox", scales={"one": 1.5}, max_new_tokens=12)
    assert beyond.columns[1].title == "one × 1.5"


def test_stopping_keeps_what_there_is(session):
    asked = []
    made = session.compare_adapters(
        "one", prompt="the fox", max_new_tokens=12, should_stop=lambda: asked.append(1) or len(asked) > 4
    )
    assert len(made.columns) == 1
    assert made.columns[0].stop_reason == "interrupted"


def test_what_an_adapter_changed(session):
    report = session.adapter_report("one", texts=["the queue of the fox", HOSTILE])
    assert len(report.changes) == 14
    assert report.tokens > 5
    assert report.loss_after != report.loss_before
    assert report.moved == tuple(sorted(report.moved, key=lambda one: -abs(one.after - one.before)))
    page = report._repr_html_()
    assert page.count("<rect") == 14
    assert "<img" not in page
    assert "q_proj" in str(report)
    assert "→" in str(report)
    alone = session.adapter_report("two")  # its run is gone: no held-out text
    assert alone.moved == ()
    assert len(alone.changes) == 14


def test_mistakes_are_one_line(session):
    with pytest.raises(NotFoundError, match="No adapter is named"):
        session.compare_adapters("on", prompt="x")
    with pytest.raises(UsageError, match="different adapters"):
        session.compare_adapters("one", "one", prompt="x")
    with pytest.raises(UsageError, match="scale is for an adapter"):
        session.compare_adapters("one", prompt="x", scales={"two": 1})
    with pytest.raises(UsageError, match="0 or above"):
        session.compare_adapters("one", prompt="x", scales={"one": -1})
    with pytest.raises(UsageError, match="no setting"):
        session.compare_adapters("one", prompt="x", max_tokens=3)


def said(session, line):
    command = COMMANDS["llm_adapter"]
    lines = []
    result = command.run(Call(session=session, arguments=command.parse(line), say=lines.append))
    return result, lines


def test_the_magic(session):
    made, _ = said(session, 'compare one two "the fox" --max-new-tokens 5 --greedy --scale 0.5')
    assert [column.title for column in made.columns] == ["base", "one × 0.5", "two × 0.5"]
    made, _ = said(session, 'compare "the fox" --max-new-tokens 5')
    assert len(made.columns) == 2
    report, _ = said(session, "changes two")
    assert report.adapter == "two"
    _, lines = said(session, "list")
    assert [line.split(" · ")[:2] for line in lines] == [["two", "lora"], ["one", "lora"]]
    said(session, "use one")
    assert session.adapter == "one"
    said(session, "off")
    assert session.adapter is None
    with pytest.raises(UsageError, match="prompt"):
        said(session, "compare one two")
    with pytest.raises(UsageError, match="takes one adapter"):
        said(session, "use one two")
    with pytest.raises(UsageError, match="Did you mean compare"):
        said(session, "compar one")


def test_text_is_never_html():
    columns = [
        Column(adapter=None, text=HOSTILE, tokens=(1,), logprob=0.0, stop_reason="eos"),
        Column(adapter="<b>", text="other " + HOSTILE, tokens=(1,), logprob=0.0, stop_reason="eos"),
    ]
    page = Comparison(model="<i>", prompt=HOSTILE, settings="", columns=tuple(columns))._repr_html_()
    assert "<img" not in page
    assert "<b>" not in page.replace("<b>base", "").replace("<b>&lt;", "")
    assert "<ins>" in page


def test_differences_are_by_word():
    assert differences("a list is short", "a tuple is short") == (
        ("a ", False), ("tuple", True), (" is short", False),
    )  # fmt: skip
    assert differences("", "new") == (("new", True),)
    assert differences("same", "same") == (("same", False),)
