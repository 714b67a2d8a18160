"""The process behind a dry run: `python -m nbllm.train.rehearsal`, a config on its input, a forecast on its output.

Works out the memory and times a step where that takes seconds only; starts no run and writes nothing.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the worker's

import json
import sys
import time
from dataclasses import replace
from typing import Any

import psutil
import torch

from nbllm.errors import NbllmError
from nbllm.model import PRESETS, best_device
from nbllm.model.memory import peak_memory_bytes
from nbllm.shards import Loader
from nbllm.train import objective, precision, setup
from nbllm.train.config import TrainConfig
from nbllm.train.footprint import Footprint, empty_model
from nbllm.train.forecast import Forecast
from nbllm.train.loss_model import LossModel
from nbllm.train.optimizer import Optimizers, choose, default_lr
from nbllm.train.plan import fit_steps, steps_wanted

_TIMED_FLOPS = 2e12  # a micro-step of more isn't timed
_TIMED_STEPS = 2
_ROUGH_SHARE = 0.4  # of a matrix product's speed that training reaches, where it isn't timed
_SPARE = 0.95  # of the free memory that a suggestion may use


def main() -> int:
    """Reads a config, prints a forecast; returns the exit code."""
    given = json.load(sys.stdin)
    config = TrainConfig.from_json(given["config"])
    try:
        found = rehearse(config, processes=given["processes"], local=given["local"])
    except NbllmError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found.as_json()))
    return 0


def rehearse(config: TrainConfig, *, processes: int, local: int) -> Forecast:
    """The forecast of a config.

    Args:
        config: with its shards.
        processes: of all machines.
        local: of this machine, which share its memory on a CPU.
    """
    _, shards = setup.load_shards(config)
    meta = shards.train.meta
    device = best_device()
    settled = precision.choose(config.precision, device)
    fresh = config.model in PRESETS
    kind = choose(config.optimizer, fresh=fresh, parallel=config.parallel)
    objective.choose(config.objective, config.model)
    available = _available(device, local)
    base = _base_bytes(device)
    footprint = Footprint(
        config,
        meta,
        precision=settled,
        optimizer=kind,
        processes=processes,
        base_bytes=base,
        device_type=device,
    )
    memory = footprint.memory(config)
    data_parts = _data_parts(config.parallel, processes)
    loader = Loader(
        shards.train,
        seq_len=config.seq_len,
        batch_size=config.batch_size,
        grad_accum=config.grad_accum,
        world_size=data_parts,
        epochs=config.epochs,
    )
    flops = footprint.flops(config)
    timed = flops <= _TIMED_FLOPS and footprint.memory(replace(config, parallel="ddp")).peak <= available
    micro, update = _time_a_step(config, meta, kind, settled, device) if timed else (_rough(flops, device), 0.0)
    if timed:
        footprint.learn_rest(config, peak_memory_bytes(torch.device(device)))
        memory = footprint.memory(config)
    parts = processes if config.parallel in ("tp", "pp") else _tensor_parts(config.parallel)
    seconds = micro * config.grad_accum / parts + update
    wanted = steps_wanted(config, steps_per_epoch=loader.steps_per_epoch, rows=loader.rows)
    steps = wanted or loader.total_steps or fit_steps(steps_per_epoch=loader.steps_per_epoch, seconds_a_step=seconds)
    rows = min(steps * loader.global_batch_size, loader.total_rows or sys.maxsize)
    lr = config.lr or default_lr(kind=kind, width=footprint.width, adapter=False, trained=not fresh)
    return Forecast(
        parameters=footprint.parameters,
        optimizer=kind,
        lr=lr,
        precision=settled,
        fused=footprint.fused and config.fused != "off",
        total_steps=steps,
        tokens=rows * config.seq_len,
        epochs=rows / loader.rows,
        seconds_a_step=seconds,
        timed=timed,
        memory=memory,
        available_bytes=available,
        suggestion="" if memory.peak <= available else suggest(footprint, config, available, processes),
    )


def suggest(footprint: Footprint, config: TrainConfig, available: int, processes: int) -> str:
    """The first change, from the cheapest on, that makes the run fit: what is optimised stays the same."""
    room = _SPARE * available
    tried: list[tuple[str, TrainConfig]] = []
    base = config
    if config.fused == "off" and footprint.fused:
        base = replace(config, fused="auto")
        tried.append(("--fused auto, which keeps no logits", base))
    words = "--fused auto and " if base is not config else ""

    def smaller(start: TrainConfig, more: str) -> None:
        rows, steps = start.batch_size, start.grad_accum
        while rows % 2 == 0:
            rows, steps = rows // 2, steps * 2
            changed = replace(start, batch_size=rows, grad_accum=steps)
            tried.append((f"{more}--batch-size {rows} --grad-accum {steps}: the same global batch", changed))

    smaller(base, words)
    if not config.checkpointing:
        saving = replace(base, checkpointing=True)
        tried.append((f"{words}--checkpointing, about a third slower", saving))
        smaller(saving, f"{words}--checkpointing and ")
    if processes > 1 and config.parallel == "ddp" and config.optimizer != "muon" and config.adapter is None:
        tried.append(("--parallel fsdp, which cuts weights and optimizer state", replace(config, parallel="fsdp")))
    for said, changed in tried:
        if footprint.memory(changed).peak <= room:
            return said
    least = min((footprint.memory(changed).peak for _, changed in tried), default=0)
    return f"a smaller --model: it needs at least {least / 1e9:.1f} GB whatever the batch"


def _data_parts(parallel: str, processes: int) -> int:
    return {"tp": 1, "pp": 1, "fsdp,tp": processes // 2}.get(parallel, processes)


def _tensor_parts(parallel: str) -> int:
    return 2 if parallel == "fsdp,tp" else 1


def _available(device: str, local: int) -> int:
    """Bytes a process may use: free GPU memory, or this machine's over its processes, by a container's limit too."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    free = psutil.virtual_memory().available
    for limit, used in (("memory.max", "memory.current"),):
        try:
            with open(f"/sys/fs/cgroup/{limit}") as most, open(f"/sys/fs/cgroup/{used}") as now:
                free = min(free, int(most.read()) - int(now.read()))
        except (OSError, ValueError):
            continue
    return max(0, free) // local


