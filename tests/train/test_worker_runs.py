"""The worker on small runs: the same result however the work is split or interrupted."""

import itertools
import json
import math
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch
from worker_kit import Kit, events, kit, losses, train

from nbllm import adapters
from nbllm.errors import DataError, NotFoundError, RunError, StoreError, UsageError
from nbllm.files import hash_value, write_json
from nbllm.model import load
from nbllm.shards import TokenStream
from nbllm.store import Manifest, now
from nbllm.tokenizer import Tokenizer
from nbllm.train import checkpoint as disk
from nbllm.train import launch, locks, trainer, worker
from nbllm.train.config import AdapterConfig
from nbllm.train.evaluation import stream_targets
from nbllm.train.loss_model import LossModel

__all__ = ["kit"]  # the fixture


def launch_processes(folder, processes):
    plan = launch.plan(folder, processes=processes)
    write_json(folder / launch.ACCELERATE_CONFIG, plan.accelerate)
    environment = {**plan.environment, "OMP_NUM_THREADS": "1"}
    return subprocess.run(plan.command, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("shards", ["plain", "examples"])
def test_processes_and_accumulation_do_not_change_what_is_optimised(kit: Kit, shards):
    # documents of unequal length, answers of unequal length, and a last batch that is short
    setting = {"shards": getattr(kit, shards).name, "steps": None, "epochs": 1.3, "optimizer": "adamw", "lr": 3e-3}
    one = kit.train(f"one-{shards}", batch_size=8, **setting)
    halves = kit.train(f"halves-{shards}", batch_size=4, grad_accum=2, **setting)
    assert len(losses(one)) > 5
    assert losses(halves) == pytest.approx(losses(one), rel=1e-4)
    if shards == "examples":
        return
    both = kit.run_folder("both", batch_size=2, grad_accum=2, processes=2, **setting)
    done = launch_processes(both, 2)
    assert done.returncode == 0, done.stderr
    (start,) = events(both, "start")
    assert (start["world_size"], start["wrapper"], start["global_batch"]) == (2, "DistributedDataParallel", 8)
    assert losses(both) == pytest.approx(losses(one), rel=1e-4)
    for name in ("eval_loss", "bits_per_byte"):
        assert events(both, "eval")[-1][name] == pytest.approx(events(one, "eval")[-1][name], rel=1e-4)
    state = {path.name for path in (disk.newest(both).path / "state").iterdir()}
    assert {"random-00000.safetensors", "random-00001.safetensors"} <= state


def test_fewer_processes_than_asked_for_is_an_error(kit: Kit):
    folder = kit.run_folder("alone", processes=2)
    with pytest.raises(RunError, match="2 processes were asked for, but 1 joined"):
        train(folder)


class Crash(Exception):
    pass


def crash_after(monkeypatch, step):
    """The process dies after that step, as far as its files show."""
    original = trainer.Trainer._step

    def stepping(self, *given, **named):
        if self.progress.step == step:
            raise Crash
        original(self, *given, **named)

    monkeypatch.setattr(trainer.Trainer, "_step", stepping)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "muon", "precision": "auto"},
        {"optimizer": "adamw", "adapter": {"dropout": 0.3}, "lr": 0.01},
    ],
)
def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(kit: Kit, monkeypatch, changes):
    setting = {"steps": 10, "save_every": 4, "eval_every": 2, "grad_accum": 2, **changes}
    name = changes["optimizer"]
    whole = kit.train(f"whole-{name}", **setting)
    broken = kit.run_folder(f"broken-{name}", **setting)
    with monkeypatch.context() as patch:
        crash_after(patch, 7)
        with pytest.raises(Crash):
            train(broken)
    assert disk.newest(broken).step == 4
    with pytest.raises(RunError, match="--resume"):
        train(broken)
    assert train(broken, resume=True) == "done"
    assert events(broken, "start")[1]["step"] == 4
    assert losses(broken) == losses(whole)
    evaluations = [{event["step"]: event["eval_loss"] for event in events(f, "eval")} for f in (whole, broken)]
    assert evaluations[0] == evaluations[1]
    samples = [{event["step"]: event["text"] for event in events(f, "sample")} for f in (whole, broken)]
    assert samples[0] == samples[1]
    assert list(samples[0]) == [2, 4, 6, 8, 10]
    weights = "model.safetensors" if name == "muon" else "adapter_model.safetensors"
    last = [disk.newest(folder).path / weights for folder in (whole, broken)]
    assert last[0].read_bytes() == last[1].read_bytes()


