"""Measures the fused ops against the models' own code, torch.compile and Liger on this machine, in turns.

Each form is first compared with float64 on a part of the rows, then all forms of an op take turns, so that a machine
whose speed swings swings for all; a form that takes seconds gets fewer. On a GPU what is right and faster is kept for
`--fused auto`. What fails is a row that says why.

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
from nbllm.bench.op_forms import Op, Shapes, make
from nbllm.bench.op_result import OpRow, OpsBench
from nbllm.model import dtype_name

_CHECKED_ROWS = 48
_TURN_S = 0.05
"""A turn repeats a form for about so long."""
_FORM_S = 2.0
"""A form gets no more turns than fit in about so long; a slower one is measured once."""
_TRIFLE = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def compare_ops(
    *,
    shapes: Shapes | None = None,
    device: str | None = None,
    compile: bool = True,
    only: Sequence[str] = (),
    rounds: int = 5,
    say: Callable[[str], None] | None = None,
) -> OpsBench:
    """Measures every op in every form there is here.

    Args:
        shapes: of the inputs; SmolLM2-135M's by default, with 16,384 rows on a GPU; elsewhere 4,096, and 512 of the
            linear loss.
        device: `cuda` where there is one, by default.
        compile: also what torch.compile makes of the models' own code.
        only: some of `linear_loss`, `add_rms_norm`, `rms_norm`, `swiglu`, `rope`.
        rounds: turns that each form gets, at most.
        say: called with a line of progress for each op.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.startswith("cuda")
    dtype = torch.bfloat16 if gpu else torch.float32
    shapes = shapes or Shapes.of(None, device=device)
    speed, peak = bandwidth(device), _peak(device, dtype)
    before = ops.chosen()
    rows: list[OpRow] = []
    try:
        for op in make(shapes, device=device, dtype=dtype, compile=compile, only=only):
            if say is not None:
                say(f"{op.title}, {op.shape}: {', '.join(form.name for form in op.forms)} …")
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
    errors, problems = _errors(op)
    plain = errors.get("eager")
    runs = {form.name: _run(op, form.call) for form in op.forms if form.name in errors}
    found = {name: [_seconds(run, 1, device)] for name, run in runs.items()}
    repeats = {name: max(1, int(_TURN_S / max(seconds[0], 1e-6))) for name, seconds in found.items()}
    turns = {name: min(rounds, int(_FORM_S / max(seconds[0], 1e-6))) for name, seconds in found.items()}
    for _ in range(rounds):
        for name, run in runs.items():
            if len(found[name]) <= turns[name]:
                found[name].append(_seconds(run, repeats[name], device))
    best = op.operations / peak if op.operations else op.bytes_moved / speed
    rows = []
    for form in op.forms:
        common: dict[str, Any] = {"op": op.name, "title": op.title, "shape": op.shape, "form": form.name}
        if form.name not in runs:
            rows.append(OpRow(**common, problem=problems.get(form.name)))
            continue
        seconds, wrong_by = statistics.median(found[form.name][1:] or found[form.name]), errors[form.name]
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
                right=None if allowed is None else wrong_by <= allowed,
            )
        )
    return rows


def _run(op: Op, call: Callable[..., Any]) -> Callable[[], Any]:
    def run() -> Any:
        outputs = call(*op.inputs, *op.fixed)
        outputs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        return torch.autograd.grad(outputs, op.inputs, [torch.ones_like(output) for output in outputs])

    return run


def _errors(op: Op) -> tuple[dict[str, float], dict[str, str]]:
    """Each form's largest error against the eager one in float64 on the first rows, and why a form has none.

    The forms get all rows, as when they are timed, so that what is compiled is compiled once; the gradient into the
    others is zero, or their target is ignored.
    """
    own, fixed_at = op.rows_at[: len(op.inputs)], op.rows_at[len(op.inputs) :]
    wide = [_first(tensor.detach(), at).double().requires_grad_() for tensor, at in zip(op.inputs, own, strict=True)]
    known = [_first(tensor, at) for tensor, at in zip(op.fixed, fixed_at, strict=True)]
    known = [tensor.double() if tensor.is_floating_point() else tensor for tensor in known]
    eager = next(form for form in op.forms if form.name == "eager")
    exact, rows_at = _values(op, eager.call, wide, known)
    fixed = [tensor if tensor.is_floating_point() else tensor.clone() for tensor in op.fixed]
    for tensor in fixed:
        if not tensor.is_floating_point():
            tensor[_CHECKED_ROWS:] = ops.IGNORED
    errors: dict[str, float] = {}
    problems = {form.name: form.error for form in op.forms if form.error is not None}
    for form in op.forms:
        if form.error is not None:
            continue
        try:
            got, _ = _values(op, form.call, op.inputs, fixed)
        except Exception as error:  # compilers and others' kernels fail in any way; the row says how
            problems[form.name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            continue
        errors[form.name] = max(
            float((_first(one, at).double() - true).abs().max() / true.abs().max().clamp(min=1e-12))
            for one, true, at in zip(got, exact, rows_at, strict=True)
        )
    return errors, problems


def _first(tensor: Tensor, at: int | None) -> Tensor:
    """The rows that are checked, of a tensor that has them in that dimension."""
    return tensor if at is None else tensor.narrow(at, 0, min(_CHECKED_ROWS, tensor.shape[at])).contiguous()


def _values(
    op: Op, call: Callable[..., Any], inputs: Sequence[Tensor], fixed: Sequence[Tensor]
) -> tuple[list[Tensor], list[int | None]]:
    """Results and gradients where every entry of the rows that are checked counts differently; their row dimensions."""
    outputs = call(*inputs, *fixed)
    outputs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
    rows_at = [op.rows_at[0] if output.ndim else None for output in outputs]
    factors = [torch.zeros_like(output) if output.ndim else torch.ones_like(output) for output in outputs]
    for factor, at in zip(factors, rows_at, strict=True):
        if at is not None:
            part = factor.narrow(at, 0, min(_CHECKED_ROWS, factor.shape[at]))
            part.copy_(torch.arange(part.numel(), device=part.device).sin().view(part.shape))
    gradients = torch.autograd.grad(outputs, inputs, factors)
    return [*(output.detach() for output in outputs), *gradients], [*rows_at, *op.rows_at[: len(inputs)]]


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
