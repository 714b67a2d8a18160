"""Loss, perplexity and bits a byte against sums taken one document at a time; compressors against their programs."""

from __future__ import annotations

import gzip
import lzma
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm.errors import DataError, UsageError
from nbllm.evaluate import EvalResult, compressed_bits_per_byte, evaluate, evaluate_stream
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, train

CONTEXT = 32
TEXTS = ["The quick brown fox jumps.", "", "안녕 👩‍🚀", "def next(self): return self.value\n", "x"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return train(Store(tmp_path_factory.mktemp("store")), TEXTS * 9, text_bytes=900, vocab_size=300, name="tiny")


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=CONTEXT, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def nats(model: Any, ids: list[int], first: int = 0) -> float:
    """Minus the log probability of the ids after `ids[first]`, in float64 sums."""
    with torch.no_grad():
        found = model(torch.tensor([ids[:-1]])).logits[0].double().log_softmax(-1)
    return -float(found.gather(1, torch.tensor(ids[1:])[:, None])[first:].sum())


def test_documents_stand_alone(model: Any, tokenizer: Tokenizer) -> None:
    found = evaluate(model, tokenizer, TEXTS)
    documents = [text for text in TEXTS if text]
    ids = [[tokenizer.bos_id or 0, *tokenizer.encode(text), tokenizer.eos_id or 0] for text in documents]
    total, count = sum(nats(model, one) for one in ids), sum(len(one) - 1 for one in ids)
    size = sum(len(text.encode()) for text in documents)
    assert (found.tokens, found.text_bytes, found.documents) == (count, size, 4)
    assert found.loss == pytest.approx(total / count, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(total / count), rel=1e-4)
    assert found.bits_per_byte == pytest.approx(total / math.log(2) / size, rel=1e-5)
    assert evaluate(model, tokenizer, TEXTS[::-1]).loss == pytest.approx(found.loss, rel=1e-6)


def test_long_documents_are_read_in_windows(model: Any, tokenizer: Tokenizer) -> None:
    text = "abcdefghijklmnopqrstuvwxyz" * 4
    ids = [tokenizer.bos_id or 0, *tokenizer.encode(text), tokenizer.eos_id or 0]
    total, done, end = 0.0, 0, CONTEXT
    while done < len(ids) - 1:
        begin = end - CONTEXT
        total += nats(model, ids[begin : end + 1], done - begin)
        done, end = end, min(end + CONTEXT // 2, len(ids) - 1)
    found = evaluate(model, tokenizer, [text])
    assert found.tokens == len(ids) - 1 > 2 * CONTEXT
    assert found.loss == pytest.approx(total / found.tokens, rel=1e-5)
    with pytest.raises(UsageError, match="from 2 to 32"):
        evaluate(model, tokenizer, [text], context=33)
    steps: list[tuple[int, int]] = []
    evaluate(model, tokenizer, [text], context=8, progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (found.tokens, found.tokens)


def test_a_part_of_the_shards_gives_the_same(model: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    from nbllm.shards import build

    texts = [text for text in TEXTS if text]
    shards = build(Store(tmp_path / "s"), tokenizer, train=["a"], held_out=texts, parents=(), parameters={})
    whole = evaluate(model, tokenizer, texts)
    found = evaluate_stream(model, shards.held_out, seq_len=CONTEXT)
    assert (found.tokens, found.text_bytes, found.documents) == (whole.tokens, whole.text_bytes, whole.documents)
    # rows cut documents, so the numbers are near, not equal
    assert found.loss == pytest.approx(whole.loss, rel=0.05)
    assert found.bits_per_byte == pytest.approx(found.loss * found.tokens / math.log(2) / found.text_bytes)
    row = evaluate_stream(model, shards.held_out, seq_len=CONTEXT, max_rows=1)
    assert 0 < row.tokens < found.tokens


def test_the_model_keeps_its_mode(model: Any, tokenizer: Tokenizer) -> None:
    model.train()
    try:
        assert evaluate(model, tokenizer, ["abc"]).tokens > 1
        assert model.training
    finally:
        model.eval()


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_no_text(model: Any, tokenizer: Tokenizer, texts: list[str]) -> None:
    with pytest.raises(DataError, match="no text"):
        evaluate(model, tokenizer, texts)
    if not "".join(texts):
        with pytest.raises(DataError, match="no text"):
            compressed_bits_per_byte(texts[:1])


def test_a_tokenizer_of_another_model(tokenizer: Tokenizer) -> None:
    small: Any = LlamaForCausalLM(
        LlamaConfig(vocab_size=50, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    with pytest.raises(UsageError, match="vocabulary has 50 tokens"):
        evaluate(small, tokenizer, TEXTS)


def test_faces() -> None:
    found = EvalResult(loss=2.5, bits_per_byte=1.25, tokens=1000, text_bytes=4000, documents=3)
    assert "2.5000 nats a token" in str(found)
    assert "12.18" in str(found)
    assert "3 documents, 4,000 bytes, 1,000 tokens" in found._repr_html_()
    assert EvalResult(loss=1e6, bits_per_byte=1, tokens=1, text_bytes=1, documents=1).perplexity == math.inf


def test_compressors_are_the_programs() -> None:
    from pydoc_data import topics

    texts = list(topics.topics.values())[:30]
    content = "\n".join(texts).encode()
    found = compressed_bits_per_byte(iter(texts))
    assert found["gzip"] == 8 * len(gzip.compress(content, 9, mtime=0)) / len(content)
    assert found["xz"] == pytest.approx(8 * len(lzma.compress(content, preset=9)) / len(content), rel=1e-3)
    assert 1 < found["xz"] < found["gzip"] < 4
    for name in ("xz", "gzip"):
        if shutil.which(name):
            size = len(subprocess.run([name, "-9c"], input=content, capture_output=True, check=True).stdout)
            assert found[name] == pytest.approx(8 * size / len(content), rel=2e-3)
