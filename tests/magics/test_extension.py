"""The extension in a real IPython shell, without Jupyter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import nbllm
from nbllm.commands import COMMANDS
from nbllm.errors import NbllmError


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "nbllm")
    yield shell
    shell.run_line_magic("unload_ext", "nbllm")


def run(shell: InteractiveShell, cell: str) -> Any:
    """Runs a cell; raises what it raised."""
    result = shell.run_cell(cell, store_history=False)
    result.raise_error()
    return result.result


@pytest.fixture
def texts() -> list[str]:
    return [
        f"Document number {number} says that the quick brown fox jumps over lazy dog {number}." for number in range(60)
    ]


def test_loading_greets_in_one_line_and_twice_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell()
    before = {kind: set(names) for kind, names in shell.magics_manager.magics.items()}
    matchers, formatters = len(shell.Completer.custom_matchers), _formatters(shell)
    run(shell, "%load_ext nbllm")
    output = capsys.readouterr().out
    assert output.startswith("nbllm ")
    assert "%llm_help" in output
    assert output.count("\n") == 1
    nbllm.load_ipython_extension(shell)
    assert set(COMMANDS) <= set(shell.magics_manager.magics["line"])
    assert len(shell.Completer.custom_matchers) == matchers + 1
    run(shell, "%unload_ext nbllm")
    assert {kind: set(names) for kind, names in shell.magics_manager.magics.items()} == before
    assert len(shell.Completer.custom_matchers) == matchers
    assert _formatters(shell) == formatters
    assert not [function for function in shell.events.callbacks["pre_run_cell"] if "nbllm" in function.__module__]


def _formatters(shell: InteractiveShell) -> int:
    formatter = shell.display_formatter.ipython_display_formatter
    return len(formatter.deferred_printers) + len(formatter.type_printers)


@pytest.mark.parametrize("line", ["%llm_train --help", "%llm_train -h", "%llm_help llm_train"])
def test_help_of_a_magic(shell: InteractiveShell, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, line)
    output = capsys.readouterr().out
    assert "--batch-size" in output
    assert "Example:" in output


def test_question_mark_shows_the_same_help(shell: InteractiveShell) -> None:
    found = shell.object_inspect("%llm_train")
    assert found["docstring"] == COMMANDS["llm_train"].help()


def test_help_lists_every_magic(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, "%llm_help")
    output = capsys.readouterr().out
    assert all(name in output for name in COMMANDS)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("%llm_train --stepz 3", "Did you mean --steps?"),
        ("%llm_train --steps many", "whole number"),
        ("%llm_train", "Make one with %llm_clean"),
        ("%llm_tokenizer train", "Make one with %llm_clean"),
        ("%llm_tokenizer inspect hello", "%llm_tokenizer train"),
        ("%llm_tokenizer trian", "Did you mean train?"),
        ("%llm_tokenizer compare one", "two tokenizers"),
        ("%llm_tokenizer load", "a name, folder or file"),
        ("%llm_finetune", "--data"),
        ("%llm_finetune --data $texts", "%llm_train"),
        ('%llm_generate "hello"', "%llm_train"),
        ("%llm_generate two words", "quotes"),
        ("%llm_clean", "builtin:pydocs"),
        ("%llm_clean $missing", "No variable is named 'missing'"),
        ("%llm_clean missing-file.txt", "missing-file.txt"),
        (r"%llm_clean C:\data\x.txt", "x.txt"),
        ("%%llm_clean $texts\nnormalize\ndedpu exact", "line 2"),
        ("%llm_session use nothing", "nothing"),
        ("%llm_session rmm x", "Did you mean rm?"),
        ("%llm_adapter use nothing", "%llm_finetune"),
        ("%llm_export", "FOLDER"),
        ("%llm_panel attnetion", "--panel|panel"),
        ("%llm_train --attach nothing", "nothing"),
        ("%llm_eval --out 3x", "variable"),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_type(
    shell: InteractiveShell, cell: str, says: str, texts: list[str]
) -> None:
    shell.user_ns["texts"] = texts
    with pytest.raises(NbllmError) as caught:
        run(shell, cell)
    lines = caught.value._render_traceback_()
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert any(part in lines[0] for part in says.split("|"))


def test_clean_takes_variables_and_returns_and_binds_the_corpus(shell: InteractiveShell, texts: list[str]) -> None:
    shell.user_ns["texts"] = texts
    corpus = run(shell, '%%llm_clean $texts --name="my texts" --out mine\nnormalize\ndedup exact\n')
    assert shell.user_ns["mine"] is corpus
    assert corpus.name == "my texts"
    assert len(corpus) == 60
    assert nbllm.session().corpus.name == "my texts"


def test_clean_body_with_braces_dollars_and_percent_is_untouched(shell: InteractiveShell) -> None:
    shell.user_ns.update(texts=["{'a': 1} costs $5, 100 %"], a="never")
    with pytest.raises(NbllmError, match="line 1"):
        run(shell, "%%llm_clean $texts\n{'a': 1} $a %\n")
    corpus = run(shell, "%%llm_clean $texts --name odd\n\n# nothing but a comment, so the recipe\n")
    assert corpus.name == "odd"


def test_tokenizers_are_compared_on_the_corpus(shell: InteractiveShell, texts: list[str]) -> None:
    shell.user_ns["texts"] = texts
    run(shell, "%llm_clean $texts --recipe none --name some")
    run(shell, "%llm_tokenizer train --vocab-size 300 --name small")
    run(shell, "%llm_tokenizer train --vocab-size 400 --name large")
    shown = str(run(shell, "%llm_tokenizer compare small large"))
    assert "small" in shown
    assert "large" in shown
    shell.user_ns["pairs"] = {"en": ["the same sentence"], "de": ["derselbe Satz"]}
    found = run(shell, "%llm_tokenizer compare small --parallel $pairs")
    assert (found.reference, found.languages) == ("en", ["en", "de"])


def test_interrupt_keeps_the_text_and_shows_one_line(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbllm.sample import Generation, Sample, SamplingParameters

    cut = Sample(text="kept", tokens=(1,), logprobs=(0.0,), stop_reason="interrupted")
    generation = Generation(
        prompt="p",
        prompt_tokens=(1,),
        samples=(cut,),
        parameters=SamplingParameters(),
        tokens_per_s=1.0,
        first_token_ms=1.0,
    )
    monkeypatch.setattr(nbllm.session(), "generate", lambda *_, **__: generation)
    with pytest.raises(KeyboardInterrupt):
        run(shell, "%llm_generate hi --out text")
    assert shell.user_ns["text"] is generation
    assert capsys.readouterr().out.splitlines()[-1] == "Interrupted: the text so far is kept in _llm"


def test_empty_body_means_the_recipe(shell: InteractiveShell, texts: list[str]) -> None:
    shell.user_ns["texts"] = texts
    corpus = run(shell, "%%llm_clean $texts --recipe none --name plain\n\n")
    assert len(corpus) == 60


def test_python_function_of_the_notebook_is_a_stage(shell: InteractiveShell, texts: list[str]) -> None:
    shell.user_ns["texts"] = texts
    run(shell, "def shout(text):\n    return None if ' 7 ' in text else text.upper()")
    corpus = run(shell, "%%llm_clean $texts --name loud\npython shout")
    assert {document["text"] for document in corpus} == {text.upper() for text in texts if " 7 " not in text}


def test_named_documents_are_kept(shell: InteractiveShell) -> None:
    shell.user_ns["texts"] = ["short", "tiny", "a text that is long enough to stay"]
    shell.user_ns["ids"] = ["texts:2", "texts:9"]
    corpus = run(shell, "%%llm_clean $texts --name some --keep texts:1 $ids\nlength min=20")
    assert [document["id"] for document in corpus] == ["texts:1", "texts:2", "texts:3"]
    assert corpus.report.notes == ["1 of the ids to keep name no document, such as texts:9"]


def test_result_is_assigned_and_kept(shell: InteractiveShell, texts: list[str]) -> None:
    shell.user_ns["texts"] = texts
    run(shell, "corpus = %llm_clean $texts --recipe none --name kept")
    assert shell.user_ns["corpus"] is shell.user_ns["_llm"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("%llm_train --ba", "--batch-size"),
        ("%llm_train --precision b", "bf16"),
        ("%llm_train --precision=b", "bf16"),
        ("%llm_train --model llama-n", "llama-nano"),
        ("%llm_tokenizer insp", "inspect"),
        ("%llm_clean builtin:py", "builtin:pydocs"),
        ("%%llm_clean $texts\nded", "dedup"),
        ("%%llm_clean $texts\nnormalize\ndedup min", "minhash"),
        ("%%llm_clean $texts --recipe gop", "gopher"),
        ("%llm_session use al", "alpha"),
        ("%llm_help llm_ge", "llm_generate"),
    ],
)
def test_tab_completes(shell: InteractiveShell, typed: str, offered: str, texts: list[str]) -> None:
    nbllm.session().clean(texts=texts, recipe="none", name="alpha")
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        found = {item.text for item in shell.Completer.completions(typed, len(typed))}
    assert any(offered.endswith(text) for text in found), found
    assert any(text == offered or text in offered for text in found)


def test_script_rebuilds_the_corpus(
    shell: InteractiveShell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.txt").write_text("one line of text\n" * 20 + "another line\n")
    run(shell, "%%llm_clean data.txt --split line --name lines\nnormalize\ndedup exact")
    first = nbllm.session().corpus
    run(shell, "%llm_session script rebuild.py")
    script = (tmp_path / "rebuild.py").read_text()
    session = nbllm.session()
    session.rm("lines")
    assert session.corpus is None
    exec(compile(script, "rebuild.py", "exec"), {})
    assert session.corpus.manifest.hash == first.manifest.hash
