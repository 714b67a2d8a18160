"""The process that trains: `python -m nbllm.train.worker RUN_FOLDER [--resume]`, one a device, started by a launcher.

Reads the run's `config.json`, goes on from the newest complete checkpoint if there is one, and ends with exit code 0
when the run is done or was asked to stop. A mistake that its reader can mend is one line on the error output and exit
code 1. Never imports the session, IPython or ipywidgets.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    # Before torch loads OpenMP, which reads it once. Threads that spin at a barrier take the core from the one they
    # wait for wherever the machine does something else too: a step took 4.0 s so, and 0.9 s with threads that sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from nbllm import adapters
from nbllm.errors import NbllmError, NotFoundError, RunError, StoreError, UsageError
from nbllm.files import read_json, write_json, writing
from nbllm.model import PRESETS, check_packing, dtype_name, parameter_count
from nbllm.model.memory import memory_of
from nbllm.shards import Loader, Masking, Shards
from nbllm.store import Manifest, Store
from nbllm.train import attention, fused, locks, machines, objective, parallel, published, setup
from nbllm.train import checkpoint as disk
from nbllm.train.compiled import compile_blocks
from nbllm.train.config import TrainConfig
from nbllm.train.journal import Journal
from nbllm.train.loss_model import LossModel
from nbllm.train.optimizer import Optimizers, default_lr
from nbllm.train.optimizer import choose as choose_optimizer
from nbllm.train.plan import Plan, fit_steps, make_plan, steps_wanted
from nbllm.train.trainer import Trainer
from nbllm.train.watch import WatchedJournal

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PLAN = "plan.json"
_LOCK_WAIT_S = 30.0
_TIMED_STEPS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains the run of a folder; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m nbllm.train.worker", description="One process of a training run")
    parser.add_argument("folder", type=Path, help="the run's folder, with its config.json")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    given = parser.parse_args(arguments)
    try:
        from transformers.utils import logging

        logging.disable_progress_bar()  # bars for files that take a moment would fill the log
        train(given.folder, resume=given.resume)
        if dist.is_available() and dist.is_initialized():
            dist.barrier()  # gloo's threads abort a process whose neighbour has left already
    except NbllmError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
    return 0


def train(folder: Path, *, resume: bool = False) -> str:
    """Trains the run of a folder in this process, which is one of those that the launcher started.

    Args:
        folder: the run's folder.
        resume: go on from the newest complete checkpoint.

    Returns:
        `done` or `stopped`.

    Raises:
        RunError: another worker has this rank, or checkpoints are there and `resume` is False.
        NbllmError: whatever the config, the data or the device don't allow, in one line.
    """
    try:
        config = TrainConfig.from_json(read_json(folder / "config.json")).moved_to(folder.absolute().parents[1])
    except FileNotFoundError as error:
        raise NotFoundError(f"{folder} holds no config.json of a run") from error
    rank = int(os.environ.get("RANK", "0"))
    lock = locks.take(folder / locks.worker_lock(rank), wait_s=_LOCK_WAIT_S)
    if lock is None:
        raise RunError(f"Another process already is worker {rank} of {folder.name}", next="Stop that run first")
    then = f"by removing runs with %llm_session rm NAME, then type %llm_train --resume {folder.name}"
    try:
        with writing(folder, only_full=True, then=then):
            return _train(folder, config, resume=resume)
    except StoreError:
        if rank == 0:
            disk.drop_drafts(folder)  # what was begun would keep its room
        raise
    finally:
        lock.release()


def _train(folder: Path, config: TrainConfig, *, resume: bool) -> str:
    store, shards = setup.load_shards(config, verify=resume and int(os.environ.get("LOCAL_RANK", "0")) == 0)
    manifest = _manifest(store, folder)
    if config.adapter is not None:
        published.check_name(store, config, manifest, folder)
    accelerator = setup.make_accelerator(config, folder)
    main_process = accelerator.is_main_process
    own_folder = folder
    home = machines.join(folder, config, resume=resume, data=shards.manifest.hash if shards.manifest else "")
    folder = home.folder
    checkpoint = disk.newest(folder)
    if checkpoint is not None and not home.resume:
        raise RunError(f"{folder.name} has checkpoints already", next=f"Type %llm_train --resume {folder.name}")
    tokenizer = setup.load_tokenizer(config, store, shards)
    precision = setup.active_precision(accelerator)
    implementation = attention.choose(config.attention, accelerator.device.type, precision=precision)
    bare = setup.make_model(config, shards, checkpoint, attention=implementation)
    goal = objective.choose(config.objective, bare)
    objective.check_parallel(config.parallel, bare)
    masking = objective.make_masking(tokenizer, seed=config.seed) if goal == "mlm" else None
    if config.checkpointing:
        bare.gradient_checkpointing_enable({"use_reentrant": False})
    bare.to(accelerator.device)
    if config.adapter is not None and config.parallel == "ddp" and not config.compile and precision != "fp32":
        adapters.narrow_base(bare, setup.DTYPES[precision])
    with accelerator.autocast() if attention.flattens(bare) else contextlib.nullcontext():
        check_packing(bare, vocab_size=shards.train.meta["vocab_size"])
    kind, lr = _optimizer(config, bare, begun=_begun_optimizer(folder))
    counts = {
        "parameters": parameter_count(bare),
        "trained_parameters": parameter_count(bare, trainable=True),
    }
    kernels = fused.choose(bare, fused=config.fused, parallel=config.parallel)
    inner = _with_loss(config, bare)
    if config.compile:
        compile_blocks(bare)
        inner.compiled_for = (config.batch_size, config.seq_len)
    shared = parallel.make(config, accelerator)
    shared.prepare(inner)
    # of the pieces where the model was cut, and before a forward pass, which leaves some of them gathered
    optimizers = Optimizers(bare, kind=kind, weight_decay=config.weight_decay)
    shared.adopt(optimizers)
    active = shared.report()
    setup.check_precision(inner, shared.evaluated, accelerator)
    torch.manual_seed(config.seed * 1_000_003 + shared.data_rank)

    config = _split_as_begun(folder, config, shared.data_world)
    loader = _loader(config, shards, shared.data_rank, shared.data_world, masking)
    generation = _generation(own_folder)
    trainer = Trainer(
        folder,
        config,
        _draft_plan(config, loader, kind=kind, lr=lr),
        accelerator=accelerator,
        parallel=shared,
        inner=inner,
        optimizers=optimizers,
        shards=shards,
        loader=loader,
        tokenizer=tokenizer,
        journal=WatchedJournal(
            folder, generation=generation, config=config.as_json(), call=manifest.call if manifest else None
        )
        if main_process
        else None,
        generation=generation,
    )
    trainer.plan = _settle_plan(folder, trainer, kind=kind, lr=lr)
    if checkpoint is not None:
        trainer.restore(checkpoint)
        if main_process:
            disk.drop_after(folder, checkpoint.step)
    accelerator.wait_for_everyone()
    if config.log_with:
        setup.start_trackers(accelerator, config, folder)
    if own_folder != folder and accelerator.is_local_main_process:
        # this machine's own run says that it takes part; what happens stands in the first one's
        taking_part = Journal(own_folder, generation=generation)
        taking_part.write("start", step=trainer.progress.step, machine=config.rank, home=folder.name)
        taking_part.close()
    if trainer.journal is not None:
        trainer.journal.write(
            "start",
            machines=config.machines,
            step=trainer.progress.step,
            world_size=accelerator.num_processes,
            parallel=shared.name,
            **active,
            precision=precision,
            weights=_weights(bare),
            attention=attention.active(bare, config.attention),
            compiled=config.compile,
            checkpointing=_is_checkpointing(bare),
            device=str(accelerator.device),
            total_steps=trainer.plan.total_steps,
            global_batch=trainer.plan.global_batch,
            **counts,
            optimizer=kind,
            lr=trainer.plan.lr,
            seq_len=config.seq_len,
            vocab_size=shards.train.meta["vocab_size"],
            train_tokens=len(shards.train),
            trained_before=config.model not in PRESETS,
            memory_total_bytes=memory_of(accelerator.device)[1],
            objective=goal,
            **kernels.event(inner.fused, inner.why),
        )
    status = trainer.run()
    if config.adapter is not None:
        published.publish(store, config, manifest, folder, trainer)
    if config.log_with:
        accelerator.end_training()
    if trainer.journal is not None:
        trainer.journal.close()
    return status


def _loader(config: TrainConfig, shards: Shards, rank: int, world_size: int, masking: Masking | None) -> Loader:
    return Loader(
        shards.train,
        seq_len=config.seq_len,
        batch_size=config.batch_size,
        grad_accum=config.grad_accum,
        rank=rank,
        world_size=world_size,
        seed=config.seed,
        epochs=config.epochs,
        masking=masking,
    )


def _weights(bare: PreTrainedModel) -> str:
    """The number format of the weights that are trained, which the optimizer changes (`fp32` under every autocast)."""
    return "+".join(sorted({dtype_name(weight.dtype) for weight in bare.parameters() if weight.requires_grad}))


def _is_checkpointing(bare: PreTrainedModel) -> bool:
    """Whether activations are computed again in the backward pass, as the model's blocks have it."""
    return any(getattr(module, "gradient_checkpointing", False) for module in bare.modules())


