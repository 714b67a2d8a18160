"""Who may import whom, and what `import nbllm` must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nbllm

ROOT = Path(nbllm.__file__).parent
ALLOWED = {
    "plain": set(),
    "errors": {"plain"},
    "files": {"errors"},
    "store": {"errors", "files"},
    "corpus": {"errors", "files", "store"},
    "tokenizer": {"errors", "files", "store"},
    "shards": {"errors", "files", "store", "tokenizer"},
    "chat": {"errors", "files", "store", "tokenizer", "shards"},
    "ops": {"errors"},
    "findings": {"errors"},
    "model": {"errors", "files", "store", "ops"},
    "adapters": {"errors", "files", "store", "model"},
    "sample": {"errors", "files", "store", "model", "tokenizer", "adapters"},
    "inspect": {"errors", "files", "store", "model", "tokenizer", "adapters", "sample"},
    "evaluate": {"errors", "files", "store", "model", "tokenizer", "adapters", "shards", "sample"},
    "export": {"errors", "files", "store", "model", "tokenizer", "adapters", "sample"},
    # a run's handle diagnoses itself; nothing of the training does
    "train": {
        "errors", "files", "store", "ops", "shards", "model", "adapters", "tokenizer", "sample", "evaluate", "findings",
        "doctor.run",
    },
    "bench": {"errors", "files", "store", "ops", "model", "adapters", "tokenizer", "sample", "export", "panels"},
    "doctor": {
        "errors", "files", "store", "corpus", "tokenizer", "shards", "ops", "model", "adapters", "sample", "evaluate",
        "train", "findings", "panels",
    },
    "sessions": {
        "errors", "files", "store", "corpus", "tokenizer", "shards", "chat", "model", "adapters", "sample", "evaluate",
        "export", "train", "doctor", "bench", "inspect",
    },
    # completion looks names up in the tables of presets, recipes and stages
    "commands": {
        "errors", "files", "store", "sessions", "model.presets", "corpus.recipe", "corpus.stages", "corpus.progress",
        "train.parallel.names", "train.attention",
    },
    "panels": {"errors", "plain", "sessions", "sample.parameters", "tokenizer", "corpus.evidence"},
    "magics": {"errors", "plain", "sessions", "commands", "panels", "train"},
    "__main__": {"errors", "plain", "commands"},
}  # fmt: skip


def imports(path: Path) -> Iterator[str]:
    """Every nbllm module that a file imports, at its top or inside functions, but not for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "nbllm":
            if node.module == "nbllm":
                yield from (alias.name for alias in node.names)
            else:
                yield node.module.removeprefix("nbllm.")
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("nbllm.") for alias in node.names if alias.name.startswith("nbllm."))


def files() -> list[Path]:
    return [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_import_only_those_they_may_know(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in ALLOWED, f"{room} is a new room: say whom it may know"
    for module in imports(path):
        other = module.split(".")[0]
        known = other == room or other in ALLOWED[room] or module in ALLOWED[room]
        assert known, f"{path.relative_to(ROOT)} imports nbllm.{module}"


def loaded(code: str) -> set[str]:
    output = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    ).stdout
    return {name.split(".")[0] for name in output.splitlines()[-1].split()}


@pytest.mark.parametrize("code", ["import nbllm", "import nbllm; nbllm.session()", "import nbllm.commands"])
def test_import_loads_nothing_heavy(code: str) -> None:
    heavy = {"torch", "transformers", "ipywidgets", "anywidget", "pandas", "datasets", "peft", "accelerate"}
    assert not heavy & loaded(code)


def test_the_training_worker_loads_neither_session_nor_jupyter() -> None:
    modules = loaded("import nbllm.train.worker, sys; assert 'nbllm.sessions' not in sys.modules")
    assert not {"IPython", "ipywidgets", "anywidget", "traitlets"} & modules
