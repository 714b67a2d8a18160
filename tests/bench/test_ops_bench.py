"""The fused ops measured in small: rows with numbers and errors, what auto takes because of them, and how they show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from nbllm.bench import ops as bench
from nbllm.bench.op_forms import Form, Op, Shapes
from nbllm.bench.op_result import OpRow, OpsBench
from nbllm.ops import chosen

SMALL = Shapes(rows=64, width=24, inner=40, vocabulary=50, heads=3, key_heads=1, head_size=8)


@pytest.fixture(scope="module")
def found() -> OpsBench:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "_TURN_S", 0.001)
        patch.setattr(bench, "bandwidth", lambda device: 1e10)
        return bench.compare_ops(shapes=SMALL, device="cpu", compile=False, rounds=2)


def test_every_form_that_can_be_had_is_right_and_has_numbers(found: OpsBench) -> None:
    forms = {(row.op, row.form) for row in found.rows}
    names = ("linear_loss", "add_rms_norm", "rms_norm", "swiglu", "rope")
    assert {(name, form) for name in names for form in ("eager", "nbllm")} <= forms
    assert ("rms_norm", "PyTorch") in forms
    assert ("linear_loss", "PyTorch") in forms
    assert not any(form in ("compiled", "Liger", "nbllm Triton") for _, form in forms)
    for row in found.rows:
        assert row.right is True, row
        assert row.ms is not None
        assert row.ms > 0
        assert (row.gb_per_s is None) is (row.op == "linear_loss")
        assert (row.tflop_per_s is None) is not (row.op == "linear_loss")
        assert row.memory_bytes is not None


def test_memory_is_what_tensors_took(found: OpsBench) -> None:
    held = {(row.op, row.form): row.memory_bytes for row in found.rows}
    # without logits and their gradients: 64 rows fit one chunk, which is then all that is held of them
    assert held["linear_loss", "nbllm"] < held["linear_loss", "eager"]
    gate = 64 * 40 * 4
    assert held["swiglu", "eager"] >= 3 * gate


def test_without_a_gpu_auto_takes_the_loss_without_logits_and_the_models_own_layers(found: OpsBench) -> None:
    used = {row.op: row.form for row in found.rows if row.used}
    assert used == {
        "linear_loss": "nbllm", "add_rms_norm": "eager", "rms_norm": "eager", "swiglu": "eager", "rope": "eager",
    }  # fmt: skip
    assert found.kept is None
    assert "the kernels need a GPU" in found.outcome
    assert chosen() == frozenset()


def row(op: str, form: str, ms: float | None, *, right: bool = True) -> OpRow:
    return OpRow(op=op, title=op, shape="1 x 1", form=form, ms=ms, right=right)


def test_a_kernel_is_taken_where_it_is_right_and_faster_than_everything_in_its_place() -> None:
    times = {"eager": 3.0, "compiled": 2.0, "nbllm": 9.0}

    def rows(op: str, ms: float | None, **more: Any) -> list[OpRow]:
        return [*(row(op, form, value) for form, value in times.items()), row(op, "nbllm Triton", ms, **more)]

    assert bench._faster([*rows("swiglu", 1.0), *rows("rope", 2.5), *rows("linear_loss", 8.0)]) == {
        "swiglu", "linear_loss",
    }  # fmt: skip
    assert bench._faster(rows("swiglu", 1.0, right=False)) == frozenset()
    assert bench._faster(rows("swiglu", None)) == frozenset()
    assert bench._faster([*rows("rms_norm", 1.0), *rows("add_rms_norm", 2.5)]) == frozenset()  # they are one kernel
    assert bench._faster([*rows("rms_norm", 1.0), *rows("add_rms_norm", 1.5)]) == {"rms_norm"}


def test_what_fails_and_what_is_wrong_are_rows_that_say_so() -> None:
    def broken(*inputs: Any) -> Any:
        raise RuntimeError("no <compiler> here\nand more")

    inputs = tuple(torch.randn(4, 6, requires_grad=True) for _ in range(2))
    forms = (
        Form(name="eager", call=lambda a, b: a * b),
        Form(name="compiled", call=broken),
        Form(name="nbllm", call=lambda a, b: a * b * 1.01),
        Form(name="nbllm Triton", call=broken, error="Triton isn't installed"),
    )
    op = Op(
        name="swiglu", title="gate", inputs=inputs, rows_at=(0, 0), forms=forms, bytes_moved=1.0, operations=0.0,
        shape="4 x 6",
    )  # fmt: skip
    eager, compiled, ours, kernel = bench._measure(op, "cpu", 1e10, 1e11, 2)
    assert eager.right is True
    assert compiled.problem == "RuntimeError: no <compiler> here"
    assert ours.right is False
    assert kernel.problem == "Triton isn't installed"
    shown = OpsBench(
        device="a <b> device", dtype="fp32", bandwidth_bytes_per_s=1e10, peak_flop_per_s=1e11,
        rows=(eager, compiled, ours, kernel),
    )  # fmt: skip
    assert " over" in str(shown)
    assert shown.wrong == [ours]
    html = shown._repr_html_()
    assert "no &lt;compiler&gt; here" in html
    assert "a &lt;b&gt; device" in html
    assert "<b>" not in html
    assert "<svg" in html


def test_both_faces_and_json_have_every_row(found: OpsBench, tmp_path: Path) -> None:
    text, html = str(found), found._repr_html_()
    for one in found.rows:
        assert one.title in text
        assert one.title in html
    assert found.outcome in text
    assert len(json.loads(found.to_json(tmp_path / "ops.json"))["rows"]) == len(found.rows)
    assert (tmp_path / "ops.json").is_file()
    kept = replace(found, kept="/somewhere/ops.json")
    assert "kept in /somewhere/ops.json" in kept.outcome


def test_shapes_are_the_models() -> None:
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, vocab_size=77, head_dim=20
    )
    shapes = Shapes.of(config, device="cpu")
    assert (shapes.width, shapes.inner, shapes.vocabulary) == (64, 96, 77)
    assert (shapes.heads, shapes.key_heads, shapes.head_size) == (4, 2, 20)
    assert (shapes.rows, shapes.loss_rows) == (4096, 512)
    assert Shapes.of(None, device="cuda") == Shapes(rows=16_384)


def test_the_magic_and_the_session_ask_for_it(tiny_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbllm.commands.base import Call
    from nbllm.commands.bench import COMMAND

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(bench, "compare_ops", lambda **options: asked.append(options) or "measured")
    session = tiny_session()
    arguments = COMMAND.parse("--ops --no-compile")
    assert COMMAND.run(Call(session=session, arguments=arguments, write=lambda text: None)) == "measured"
    assert asked[0]["compile"] is False
    assert asked[0]["shapes"].width == 32
    session.model = None
    assert session.bench(ops=True) == "measured"
    assert asked[1]["shapes"] == Shapes.of(None, device="cpu")