def _base_bytes(device: str) -> int:
    """What a worker holds besides its model: Python and libraries, measured on this process with a model of no size."""
    if device == "cuda":
        return 0
    import accelerate  # noqa: F401 - the worker's

    from nbllm import sample, train  # noqa: F401
    from nbllm.train import worker  # noqa: F401

    meta = {"vocab_size": 64, "bos_id": 0, "eos_id": 0, "pad_id": 1}
    tiny = TrainConfig(shards="", store_root="", seq_len=8, batch_size=1)
    _time_a_step(tiny, meta, "muon", "fp32", "cpu")
    return int(psutil.Process().memory_info().rss)


def _time_a_step(
    config: TrainConfig, meta: dict[str, Any], kind: str, settled: str, device: str
) -> tuple[float, float]:
    """Seconds of a micro-step, forward and backward, and of the optimizer: the best after a first one."""
    model = empty_model(config, meta).train().to(device)
    if config.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    whole = LossModel(model, fused=config.fused, settings={})
    optimizers = Optimizers(model, kind=kind, weight_decay=config.weight_decay)
    dtype = {"fp16": torch.float16}.get(settled, torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(meta["vocab_size"], (config.batch_size, config.seq_len), generator=generator).to(device)
    positions = torch.arange(config.seq_len, device=device).expand_as(ids)
    targets = ids
    if whole.masked:
        targets = ids.masked_fill(torch.rand(ids.shape, generator=generator).to(device) > 0.15, -100)
    found: list[tuple[float, float]] = []
    for _ in range(1 + _TIMED_STEPS):
        optimizers.zero_grad()
        began = _now(device)
        with torch.autocast(device, dtype, enabled=settled != "fp32"):
            loss = whole(ids, targets, positions, torch.tensor(1e-3, device=device))
        loss.backward()
        between = _now(device)
        for member in optimizers:
            member.step()
        found.append((between - began, _now(device) - between))
    return min(found[1:])


def _rough(flops: float, device: str) -> float:
    """Seconds for that many operations, from the speed of a matrix product of bf16 or fp32, whichever is faster."""
    best = 0.0
    for dtype in (torch.float32, torch.bfloat16):
        left = torch.randn(2048, 1024, device=device, dtype=dtype)
        right = torch.randn(1024, 1024, device=device, dtype=dtype)
        left @ right
        began = _now(device)
        for _ in range(5):
            left @ right
        best = max(best, 5 * 2 * 2048 * 1024 * 1024 / (_now(device) - began))
    return flops / (best * _ROUGH_SHARE)


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    sys.exit(main())
