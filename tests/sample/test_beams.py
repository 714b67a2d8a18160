"""Beam search against transformers' own, against the definition, and where it ends early."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from nbllm.errors import DataError
from nbllm.sample import SamplingParameters
from nbllm.sample.beams import Beam, beam_search

PROMPTS = 20


class Recomputed:
    """Rows that keep ids alone and run all of them each step."""

    def __init__(self, logits: Callable[[Tensor], Tensor]) -> None:
        self._logits = logits
        self.ids = torch.zeros(0, 0, dtype=torch.int64)

    def start(self, prompts: Sequence[Sequence[int]], n: int) -> Tensor:
        self.ids = torch.tensor(prompts).repeat_interleave(n, 0)
        return self._logits(self.ids)

    def advance(self, tokens: Tensor) -> Tensor:
        self.ids = torch.cat([self.ids, tokens[:, None]], 1)
        return self._logits(self.ids)

    def select(self, places: Tensor) -> None:
        self.ids = self.ids[places]


def of_model(model: Any) -> Recomputed:
    return Recomputed(lambda ids: model(ids).logits[:, -1].float())


def of_table(logprobs: Callable[[list[int]], list[float]]) -> Recomputed:
    """What comes next by the ids so far."""
    return Recomputed(lambda ids: torch.tensor([logprobs(row) for row in ids.tolist()]))


def transformers_beams(
    model: Any, ids: list[int], parameters: SamplingParameters, eos: Sequence[int]
) -> list[tuple[tuple[int, ...], float]]:
    """Tokens and scores of transformers' own."""
    from transformers import GenerationConfig

    config = GenerationConfig(
        do_sample=False, num_beams=parameters.beams, num_return_sequences=parameters.n, early_stopping=False,
        max_new_tokens=parameters.max_new_tokens, length_penalty=parameters.length_penalty,
        repetition_penalty=parameters.repetition_penalty, eos_token_id=list(eos) or None, pad_token_id=0,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    mask = torch.ones(1, len(ids), dtype=torch.long)
    found = model.generate(torch.tensor([ids]), attention_mask=mask, generation_config=config)
    beams = []
    for row, score in zip(found.sequences[:, len(ids) :].tolist(), found.sequences_scores.tolist(), strict=True):
        ends = [place for place, token in enumerate(row) if token in eos]
        beams.append((tuple(row[: ends[0] + 1] if ends else row), score))
    return beams


@pytest.mark.parametrize("number", range(PROMPTS))
def test_beams_are_transformers_own(model: Any, number: int) -> None:
    draw = random.Random(number)
    ids = [draw.randrange(300) for _ in range(draw.randint(1, 12))]
    parameters = SamplingParameters(
        beams=2 + number % 4, n=1 + number % 2, max_new_tokens=draw.choice([1, 6, 14]),
        length_penalty=[1.0, 0.0, 2.0, -1.0, 0.5][number % 5], repetition_penalty=[1.0, 1.3, 0.8][number % 3],
    )  # fmt: skip
    eos = [draw.randrange(300) for _ in range([0, 1, 3, 30][number % 4])]
    eos += transformers_beams(model, ids, parameters, [])[0][0][2:3]  # one that does come
    wanted = transformers_beams(model, ids, parameters, eos)
    found = beam_search(of_model(model), ids, parameters, eos, None)
    assert [beam.tokens for beam in found] == [tokens for tokens, _ in wanted]
    assert [beam.score for beam in found] == pytest.approx([score for _, score in wanted], rel=1e-5)
    for beam in found:
        assert beam.stop_reason == ("eos" if beam.tokens[-1] in eos else "length")


def test_logprobs_are_the_models_own_and_make_the_score(model: Any) -> None:
    plain = SamplingParameters(beams=3, n=3, max_new_tokens=8, length_penalty=0.7, temperature=5, top_k=1, top_p=0.1)
    penalised = SamplingParameters(beams=3, n=3, max_new_tokens=8, frequency_penalty=1.5, presence_penalty=-0.5)
    for parameters in (plain, penalised):
        for beam in beam_search(of_model(model), [5, 6, 7], parameters, (), None):
            ids = torch.tensor([[5, 6, 7, *beam.tokens]])
            own = model(ids).logits.float().log_softmax(-1)[0, 2:-1]
            wanted = own.gather(1, ids[0, 3:, None])[:, 0].tolist()
            assert list(beam.logprobs) == pytest.approx(wanted, abs=1e-4)
            total = sum(beam.logprobs)
            for place, token in enumerate(beam.tokens):
                times = beam.tokens[:place].count(token)
                total -= parameters.frequency_penalty * times + parameters.presence_penalty * (times > 0)
            assert beam.score == pytest.approx(total / len(beam.tokens) ** parameters.length_penalty, abs=1e-4)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 1.7])
