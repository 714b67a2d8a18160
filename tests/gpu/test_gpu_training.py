"""Training and sampling on a CUDA device: `pytest -m gpu`. Without a device these fail and say so, they never pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbllm.sessions import Session
from nbllm.store import Store

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    import torch

    if not torch.cuda.is_available():
        pytest.fail("no CUDA device here: nothing was checked")
    session = Session(Store(tmp_path / ".nbllm"), "gpu")
    texts = [f"Return item number {number} of the list, or raise an IndexError that names it." for number in range(800)]
    session.clean(texts=texts, recipe="none", name="small")
    session.train_tokenizer(vocab_size=400)
    return session


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_each_precision_is_active_and_learns(session: Session, precision: str) -> None:
    run = session.train(steps=60, seq_len=64, precision=precision, processes=1, eval_every=30, wait=True)
    start = run.events("start")[0]
    assert start["device"].startswith("cuda")
    assert start["precision"] == precision
    losses = run.metrics().column("loss").to_pylist()
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert run.checkpoints[-1].step == 60


def test_stop_and_resume_repeat_the_losses(session: Session) -> None:
    options = {"seq_len": 64, "precision": "fp32", "processes": 1, "save_every": 10, "eval_every": 0, "seed": 3}
    whole = session.train(steps=40, name="whole", wait=True, **options)
    cut = session.train(steps=40, name="cut", **options)
    while not cut.checkpoints:
        cut.wait(timeout=0.2)
    cut.stop()
    if cut.status != "done":
        cut.resume()
        cut.wait()
    expected, found = (run.metrics().column("loss").to_pylist() for run in (whole, cut))
    assert found == pytest.approx(expected, rel=1e-4)


def test_every_visible_device_takes_part(session: Session) -> None:
    import torch

    run = session.train(steps=10, seq_len=64, eval_every=0, wait=True)
    assert run.events("start")[0]["world_size"] == torch.cuda.device_count()


def test_greedy_tokens_equal_the_cpu(session: Session) -> None:
    from nbllm.model import load
    from nbllm.sample import SamplingParameters, generate

    run = session.train(steps=60, seq_len=64, precision="fp32", eval_every=0, wait=True)
    settings = SamplingParameters(greedy=True, max_new_tokens=24)
    path = run.checkpoints[-1].path
    found = [generate(load(path, device=device), session.tokenizer, "Return", settings) for device in ("cpu", "cuda")]
    assert found[0].tokens == found[1].tokens
