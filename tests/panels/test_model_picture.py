"""The architecture's picture: true to the summary, escaped, the same in text."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm.inspect.architecture import summarize
from nbllm.panels import show_model
from nbllm.panels.model import as_html


def tiny():
    config = LlamaConfig(
        vocab_size=300, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_the_picture_is_escaped_and_small(capsys):
    model = tiny()
    summary = summarize(model, name="<img src=x>")
    page = as_html(summary)
    assert "<img" not in page
    assert page.count("<details") == 7
    assert "4 heads of 12 · 2 key/value heads" in page
    assert len(page) < 20_000
    show_model(summary)
    said = capsys.readouterr().out
    assert "3 × layer (0 to 2)" in said
    assert f"{model.num_parameters():,} parameters" in said


def test_a_model_without_layers_is_a_tree():
    page = as_html(summarize(torch.nn.Sequential(torch.nn.Linear(3, 4))))
    assert "no layers that could be read" in page
    assert "Linear" in page
