"""A benchmark of a tiny model: rows with numbers, rows that say why they have none, and how they show."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm.bench import Bench, BenchRow
from nbllm.bench.compare import Source, compare
from nbllm.bench.measure import decode
from nbllm.errors import UsageError
from nbllm.sample.forward import Forward


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
    assert eager.first_difference is None
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


def test_load_and_memory_are_measured_alone(tmp_path: Path) -> None:
    model = tiny()
    model.save_pretrained(tmp_path)
    options: dict[str, Any] = {"name": "x", "prompt": [1], "new_tokens": 3, "batch": (1,)}
    found = compare(model, missing, backends=["int8"], source=Source(path=str(tmp_path)), **options)
    (row,) = found.rows
    assert row.error is None
    assert row.load_s is not None
    assert row.load_s > 0
    assert row.peak_bytes is not None
    found = compare(model, missing, backends=["eager"], source=Source(path=str(tmp_path / "none")), **options)
    assert found.rows[0].load_s is None
    assert "load not measured" in found.rows[0].note


def test_a_row_for_a_step_that_is_not_compiled_has_no_numbers() -> None:
    options: dict[str, Any] = {"name": "x", "prompt": [1], "new_tokens": 3, "batch": (1,), "backends": ["compiled"]}
    (row,) = compare(tiny(), missing, **options).rows
    assert row.error == "The step isn't compiled: NBLLM_COMPILE is off"
    assert not row.tokens_per_s
    (row,) = compare(tiny(), missing, compile=False, **options).rows
    assert row.problem == "Compiling wasn't to be waited for. Leave --no-compile out"


def test_a_program_that_ends_sooner_agrees_no_further() -> None:
    class Short:
        def generate(self, prompts: Any, parameters: Any) -> Any:
            return [SimpleNamespace(tokens=wanted[:2], tokens_per_s=5.0)]

    wanted = compare_tokens(tiny(), [1], 4)
    (row,) = compare(tiny(), lambda _: Short(), name="x", prompt=[1], new_tokens=4, batch=(1,), backends=["vllm"]).rows
    assert row.agreement is None  # it can't be asked for one token at a time
    assert row.first_difference is not None
    assert str(row.first_difference) == "ends after 2"


def test_one_near_tie_costs_one_token_and_is_shown_as_one() -> None:
    model = tiny()

    class Rows:
        def __init__(self) -> None:
            self.rows, self.count = Forward(model).rows(), 0

        def start(self, prompts: Any, n: int) -> Any:
            return self.other(self.rows.start(prompts, n))

        def advance(self, tokens: Any) -> Any:
            return self.other(self.rows.advance(tokens))

        def select(self, places: Any) -> None:
            self.rows.select(places)

        def other(self, logits: Any) -> Any:
            """The second best first, at the third token only."""
            self.count += 1
            if self.count == 3:
                logits[0, logits[0].topk(2).indices[1]] += 10
            return logits

    class Tied:
        name, vocab_size, context, device, eos_ids = "tied", 288, 32, torch.device("cpu"), frozenset[int]()

        def rows(self) -> Rows:
            return Rows()

    wanted = compare_tokens(model, [1], 6)
    (row,) = compare(model, lambda _: Tied(), name="x", prompt=[1], new_tokens=6, batch=(1,), backends=["onnx"]).rows
    assert row.agreement == (5, 6)
    assert row.first_difference is not None
    assert row.first_difference.token == 2
    with torch.no_grad():
        shares = model(torch.tensor([[1, *wanted[:2]]])).logits[0, -1].softmax(-1).topk(2).values.tolist()
    assert [row.first_difference.wanted, row.first_difference.chosen] == pytest.approx(shares, rel=1e-4)


def compare_tokens(model: Any, prompt: list[int], count: int) -> tuple[int, ...]:
    return decode(Forward(model), prompt, 1, count).tokens
