"""The main job through the magics, in a plain IPython shell with real processes: text to a fine-tuned model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import nbllm
from nbllm.errors import NbllmError

TRAIN = "--seq-len 64 --batch-size 4 --precision fp32 --eval-every 0 --save-every 0 --wait"


def run(shell: InteractiveShell, cell: str) -> Any:
    result = shell.run_cell(cell, store_history=False)
    result.raise_error()
    return result.result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project")


@pytest.fixture
def shell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """A shell in the folder that all tests of this module share, as several kernels of one notebook would."""
    monkeypatch.chdir(folder)
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "nbllm")
    yield shell
    shell.run_line_magic("unload_ext", "nbllm")


@pytest.fixture
def trained(shell: InteractiveShell) -> InteractiveShell:
    """Corpus, tokenizer and a model of a few steps; made once."""
    session = nbllm.session()
    if session.model is None:
        shell.user_ns["texts"] = [
            f"Return item number {number} of the list. If there is none, raise an IndexError that names {number}."
            for number in range(300)
        ]
        run(shell, "%%llm_clean $texts --name small\nnormalize")
        run(shell, "%llm_tokenizer train --vocab-size 400")
        run(shell, f"%llm_train --steps 6 --name first {TRAIN}")
    return shell


def test_training_says_how_it_goes_and_returns_the_run(
    trained: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    run = globals()["run"](trained, f"%llm_train --steps 4 --out mine {TRAIN}")
    output = capsys.readouterr().out
    assert "step 4 of 4" in output
    assert run.status == "done"
    assert run.metrics().num_rows == 4
    assert trained.user_ns["mine"] is run
    reference = (run.folder / "reference.json").read_text()
    assert '"xz"' in reference


def test_the_report_names_tokens_that_the_model_hardly_learnt(trained: InteractiveShell) -> None:
    report = run(trained, "%llm_tokenizer report --model first")
    assert len(report.undertrained) == round(0.02 * report.vocab_size)
    assert "Hardly learnt" in str(report)
    assert run(trained, "%llm_tokenizer report").undertrained is None


def test_losses_are_options(trained: InteractiveShell) -> None:
    plain = run(trained, f"%llm_train --steps 2 {TRAIN}")
    other = run(trained, f"%llm_train --steps 2 --loss focal --focal-gamma 1 --label-smoothing 0.1 {TRAIN}")
    assert (other.config.loss, other.config.focal_gamma, other.config.label_smoothing) == ("focal", 1, 0.1)
    assert other.metrics().column("loss")[0].as_py() != plain.metrics().column("loss")[0].as_py()
    nbllm.session().use("first")


def test_generate_streams_once_and_is_repeated_by_its_seed(
    trained: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(trained, '%llm_generate "Return item" --seed 3 --max-new-tokens 12')
    output = capsys.readouterr().out
    assert output.startswith("Return item" + first.text)
    assert output.count(first.text) == 1 or not first.text.strip()
    assert first.stop_reason in output
    again = run(trained, '%llm_generate "Return item" --seed 3 --max-new-tokens 12')
    other = run(trained, '%llm_generate "Return item" --seed 4 --max-new-tokens 12')
    assert again.text == first.text
    assert other.tokens != first.tokens


def test_temperature_and_top_p_of_zero_are_greedy(trained: InteractiveShell) -> None:
    greedy = run(trained, '%llm_generate "Return item" --greedy --max-new-tokens 8')
    cold = run(trained, '%llm_generate "Return item" --temperature 0 --max-new-tokens 8')
    narrow = run(trained, '%llm_generate "Return item" --top-p 0 --max-new-tokens 8 --seed 9')
    assert greedy.tokens == cold.tokens == narrow.tokens


def test_body_with_braces_and_percent_is_the_prompt_untouched(trained: InteractiveShell) -> None:
    prompt = "{'a': 1} costs $x, 100 % of %d\n  indented"
    generation = run(trained, f"%%llm_generate --greedy --max-new-tokens 2\n{prompt}\n")
    assert generation.prompt.endswith(prompt)


def test_empty_prompt_starts_from_the_beginning_of_text(trained: InteractiveShell) -> None:
    assert len(run(trained, '%llm_generate "" --max-new-tokens 3 --greedy').tokens) <= 3
    assert len(run(trained, "%llm_generate --max-new-tokens 3 --greedy").tokens) <= 3


def test_several_samples_differ(trained: InteractiveShell) -> None:
    generation = run(trained, '%llm_generate "Return" --n 3 --max-new-tokens 8 --temperature 1.5')
    assert len(set(generation.texts)) > 1


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%llm_generate {'word ' * 500}", "context|can't be computed"),
        ("%llm_generate $long", "context"),
        ('%llm_generate "x" --temperature warm', "number"),
        ('%llm_generate "x" --temperature -1', "temperature"),
        ('%llm_generate "x" --top-p 2', "top-p|top_p"),
        ('%llm_generate "x" --model nothing', "nothing"),
        ('%llm_generate "x" --checkpoint 5', "checkpoint"),
        ('%llm_generate "x" --adapter nothing', "nothing"),
        ('%llm_generate "x" --chat', "chat"),
        ("%llm_train --steps 0", "steps"),
        ("%llm_train --precision fp8", "precision"),
        ("%llm_train --name first --steps 3", "first"),
        ("%llm_finetune --data missing.txt", "missing.txt"),
        ("%llm_finetune --data $texts --r 0", "r must be"),
    ],
)
def test_mistakes_are_one_line(trained: InteractiveShell, cell: str, says: str) -> None:
    nbllm.session().use("first")
    trained.user_ns.update(long="word " * 500, texts=["a text"] * 5)
    with pytest.raises(NbllmError) as caught:
        run(trained, cell)
    line = str(caught.value)
    assert "\n" not in line
    assert any(part in line for part in says.split("|")), line


def test_model_of_a_run_that_failed_at_once_says_so(trained: InteractiveShell) -> None:
    with pytest.raises(NbllmError, match="one sequence"):
        run(trained, "%llm_train --steps 3 --name short --wait --seq-len 100000")
    with pytest.raises(NbllmError, match=r"'short' failed before its first checkpoint.*%llm_session use"):
        run(trained, "%llm_generate x")
    nbllm.session().use("first")


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        (b"", "empty"),
        ("naïve café".encode("latin-1") * 30, "UTF-8|utf-8|encoding"),
        ("\ufeffBeginning with a mark. ".encode() * 1 + b"Some more text to keep. " * 10, None),
    ],
)
def test_files_that_break_others(shell: InteractiveShell, folder: Path, content: bytes, outcome: str | None) -> None:
    (folder / "odd.txt").write_bytes(content)
    cell = "%llm_clean odd.txt --recipe none --name odd --overwrite"
    if outcome is None:
        corpus = run(shell, cell)
        assert next(iter(corpus))["text"].startswith("Beginning")
    else:
        with pytest.raises(NbllmError) as caught:
            run(shell, cell)
        assert any(part in str(caught.value) for part in outcome.split("|")), str(caught.value)


def test_finetune_switch_merge_export(trained: InteractiveShell, folder: Path) -> None:
    session = nbllm.session()
    session.use("first")
    trained.user_ns["examples"] = [f"Question: what is {number}?\nAnswer: a number.\n" for number in range(60)]
    base = run(trained, '%llm_generate "Question:" --greedy --max-new-tokens 6')
    tuned = run(trained, f"%llm_finetune --data $examples --steps 12 --lr 0.02 --name polite {TRAIN}")
    assert tuned.status == "done"
    assert session.adapter == "polite"
    prompt = '"Question: what is 7?" --max-new-tokens 12 --greedy'
    with_adapter = run(trained, f"%llm_generate {prompt}")
    run(trained, "%llm_adapter off")
    assert session.adapter is None
    without = run(trained, f"%llm_generate {prompt}")
    assert without.tokens != with_adapter.tokens
    assert run(trained, '%llm_generate "Question:" --greedy --max-new-tokens 6').tokens == base.tokens
    run(trained, "%llm_adapter use polite")
    assert run(trained, f"%llm_generate {prompt}").tokens == with_adapter.tokens
    other = f"%llm_finetune --base first --data $examples --steps 1 --r 4 --name polite {TRAIN}"
    with pytest.raises(NbllmError, match="--overwrite"):  # the cell again with another configuration
        run(trained, other)
    run(trained, "%llm_export --to hf exported")
    run(trained, "%llm_adapter merge polite --to merged")
    assert session.adapter is None
    assert run(trained, f"%llm_generate {prompt}").tokens == with_adapter.tokens
    assert run(trained, f"%llm_generate {prompt} --model {folder / 'exported'}").tokens == with_adapter.tokens
    run(trained, f"{other} --overwrite")
    assert session.store.get("adapter", "polite").parameters["adapter"]["r"] == 4
    assert run(trained, f"%llm_generate {prompt}").tokens != with_adapter.tokens


def test_another_kernel_finds_everything_again(trained: InteractiveShell, folder: Path) -> None:
    expected = run(trained, '%llm_generate "Return item" --greedy --max-new-tokens 5 --model first')
    code = (
        "import nbllm; s = nbllm.session(); print(s.corpus.name, s.tokenizer.name); "
        "print(s.generate('Return item', greedy=True, max_new_tokens=5, model='first').tokens)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder).stdout
    assert output.splitlines()[-1] == str(expected.tokens)


def test_eval_reports_bits_a_byte(trained: InteractiveShell) -> None:
    nbllm.session().use("first")
    nbllm.session().corpus = "small"
    result = run(trained, "%llm_eval")
    assert 0 < result.bits_per_byte < 10


def test_script_names_every_step(trained: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    nbllm.session().use("first")
    capsys.readouterr()
    run(trained, "%llm_session script")
    script = capsys.readouterr().out
    compile(script, "script", "exec")
    assert [script.index(f"session.{method}(") for method in ("clean", "train_tokenizer", "train")] == sorted(
        script.index(f"session.{method}(") for method in ("clean", "train_tokenizer", "train")
    )
