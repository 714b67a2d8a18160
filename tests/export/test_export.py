"""An exported folder is one that plain transformers loads, with the same next tokens; half of one never is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from nbllm.errors import RunError, StoreError, UsageError
from nbllm.export import export
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, train

IDS = torch.tensor([[5, 60, 70, 80, 200]])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return train(Store(tmp_path_factory.mktemp("store")), ["some text "] * 9, text_bytes=90, vocab_size=300, name="t")


def build(tokenizer: Tokenizer) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.2,
        )
    ).eval()  # fmt: skip


@pytest.fixture
def checkpoint(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    folder = tmp_path / "step-00000010"
    build(tokenizer).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(folder)
    (folder / "checkpoint.json").write_text("{}")
    (folder / "state").mkdir()
    (folder / "state" / "optimizer.safetensors").write_text("large")
    return folder


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(IDS).logits


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_checkpoint(checkpoint: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    found = export(checkpoint, "out/model")
    assert found.folder == found.file == tmp_path / "out" / "model"
    assert found.message == (
        f"Written to {found.folder}; transformers loads it and predicts the same next tokens (32 compared)."
    )
    assert sorted(path.name for path in found.folder.iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert json.loads((found.folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert torch.equal(logits(found.folder), logits(checkpoint))
    text = "some text, 안녕"
    assert AutoTokenizer.from_pretrained(found)(text).input_ids == tokenizer.encode(text)
    assert not hidden(tmp_path)
    assert not hidden(tmp_path / "out")


def test_with_an_adapter(checkpoint: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    from nbllm.adapters import create, save
    from nbllm.model import load

    model = load(checkpoint)
    create(model, r=4, alpha=64, base=str(checkpoint))
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    adapter = save(model, tmp_path / "adapter")
    with torch.no_grad():
        wanted = model.eval()(IDS).logits
    assert (wanted - logits(checkpoint)).abs().max() > 0.1
    for place, (source, extra) in enumerate([(checkpoint, adapter), (adapter, None)]):
        found = export(source, tmp_path / f"merged-{place}", adapter=extra).folder
        assert (logits(found) - wanted).abs().max() < 1e-4
        assert not (found / "adapter_config.json").exists()
        assert Tokenizer.from_folder(found).hash == tokenizer.hash


def test_what_is_there_is_not_touched(checkpoint: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    for overwrite in (False, True):  # not a model, so never replaced
        with pytest.raises(StoreError, match="isn't empty"):
            export(checkpoint, full, overwrite=overwrite)
    assert (full / "thesis.txt").read_text() == "mine"
    with pytest.raises(UsageError, match="is a file"):
        export(checkpoint, full / "thesis.txt")
    for inside in (checkpoint, checkpoint.parent):
        with pytest.raises(UsageError, match="holds what is to be exported"):
            export(checkpoint, inside, overwrite=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    first = export(checkpoint, empty).folder
    (first / "old.txt").write_text("old")
    with pytest.raises(StoreError, match="--overwrite"):
        export(checkpoint, empty)
    export(checkpoint, empty, overwrite=True)
    assert not (empty / "old.txt").exists()
    assert not hidden(tmp_path)


def test_other_formats_are_refused_with_what_there_is(checkpoint: Path) -> None:
    with pytest.raises(UsageError, match=r"'tflite'.*Known: gguf, hf, onnx, vllm"):
        export(checkpoint, "out", to="tflite")
    with pytest.raises(UsageError, match=r"'q4'.*Known: bf16, f16, f32, q8_0"):
        export(checkpoint, "out", to="gguf", gguf_type="q4")
    assert not Path("out").exists()


def test_a_package_that_is_not_there_is_named(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbllm.export import extras

    monkeypatch.setattr(extras, "installed", lambda module: False)
    for to in ("onnx", "gguf"):
        with pytest.raises(UsageError, match=rf'isn\'t installed. Type pip install "nbllm\[{to}\]"'):
            export(checkpoint, "out", to=to)
    assert not Path("out").exists()


def test_a_result_that_differs_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbllm.export import hugging_face

    def spoil(source: Path, target: Path) -> None:
        target.write_bytes(Path(source).read_bytes())
        if target.name == "model.safetensors":
            with target.open("r+b") as file:  # the end of the weights
                file.seek(-4000, 2)
                file.write(b"\x40\x41" * 2000)

    monkeypatch.setattr(hugging_face.shutil, "copyfile", spoil)
    with pytest.raises(RunError, match=r"predicts \d+ of \d+ next tokens"):
        export(checkpoint, "out")
    assert not Path("out").exists()
    assert not hidden(tmp_path)


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "no").mkdir()
    with pytest.raises(Exception, match="no"):
        export(tmp_path / "no", "out")
    assert not Path("out").exists()