def test_a_checkpoint_is_an_ordinary_folder(kit: Kit):
    folder = kit.train("ordinary", steps=4, save_every=2)
    found = disk.list_checkpoints(folder)
    assert [checkpoint.step for checkpoint in found] == [2, 4]
    last = found[-1]
    assert last.eval_loss == events(folder, "eval")[-1]["eval_loss"]
    assert Tokenizer.from_folder(last.path).hash == kit.tokenizer.hash
    ids = torch.tensor([kit.tokenizer.encode("the cat sat on a mat", add_bos=True)])
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(last.path)(input_ids=ids).logits
        assert torch.equal(theirs, load(last.path)(input_ids=ids).logits)
    assert AutoTokenizer.from_pretrained(last.path)("the cat sat")["input_ids"] == kit.tokenizer.encode("the cat sat")
    assert json.loads((last.path / "config.json").read_text())["use_cache"] is True


def test_the_held_out_loss_is_that_of_each_document_alone(kit: Kit):
    folder = kit.train("held-out", steps=2)
    model = load(disk.newest(folder).path)
    stream: TokenStream = kit.plain.held_out
    nats, targets = 0.0, 0
    fit = stream.fit(32)
    for row_start, row_stop in zip(fit.starts, fit.stops, strict=True):
        inside = [edge for edge in stream.boundaries if row_start < edge <= row_stop]
        for start, stop in itertools.pairwise([row_start, *inside, row_stop + 1]):
            ids = torch.from_numpy(stream.tokens[start:stop].astype("int64"))[None]
            if ids.shape[1] > 1:
                with torch.no_grad():
                    logits = model(input_ids=ids).logits[0, :-1]
                nats += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
                targets += ids.shape[1] - 1
    assert targets == stream_targets(stream, 32) > 200
    (event,) = events(folder, "eval")
    assert event["eval_loss"] == pytest.approx(nats / targets, rel=1e-5)
    assert event["bits_per_byte"] == pytest.approx(nats / math.log(2) / stream.text_bytes)


def test_sigkill_in_the_middle_of_a_checkpoint_leaves_the_one_before(kit: Kit):
    folder = kit.run_folder("killed", steps=6, save_every=2)
    code = f"""
import os, signal
from nbllm.train import state, worker
saved = []
original = state.save_optimizers
def kill(*given):
    saved.append(given)
    if len(saved) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    original(*given)
state.save_optimizers = kill
worker.main([{str(folder)!r}])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == -9
    assert [checkpoint.step for checkpoint in disk.list_checkpoints(folder)] == [2]
    assert list((folder / "checkpoints").glob(".step-*"))
    load(disk.newest(folder).path)
    assert not locks.held_workers(folder)
    assert train(folder, resume=True) == "done"
    assert [checkpoint.step for checkpoint in disk.list_checkpoints(folder)] == [2, 4, 6]
    assert not list((folder / "checkpoints").glob(".*"))


def test_a_full_disk_in_a_checkpoint_is_one_line_and_keeps_the_one_before(kit: Kit):
    folder = kit.run_folder("full-disk", steps=6, save_every=2)
    code = f"""
import resource, signal
from nbllm.train import state, worker
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
original, calls = state.save_optimizers, []
def fill(*given):
    calls.append(given)
    if len(calls) == 2:  # from here on the kernel refuses to write more, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    original(*given)
