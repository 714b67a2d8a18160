"""Training and sampling on a CUDA device: `pytest -m gpu`. Without a device these fail and say so, they never pass."""

from __future__ import annotations

import importlib.util
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


def check_installed(attention: str) -> None:
    if attention == "flash" and importlib.util.find_spec("flash_attn") is None:
        pytest.fail("flash-attn isn't installed: nothing was checked")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_each_precision_is_active_and_learns(session: Session, precision: str) -> None:
    run = session.train(steps=60, seq_len=64, precision=precision, processes=1, eval_every=30, wait=True)
    start = run.events("start")[0]
    assert start["device"].startswith("cuda")
    assert start["precision"] == precision
    losses = run.metrics().column("loss").to_pylist()
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert run.checkpoints[-1].step == 60


@pytest.mark.parametrize("attention", ["flex", "flash", "sdpa"])
def test_each_attention_trains_packed_documents_alike(session: Session, attention: str) -> None:
    check_installed(attention)
    options = {"steps": 20, "seq_len": 64, "precision": "bf16", "processes": 1, "optimizer": "adamw", "wait": True}
    eager = session.train(attention="eager", name="eager", **options)
    run = session.train(attention=attention, name="other", **options)
    assert run.events("start")[0]["attention"] == attention
    expected, found = (run.metrics().column("loss").to_pylist() for run in (eager, run))
    assert found == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("attention", ["flex", "flash"])
def test_documents_in_a_row_do_not_see_each_other(session: Session, attention: str) -> None:
    import torch

    from nbllm.model import build
    from nbllm.train.loss_model import LossModel

    check_installed(attention)
    name = {"flex": "flex_attention", "flash": "flash_attention_2"}[attention]
    options = {"vocab_size": 300, "max_length": 32, "bos_id": 0, "eos_id": 1, "pad_id": 2, "seed": 0}
    whole = LossModel(build("llama-nano", attention=name, **options).cuda(), fused="auto", settings={})
    ids = torch.randint(300, (3, 24), device="cuda")
    positions = (torch.arange(24, device="cuda") % 9).expand(3, 24)  # documents of 9, 9 and 6 tokens
    targets = ids.roll(-1, 1)
    targets[:, :9] = -100
    other = ids.clone()
    other[:, :9] = (other[:, :9] + 1) % 300
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        first, second = (float(whole(each, targets, positions)) for each in (ids, other))
    assert first == second


def test_fp16_logs_its_scale(session: Session) -> None:
    run = session.train(steps=20, seq_len=64, precision="fp16", processes=1, eval_every=0, wait=True)
    steps = run.events("step")
    assert all(event["scale"] > 0 and event["skipped_steps"] >= 0 for event in steps)
    assert steps[-1]["skipped_steps"] < 10


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
