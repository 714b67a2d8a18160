"""A GGUF file gives the same logits in transformers and in llama.cpp, and llama.cpp cuts text as the tokenizer does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import TEXTS, Build, greedy, logits_of

from nbllm.errors import UsageError
from nbllm.export import checks, export
from nbllm.export.gguf import interleave
from nbllm.export.gguf_tokenizer import pre_tokenizer
from nbllm.model import load
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, train

PROMPT = [5, 60, 70, 80, 200, 61]
HARD = [
    "Hello  world\n\n  it's 12345 naïve", "I'LL DON'T \t\t tabs\r\n\r\nx", "안녕하세요 👩‍🚀",
    "a_b-c==d //e\n    return",
    "   leading", "trailing   ", "½ ² ٣ 一二三", "<|endoftext|>",
]  # fmt: skip


def fields(file: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    return {key: field.contents() for key, field in GGUFReader(file).fields.items()}


def read(file: Path) -> torch.Tensor:
    with torch.no_grad():
        return load(file)(torch.tensor([PROMPT])).logits[0, -1]


def test_a_llama_file(build: Build, words: Tokenizer, tmp_path: Path) -> None:
    source = build("llama", tie_word_embeddings=True, rope_theta=5000.0)
    found = export(source, tmp_path / "out", to="gguf", gguf_type="f32")
    assert found.file == tmp_path / "out" / "model-f32.gguf"
    assert [path.name for path in found.folder.iterdir()] == ["model-f32.gguf"]
    assert found.checks[0].runtime == "transformers"
    assert all(check.agreed == check.tokens for check in found.checks)
    assert (read(found.file) - logits_of(source, PROMPT)).abs().max() < 1e-4
    about = fields(found.file)
    assert about["general.architecture"] == "llama"
    assert (about["llama.context_length"], about["llama.rope.freq_base"]) == (96, 5000.0)
    assert about["tokenizer.ggml.pre"] == "dbrx"
    assert about["tokenizer.ggml.tokens"] == [words.token(id) for id in range(words.vocab_size)]
    assert about["tokenizer.ggml.token_type"] == [3, 3] + [1] * (words.vocab_size - 2)
    assert about["tokenizer.ggml.eos_token_id"] == words.eos_id == 0
    assert about["tokenizer.ggml.add_bos_token"] is False
    last = words.vocab_size - 1
    rank = words.merge(last)[0]
    assert about["tokenizer.ggml.merges"][rank].replace(" ", "") == words.token(last)
    with pytest.raises(Exception, match="isn't empty"):
        export(source, tmp_path / "out", to="gguf")
    export(source, tmp_path / "out", to="gguf", overwrite=True)
    assert [path.name for path in found.folder.iterdir()] == ["model-f16.gguf"]


@pytest.mark.parametrize(("kind", "gguf_type", "error"), [("llama", "q8_0", 0.05), ("qwen2", "f16", 5e-3),
                                                           ("qwen3", "bf16", 0.03)])  # fmt: skip
def test_kinds_and_types(kind: str, gguf_type: str, error: float, build: Build, tmp_path: Path) -> None:
    source = build(kind, tie_word_embeddings=False)
    found = export(source, tmp_path / "out", to="gguf", gguf_type=gguf_type)
    wanted = logits_of(source, PROMPT)
    assert (read(found.file) - wanted).abs().max() < error * wanted.abs().max()


def test_rows_that_do_not_fill_a_block_stay_in_half_precision(build: Build, tmp_path: Path) -> None:
    from gguf import GGUFReader

    source = build("llama", hidden_size=48, num_attention_heads=3, num_key_value_heads=3)
    found = export(source, tmp_path / "out", to="gguf", gguf_type="q8_0")
    types = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(found.file).tensors}
    assert types["blk.0.attn_q.weight"] == "F16"  # 48 a row
    assert types["blk.0.ffn_down.weight"] == "Q8_0"  # 96 a row
    assert types["blk.0.attn_norm.weight"] == "F32"


def test_rows_of_a_head_are_interleaved() -> None:
    rows = np.arange(8, dtype=np.float32)  # two heads of four
    assert interleave(rows, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_what_cannot_be_exported_says_so(build: Build, tmp_path: Path) -> None:
    refused = [
        (build("gpt2"), "GPT2LMHeadModel can't be written as GGUF; LlamaForCausalLM"),
        (build("llama", hidden_act="gelu"), "no activation 'gelu'"),
        (build("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "'dynamic'"),
    ]
    for source, message in refused:
        with pytest.raises(UsageError, match=message):
            export(source, tmp_path / "out", to="gguf")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("pattern", "digits", "name"),
    [
        ("gpt2", None, "gpt-2"), ("gpt4", None, "dbrx"), ("llama3", None, "dbrx"), ("gpt4", "single", "qwen2"),
        ("none", None, None), ("gpt4", "any", None), ("gpt2", "single", None),
    ],
)  # fmt: skip
def test_the_name_of_how_text_is_cut(pattern: str, digits: str | None, name: str | None, tmp_path: Path) -> None:
    store = Store(tmp_path)
    tokenizer = train(
        store, TEXTS, text_bytes=100, vocab_size=270, pattern=pattern, digits=digits, name="t"
    )  # fmt: skip
    if name is not None:
        assert pre_tokenizer(tokenizer) == name
    else:
        with pytest.raises(UsageError, match="llama.cpp has no name for how the tokenizer 't' cuts text"):
            pre_tokenizer(tokenizer)


def test_llama_cpp_says_the_same(build: Build, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from nbllm.export.runtimes.llama_cpp import LlamaCpp

    source = build("llama", tie_word_embeddings=True)
    found = export(source, tmp_path / "out", to="gguf", gguf_type="f32")
    assert [check.runtime for check in found.checks] == ["transformers", "llama.cpp"]
    assert found.missing is None
    runtime = LlamaCpp(found.folder)
    assert (runtime.name, runtime.context, runtime.eos_ids) == ("llamacpp", 96, frozenset([0]))
    assert checks.decode(runtime, PROMPT, 24) == greedy(source, PROMPT, 24)
    rows = runtime.rows()
    wanted = logits_of(source, [*PROMPT, 9, 8])
    for prompt, reused in (([*PROMPT, 9, 8], len(PROMPT)), ([*PROMPT, 9, 8], len(PROMPT) + 1)):
        assert (rows.start([prompt], 1)[0] - wanted).abs().max() < 5e-3 * wanted.abs().max()
        assert runtime.reused == reused  # only what differs is computed
    with pytest.raises(UsageError, match=r"one text at a time.*--n 1"):
        rows.start([PROMPT], 2)


def test_a_model_becomes_a_runtime_once(build: Build, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from nbllm.export.runtimes import load_runtime

    source, store = build("llama"), Store(tmp_path / "store")
    said = [
        checks.decode(load_runtime("llamacpp", what, store=store, key=["a"]), PROMPT, 8)
        for what in (source, source, store.path("export", "none"))  # the last isn't there: the key finds the export
    ]
    assert said[0] == said[1] == said[2] == greedy(source, PROMPT, 8)
    (name,) = store.names("export")
    file = store.path("export", name) / "model-f16.gguf"
    assert checks.decode(load_runtime("llamacpp", file, store=store, key=["b"]), PROMPT, 8) == said[0]
    assert store.names("export") == [name]  # a GGUF file is taken as it is


@pytest.mark.parametrize(("pattern", "digits"), [("gpt2", None), ("gpt4", None), ("gpt4", "single")])
def test_llama_cpp_cuts_text_alike(pattern: str, digits: str | None, build: Build, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from nbllm.export.runtimes.llama_cpp import LlamaCpp

    texts = [*HARD[:-1], *TEXTS] * 9
    tokenizer = train(
        Store(tmp_path / "s"), texts, text_bytes=100, vocab_size=500, pattern=pattern, digits=digits, name="t"
    )
    found = export(build("llama", tokenizer, num_hidden_layers=1), tmp_path / "out", to="gguf")
    runtime = LlamaCpp(found.file)
    assert [runtime.encode(text) for text in HARD] == [tokenizer.encode(text) for text in HARD]


def test_frequencies_that_a_config_scales(build: Build, tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    source = build("llama", rope_parameters=rope)
    found = export(source, tmp_path / "out", to="gguf", gguf_type="f32")
    from gguf import GGUFReader

    factors = next(item for item in GGUFReader(found.file).tensors if item.name == "rope_freqs.weight").data
    assert factors.shape == (8,)
    assert factors.min() == pytest.approx(1.0, abs=1e-4)
    assert factors.max() == pytest.approx(4.0, abs=1e-3)
    assert "transformers" not in [check.runtime for check in found.checks]  # it doesn't read them
