"""Benchmark tasks against sums taken by hand and against lm-eval's own model; tables; what can go wrong."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import CONTEXT

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from nbllm.errors import DataError, NotFoundError, UsageError
from nbllm.evaluate import Comparison, EvalResult, TaskScores, run_tasks
from nbllm.evaluate.harness import LoadedModel
from nbllm.sample import SamplingParameters, generate
from nbllm.tokenizer import Tokenizer

DOCS = [
    {"question": f"The quick {word}", "choices": [" fox", " lazy dog", " x"], "answer": number % 3}
    for number, word in enumerate(("brown", "self", "next", "value", "안녕", "def"))
]


@pytest.fixture
def task(tmp_path: Path) -> Path:
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in DOCS), encoding="utf-8")
    file = tmp_path / "tiny_choice.yaml"
    file.write_text(
        f"""
task: tiny_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {tmp_path / "docs.jsonl"}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
""",
        encoding="utf-8",
    )
    return file


def logprob(model: Any, ids: list[int], count: int) -> float:
    """Of the last `count` ids."""
    with torch.no_grad():
        found = model(torch.tensor([ids[:-1]])).logits[0].double().log_softmax(-1)
    return float(found.gather(1, torch.tensor(ids[1:])[:, None])[-count:].sum())


def test_a_task_of_ones_own(model: Any, tokenizer: Tokenizer, task: Path) -> None:
    random.seed(5)
    torch.manual_seed(5)
    before = random.getstate(), torch.get_rng_state()
    steps: list[tuple[int, int]] = []
    found = run_tasks(model, tokenizer, [str(task)], progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (18, 18)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    right = 0
    for doc in DOCS:
        sums = []
        for choice in doc["choices"]:  # type: ignore[attr-defined]
            context = tokenizer.encode(str(doc["question"]))
            ids = tokenizer.encode(str(doc["question"]) + choice)
            sums.append(logprob(model, ids, len(ids) - len(context)))
        right += sums.index(max(sums)) == doc["answer"]
    (score,) = found
    assert (score.task, score.metric, score.examples, score.shots) == ("tiny_choice", "acc", 6, 0)
    assert score.value == pytest.approx(right / 6)
    assert score.error == pytest.approx(math.sqrt(right / 6 * (1 - right / 6) / 5))
    assert score.higher_is_better is True
    (fewer,) = run_tasks(model, tokenizer, [str(task)], limit=2)
    assert fewer.examples == 2


def test_the_numbers_are_those_of_lm_eval(model: Any, tokenizer: Tokenizer) -> None:
    theirs = HFLM(pretrained=model, tokenizer=tokenizer.as_transformers(), batch_size=1, device="cpu")
    ours = LoadedModel(model, tokenizer)

    def ask(kind: Any, *arguments: Any) -> list[Instance]:
        return [Instance(request_type=kind, doc={}, arguments=one, idx=0) for one in arguments]

    pairs = [("The quick", " brown fox"), ("", "x"), ("a " * 60, "lazy dog "), ("안녕 ", "né"), ("x", "y" * 90)]
    wanted = theirs.loglikelihood(ask("loglikelihood", *pairs[:4]), disable_tqdm=True)
    for mine, other in zip(ours.loglikelihood(ask("loglikelihood", *pairs), disable_tqdm=True), wanted, strict=False):
        assert mine[0] == pytest.approx(other[0], rel=1e-4)
        assert mine[1] == other[1]
    texts = [("The quick brown fox",), ("안녕 👩‍🚀" * 12,), ("x",)]
    rolling = ask("loglikelihood_rolling", *texts)
    assert ours.loglikelihood_rolling(rolling) == pytest.approx(
        theirs.loglikelihood_rolling(rolling, disable_tqdm=True), rel=1e-4
    )
    asked = [("The quick", {"until": ["e"], "max_gen_toks": 8}), ("a " * 60, {"until": ["\n"], "max_gen_toks": 6})]
    answers = ours.generate_until(ask("generate_until", *asked))
    assert answers == theirs.generate_until(ask("generate_until", *asked), disable_tqdm=True)
    alone = SamplingParameters(greedy=True, max_new_tokens=6, stop=("\n",))
    cut = tokenizer.encode("a " * 60)[-(CONTEXT - 6) :]
    assert answers[1] == generate(model, tokenizer, cut, alone).text


def test_tables() -> None:
    result = EvalResult(loss=2.5, bits_per_byte=1.25, tokens=1000, text_bytes=4000, documents=3)
    other = EvalResult(loss=2.0, bits_per_byte=1.0, tokens=900, text_bytes=4000, documents=3)
    both = Comparison(models=("a<b>", "second"), results=(result, other))
    lines = str(both).splitlines()
    assert lines[0].split() == ["a<b>", "second"]
    assert lines[3].split() == ["Bits", "a", "byte", "1.2500", "1.0000"]
    assert "a&lt;b&gt;" in both._repr_html_()
    assert both._repr_html_().count('scope="row"') == 4
    assert both["second"] is other


def test_no_such_task(model: Any, tokenizer: Tokenizer, task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = TaskManager(include_defaults=False, include_path=task.parent)
    monkeypatch.setattr("nbllm.evaluate.tasks._manager", lambda defaults: few)
    with pytest.raises(NotFoundError, match="no task 'tiny_choise'.*Did you mean tiny_choice"):
        run_tasks(model, tokenizer, ["tiny_choise"])
    with pytest.raises(NotFoundError, match="no task file"):
        run_tasks(model, tokenizer, ["no_such_file.yaml"])
    (score,) = run_tasks(model, tokenizer, ["tiny_choice"], limit=1)
    assert score.task == "tiny_choice"


@pytest.mark.slow
def test_a_mistyped_task_of_lm_eval(model: Any, tokenizer: Tokenizer) -> None:
    with pytest.raises(NotFoundError, match="Did you mean hellaswag"):
        run_tasks(model, tokenizer, ["hellaswagg"])


def test_data_that_is_not_there(model: Any, tokenizer: Tokenizer, task: Path) -> None:
    (task.parent / "docs.jsonl").unlink()
    with pytest.raises(DataError, match="tiny_choice.yaml can't be loaded, most likely its data.*network"):
        run_tasks(model, tokenizer, [str(task)])
    with pytest.raises(UsageError, match="limit is at least 1"):
        run_tasks(model, tokenizer, [str(task)], limit=0)
    with pytest.raises(UsageError, match="No task"):
        run_tasks(model, tokenizer, [])


def test_a_group_has_a_score_of_its_own(model: Any, tokenizer: Tokenizer, task: Path) -> None:
    text = task.read_text(encoding="utf-8")
    second = task.with_name("second.yaml")
    second.write_text(text.replace("task: tiny_choice", "task: second_choice"), encoding="utf-8")
    group = task.with_name("group.yaml")
    group.write_text(
        "group: both\ntask:\n  - tiny_choice\n  - second_choice\naggregate_metric_list:\n"
        "  - metric: acc\n    weight_by_size: true\n",
        encoding="utf-8",
    )
    few = TaskManager(include_defaults=False, include_path=task.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nbllm.evaluate.tasks._manager", lambda defaults: few)
        found = {one.task: one for one in run_tasks(model, tokenizer, ["both"])}
    assert set(found) == {"both", "tiny_choice", "second_choice"}
    assert found["both"].value == pytest.approx(found["tiny_choice"].value)
    assert found["both"].error is not None
    assert found["both"].error < (found["tiny_choice"].error or 0)


def test_several_models_at_the_same_tasks(model: Any, tokenizer: Tokenizer, task: Path) -> None:
    found = run_tasks(model, tokenizer, [str(task)], limit=3)
    both = Comparison(models=("a", "b"), results=(found, TaskScores(scores=())))
    assert both.rows()[1] == ("tiny_choice acc ↑", next(iter(found)).shown, "")
    assert "± " in str(found)
    assert "tiny_choice" in found._repr_html_()