def _with_loss(config: TrainConfig, bare: PreTrainedModel) -> LossModel:
    settings = {
        "focal_gamma": config.focal_gamma if config.loss == "focal" else 0.0,
        "label_smoothing": config.label_smoothing,
        "z_loss": config.z_loss,
    }
    # whether a kernel computes the loss without logits was chosen before
    return LossModel(bare, fused="torch" if config.fused == "triton" else config.fused, settings=settings)


def _optimizer(config: TrainConfig, bare: PreTrainedModel, *, begun: str | None) -> tuple[str, float]:
    """Which optimizer, and its peak learning rate; a run goes on with the one that it was begun with."""
    fresh = config.model in PRESETS and config.adapter is None
    kind = config.optimizer if begun is None else begun
    if kind == "muon" and config.parallel not in ("ddp", "fsdp"):
        raise UsageError(
            f"The run was begun with muon, which needs whole matrices, and --parallel {config.parallel} cuts them",
            next="Resume it with --parallel ddp or fsdp",
        )
    kind = choose_optimizer(kind, fresh=fresh, parallel=config.parallel)
    if config.lr is not None:
        return kind, config.lr
    width = int(bare.get_input_embeddings().weight.shape[1])
    virtual = config.adapter is not None and config.adapter.method in adapters.VIRTUAL
    adapter = config.adapter is not None
    return kind, default_lr(kind=kind, width=width, adapter=adapter, trained=not fresh, virtual=virtual)


