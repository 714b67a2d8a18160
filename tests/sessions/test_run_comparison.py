"""Runs in a table and side by side, from their files."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nbllm.errors import NotFoundError, UsageError
from nbllm.files import write_json
from nbllm.sessions import Session
from nbllm.store import Manifest, Store, now
from nbllm.train import TrainConfig
from nbllm.train.phase import RunState, write_state


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session with two ended runs."""
    store = Store(tmp_path / ".nbllm")
    for name, lr, loss in (("slow", 0.001, 3.5), ("fast", 0.01, 2.5)):
        folder = store.path("run", name)
        folder.mkdir(parents=True)
        config = TrainConfig(shards="none", store_root=str(store.root), steps=20, lr=lr).as_json()
        manifest = Manifest(kind="run", name=name, hash="0", created=now(), parameters=config)
        write_json(folder / "manifest.json", asdict(manifest))
        write_json(folder / "config.json", config)
        write_state(folder, RunState(phase="done"))
        events = [
            {"kind": "start", "generation": 0, "step": 0, "total_steps": 20},
            {"kind": "eval", "step": 10, "eval_loss": loss - 0.5, "bits_per_byte": 2.0},
            {"kind": "step", "step": 20, "loss": loss, "seconds": 61.0, "tokens_per_s": 12_345.6},
            {"kind": "eval", "step": 20, "eval_loss": loss, "bits_per_byte": 2.25},
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return Session(store, "test")


def test_a_table_of_runs(session: Session) -> None:
    table = session.run_table()
    assert len(table) == 2
    row = dict(zip(table.head, next(row for row in table.rows if row[0] == "slow"), strict=True))
    assert row["model"] == "llama-nano"
    assert row["step"] == "20 / 20"
    assert (row["train loss"], row["held-out"], row["best"]) == ("3.500", "3.500", "3.000")
    assert (row["bits a byte"], row["tokens/s"], row["time"]) == ("2.250", "12,346", "61 s")
    assert "slow" in str(table)
    assert "<td style='text-align:left'>fast</td>" in table._repr_html_()


def test_a_comparison_names_what_was_asked_differently(session: Session) -> None:
    found = session.compare_runs("fast", "slow")
    assert found.differences == {"lr": ("0.01", "0.001")}
    assert [row[0] for row in found.table.rows] == ["fast", "slow"]
    assert "--lr: 0.01 | 0.001" in str(found)
    with pytest.raises(UsageError, match="two runs"):
        session.compare_runs("fast")
    with pytest.raises(UsageError, match="not with itself"):
        session.compare_runs("fast", "fast")
    with pytest.raises(NotFoundError, match="Did you mean fast"):
        session.compare_runs("fats", "slow")


def test_no_runs_say_how_to_start_one(tmp_path: Path) -> None:
    table = Session(Store(tmp_path / ".nbllm"), "test").run_table()
    assert str(table) == "There are no runs yet. Start one with %llm_train."
    assert "%llm_train" in table._repr_html_()
