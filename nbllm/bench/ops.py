"""Measures the fused ops against the models' own code, torch.compile and Liger on this machine, in turns.

Each form is first compared with float64 on a part of the rows, then all forms of an op take turns, so that a machine
whose speed swings swings for all. On a GPU what is right and faster is kept for `--fused auto`. What fails is a row
that says why.

Roofline: a form's best time is its bytes over memory's speed or its operations over that of a large product, both
measured here. Sources of the formulas: the ops' own docstrings.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from nbllm import ops
from nbllm.bench.measure import bandwidth
from nbllm.bench.op_forms import Form, Op, Shapes, make
from nbllm.bench.op_result import OpRow, OpsBench
from nbllm.model import dtype_name

_CHECKED_ROWS = 48
_TURN_S = 0.05
"""A turn repeats a form for about so long."""
_TRIFLE = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def compare_ops(
    *,
    shapes: Shapes | None = None,
    device: str | None = None,
    compile: bool = True,
    only: Sequence[str] = (),
    rounds: int = 5,
) -> OpsBench:
    """Measures every op in every form there is here.

    Args:
        shapes: of the inputs; SmolLM2-135M's by default, with 16,384 rows on a GPU and 1,024 elsewhere.
        device: `cuda` where there is one, by default.
        compile: also what torch.compile makes of the models' own code.
        only: some of `linear_loss`, `add_rms_norm`, `rms_norm`, `swiglu`, `rope`.
        rounds: turns that each form gets.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.startswith("cuda")
    dtype = torch.bfloat16 if gpu else torch.float32
    shapes = shapes or Shapes(rows=16_384 if gpu else 1024)
    speed, peak = bandwidth(device), _peak(device, dtype)
    before = ops.chosen()
    rows: list[OpRow] = []
    try:
        for op in make(shapes, device=device, dtype=dtype, compile=compile, only=only):
            rows += _measure(op, device, speed, peak, rounds)
    finally:
        ops.use_triton(before)
    faster, kept = _faster(rows), None
    if gpu:
        kept = str(ops.keep_faster(faster))
    return OpsBench(
        device=torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads",
        dtype=dtype_name(dtype),
        bandwidth_bytes_per_s=speed,
        peak_flop_per_s=peak,
        rows=tuple(_with_use(row, faster) for row in rows),
        versions=_versions(),
        kept=kept,
    )


def _measure(op: Op, device: str, speed: float, peak: float, rounds: int) -> list[OpRow]:
    errors = {form.name: _error(op, form) for form in op.forms if form.error is None}
    plain = errors.get("eager")
    runs: dict[str, Callable[[], Any]] = {}
    problems = {form.name: form.error for form in op.forms if form.error}
    repeats: dict[str, int] = {}
    for form in op.forms:
        if form.error is not None:
            continue
        run = _run(op.inputs, form.call)
        try:
            run()  # compiles what is compiled
            repeats[form.name] = max(1, int(_TURN_S / max(_seconds(run, 1, device), 1e-6)))
            runs[form.name] = run
        except Exception as error:  # compilers and others' kernels fail in any way; the row says how
            problems[form.name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(_seconds(run, repeats[name], device))
    best = op.operations / peak if op.operations else op.bytes_moved / speed
    rows = []
    for form in op.forms:
        common: dict[str, Any] = {"op": op.name, "title": op.title, "shape": op.shape, "form": form.name}
        if form.name not in runs:
            rows.append(OpRow(**common, problem=problems.get(form.name)))
            continue
        seconds, wrong_by = statistics.median(found[form.name]), errors[form.name]
        allowed = None if plain is None else 2 * plain + _TRIFLE.get(op.inputs[0].dtype, 1e-6)
        rows.append(
            OpRow(
                **common,
                ms=seconds * 1e3,
                memory_bytes=_peak_bytes(runs[form.name], device),
                gb_per_s=op.bytes_moved / seconds / 1e9 if op.bytes_moved else None,
                tflop_per_s=op.operations / seconds / 1e12 if op.operations else None,
                share=best / seconds,
                error=wrong_by,
                right=None if wrong_by is None or allowed is None else wrong_by <= allowed,
            )
        )
    return rows


def _run(inputs: tuple[Tensor, ...], call: Callable[..., Any]) -> Callable[[], Any]:
    def run() -> Any:
        outputs = call(*inputs)
        outputs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        return torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs])

    return run


def _error(op: Op, form: Form) -> float | None:
    """Largest error against the eager form in float64, on a part of the rows; None where it fails."""

    def fewer(tensor: Tensor) -> Tensor:
        part = tensor
        if op.name == "rope":
            part = tensor[:, :, :_CHECKED_ROWS]
        elif tensor.ndim == 2 and not (op.name == "linear_loss" and tensor is op.inputs[1]):
            part = tensor[:_CHECKED_ROWS]
        return part.detach().contiguous()

    inputs = tuple(fewer(tensor).requires_grad_() for tensor in op.inputs)
    wide = tuple(tensor.detach().double().requires_grad_() for tensor in inputs)
    exact = _values(next(one for one in op.forms if one.name == "eager").call, wide)
    try:
        got = _values(form.call, inputs)
    except Exception:  # as when it is measured, where the row says how it failed
        return None
    return max(
        float((one.double() - true).abs().max() / true.abs().max().clamp(min=1e-12))
        for one, true in zip(got, exact, strict=True)
    )


def _values(call: Callable[..., Any], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    outputs = call(*inputs)
    outputs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    factors = [
        torch.arange(output.numel(), device=output.device).sin().view(output.shape).to(output.dtype)
        if output.ndim
        else torch.ones_like(output)
        for output in outputs
    ]
    return [*(output.detach() for output in outputs), *torch.autograd.grad(outputs, inputs, factors)]


def _seconds(run: Callable[[], Any], repeats: int, device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / repeats


def _peak_bytes(run: Callable[[], Any], device: str) -> int:
    """The most memory that tensors took at once while it ran."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler says on stderr that it begins and ends
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=False
    ) as profile:
        run()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _peak(device: str, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product: the best of five."""
    size = 8192 if device.startswith("cuda") else 1024
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    left @ right
    return 2.0 * size**3 / min(_seconds(lambda: left @ right, 1, device) for _ in range(5))


def _faster(rows: Sequence[OpRow]) -> frozenset[str]:
    """The kernels that are right and faster than everything that a run would take in their place."""
    won: dict[str, bool] = {}
    for row in rows:
        if row.form != "nbllm Triton":
            continue
        kernel = "rms_norm" if row.op == "add_rms_norm" else row.op
        others = ("nbllm",) if row.op == "linear_loss" else ("eager", "compiled")
        times = [other.ms for other in rows if other.op == row.op and other.form in others and other.ms is not None]
        better = row.ms is not None and row.right is True and bool(times) and row.ms < min(times)
        won[kernel] = won.get(kernel, True) and better
    return frozenset(kernel for kernel, better in won.items() if better)


def _with_use(row: OpRow, faster: frozenset[str]) -> OpRow:
    kernel = "rms_norm" if row.op == "add_rms_norm" else row.op
    taken = "nbllm Triton" if kernel in faster else "nbllm" if row.op == "linear_loss" else "eager"
    return replace(row, used=row.form == taken)


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "triton", "liger-kernel"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
