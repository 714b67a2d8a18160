"""Loss, perplexity and bits a byte against sums taken one document at a time; compressors against their programs."""

from __future__ import annotations

import copy
import gzip
import lzma
import math
import shutil
import subprocess
from typing import Any

import pytest
import torch
from conftest import CONTEXT, TEXTS
from transformers import LlamaConfig, LlamaForCausalLM

from nbllm.errors import DataError, UsageError
from nbllm.evaluate import EvalResult, compressed_bits_per_byte, evaluate
from nbllm.tokenizer import Tokenizer


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


def exact(model: Any, ids: list[int]) -> list[float]:
    """Minus the log probability of each id after the first, one window and one row at a time, all in float64."""
    found: list[float] = []
    double: Any = copy.deepcopy(model).double()
    while len(found) < len(ids) - 1:
        done = len(found)
        end = min(CONTEXT if not done else done + CONTEXT // 2, len(ids) - 1)
        window = ids[max(0, end - CONTEXT) : end + 1]
        with torch.no_grad():
            logprobs = double(torch.tensor([window[:-1]])).logits[0].log_softmax(-1)
        all_of_it = (-logprobs.gather(1, torch.tensor(window[1:])[:, None])[:, 0]).tolist()
        found += all_of_it[len(all_of_it) - (end - done) :]
    return found


def test_every_byte_counts_once_whatever_the_window_and_the_batch(
    model: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # characters of two to four bytes, most of them several tokens: windows begin and end inside of them
    texts = ["né 👩‍🚀안녕" * count + "x" * (count % 3) for count in range(1, 9)]
    encoded = [[tokenizer.bos_id or 0, *tokenizer.encode(text), tokenizer.eos_id or 0] for text in texts]
    assert any(CONTEXT < len(ids) < 2 * CONTEXT for ids in encoded)
    assert max(map(len, encoded)) > 2 * CONTEXT
    torn = [ids[:end] for ids in encoded for end in range(CONTEXT, len(ids), CONTEXT // 2)]
    assert any("\ufffd" in tokenizer.decode(ids) for ids in torn)
    sums = [exact(model, ids) for ids in encoded]
    nats, size = sum(map(sum, sums)), sum(len(text.encode()) for text in texts)
    found = {}
    for logits in (1, 5000, 20000, 2**26):  # one row at a time, a few, all
        monkeypatch.setattr("nbllm.evaluate.text._LOGITS", logits)
        found[logits] = evaluate(model, tokenizer, texts)
        assert (found[logits].tokens, found[logits].text_bytes) == (sum(map(len, sums)), size)
        assert found[logits].bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-6)
    assert len({round(one.bits_per_byte, 6) for one in found.values()}) == 1
    # documents are counted by what they are, not by how many: together they are the weighted mean
    apart = [evaluate(model, tokenizer, [text]) for text in texts]
    assert found[2**26].bits_per_byte == pytest.approx(
        sum(one.bits_per_byte * one.text_bytes for one in apart) / size, rel=1e-6
    )


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