state.save_optimizers = fill
raise SystemExit(worker.main([{str(folder)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"StoreError: The disk of {folder} is full; what was there is as it")
    assert done.stderr.rstrip().endswith("then type %llm_train --resume full-disk.")
    assert "Traceback" not in done.stderr
    assert [checkpoint.step for checkpoint in disk.list_checkpoints(folder)] == [2]
    assert not list((folder / "checkpoints").glob(".*"))
    assert train(folder, resume=True) == "done"
    assert [checkpoint.step for checkpoint in disk.list_checkpoints(folder)] == [2, 4, 6]


def test_shards_that_were_damaged_since_are_named_by_a_resume(kit: Kit, monkeypatch):
    folder = kit.run_folder("shards", steps=6, save_every=2)
    with monkeypatch.context() as patch:
        crash_after(patch, 3)
        with pytest.raises(Crash):
            train(folder)
    tokens = kit.plain.folder / "train/tokens.bin"
    whole = tokens.read_bytes()
    tokens.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    try:
        with pytest.raises(StoreError, match=r"shards .* isn't what was written.*makes them again with --dry-run"):
            train(folder, resume=True)
    finally:
        tokens.write_bytes(whole)
    assert train(folder, resume=True) == "done"


def test_a_damaged_newest_checkpoint_is_passed_over(kit: Kit):
    folder = kit.train("damaged", steps=4, save_every=2)
    before = losses(folder)
    weights = disk.list_checkpoints(folder)[-1].path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert train(folder, resume=True) == "done"
    assert events(folder, "start")[-1]["step"] == 2
    assert losses(folder) == before
    assert disk.newest(folder).step == 4


def test_a_gradient_that_is_not_finite_is_not_applied_and_ends_the_run(kit: Kit, monkeypatch):
    folder = kit.run_folder("spoilt", steps=100)
    original = LossModel.forward
    monkeypatch.setattr(LossModel, "forward", lambda *given, **named: original(*given, **named) * float("nan"))
    with pytest.raises(RunError, match="hasn't been finite for 21 steps, since step 1"):
        train(folder)
    steps = events(folder, "step")
    assert {event["loss"] for event in steps} == {"NaN"}
    assert all(event["skipped"] for event in steps)


def test_no_early_end_while_it_gets_better_and_one_where_it_does_not(kit: Kit):
    folder = kit.train("early", steps=60, eval_every=2, early_stop=2, lr=1e-9, optimizer="adamw", schedule="constant")
    (end,) = events(folder, "end")
    assert end["status"] == "done"
    assert "no better held-out loss in 2 evaluations" in end["reason"] or end["step"] == 60


def test_an_open_length_is_one_pass_and_stays_the_same_after_a_resume(kit: Kit, monkeypatch):
    folder = kit.run_folder("open", steps=None, save_every=3)
    with monkeypatch.context() as patch:
        crash_after(patch, 4)
        with pytest.raises(Crash):
            train(folder)
    monkeypatch.setattr(worker, "fit_steps", lambda **_: 9999)
    train(folder, resume=True)
    totals = [event["total_steps"] for event in events(folder, "start")]
    rows = kit.plain.train.rows(32)
    assert totals == [math.ceil(rows / 4)] * 2
    assert max(losses(folder)) == totals[0]


def test_timing_does_not_change_the_run(kit: Kit):
    rows = kit.plain.train.rows(32)
    timed = kit.train("timed", steps=None)
    given = kit.train("given", steps=math.ceil(rows / 4))
    assert losses(timed) == losses(given)


def test_a_run_begun_with_another_global_batch_is_refused(kit: Kit):
    folder = kit.train("geometry", steps=2, save_every=1)
    write_json(folder / "config.json", kit.config(steps=2, batch_size=8).as_json())
    with pytest.raises(RunError, match="begun with 4 rows a step"):
        train(folder, resume=True)


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"precision": "fp16"}, UsageError, "fp16 needs a GPU"),
        ({"seq_len": 4096}, DataError, "fewer than one sequence"),
        ({"shards": "nothing"}, NotFoundError, "nothing"),
        ({"model": "lama-nano"}, NotFoundError, "Did you mean llama-nano"),
        ({"adapter": {"targets": ["q_pro"]}}, UsageError, "Did you mean q_proj"),
    ],
)
def test_what_cannot_work_is_one_line(kit: Kit, changes, kind, said):
    folder = kit.run_folder(f"wrong-{hash_value(changes)[:8]}", **changes)
    with pytest.raises(kind, match=said) as raised:
        train(folder)
    assert "\n" not in str(raised.value)


