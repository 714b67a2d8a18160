"""What ONNX Runtime says is what transformers says: alone, in a padded batch, and for rows that were moved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small_models import Build, greedy, logits_of

from nbllm.errors import NotFoundError, UsageError
from nbllm.export import checks, export
from nbllm.export.runtimes import load_runtime
from nbllm.export.runtimes.onnx_runtime import OnnxRuntime
from nbllm.store import Store

PROMPT = [5, 60, 70, 80, 200, 61]


@pytest.fixture(scope="module")
def source(build: Build) -> Path:
    return build("llama", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def exported(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = export(source, tmp_path_factory.mktemp("onnx") / "model", to="onnx")
    assert found.message == (
        f"Written to {found.folder / 'model.onnx'}; ONNX Runtime loads it and predicts the same next tokens "
        "(32 compared)."
    )
    return found.folder


def test_the_folder(exported: Path, source: Path) -> None:
    assert sorted(path.name for path in exported.iterdir()) == [
        "config.json", "model.onnx", "model.onnx.data", "onnx_inputs.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    names = json.loads((exported / "onnx_inputs.json").read_text())
    assert names["past"] == ["past.0.key", "past.0.value", "past.1.key", "past.1.value"]
    assert (names["kv_heads"], names["head_size"], names["context"], names["eos_ids"]) == (2, 16, 96, [0])
    weights = (source / "model.safetensors").stat().st_size
    assert (exported / "model.onnx.data").stat().st_size < weights * 1.05  # the tied matrix is there once


def test_greedy_tokens(exported: Path, source: Path) -> None:
    runtime = OnnxRuntime(exported)
    assert (runtime.name, runtime.context, runtime.eos_ids) == ("onnx", 96, frozenset([0]))
    assert checks.decode(runtime, PROMPT, 40) == greedy(source, PROMPT, 40)
    assert len(checks.decode(runtime, PROMPT, 200)) == 96 - len(PROMPT)  # ends at the context


def test_padded_rows_and_moved_rows(exported: Path, source: Path) -> None:
    prompts = [PROMPT, [9, 8], [7]]
    rows = OnnxRuntime(exported).rows()
    found = rows.start(prompts, 2)
    wanted = torch.stack([logits_of(source, prompt) for prompt in prompts]).repeat_interleave(2, 0)
    assert found.dtype == torch.float32
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() < 1e-4
    rows.select(torch.tensor([4, 1, 1]))
    found = rows.advance(torch.tensor([11, 12, 13]))
    texts = [[7, 11], [*PROMPT, 12], [*PROMPT, 13]]
    assert (found - torch.stack([logits_of(source, text) for text in texts])).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["gpt2", "qwen2", pytest.param("qwen3", marks=pytest.mark.slow)])
def test_other_kinds(kind: str, build: Build, tmp_path: Path) -> None:
    source = build(kind, **({} if kind == "gpt2" else {"num_hidden_layers": 1}))
    found = export(source, tmp_path / "out", to="onnx")
    assert [(check.tokens, check.agreed) for check in found.checks] == [(32, 32)]
    assert checks.decode(OnnxRuntime(found.folder), PROMPT, 20) == greedy(source, PROMPT, 20)


def test_what_cannot_be_exported_says_so(build: Build, tmp_path: Path) -> None:
    source = build("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1)
    with pytest.raises(UsageError, match=r"^Qwen2ForCausalLM can't be written as ONNX: .*don't see all"):
        export(source, tmp_path / "out", to="onnx")
    assert not list(tmp_path.iterdir())


def test_an_exporter_that_fails_is_one_line(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("\n  data-dependent control flow\n  and more\n")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(UsageError, match=r"^LlamaForCausalLM can't be written as ONNX: data-dependent control flow\.$"):
        export(source, tmp_path / "out", to="onnx")
    assert not list(tmp_path.iterdir())


def test_a_provider_that_is_not_there(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no TensorrtExecutionProvider"):
        OnnxRuntime(exported, providers=["TensorrtExecutionProvider"])
    with pytest.raises(NotFoundError, match="--to onnx"):
        OnnxRuntime(tmp_path)


def test_the_store_keeps_the_export_by_content(
    source: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbllm.export import onnx

    written = []

    def write(model: object, tokenizer: object, folder: Path) -> tuple[list[checks.Check], None]:
        written.append(folder)
        exported_copy(exported, folder)
        return [], None

    monkeypatch.setattr(onnx, "write", write)
    store = Store(tmp_path / "store")
    for key in (["a"], ["a"], ["b"]):
        runtime = load_runtime("onnx", source, store=store, key=key)
        assert checks.decode(runtime, PROMPT, 3) == greedy(source, PROMPT, 3)
    assert len(written) == 2
    assert len(store.names("export")) == 2
    with pytest.raises(UsageError, match="Known: llamacpp, onnx"):
        load_runtime("tpu", source, store=store, key=["a"])


def exported_copy(source: Path, target: Path) -> None:
    import shutil

    shutil.copytree(source, target)
