"""LoRA, DoRA and QLoRA on SmolLM2-135M-Instruct through the worker: an exact resume, and two processes equal one."""

import importlib.util
import os
from pathlib import Path

import pytest
from group_kit import train_group
from test_worker_runs import Crash, crash_after
from worker_kit import Kit, events, losses, train

from nbllm import shards as shards_room
from nbllm.store import Store
from nbllm.tokenizer import load
from nbllm.train import checkpoint as disk

FOLDER = os.environ.get("SMOLLM2_FOLDER", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not FOLDER or not Path(FOLDER).is_dir(), reason="SMOLLM2_FOLDER names no folder"),
]
METHODS = ["lora", "dora", *(["qlora"] if importlib.util.find_spec("bitsandbytes") else [])]
WORDS = ("list", "tuple", "set", "string", "function", "class", "module", "loop", "file", "thread", "lock", "cache")


@pytest.fixture(scope="module")
def smol(tmp_path_factory):
    """Runs on SmolLM2, over questions and answers."""
    made = Kit.__new__(Kit)
    made.store = Store(tmp_path_factory.mktemp("store"))
    tokenizer = load(made.store, FOLDER)
    with made.store.create("tokenizer", "smol", parameters={}) as draft:
        tokenizer.save(draft.folder)
    made.tokenizer = load(made.store, "smol")
    pairs = [(f"What is a {word}? ", f"In short: a {word} it is.") for word in WORDS]
    made.plain = made.examples = shards_room.build(
        made.store, made.tokenizer, train=pairs[:10], held_out=pairs[10:], parents=[made.tokenizer.as_parent()],
        parameters={},
    )  # fmt: skip
    return made


@pytest.mark.parametrize("method", METHODS)
def test_it_resumes_exactly_and_two_processes_equal_one(smol: Kit, monkeypatch, method):
    setting = {"model": FOLDER, "steps": 4, "save_every": 2, "seq_len": 48, "lr": 2e-3}
    setting["adapter"] = {"method": method, "dropout": 0.1}
    whole = smol.train(f"whole-{method}", batch_size=2, **setting)
    broken = smol.run_folder(f"broken-{method}", batch_size=2, **setting)
    with monkeypatch.context() as patch:
        crash_after(patch, 3)
        with pytest.raises(Crash):
            train(broken)
    train(broken, resume=True)
    assert len(losses(whole)) == 4
    assert losses(broken) == losses(whole)
    last = [disk.newest(folder).path / "adapter_model.safetensors" for folder in (whole, broken)]
    assert last[0].read_bytes() == last[1].read_bytes()
    setting |= {"adapter": {"method": method, "dropout": 0.0}, "save_every": 0}  # each process draws for itself
    one = smol.train(f"one-{method}", batch_size=2, **setting)
    two = smol.run_folder(f"two-{method}", batch_size=1, processes=2, **setting)
    train_group([(two, False)])
    assert events(two, "start")[0]["world_size"] == 2
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
