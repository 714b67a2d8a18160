"""A small store to fuzz over: made once, copied for every case, so that no case sees what another did."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
if find_spec("hypothesis") is None and not os.environ.get("CI"):
    # as the browser tests do without a browser; CI must not pass without them
    collect_ignore = ["test_fuzz_magics.py", "test_fuzz_sampling.py", "test_fuzz_text.py"]
TEXTS = [f"Document {n}: the quick brown fox jumps over the lazy dog {n}. <b>naïve</b> 中文 😀" for n in range(40)]


@pytest.fixture(scope="session")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `.nbllm` (corpus docs, tokenizer docs, run small), a transformers folder and some files of text."""
    from nbllm.sessions import Session
    from nbllm.store import Store

    home = tmp_path_factory.mktemp("fuzz") / "template"
    home.mkdir()
    before = Path.cwd()
    os.chdir(home)
    try:
        session = Session(Store(home / ".nbllm"), "default")
        session.clean(texts=TEXTS, recipe="none", name="docs")
        session.train_tokenizer(vocab_size=280)
        options: dict[str, Any] = {"steps": 1, "batch_size": 1, "seq_len": 32, "name": "small", "wait": True}
        session.train(model="llama-nano", **options)
        _tiny_model(home / "model", session.tokenizer)
        session.model = session.models.reference("model")
    finally:
        os.chdir(before)
    (home / "a.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    (home / "b.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n', encoding="utf-8")
    (home / "c.csv").write_text("text,n\none,1\n", encoding="utf-8")
    return home


def _tiny_model(folder: Path, tokenizer: Any) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=64, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder)


@pytest.fixture
def fresh(small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Each call gives a new copy of the small store, which is then the current folder.

    Nothing of another program starts: the supervisor of a run, a measuring process, a runtime's server.
    """
    from nbllm.sessions import current

    def no_process(*_: object, **__: object) -> Any:
        raise OSError("no process in this test")

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for module in ("nbllm.train.start", "nbllm.train.run"):  # by module: the package has functions of these names
        monkeypatch.setattr(sys.modules[module], "start_supervisor", lambda *_, **__: None)
    monkeypatch.setattr("subprocess.run", no_process)
    monkeypatch.setattr("subprocess.Popen", no_process)
    # deep down, so that `..` in a path stays within this test's own folder
    deep = tmp_path / "a" / "b" / "c"

    def copy() -> Path:
        os.chdir(tmp_path)
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        shutil.copytree(small_store, deep, copy_function=shutil.copyfile)
        os.chdir(deep)
        current._sessions.clear()
        current._opened.clear()
        return deep

    return copy
