"""What a panel asks a session about its model."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from nbllm.errors import UsageError
from nbllm.files import write_json
from nbllm.sessions import Session
from nbllm.sessions.models import ModelReference


@pytest.fixture
def session(tiny_session: Callable[..., Session]) -> Session:
    """With a tiny random model as the current one."""
    return tiny_session(max_position_embeddings=64, initializer_range=0.2)


def test_text_of_exactly_these_tokens(session: Session) -> None:
    _, tokenizer = session.load_model()
    ids = tokenizer.encode("the fox")
    assert session.prompt_text(ids) == "the fox"
    letters = [tokenizer.encode(letter)[0] for letter in "the"]
    assert letters != tokenizer.encode("the")
    assert session.prompt_text(letters) is None


def test_checkpoints_of_the_current_run(session: Session) -> None:
    assert session.checkpoints() == []
    with session.store.create("run", "nano", parameters={}) as draft:
        for step in (20, 10):
            folder = draft.folder / "checkpoints" / f"step-{step:08d}"
            folder.mkdir(parents=True)
            record = {"step": step, "generation": 1, "eval_loss": None, "bits_per_byte": None, "files": {}}
            write_json(folder / "checkpoint.json", record)
    session.model = ModelReference(kind="run", source="nano")
    assert session.checkpoints() == [10, 20]
    session.model = replace(session.model, checkpoint=10)
    assert session.checkpoints() == [10, 20]


def test_the_score_of_a_text_is_that_of_the_current_model(session: Session, tmp_path: Path) -> None:
    from nbllm.sample.score import score

    found = session.score("the fox of the queue")
    assert found.tokens.equals(score(*session.load_model(), "the fox of the queue").tokens)
    assert session.score("the fox of the queue", model=str(tmp_path / "model"), adapter="off").loss == found.loss


def test_a_model_in_another_runtime_says_the_same(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = session.generate("the fox", greedy=True, max_new_tokens=8)
    found = session.generate("the fox", greedy=True, max_new_tokens=8, backend="onnx")
    assert found.tokens == wanted.tokens
    with pytest.raises(UsageError, match="torch backend"):
        session.generate("the fox", backend="onnx", quantize="int8")
    with pytest.raises(UsageError, match="No runtime is named 'onyx'"):
        session.generate("the fox", backend="onyx")
    monkeypatch.delenv("NBLLM_VLLM_PYTHON", raising=False)
    with pytest.raises(UsageError, match="NBLLM_VLLM_PYTHON"):
        session.generate("the fox", backend="vllm")


def test_weights_are_sampled_in_the_dtype_of_their_folder(session: Session, tmp_path: Path) -> None:
    model, tokenizer = session.load_model()
    assert model.dtype == torch.float32
    LlamaForCausalLM(model.config).to(torch.bfloat16).save_pretrained(tmp_path / "half")
    tokenizer.save(tmp_path / "half")
    assert session.load_model(model=str(tmp_path / "half"))[0].dtype == torch.bfloat16


def test_an_adapter_and_quantised_weights_exclude_each_other(session: Session) -> None:
    with pytest.raises(UsageError, match="quantised"):
        session.models.load(session.model, adapter="any", quantize="int8")


def test_quantised_weights_replace_the_whole_ones_in_memory(session: Session) -> None:
    whole = session.load_model()[0]
    embedding, block = weakref.ref(whole.model.embed_tokens.weight), weakref.ref(whole.model.layers[0].mlp.up_proj)
    text = session.generate("the fox", greedy=True, max_new_tokens=4).text
    del whole
    small = session.load_model(quantize="int8")[0]
    gc.collect()
    assert block() is None, "the whole model is freed"
    assert embedding() is small.model.embed_tokens.weight, "what isn't quantised is shared, not copied"
    if sys.platform == "linux":
        mapped = Path("/proc/self/maps").read_text()  # other tests' models may be there
        assert str(session.store.root.parent) not in mapped, "nor does the file stay in memory"
    assert session.load_model(quantize="int8")[0] is small
    assert session.generate("the fox", greedy=True, max_new_tokens=4).text == text
    del small
    assert session.free() == 2
