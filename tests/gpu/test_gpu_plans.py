"""Each parallel plan on GPUs: `pytest -m gpu`. With fewer than two devices these fail and say so, they never pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbllm.sessions import Session
from nbllm.store import Store

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
SETTING = {"seq_len": 64, "steps": 20, "precision": "fp32", "optimizer": "adamw", "eval_every": 10, "save_every": 10}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.fail(f"{torch.cuda.device_count()} CUDA devices here, two are needed: nothing was checked")
    session = Session(Store(tmp_path / ".nbllm"), "gpu")
    texts = [f"Return item number {number} of the list, or raise an IndexError that names it." for number in range(800)]
    session.clean(texts=texts, recipe="none", name="small")
    session.train_tokenizer(vocab_size=400)
    return session


@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "tp", "pp"])
def test_each_plan_trains_what_one_device_trains(session: Session, parallel: str) -> None:
    rows = 4 if parallel in ("ddp", "fsdp") else 8  # tp and pp read the same rows on every device
    one = session.train(processes=1, batch_size=8, name="one", wait=True, **SETTING)
    two = session.train(processes=2, batch_size=rows, parallel=parallel, name="two", wait=True, **SETTING)
    start = two.events("start")[0]
    assert (start["world_size"], start["parallel"], start["global_batch"]) == (2, parallel, 8)
    expected, found = (run.metrics().column("loss").to_pylist() for run in (one, two))
    assert found == pytest.approx(expected, rel=1e-3)


def test_four_devices_train_on_a_grid(session: Session) -> None:
    import torch

    if torch.cuda.device_count() < 4:
        pytest.fail(f"{torch.cuda.device_count()} CUDA devices here, four are needed: nothing was checked")
    run = session.train(processes=4, batch_size=4, parallel="fsdp,tp", wait=True, **SETTING)
    assert run.events("start")[0]["wrapper"] == "FSDPLossModel over DTensor"
