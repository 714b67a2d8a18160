"""The architecture as it is read: totals, heads, windows, experts, FLOPs as PyTorch counts them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from nbllm.inspect.architecture import summarize
from nbllm.store import Store
from nbllm.tokenizer import train

sys.path.insert(0, str(Path(__file__).parents[1] / "sample"))
from tiny_models import family


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    texts = ["The quick brown fox jumps over the lazy dog."] * 40
    return train(Store(tmp_path_factory.mktemp("store")), texts, text_bytes=3000, vocab_size=300, name="tiny")


def facts(summary, kind):
    return [part.facts for group in summary.layers for part in group.parts if part.kind == kind]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3", "mixtral", "gemma3"])
def test_totals_and_flops(kind, tokenizer):
    model = family(kind, tokenizer)
    model.set_attn_implementation("eager")
    if kind == "mixtral":
        model.config._experts_implementation = "eager"
    summary = summarize(model, tokens=64)
    assert sum(len(group.numbers) for group in summary.layers) == 3
    parts = [*summary.before, *summary.after]
    total = sum(part.parameters for part in parts)
    total += sum(len(group.numbers) * part.parameters for group in summary.layers for part in group.parts)
    assert total == summary.parameters == model.num_parameters()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(64)[None], use_cache=False)
    assert summary.flops == pytest.approx(counter.get_total_flops() / 64, rel=0.01)


def test_what_is_read(tokenizer):
    assert facts(summarize(family("llama", tokenizer)), "attention") == [("4 heads of 12", "2 key/value heads")]
    assert ("4 experts, 2 a token", "gated") in facts(summarize(family("mixtral", tokenizer)), "feed_forward")
    gemma = summarize(family("gemma3", tokenizer))
    assert [group.numbers for group in gemma.layers] == [(0, 2), (1,)]
    assert "window of 16 tokens" in facts(gemma, "attention")[0]
    gpt2 = family("gpt2", tokenizer)
    summary = summarize(gpt2)
    assert summary.after[-1].facts == ("tied: shares the embedding's weights",)
    assert summary.after[-1].parameters == 0
    stats = summary.stats(summary.after[0].id)[0]
    assert (stats.mean, stats.std, stats.zeros, sum(stats.histogram)) == (1.0, 0.0, 0.0, 48)


def test_what_isnt_read_is_a_tree():
    shape = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 300}
    summary = summarize(transformers.T5ForConditionalGeneration(transformers.T5Config(**shape)).eval())
    assert summary.layers == ()
    assert summary.tree
    assert summary.parameters > 0
