"""Scores of a text's tokens against float64 softmax over the whole text, in windows, in pieces, and where it can't."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import CONTEXT

from nbllm.errors import DataError, UsageError
from nbllm.evaluate import evaluate
from nbllm.sample.score import score
from nbllm.tokenizer import Tokenizer

HARD = "né 👩‍🚀 안녕 e\u0301 <script>alert(1)</script>\n\tThe end"
LONG = "The quick brown fox jumps over the lazy dog. 안녕하세요 👩‍🚀\n" * 9


def expected(model: Any, read: list[int], first: int = 0) -> tuple[list[float], list[int], list[float], np.ndarray]:
    """Logprob, rank and entropy of the tokens after `read[first]`, and the whole distribution, in float64."""
    with torch.no_grad():
        logits = model(torch.tensor([read[:-1]])).logits[0, first:].double()
    logprobs = logits.log_softmax(-1)
    said = torch.tensor(read[first + 1 :])[:, None]
    of_said = logprobs.gather(1, said)
    return (
        of_said[:, 0].tolist(),
        (1 + (logprobs > of_said).sum(-1)).tolist(),
        torch.special.entr(logprobs.exp()).sum(-1).tolist(),
        logprobs.exp().numpy(),
    )


@pytest.fixture(params=[2**24, 700])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Logits at once: all, or those of two tokens."""
    monkeypatch.setattr("nbllm.sample.score._LOGITS", request.param)
    return int(request.param)


def test_numbers_are_the_models(model: Any, tokenizer: Tokenizer, pieces: int) -> None:
    assert tokenizer.bos_id is not None or tokenizer.eos_id is not None
    start = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
    ids = tokenizer.encode(HARD)
    found = score(model, tokenizer, HARD)
    logprobs, ranks, entropies, whole = expected(model, [start, *ids])
    table = found.tokens
    assert table["position"].to_pylist() == list(range(len(ids)))
    assert table["token"].to_pylist() == ids
    assert table["text"].to_pylist() == [tokenizer.token_text(id) for id in ids]
    assert (
        list(zip(table["start"].to_pylist(), table["end"].to_pylist(), strict=True))
        == (tokenizer.encode_with_offsets(HARD)[1])
    )
    np.testing.assert_allclose(table["logprob"], logprobs, atol=1e-4)
    np.testing.assert_allclose(table["probability"], np.exp(logprobs), atol=1e-5)
    assert table["rank"].to_pylist() == ranks
    np.testing.assert_allclose(table["entropy"], entropies, atol=1e-4)
    for position, distribution in enumerate(whole):
        rows = found.at(position)
        best = np.argsort(-distribution)[:10]
        assert [row["token"] for row in rows] == best.tolist()
        np.testing.assert_allclose([row["probability"] for row in rows], distribution[best], atol=1e-5)
        assert [row["chosen"] for row in rows] == (best == ids[position]).tolist()
    total, size = -sum(logprobs), len(HARD.encode())
    assert (found.predicted, found.text_bytes) == (len(ids), size)
    assert found.loss == pytest.approx(total / len(ids), rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(total / len(ids)), rel=1e-4)
    assert found.bits_per_byte == pytest.approx(total / math.log(2) / size, rel=1e-5)


