"""LoRA, DoRA and QLoRA on SmolLM2-135M-Instruct: held-out loss falls; saving, loading and merging keep the logits."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from nbllm import adapters
from nbllm.model import load
from nbllm.sessions import Session
from nbllm.store import Store
from nbllm.train import Run

pytestmark = pytest.mark.slow
FOLDER = os.environ.get("SMOLLM2_FOLDER", "")
METHODS = ["lora", "dora", *(["qlora"] if importlib.util.find_spec("bitsandbytes") else [])]
WORDS = ("list", "tuple", "set", "string", "function", "class", "module", "loop", "file", "thread", "lock", "cache")
ROWS = [{"instruction": f"What is a {word}?", "output": f"In short: a {word} it is."} for word in WORDS]


@pytest.mark.skipif(not Path(FOLDER).is_dir() or not FOLDER, reason="SMOLLM2_FOLDER names no folder")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_on_smollm2(method, tmp_path):
    session = Session(Store(tmp_path / ".nbllm"), "test")
    run = session.finetune(
        base=FOLDER, data=ROWS, method=method, name="short", steps=12, eval_every=6, seq_len=64, batch_size=2, lr=2e-3,
        held_out=0.2, warmup=1, precision="fp32", wait=True,
    )  # fmt: skip
    assert isinstance(run, Run)
    assert run.status == "done", run.log()[-2000:]
    held_out = [row["eval_loss"] for row in run.metrics().to_pylist() if row["eval_loss"] is not None]
    assert held_out[-1] < held_out[0]
    folder = session.models.adapter_folder("short")
    ids = torch.arange(24)[None] * 997 % 40_000

    def logits(model):
        with torch.no_grad():
            return model.eval()(input_ids=ids).logits

    model = load(FOLDER)
    adapters.prepare_base(model, folder)
    base = logits(model)
    adapters.attach(model, folder)
    trained = logits(model)
    assert (trained - base).abs().max() > 0.1
    adapters.save(model, tmp_path / "again")
    adapters.detach(model)
    torch.testing.assert_close(logits(model), base, rtol=1e-4, atol=1e-4)
    adapters.attach(model, tmp_path / "again")
    torch.testing.assert_close(logits(model), trained, rtol=1e-4, atol=1e-4)
    del model
    merged = load(session.merge_adapter("short", tmp_path / "merged"))  # its head is tied to the embedding
    torch.testing.assert_close(logits(merged), trained, rtol=1e-4, atol=1e-3)