def test_the_process_prints_one_line_and_exits_with_1(tmp_path, capsys):
    assert worker.main([str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("NotFoundError: ")
    assert error.count("\n") == 1


def test_tensorboard_gets_the_curves(kit: Kit):
    folder = kit.train("board", steps=2, log_with=("tensorboard",))
    assert list(folder.rglob("events.out.tfevents.*"))


@pytest.mark.parametrize(("tracker", "extra"), [("tensorboard", "track"), ("wandb", "wandb")])
def test_a_missing_tracker_names_its_extra(kit: Kit, monkeypatch, tracker, extra):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=rf"nbllm\[{extra}\]"):
        train(kit.run_folder(f"no-{tracker}", log_with=(tracker,)))


def test_wandb_writes_offline_into_the_runs_folder(kit: Kit):
    pytest.importorskip("wandb")
    folder = kit.train("bands", steps=2, log_with=("wandb",))
    assert list(folder.glob("wandb/offline-run-*/run-*.wandb"))


def adopt(kit: Kit, folder):
    """The manifest that the handle writes before it starts a run."""
    parents = (kit.plain.manifest.as_parent(),)
    config = json.loads((folder / "config.json").read_text())
    manifest = Manifest(kind="run", name=folder.name, hash=hash_value(config), created=now(), parents=parents)
    write_json(kit.store.path("run", manifest.name) / "manifest.json", asdict(manifest))
    return manifest


def test_a_fine_tuning_publishes_an_adapter_that_changes_the_logits(kit: Kit):
    base_run = kit.train("base", steps=4)
    base = disk.newest(base_run).path
    folder = kit.run_folder(
        "tuned", model=str(base), adapter=AdapterConfig(r=4), shards=kit.examples.name, steps=6, save_every=3, lr=0.01
    )
    manifest = adopt(kit, folder)
    train(folder)
    (start,) = events(folder, "start")
    assert start["trained_parameters"] < start["parameters"] / 10
    assert start["optimizer"] == "adamw"
    checkpoint = disk.newest(folder).path
    assert (checkpoint / "adapter_model.safetensors").is_file()
    assert not (checkpoint / "model.safetensors").exists()

    published = kit.store.get("adapter", "tuned")
    assert [(p.kind, p.hash) for p in published.parents] == [
        ("run", manifest.hash), ("shards", kit.plain.manifest.hash),
    ]  # fmt: skip
    path = kit.store.path("adapter", "tuned")
    assert (path / "adapter_model.safetensors").read_bytes() == (checkpoint / "adapter_model.safetensors").read_bytes()

    ids = torch.arange(8)[None] + 5
    model = load(base)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        adapters.attach(model, path)
        tuned = model(input_ids=ids).logits
        assert not torch.allclose(before, tuned, atol=1e-3)
        merged = load(adapters.merge(base, path, kit.store.root / "merged"))
        torch.testing.assert_close(merged(input_ids=ids).logits, tuned, rtol=1e-4, atol=1e-5)
        adapters.detach(model)
        assert torch.equal(model(input_ids=ids).logits, before)

    # the same name for something else is refused before the training, not after it
    other = kit.run_folder("other", model=str(base), adapter=AdapterConfig(r=8), adapter_name="tuned")
    with pytest.raises(StoreError, match="already named 'tuned'"):
        train(other)
    with pytest.raises(UsageError, match="Merge it first"):
        train(kit.run_folder("on-top", model=str(path), adapter=AdapterConfig()))


def test_all_weights_of_a_loaded_model_can_be_tuned(kit: Kit):
    base = disk.newest(kit.train("base-full", steps=2)).path
    folder = kit.train("full", model=str(base), steps=3)
    (start,) = events(folder, "start")
    assert start["trained_parameters"] == start["parameters"]
    assert start["lr"] < 0.001
    assert losses(folder)[1] < losses(kit.store.root / "runs" / "base-full")[1]


def test_another_tokenizer_than_the_shards_is_refused(kit: Kit):
    folder = kit.store.root / "other-tokenizer"
    kit.tokenizer.save(folder)
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace("<|pad|>", "<|pat|>"))
    config = (folder / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(config.replace("<|pad|>", "<|pat|>"))
    with pytest.raises(DataError, match="another tokenizer"):
        train(kit.run_folder("mismatch", tokenizer=str(folder)))
