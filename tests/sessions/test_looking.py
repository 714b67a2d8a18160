"""Looking inside through a session: the current model, adapters, errors; the magics give the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nbllm.errors import NotFoundError, UsageError
from nbllm.sessions import Session


@pytest.fixture
def session(tiny_session: Callable[..., Session]) -> Session:
    """With a tiny random model of two layers as the current one."""
    return tiny_session(max_position_embeddings=64, initializer_range=0.2, num_hidden_layers=2)


def test_attention_of_the_current_model_is_its_eager_attention(session: Session) -> None:
    import torch

    maps = session.attention("the fox of the queue")
    assert (maps.layers, maps.heads, maps.model) == (2, 2, "model")
    model, _ = session.load_model()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(input_ids=torch.tensor([maps.token_ids]), output_attentions=True, use_cache=False).attentions
    for layer in range(2):
        np.testing.assert_allclose(maps.layer(layer), eager[layer][0].numpy(), atol=1e-5)


def test_a_head_is_switched_off_until_the_model_is_released(session: Session) -> None:
    maps = session.attention("the fox of the queue")
    found = maps.next_tokens(without=[(1, 0)], top=300)
    assert sum(token.probability for token in found) == pytest.approx(1, abs=1e-4)
    assert sum(token.without for token in found) == pytest.approx(1, abs=1e-4)
    assert any(abs(token.probability - token.without) > 1e-6 for token in found)
    assert session.free() == 1
    with pytest.raises(NotFoundError, match="released"):
        maps.next_tokens(without=[(1, 0)])


def test_the_lens_ends_with_what_the_model_says(session: Session) -> None:
    lens = session.logit_lens("the fox of the", top=3)
    assert lens.rows == ("embedding", "0", "1")
    next_token = session.attention("the fox of the").next_tokens(top=1)[0]
    assert int(lens.top_ids[-1, -1, 0]) == next_token.token_id
    assert float(lens.top_probabilities[-1, -1, 0]) == pytest.approx(next_token.probability, rel=1e-4)


def test_the_architecture_counts_the_models_parameters(session: Session) -> None:
    model, _ = session.load_model()
    assert session.model_summary().parameters == model.num_parameters()


def test_scores_along_training_need_a_run(session: Session) -> None:
    with pytest.raises(UsageError, match="Only a run has checkpoints"):
        session.head_scores("the fox")
    with pytest.raises(UsageError, match="longer than the model's context"):
        session.attention("the " * 400)
