"""The parallel plans on gloo processes: the same losses as one process, exact resumes, checkpoints for any plan."""

import contextlib
import subprocess
import sys

import psutil
import pytest
from group_kit import SETTING, check_plan, half, train_group
from stand_in import until
from worker_kit import Kit, events, kit, losses

from nbllm.adapters import attach
from nbllm.errors import UsageError
from nbllm.model import build, load
from nbllm.train import checkpoint as disk
from nbllm.train import launch, start, worker
from nbllm.train.config import TrainConfig
from nbllm.train.loss_model import LossModel
from nbllm.train.parallel.names import check_processes
from nbllm.train.parallel.pipeline import check_splits
from nbllm.train.parallel.tensor import block_plan
from nbllm.train.phase import begin, read_state

__all__ = ["kit"]  # the fixture


def test_fsdp_trains_what_one_process_trains(kit: Kit):
    start = check_plan(kit, "fsdp")
    assert (start["world_size"], start["wrapper"], start["parallel"]) == (2, "FSDPLossModel", "fsdp")
    assert start["blocks_cut"] == 5
    assert start["fused"] == "torch"  # the head was gathered for its loss
    assert sum(start["parameters_by_rank"]) == start["parameters"]
    assert max(start["parameters_by_rank"]) < 0.6 * start["parameters"]


def test_muon_and_adapters_train_cut_as_they_do_whole(kit: Kit):
    base = str(disk.newest(kit.train("fsdp-base", steps=1)).path)
    setting = {**SETTING, "steps": 4, "save_every": 2, "eval_every": 0}
    wishes = {"muon": {"optimizer": "muon"}}
    for method in ("lora", "adapter"):
        wishes[method] = {"model": base, "lr": 0.01, "adapter": {"method": method, "dropout": 0.0}}
    cut = {"parallel": "fsdp", "processes": 2, "batch_size": 2, "grad_accum": 2}
    whole = {name: kit.train(f"{name}-whole", batch_size=8, **{**setting, **wish}) for name, wish in wishes.items()}
    folders = {name: kit.run_folder(f"{name}-cut", **{**setting, **wish, **cut}) for name, wish in wishes.items()}
    train_group([(folder, False) for folder in folders.values()])
    for name, folder in folders.items():
        assert losses(folder) == pytest.approx(losses(whole[name]), rel=2e-4), name
        start = events(folder, "start")[0]
        assert max(start["parameters_by_rank"]) < 0.6 * start["parameters"]
        assert (f"{name}-cut" in kit.store.names("adapter")) == (name != "muon")
    again = {name: half(folder, f"{name}-again", step=4) for name, folder in folders.items()}
    train_group([(folder, True) for folder in again.values()])
    for name, folder in again.items():
        assert losses(folder) == losses(folders[name]), name
    model = load(base)
    attach(model, kit.store.path("adapter", "lora-cut"))


def test_tp_trains_what_one_process_trains(kit: Kit):
    start = check_plan(kit, "tp", batch_size=8)
    assert (start["world_size"], start["wrapper"], start["matrices_cut"]) == (2, "DTensor", 5 * 7)
    assert max(start["parameters_by_rank"]) < 0.6 * start["parameters"]


@pytest.mark.slow
def test_fsdp_and_tp_together_train_what_one_process_trains(kit: Kit):
    start = check_plan(kit, "fsdp,tp", processes=4, batch_size=4)
    assert (start["world_size"], start["wrapper"]) == (4, "FSDPLossModel over DTensor")
    assert start["matrices_cut"] == 5 * 7
    assert max(start["parameters_by_rank"]) < 0.35 * start["parameters"]


