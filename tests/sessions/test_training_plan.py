"""`--dry-run` of a training: what it says, that it starts nothing, and what it refuses."""

from pathlib import Path

import pytest

from nbllm.errors import DataError, UsageError
from nbllm.sessions import Session
from nbllm.store import Store
from nbllm.train import runs


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = Session(Store(tmp_path / ".nbllm"), "test")
    lines = [f"Document {number} says that the quick brown fox jumps over dog {number}." for number in range(200)]
    session.clean(texts=lines, recipe="none", name="docs")
    session.train_tokenizer(vocab_size=300, name="words")
    return session


def test_a_dry_run_says_what_it_takes_and_starts_nothing(session: Session) -> None:
    plan = session.train(dry_run=True, steps=7, seq_len=32, batch_size=4, name="planned", precision="fp32")
    found = plan.forecast
    assert (found.total_steps, found.tokens) == (7, 7 * 4 * 32)
    assert (found.optimizer, found.precision, found.timed, found.fits) == ("muon", "fp32", True, True)
    assert found.parameters == found.memory.weights // 4
    assert 100e6 < found.memory.base < 1e9
    assert plan.memory["peak"] == found.memory.peak
    text = str(plan)
    for part in (
        "llama-nano: ",
        "7 steps of 128 tokens",
        "weights",
        "activations",
        "It fits: ",
        "Nothing was started.",
    ):
        assert part in text
    assert "-m nbllm.train.worker" in text
    assert str(session.store.path("run", "planned")) in text
    assert '"num_processes": 1' in text
    assert "<strong>It fits: " in plan._repr_html_()
    assert not runs(session.store)
    assert session.run is None
    with pytest.raises(DataError, match=r"fewer than one sequence of 200,000"):
        session.train(dry_run=True, seq_len=200_000)


def test_what_a_run_would_refuse_is_refused_before_anything_is_worked_out(session: Session) -> None:
    with pytest.raises(UsageError, match="mask token"):
        session.train(dry_run=True, model="bert-nano")
