"""Rows of every form and place as examples; cut and empty ones named; what is learnt, shown."""

import json

import pandas as pd
import pytest

from nbllm import tokenizer as tokenizer_room
from nbllm.chat import find_format, find_records, make_examples
from nbllm.errors import DataError, NotFoundError, UsageError
from nbllm.store import Store

ROWS = [{"instruction": f"Say {n}", "input": "now" if n % 2 else "", "output": f"It is {n}."} for n in range(8)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    return tokenizer_room.train(store, ["Say it is now. User: Assistant: " * 3] * 50, vocab_size=300, name="plain")


def write(folder, kind):
    path = folder / f"rows.{kind}"
    frame = pd.DataFrame(ROWS)
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    elif kind == "jsonl.gz":
        frame.to_json(path, orient="records", lines=True)
    elif kind == "csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet"])
def test_files_give_the_same_rows(kind, tmp_path, tokenizer):
    records = find_records(str(write(tmp_path, kind)))
    assert [dict(record.fields) for record in records] == ROWS
    assert records[2].where == f"rows.{kind}:3"
    assert find_format(records) == "instruction"


def test_a_data_set_of_the_hub_by_name_and_split(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder, "jsonl")  # a folder stands in for a name on the hub: the same function loads both
    for name in (f"hf:{folder}", f"hf:{folder}:train"):
        records = find_records(name)
        assert [dict(record.fields) for record in records] == ROWS
        assert records[1].where == f"{folder}:2"
    with pytest.raises(NotFoundError, match="can't be loaded"):
        find_records(f"hf:{folder}:other")
    with pytest.raises(UsageError, match="hf:NAME:SPLIT"):
        find_records("hf:a:b:c:d")


def test_values_of_the_notebook(tokenizer):
    for value in (ROWS, pd.DataFrame(ROWS), iter(ROWS)):
        assert [dict(record.fields) for record in find_records(value)] == ROWS
    with pytest.raises(UsageError, match="train"):
        find_records({"train": ROWS})
    with pytest.raises(NotFoundError, match="nowhere"):
        find_records("nowhere.jsonl")


def test_instruction_and_its_input_stand_in_one_question(tokenizer):
    made = make_examples(find_records(ROWS[:2]), tokenizer, format="instruction", held_out=0.0)
    texts = [tokenizer.decode(example.ids, skip_special=False) for example in made.train]
    assert texts[0] == "### User:\nSay 0\n\n### Assistant:\nIt is 0.<|endoftext|>\n\n"
    assert texts[1].startswith("### User:\nSay 1\n\nnow\n\n### Assistant:\n")
    assert "no chat template" in made.notes[0]
    assert made.tokenizer.chat_template


def test_conversations_by_any_name(tokenizer):
    forms = [
        {"messages": [{"role": "user", "content": "Say"}, {"role": "assistant", "content": "now"}]},
        {"conversations": [{"from": "human", "value": "Say"}, {"from": "gpt", "value": "now"}]},
        [{"role": "user", "content": "Say"}, {"role": "assistant", "content": [{"type": "text", "text": "now"}]}],
        {"messages": json.dumps([{"role": "user", "content": "Say"}, {"role": "assistant", "content": "now"}])},
    ]
    made = make_examples(find_records(forms), tokenizer, format="chat", held_out=0.0)
    assert len({tuple(example.ids) for example in made.train}) == 1


def test_completions_learn_the_completion_and_the_end(tokenizer):
    records = find_records([{"prompt": "Say ", "completion": "it is now."}])
    assert find_format(records) == "completion"
    (example,) = make_examples(records, tokenizer, format="completion", held_out=0.0).train
    learnt = [id for id, wanted in zip(example.ids, example.targets, strict=True) if wanted]
    assert learnt == [*tokenizer.encode("it is now."), tokenizer.eos_id]
    assert example.ids[0] == tokenizer.document_prefix[0]
    assert list(example.ids).count(tokenizer.eos_id) == 2  # one begins it, one ends it


def test_examples_without_an_answer_left_are_refused_by_name(tokenizer):
    rows = [*ROWS, {"instruction": "Say " * 100, "output": "now"}]
    records = find_records(rows)
    with pytest.raises(DataError, match=r"row 9.*--drop-long") as error:
        make_examples(records, tokenizer, format="instruction", held_out=0.0, seq_len=64)
    longest = int(str(error.value).split("--seq-len ")[2].split(",")[0])
    made = make_examples(records, tokenizer, format="instruction", held_out=0.0, seq_len=longest)
    assert len(made.train) == 9
    made = make_examples(records, tokenizer, format="instruction", held_out=0.0, seq_len=64, drop_long=True)
    assert len(made.train) == 8
    assert "row 9" in made.notes[-1]


def test_a_wrong_row_is_named(tokenizer):
    with pytest.raises(DataError, match="row 2 has no 'instruction'.*prompt"):
        make_examples(find_records([ROWS[0], {"prompt": "x"}]), tokenizer, format="instruction")
    with pytest.raises(DataError, match="row 1.*neither chat"):
        find_format(find_records([{"a": 1}]))


def test_held_out_rows_stay_held_out(tokenizer):
    rows = [{"prompt": f"Say {n}", "completion": "now"} for n in range(100)]
    first = make_examples(find_records(rows), tokenizer, format="completion", held_out=0.2)
    again = make_examples(find_records(rows[50:]), tokenizer, format="completion", held_out=0.2)
    assert 8 <= len(first.held_out) <= 35
    held_out = {tuple(example.ids) for example in first.held_out}
    assert {tuple(example.ids) for example in again.held_out} <= held_out
    assert not held_out & {tuple(example.ids) for example in again.train}


def test_the_preview_shows_what_is_learnt_and_escapes(tokenizer):
    rows = [{"instruction": "<b>", "output": "<i>"}]
    preview = make_examples(find_records(rows), tokenizer, format="instruction", held_out=0.0).preview()
    assert "⟦<i><|endoftext|>⟧" in str(preview)
    page = preview._repr_html_()
    assert "&lt;i&gt;" in page
    assert "<i>" not in page
    assert "<b>" not in page