def test_enough_beams_find_the_best_of_all(length_penalty: float) -> None:
    """With as many beams as there are texts nothing is lost: the result is that of trying them all."""

    def logits(ids: list[int]) -> list[float]:
        draw = random.Random(str(ids))
        return [draw.gauss(0, 1.5) for _ in range(4)]

    def score(text: tuple[int, ...]) -> float:
        total = 0.0
        for place, token in enumerate(text):
            total += float(torch.tensor(logits([1, *text[:place]])).double().log_softmax(-1)[token])
        return total / len(text) ** length_penalty

    texts = [text for size in (1, 2, 3) for text in product(range(4), repeat=size)]
    texts = [t for t in texts if 0 not in t[:-1] and (len(t) == 3 or t[-1] == 0)]  # 0 ends a text
    wanted = sorted(texts, key=score, reverse=True)
    parameters = SamplingParameters(beams=len(texts), n=5, max_new_tokens=3, length_penalty=length_penalty)
    found = beam_search(of_table(logits), [1], parameters, {0}, None)
    assert [beam.tokens for beam in found] == wanted[:5]
    assert [beam.score for beam in found] == pytest.approx([score(text) for text in wanted[:5]], abs=1e-5)


def test_one_beam_is_the_most_probable_token_each_time(model: Any) -> None:
    parameters = SamplingParameters(beams=1, max_new_tokens=10, temperature=5, typical_p=0, repetition_penalty=1.2)
    [found] = beam_search(of_model(model), [1, 2, 3], parameters, (), None)
    ids = [1, 2, 3]
    for _ in range(10):
        scores = model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
        scores[ids] *= 1.2
        ids.append(int(scores.argmax()))
    assert list(found.tokens) == ids[3:]


def test_ties_go_to_the_lowest_ids() -> None:
    parameters = SamplingParameters(beams=3, n=3, max_new_tokens=2)
    found = beam_search(of_table(lambda ids: [0.0] * 7), [3], parameters, (), None)
    assert [beam.tokens for beam in found] == [(0, 0), (0, 1), (0, 2)]


def test_a_forbidden_token_is_in_no_beam_and_few_tokens_make_few_beams() -> None:
    never = float("-inf")
    parameters = SamplingParameters(beams=5, n=5, max_new_tokens=1)
    found = beam_search(of_table(lambda ids: [0.0, never, 1.0, never]), [3], parameters, (), None)
    assert [beam.tokens for beam in found] == [(2,), (0,)]
    with pytest.raises(DataError, match="finite"):
        beam_search(of_table(lambda ids: [0.0, float("nan")]), [1], parameters, (), None)


def test_the_context_ends_a_beam(model: Any) -> None:
    parameters = SamplingParameters(beams=2, max_new_tokens=9)
    cut, whole = (beam_search(of_model(model), [1, 2, 3], parameters, (), context)[0] for context in (7, 12))
    assert (len(cut.tokens), cut.stop_reason) == (4, "context")
    assert (len(whole.tokens), whole.stop_reason) == (9, "length")
    full = beam_search(of_model(model), [1, 2, 3], parameters, (), 3)
    assert full == [Beam(tokens=(), logprobs=(), score=0.0, stop_reason="context")]


@pytest.mark.parametrize("how", ["asked", "interrupt", "in the model"])
def test_an_interrupt_keeps_the_best_so_far(model: Any, how: str) -> None:
    parameters = SamplingParameters(beams=4, n=2, max_new_tokens=30)
    seen: list[Beam] = []

    def progress(steps: int, best: Beam) -> None:
        seen.append(best)
        assert len(seen) == steps
        if how == "interrupt" and steps == 5:
            raise KeyboardInterrupt

    def logits(ids: Tensor) -> Tensor:
        if how == "in the model" and ids.shape[1] == 3 + 5:
            raise KeyboardInterrupt
        result: Tensor = model(ids).logits[:, -1].float()
        return result

    found = beam_search(
        Recomputed(logits), [1, 2, 3], parameters, (), None, progress, lambda: how == "asked" and len(seen) == 5
    )
    wanted = beam_search(of_model(model), [1, 2, 3], SamplingParameters(beams=4, n=2, max_new_tokens=5), (), None)
    assert [beam.tokens for beam in found] == [beam.tokens for beam in wanted]
    assert {beam.stop_reason for beam in found} == {"interrupted"}
    assert seen[-1].tokens == found[0].tokens


def test_stopped_before_the_first_step_there_is_nothing(model: Any) -> None:
    found = beam_search(of_model(model), [1], SamplingParameters(beams=2), (), None, should_stop=lambda: True)
    assert found == [Beam(tokens=(), logprobs=(), score=0.0, stop_reason="interrupted")]
