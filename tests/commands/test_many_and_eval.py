"""`%llm_generate --file` and `%llm_eval` on a session with tiny models, as they are typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm.commands import Call, find
from nbllm.errors import Interrupted, UsageError
from nbllm.evaluate import Comparison, EvalResult
from nbllm.sample import Answers, Score
from nbllm.sessions import Session
from nbllm.store import Store
from nbllm.tokenizer import train

TEXTS = ["The quick brown fox jumps over the lazy dog. ", "def next(self): return self.value\n"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models with the same tokenizer."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = train(Store(root / "store"), TEXTS * 20, text_bytes=3000, vocab_size=300, name="tiny")
    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=tokenizer.vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                num_attention_heads=4, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
                pad_token_id=None, initializer_range=0.2,
            )
        )  # fmt: skip
        model.save_pretrained(root / name)
        tokenizer.as_transformers().save_pretrained(root / name)
    return root / "first", root / "second"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(Store(tmp_path / ".nbllm"), "test")


@pytest.fixture
def run(session: Session) -> Callable[[str], Any]:
    said: list[str] = []

    def do(line: str) -> Any:
        name, _, rest = line.partition(" ")
        command = find(name)
        return command.run(Call(session=session, arguments=command.parse(rest), say=said.append, write=said.append))

    do.said = said  # type: ignore[attr-defined]
    return do


def test_many_prompts_and_the_same_line_again(
    run: Any, session: Session, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    prompts, to = tmp_path / "p.jsonl", tmp_path / "a.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"The {i}", "id": f"n{i}"}) + "\n" for i in range(5)), "utf-8")
    line = f"%llm_generate --file {prompts} --to {to} --model {folders[0]} --max-new-tokens 5 --stop zz yy --seed 3"
    found = run(line)
    assert isinstance(found, Answers)
    assert str(found).startswith("5 of 5 prompts · 25 tokens")
    assert run.said
    assert all(one.count(" of 5 prompts") == 1 for one in run.said)
    for answer in found:
        alone = session.generate(str(answer.prompt), model=str(folders[0]), max_new_tokens=5, stop=("zz", "yy"), seed=3)
        assert (answer.id, answer.text) == (f"n{answer.index}", alone.text)
    texts = [one.text for one in found]
    again = run(line)
    assert (again.found, again.tokens) == (5, 0)
    with pytest.raises(UsageError, match=r"another model .*--overwrite"):
        run(line.replace(str(folders[0]), str(folders[1])))
    other = run(line.replace(str(folders[0]), str(folders[1])) + " --overwrite")
    assert [one.text for one in other] != texts


def test_an_interrupt_says_how_to_go_on(
    run: Any, session: Session, folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, to = tmp_path / "p.txt", tmp_path / "a.jsonl"
    prompts.write_text("a\nb\nc\n", "utf-8")
    whole = session.generate_many

    def interrupted(*arguments: Any, **options: Any) -> Answers:
        return whole(*arguments, should_stop=lambda: to.exists() and to.stat().st_size > 0, **options)

    monkeypatch.setattr(Session, "generate_many", staticmethod(interrupted))
    with pytest.raises(Interrupted, match="of 3 prompts are done. The same line goes on"):
        run(f"%llm_generate --file {prompts} --to {to} --model {folders[0]} --max-new-tokens 3")


def test_many_prompts_need_both_files(run: Any, tmp_path: Path) -> None:
    for line in ("--file a.jsonl", "--to b.jsonl", "--file a --to b again", "--file a --to b --backend onnx"):
        with pytest.raises(UsageError, match="a file to read and one to write|no other prompt|--backend is for one"):
            run(f"%llm_generate {line}")


def test_models_side_by_side_on_one_text(run: Any, session: Session, folders: tuple[Path, Path]) -> None:
    first, second = map(str, folders)
    both = run(f'%llm_eval "The lazy dog" --models {first} {second}')
    assert isinstance(both, Comparison)
    for name in (first, second):
        alone = session.evaluate(text="The lazy dog", model=name)
        assert isinstance(alone, EvalResult)
        assert both[name] == alone
    assert both[first].loss != both[second].loss
    score = run(f'%llm_eval "The lazy dog" --model {first}')
    assert isinstance(score, Score)
    assert score.text == "The lazy dog"


def test_an_adapter_beside_its_base(run: Any, session: Session, folders: tuple[Path, Path], tmp_path: Path) -> None:
    from nbllm.adapters import create, save
    from nbllm.model import load

    base = load(str(folders[0]))
    torch.manual_seed(0)
    create(base, r=4, alpha=8)
    with torch.no_grad():
        for name, weight in base.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.2)
    adapter = save(base, tmp_path / "polite")
    config = adapter / "adapter_config.json"
    named = json.loads(config.read_text("utf-8")) | {"base_model_name_or_path": str(folders[0])}
    config.write_text(json.dumps(named), "utf-8")
    session.model = session.models.reference(str(folders[0]))
    both = run(f'%llm_eval "The lazy dog" --models {folders[0]} {adapter}')
    assert both[str(adapter)].loss != both[str(folders[0])].loss
    assert both[str(folders[0])].loss == session.evaluate(text="The lazy dog", model=str(folders[0])).loss


def test_options_that_do_not_fit(run: Any) -> None:
    for line in ('"a" --on b', '"a" --tasks b', "--model a --models b c", "--limit 3", "a b"):
        with pytest.raises(UsageError):
            run(f"%llm_eval {line}")


def test_tasks_by_file(run: Any, folders: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    (tmp_path / "d.jsonl").write_text('{"q": "The", "c": [" quick", " x"], "a": 0}\n' * 4, "utf-8")
    task = tmp_path / "t.yaml"
    task.write_text(
        f"task: t\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path / 'd.jsonl'}\n"
        'test_split: test\noutput_type: multiple_choice\ndoc_to_text: "{{q}}"\ndoc_to_choice: c\ndoc_to_target: a\n'
        'target_delimiter: ""\n',
        "utf-8",
    )
    both = run(f"%llm_eval --tasks {task} --limit 2 --models {folders[0]} {folders[1]}")
    assert [label for label, *_ in both.rows()][:2] == ["", "t acc ↑"]
    assert next(iter(both.results[0])).examples == 2
