"""A benchmark of a tiny model: rows with numbers, rows that say why they have none, and how they show."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm.bench import Bench, BenchRow
from nbllm.bench.compare import compare
from nbllm.errors import UsageError


def tiny() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=288, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=32, bos_token_id=None, eos_token_id=None, initializer_range=0.2,
        )
    ).eval()  # fmt: skip


def missing(backend: str) -> Any:
    raise UsageError(f"{backend} isn't installed", next='pip install "nbllm[onnx]"')


@pytest.fixture(scope="module")
def found() -> Bench:
    names = ["eager", "int8", "onnx"]
    return compare(tiny(), missing, name="a <b> model", prompt=[1, 2, 3], backends=names, new_tokens=4, batch=(1, 2))


def test_rows_have_numbers(found: Bench) -> None:
    eager, int8, _ = found.rows
    assert eager.compiled is False
    assert eager.agreement == (4, 4)
    assert eager.tokens_per_s.keys() == {1, 2}
    assert all(len(values) >= 3 for values in eager.rounds.values())
    assert int8.weight_bytes is not None


def test_what_is_not_there_is_a_row_that_says_so(found: Bench) -> None:
    row = found.rows[-1]
    assert row.error is not None
    assert 'pip install "nbllm[onnx]"' in row.problem
    assert row.problem in str(found)


def test_html_is_escaped_and_json_complete(found: Bench) -> None:
    html = found._repr_html_()
    assert "a &lt;b&gt; model" in html
    assert "<b>" not in html
    assert "<svg" in html
    assert {row["backend"] for row in json.loads(found.to_json())["rows"]} == {"eager", "int8", "onnx"}


def test_a_row_without_numbers_has_its_remedy() -> None:
    row = BenchRow(
        backend="onnx", name="ONNX Runtime", error="It isn't installed", next='Type pip install "nbllm[onnx]"'
    )
    assert row.problem == 'It isn\'t installed. Type pip install "nbllm[onnx]"'


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(UsageError, match="int8"):
        compare(tiny(), missing, name="x", prompt=[1], backends=["int9"])