@pytest.mark.parametrize("model", ["llama-nano", pytest.param("gpt2-nano", marks=pytest.mark.slow)])
def test_pp_trains_what_one_process_trains(kit: Kit, model):
    start = check_plan(kit, "pp", batch_size=8, model=model)
    assert (start["world_size"], start["wrapper"], start["blocks_by_rank"]) == (2, "PipelineStage", [2, 3])
    assert max(start["parameters_by_rank"]) < 0.7 * start["parameters"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallel": "fspd"}, "Did you mean fsdp?"),
        ({"parallel": "ddp,fsdp"}, "don't go together"),
        ({"machines": 2}, "--main 10.0.0.1:29500"),
        ({"machines": 2, "rank": 2, "main": "a:1"}, "0 to 1"),
        ({"rank": 1}, "--machines 2"),
        ({"parallel": "fsdp,tp", "processes": 3}, "--processes 4"),
        ({"parallel": "fsdp", "processes": 1}, "--processes 2"),
        ({"parallel": "tp", "processes": 2, "optimizer": "muon"}, "--optimizer adamw"),
        ({"parallel": "fsdp", "adapter": {"method": "prefix"}}, "--method prefix isn't proven.*--parallel ddp"),
        ({"parallel": "tp", "processes": 2, "adapter": {}}, "--method lora isn't proven.*--parallel fsdp or ddp"),
        ({"parallel": "fsdp", "compile": True}, "--compile isn't proven"),
        ({"parallel": "fsdp", "precision": "fp16"}, "bf16"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_in_one_line(changes, said):
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        TrainConfig(shards="s", store_root="/", **changes)


def supervise(folder):
    begin(folder, resume=False)
    command = [sys.executable, "-m", "nbllm.train.supervisor", str(folder)]
    return subprocess.Popen(command, stdout=(folder / "worker.log").open("ab"), stderr=subprocess.STDOUT)


def test_two_machines_train_one_model(kit: Kit):
    setting = {**SETTING, "eval_every": 0, "machines": 2, "main": f"127.0.0.1:{launch.free_port()}", "processes": 1}
    one = kit.train("one-machine", **{**SETTING, "eval_every": 0}, batch_size=8)
    folders = [kit.run_folder(f"machine-{rank}", batch_size=4, rank=rank, **setting) for rank in range(2)]
    watchers = [supervise(folder) for folder in folders]
    for folder, watcher in zip(folders, watchers, strict=True):
        assert watcher.wait(120) == 0, (folder / "worker.log").read_text()[-3000:]
        assert read_state(folder).phase == "done"
    (start,) = events(folders[0], "start")
    assert (start["machines"], start["world_size"], start["wrapper"]) == (2, 2, "DistributedDataParallel")
    assert losses(folders[0]) == pytest.approx(losses(one), rel=1e-4)
    assert [(event["kind"], event["home"]) for event in events(folders[1])] == [("start", "machine-0")]
    assert not (folders[1] / "checkpoints").exists()


def second_rank(pid):
    """The worker of rank 1 among the descendants of a process; None before it is there."""
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "nbllm.train.worker" in process.cmdline() and process.environ().get("RANK") == "1":
                return process
    return None


def test_a_killed_rank_brings_the_group_back_and_changes_nothing(kit: Kit):
    setting = {**SETTING, "eval_every": 0, "save_every": 5, "processes": 2, "parallel": "fsdp", "batch_size": 4}
    undisturbed = kit.run_folder("undisturbed", **setting)
    killed = kit.run_folder("killed", **setting, max_restarts=1)
    watcher = supervise(killed)
    until(lambda: second_rank(watcher.pid), 60)
    victim = second_rank(watcher.pid)
    until(lambda: (killed / "checkpoints" / "step-00000005").exists(), 90)
    victim.kill()
    assert watcher.wait(120) == 0, (killed / "worker.log").read_text()[-3000:]
    train_group([(undisturbed, False)])
    assert read_state(killed).phase == "done"
    starts = events(killed, "start")
    assert [event["generation"] for event in starts] == [0, 1]
    assert starts[1]["step"] in (5, 10, 15)
    assert len(losses(undisturbed)) == 20
    assert losses(killed) == losses(undisturbed)


def small(preset):
    return build(preset, vocab_size=97, max_length=32, bos_id=0, eos_id=0, pad_id=1, seed=0)


def test_a_model_that_cannot_be_cut_is_refused_in_one_line():
    with pytest.raises(UsageError, match=r"num_attention_heads that divides by 3 \(received 4\)"):
        block_plan(small("llama-nano"), parts=3)
    with pytest.raises(UsageError, match=r"no plan to cut the matrices of a gpt2 model.*--parallel fsdp"):
        block_plan(small("gpt2-nano"), parts=2)
    with pytest.raises(UsageError, match=r"at least as many blocks \(received 5\)\. Use --processes 5"):
        check_splits(LossModel(small("llama-nano"), fused="auto", settings={}), 6)
    with pytest.raises(UsageError, match="takes the loss without logits, which is off"):
        check_splits(LossModel(small("llama-nano"), fused="off", settings={}), 2)
    with pytest.raises(UsageError, match="needs several processes"):
        check_processes("tp", 1)


@pytest.mark.slow
def test_a_run_goes_on_under_another_plan(kit: Kit):
    run = start(kit.store, kit.config(steps=400, save_every=20, batch_size=8, optimizer="adamw"), name="changed")
    until(lambda: run.checkpoints, 90)
    assert run.stop() == "stopped"
    step = run.checkpoints[-1].step
    with pytest.raises(UsageError, match="--processes 2"):
        run.resume(parallel="tp", processes=1)
    run.resume(parallel="tp", processes=2, batch_size=4)
    until(lambda: len(events(run.folder, "start")) == 2 and max(losses(run.folder)) > step, 90)
    assert run.stop() == "stopped"
    second = events(run.folder, "start")[1]
    assert (second["parallel"], second["world_size"], second["global_batch"], second["step"]) == ("tp", 2, 8, step)
    assert run.config.parallel == "tp"
    assert "2 processes by tp" in repr(run)


def test_a_run_that_muon_began_does_not_go_on_cut(kit: Kit):
    folder = kit.train("with-muon", optimizer="auto", steps=4, save_every=2)
    with pytest.raises(UsageError, match="begun with muon"):
        worker._optimizer(
            kit.config(parallel="pp", processes=2), small("llama-nano"), begun=worker._begun_optimizer(folder)
        )
