"""Looking inside through a session: the current model, adapters, errors; the magics give the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nbllm.errors import NotFoundError, UsageError
from nbllm.files import write_json
from nbllm.sessions import ModelReference, Session


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


@pytest.fixture
def trained(session: Session) -> Session:
    """With a run of two checkpoints as the current model: a model, and the same with other weights in its layers."""
    import torch

    model, tokenizer = session.load_model()
    with session.store.create("run", "nano", parameters={}) as draft:
        for step in (10, 20):
            folder = draft.folder / "checkpoints" / f"step-{step:08d}"
            model.save_pretrained(folder)
            tokenizer.save(folder)
            weights = (folder / "model.safetensors").read_bytes()
            files = {"model.safetensors": {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}}
            record = {"step": step, "generation": 1, "eval_loss": None, "bits_per_byte": None, "files": files}
            write_json(folder / "checkpoint.json", record)
            with torch.no_grad():
                for weight in model.model.layers.parameters():
                    weight += 0.3 * torch.randn_like(weight)
    session.free()
    session.model = ModelReference(kind="run", source="nano")
    return session


def test_a_slider_over_checkpoints_moves_the_attention_panel(trained: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbllm.panels.attention import AttentionPanel
    from nbllm.panels.attention_view import Side, Wanted

    text = "the fox of the queue"
    maps = {step: trained.attention(text, checkpoint=step).weights(1, 1) for step in (10, 20)}
    assert np.abs(maps[10] - maps[20]).max() > 0.01
    panel = AttentionPanel(trained, [Side(wanted=Wanted(text=text), maps=trained.attention(text))], layer=1, head=1)
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(panel, "send", lambda content, buffers=None: told.append(content), raising=False)
    panel._obey({"do": "choices"})
    assert told[-1]["state"]["choices"]["checkpoints"] == [10, 20]
    for step in (10, 20, 10):
        panel._obey({"do": "look", "wanted": {"checkpoint": step}})
        assert told[-1]["sides"][0]["checkpoint"] == step
        assert told[-1]["state"]["layer"] == 1
        np.testing.assert_allclose(panel.sides[0].weights(1, 1), maps[step], atol=1e-6)
    panel.close()


def test_a_slider_over_checkpoints_moves_the_lens(trained: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbllm.panels.lens import LensPanel

    text = "the fox of the queue"
    lenses = {step: trained.logit_lens(text, checkpoint=step).top_probabilities for step in (10, 20)}
    panel = LensPanel(trained, trained.logit_lens(text), text=text)
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(panel, "send", lambda content, buffers=None: told.append(content), raising=False)
    for step in (10, 20):
        panel._look({"checkpoint": step})
        assert told[-1]["state"]["checkpoints"] == [10, 20]
        assert told[-1]["state"]["checkpoint"] == step
        np.testing.assert_allclose(panel.lens.top_probabilities, lenses[step], atol=1e-6)
    assert np.abs(lenses[10] - lenses[20]).max() > 0.001
    panel.close()


def test_scores_along_training_are_those_of_each_checkpoint(trained: Session) -> None:
    text = "the fox of the queue the fox of"
    found = trained.head_scores(text)
    assert found["step"].to_pylist() == [10] * 4 + [20] * 4
    for step in (10, 20):
        alone = trained.attention(text, checkpoint=step).scores["induction"].to_pylist()
        rows = [row["induction"] for row in found.to_pylist() if row["step"] == step]
        np.testing.assert_allclose(rows, alone, atol=1e-6)