def _draft_plan(config: TrainConfig, loader: Loader, *, kind: str, lr: float) -> Plan:
    """A plan for the length that is known; for an open length, one pass, until it has been timed."""
    wanted = steps_wanted(config, steps_per_epoch=loader.steps_per_epoch, rows=loader.rows)
    total = wanted or loader.total_steps or loader.steps_per_epoch
    return make_plan(
        config, total_steps=total, epochs=config.epochs, optimizer=kind, lr=lr, world_size=loader.world_size
    )


def _begun_optimizer(folder: Path) -> str | None:
    try:
        return str(read_json(folder / _PLAN)["optimizer"])
    except (FileNotFoundError, KeyError):
        return None


def _split_as_begun(folder: Path, config: TrainConfig, data_world: int) -> TrainConfig:
    """The config with as many micro-steps as keep the global batch that the run was begun with, where that can be.

    So a run that was begun by two processes goes on with one, and the other way round.
    """
    try:
        begun = int(read_json(folder / _PLAN)["global_batch"])
    except (FileNotFoundError, KeyError, ValueError):
        return config
    micro_steps, left = divmod(begun, config.batch_size * data_world)
    return config if left or not micro_steps else replace(config, grad_accum=micro_steps)


def _settle_plan(folder: Path, trainer: Trainer, *, kind: str, lr: float) -> Plan:
    """The plan that the run was begun with, else a new one, written down.

    Raises:
        RunError: the run was begun with another global batch, so that its steps would mean something else.
    """
    config, plan, loader = trainer.config, trainer.plan, trainer.loader
    try:
        begun = Plan(**read_json(folder / _PLAN))
    except FileNotFoundError:
        begun = None
    except TypeError as error:
        raise StoreError(f"{folder / _PLAN} isn't a plan of this version: {error}") from error
    trainer.accelerator.wait_for_everyone()  # nobody writes it before everybody has looked
    if begun is not None:
        if begun.global_batch != plan.global_batch:
            raise RunError(
                f"The run was begun with {begun.global_batch} rows a step ({begun.world_size} processes), and now has "
                f"{plan.global_batch}",
                next=f"Resume it with {begun.world_size} processes",
            )
        return begun
    if config.steps is None and config.tokens is None and config.epochs is None:
        seconds = _of_rank_0(_seconds_a_step(trainer), world_size=trainer.world_size, device=trainer.device)
        steps = fit_steps(steps_per_epoch=loader.steps_per_epoch, seconds_a_step=seconds)
        plan = make_plan(config, total_steps=steps, epochs=None, optimizer=kind, lr=lr, world_size=loader.world_size)
    if trainer.rank == 0:
        write_json(folder / _PLAN, plan.as_json())
    return plan


def _seconds_a_step(trainer: Trainer) -> float:
    """Times a few steps that change nothing: learning rate 0, then optimizer and random states as before.

    The fastest counts: a machine that is busy for a moment would make the run far too short.
    """
    parts = trainer.parallel
    loader = _loader(trainer.config, trainer.shards, parts.data_rank, parts.data_world, trainer.loader.masking)
    random = torch.get_rng_state()
    scaler = trainer.accelerator.scaler
    scale = None if scaler is None else scaler.state_dict()
    seconds = []
    for _ in range(1 + _TIMED_STEPS):  # the first one warms up
        began = time.perf_counter()
        trainer.update(loader.next_batch(), lr=0.0)
        seconds.append(time.perf_counter() - began)
    trainer.inner.balance.take()
    trainer.parallel.forget(trainer.optimizers)
    trainer.parallel.zero_grad(trainer.optimizers)
    if scaler is not None:
        scaler.load_state_dict(scale)
    torch.set_rng_state(random)
    return min(seconds[1:])


def _generation(folder: Path) -> int:
    """Which start of the run this is, as the supervisor counts them; 0 without a supervisor."""
    try:
        return int(read_json(folder / "state.json")["generation"])
    except (FileNotFoundError, KeyError):
        return 0


def _manifest(store: Store, folder: Path) -> Manifest | None:
    """The run's manifest; None where the folder isn't in the store."""
    try:
        return store.get("run", folder.name) if store.path("run", folder.name) == folder.absolute() else None
    except NbllmError:
        return None


if __name__ == "__main__":
    sys.exit(main())


def _of_rank_0(value: float, *, world_size: int, device: torch.device) -> float:
    """Rank 0's number, on every process."""
    if world_size == 1:
        return value
    tensor = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(tensor, src=0)
    return float(tensor.item())