def test_past_the_context_every_token_counts_once(model: Any, tokenizer: Tokenizer, pieces: int) -> None:
    start = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
    read = [start, *tokenizer.encode(LONG)]
    assert len(read) > 3 * CONTEXT
    seen: list[tuple[int, int]] = []
    found = score(model, tokenizer, LONG, progress=lambda done, whole: seen.append((done, whole)))
    assert found.tokens["token"].to_pylist() == read[1:]
    assert found.alternatives.num_rows == 10 * (len(read) - 1)
    assert found.tokens["probability"].null_count == 0
    logprobs = expected(model, read[: CONTEXT + 1])[0]
    done = CONTEXT
    while done < len(read) - 1:  # half of the context stands before the first that is new
        end = min(done + CONTEXT // 2, len(read) - 1)
        begin = end - CONTEXT
        logprobs += expected(model, read[begin : end + 1], done - begin)[0]
        done = end
    np.testing.assert_allclose(found.tokens["logprob"], logprobs, atol=2e-4)
    assert seen[-1] == (len(read) - 1, len(read) - 1)
    whole = evaluate(model, tokenizer, [LONG])
    assert score(model, tokenizer, LONG, end=True).loss == pytest.approx(whole.loss, rel=1e-5)
    assert score(model, tokenizer, LONG, end=True).bits_per_byte == pytest.approx(whole.bits_per_byte, rel=1e-5)


def test_only_a_piece_of_the_logits_is_there_at_once(
    llama: Any, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbllm.sample.score._LOGITS", 8 * tokenizer.vocab_size)
    shapes: list[int] = []
    watch = llama.lm_head.register_forward_hook(lambda _module, _inputs, output: shapes.append(output.shape[1]))
    score(llama, tokenizer, LONG)
    watch.remove()
    assert max(shapes) == 8
    # the first half of a later window makes keys and values only: eight tokens a piece, the logits of one
    assert shapes.count(1) >= 5


def test_a_model_without_a_cache_is_read_at_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbllm.sample.score._LOGITS", 3 * tokenizer.vocab_size)
    table = torch.randn(tokenizer.vocab_size, tokenizer.vocab_size)

    class Bigrams(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(1, 1)
            self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=tokenizer.vocab_size))

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.embedding

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
            return SimpleNamespace(logits=table[input_ids])

    model: Any = Bigrams().train()
    found = score(model, tokenizer, "The quick brown fox")
    assert model.training
    ids = tokenizer.encode("The quick brown fox")
    before = [tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id, *ids[:-1]]
    logprobs = table.double().log_softmax(-1)[torch.tensor(before), torch.tensor(ids)]
    np.testing.assert_allclose(found.tokens["logprob"], logprobs, atol=1e-5)


def test_without_a_token_before_it_the_first_is_given(llama: Any, tokenizer: Tokenizer) -> None:
    bare = Tokenizer(tokenizer._definition, config={}, name="bare")
    assert bare.bos_id is bare.eos_id is None
    found = score(llama, bare, "The fox")
    ids = bare.encode("The fox")
    assert found.tokens["probability"].to_pylist()[0] is None
    assert found.tokens["rank"].to_pylist()[0] is None
    assert found.at(0) == []
    assert found.at(1)[0]["position"] == 1
    logprobs = expected(llama, ids)[0]
    np.testing.assert_allclose(found.tokens["logprob"].to_pylist()[1:], logprobs, atol=1e-4)
    assert (found.predicted, found.text_bytes) == (len(ids) - 1, 7 - len(bare.token_bytes(ids[0])))
    assert "given, not predicted" in found._repr_html_()
    with pytest.raises(DataError, match="no token to predict"):
        score(llama, bare, "T")


def test_what_cant_be_scored(llama: Any, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="no token to predict"):
        score(llama, tokenizer, "")
    with pytest.raises(UsageError, match="context is from 2 to 96"):
        score(llama, tokenizer, "The", context=CONTEXT + 1)
    with pytest.raises(UsageError, match="run from 0 to"):
        score(llama, tokenizer, "The").at(99)
    small = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=5)))
    with pytest.raises(UsageError, match="vocabulary has 5 tokens"):
        score(small, tokenizer, "The")  # type: ignore[arg-type]


def test_logits_that_arent_numbers(tokenizer: Tokenizer) -> None:
    from tiny_models import build

    model = build("llama", tokenizer)
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    with pytest.raises(DataError, match="aren't finite"):
        score(model, tokenizer, "The")


def test_faces(llama: Any, tokenizer: Tokenizer) -> None:
    found = score(llama, tokenizer, "The fox\n")
    assert str(found).startswith(f"{len(found.tokens)} tokens · loss {found.loss:.3f} nats a token · perplexity ")
    assert repr(found).startswith("Score('The fox\\n', ")
    assert found._repr_html_() == found.coloured("probability")._repr_html_() != found.coloured("rank")._repr_html_()
    with pytest.raises(UsageError, match="Did you mean entropy"):
        found.coloured("entropi")
