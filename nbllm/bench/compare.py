"""Runs one model through every runtime, in turns, and makes the rows of a `Bench`.

All that are measured are loaded first, then every round asks each of them once, so that a machine whose speed swings
swings for all. What fails is a row that says why; it stops nothing. Compiling and exporting aren't timed.

Legend: B texts.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from nbllm.bench.measure import Timing, bandwidth, decode, forced, growth, read_bytes, weight_bytes
from nbllm.bench.result import Bench, BenchRow, Difference
from nbllm.errors import NbllmError, RunError, UsageError, did_you_mean
from nbllm.model import dtype_name, quantize
from nbllm.sample.compiled import allowed
from nbllm.sample.forward import Forward

_TORCH = ("eager", "compiled", "int8", "int4")
BACKENDS = (*_TORCH, "onnx", "llamacpp", "vllm", "tensorrt")
_NAMES = {"onnx": "ONNX Runtime", "llamacpp": "llama.cpp", "vllm": "vLLM", "tensorrt": "TensorRT"}
_PACKAGES = {"onnx": "onnxruntime", "llamacpp": "llama-cpp-python", "tensorrt": "onnxruntime-gpu"}
_ROUNDS = 3
_LOAD_S = 300
Load = Callable[[str], Any]
"""From a backend's name to its runtime."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where a model lies."""

    path: str
    """Its folder, file or hub name."""
    adapter: str | None = None
    """The folder of what is attached to it."""


def compare(
    model: Any,
    load: Load,
    *,
    name: str,
    prompt: Sequence[int],
    backends: Sequence[str] | None = None,
    new_tokens: int = 64,
    batch: Sequence[int] = (1, 8),
    compile: bool = True,
    source: Source | None = None,
) -> Bench:
    """Measures a model.

    Args:
        model: a causal language model of transformers.
        load: makes the runtime of `onnx`, `llamacpp`, `vllm` or `tensorrt`.
        name: the model's, for the heading.
        prompt: ids.
        backends: of `BACKENDS`; all by default.
        new_tokens: tokens made a text.
        batch: how many texts at once, each.
        compile: wait for the compiled step, minutes where it isn't on disk yet.
        source: where the model lies; PyTorch's rows then get their load time and memory, each in a process of its own.

    Raises:
        UsageError: an unknown backend, or numbers below 1, or more tokens than the context has.
    """
    chosen = tuple(backends or BACKENDS)
    for backend in chosen:
        if backend not in BACKENDS:
            raise UsageError(f"No backend is named {backend!r}", next=did_you_mean(backend, BACKENDS))
    if new_tokens < 2 or not batch or min(batch) < 1:
        raise UsageError("A benchmark makes 2 tokens or more, of 1 text or more", received=(new_tokens, *batch))
    if not prompt:
        raise UsageError(
            "A benchmark continues a text, and the prompt has no tokens", next='For example --prompt "The"'
        )
    reference = Forward(model)
    if reference.context is not None and len(prompt) + new_tokens > reference.context:
        raise UsageError(f"Prompt and {new_tokens} tokens are more than the context of {reference.context:,}")
    reference.compiled.switch_off()
    tokens = decode(reference, prompt, 1, new_tokens).tokens
    wanted = _Wanted(tokens=tokens, logits=forced(reference, prompt, tokens))
    entries = [_load(backend, model, load, prompt, compile, source) for backend in chosen]
    speed = 0.0
    try:
        for _ in range(_ROUNDS):
            speed = max(speed, bandwidth(model.device.type))
            for entry in entries:
                entry.measure(prompt, batch, new_tokens)
        for entry in entries:
            entry.judge(prompt, wanted)
        rows = tuple(entry.row(wanted, speed) for entry in entries)
    finally:
        for entry in entries:
            entry.close()
    return Bench(
        model=name,
        device=_device(model),
        prompt_tokens=len(prompt),
        new_tokens=new_tokens,
        batch=tuple(batch),
        reference=f"PyTorch eager in {dtype_name(model.dtype)}",
        bandwidth_bytes_per_s=speed,
        rows=rows,
        versions=_versions(),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Wanted:
    """What the reference says after the prompt."""

    tokens: tuple[int, ...]
    logits: Any
    """With which it chose them, float32 [N, V]."""

    def difference(self, tokens: Sequence[int]) -> Difference | None:
        """Where other tokens leave these."""
        common = min(len(tokens), len(self.tokens))
        place = next((i for i in range(common) if tokens[i] != self.tokens[i]), common)
        if place == len(self.tokens):
            return None
        if place == len(tokens):
            return Difference(token=place, wanted=None, chosen=None)
        share = self.logits[place].softmax(-1)
        return Difference(token=place, wanted=float(share[self.tokens[place]]), chosen=float(share[tokens[place]]))


class _Entry:
    """One backend while it is measured."""

    def __init__(self, row: BenchRow, runtime: Any = None, model: Any = None) -> None:
        self._row, self._runtime = row, runtime
        self._model = model  # a runtime of torch doesn't keep its model alive
        self._timings: dict[int, list[Timing]] = {}
        self._notes: list[str] = [row.note] if row.note else []
        self._agreed: int | None = None

    def measure(self, prompt: Sequence[int], batch: Sequence[int], new_tokens: int) -> None:
        for size in batch:
            if self._row.error is not None or (size in self._timings and not self._timings[size]):
                continue
            timings = self._timings.setdefault(size, [])
            try:
                timings.append(self._once(prompt, size, new_tokens))
            except Exception as error:  # whatever another program raises
                if size == min(batch):
                    self._row = _failed(self._row, error)
                else:
                    timings.clear()
                    self._notes.append(f"×{size}: {_one_line(error)}")

    def _once(self, prompt: Sequence[int], size: int, new_tokens: int) -> Timing:
        if isinstance(self._runtime, Forward):
            self._runtime.prefixes.clear()
        if not hasattr(self._runtime, "rows"):
            return _whole(self._runtime, prompt, size, new_tokens)
        if hasattr(self._runtime, "forget"):
            self._runtime.forget()
        return decode(self._runtime, prompt, size, new_tokens)

    def judge(self, prompt: Sequence[int], wanted: _Wanted) -> None:
        """Counts the reference's tokens that this one would choose too, where it can be asked for one at a time."""
        if self._row.error is not None or not hasattr(self._runtime, "rows"):
            return
        try:
            chosen = forced(self._runtime, prompt, wanted.tokens).argmax(-1).tolist()
        except Exception as error:  # whatever another program raises
            self._notes.append(f"agreement: {_one_line(error)}")
            return
        self._agreed = sum(one == other for one, other in zip(chosen, wanted.tokens, strict=True))

    def row(self, wanted: _Wanted, speed: float) -> BenchRow:
        one = self._timings.get(1) or next((timings for timings in self._timings.values() if timings), [])
        if self._row.error is not None or not one:
            return self._row
        if self._row.backend == "compiled" and not all(timing.compiled for timing in one):
            why = self._runtime.compiled.why_not or "it stopped half-way"
            return dataclasses.replace(self._row, error=f"The step isn't compiled: {why}")
        rounds = {
            size: tuple(timing.tokens_per_s for timing in timings if timing.tokens_per_s)
            for size, timings in self._timings.items()
            if timings
        }
        firsts = [timing.first_token_ms for timing in one if timing.first_token_ms is not None]
        read = self._row.read_bytes
        return dataclasses.replace(
            self._row,
            compiled=one[-1].compiled if self._row.compiled is not None else None,
            first_token_ms=statistics.median(firsts) if firsts else None,
            tokens_per_s={size: statistics.median(speeds) for size, speeds in rounds.items()},
            rounds=rounds,
            limit_tokens_per_s=speed / read if read else None,
            agreement=None if self._agreed is None else (self._agreed, len(wanted.tokens)),
            first_difference=wanted.difference(one[-1].tokens),
            note="; ".join(self._notes),
        )

    def close(self) -> None:
        if hasattr(self._runtime, "close"):
            self._runtime.close()


def _load(backend: str, model: Any, load: Load, prompt: Sequence[int], compile: bool, source: Source | None) -> _Entry:
    torch_row = BenchRow(backend=backend, name="PyTorch", precision=dtype_name(model.dtype), compiled=False)
    row = torch_row if backend in _TORCH else BenchRow(backend=backend, name=_NAMES[backend])
    try:
        if backend not in _TORCH:
            started = time.perf_counter()
            with growth(model.device.type, children=backend == "vllm") as memory:
                runtime = load(backend)
                loaded_s = time.perf_counter() - started
            return _Entry(dataclasses.replace(row, load_s=loaded_s, peak_bytes=memory.peak_bytes), runtime)
        if backend in ("int8", "int4"):
            made = quantize(model, backend)
            row = dataclasses.replace(row, precision=backend)
        else:
            made = model
        forward = Forward(made)
        notes = [_ready(forward, backend, prompt, compile)]
        if source is not None:
            alone = _alone(source, made, prompt, compiled=forward.compiled.ready)
            row = dataclasses.replace(row, load_s=alone.get("load_s"), peak_bytes=alone.get("peak_bytes"))
            notes.append(str(alone.get("problem", "")))
        row = dataclasses.replace(
            row,
            weight_bytes=weight_bytes(made),
            read_bytes=read_bytes(made),
            note="; ".join(filter(None, notes)),
        )
        return _Entry(row, forward, made)
    except Exception as error:  # whatever another program raises
        return _Entry(_failed(row, error))


def _alone(source: Source, model: Any, prompt: Sequence[int], *, compiled: bool) -> dict[str, Any]:
    """Load time and memory as `load_worker` finds them; `problem` where it finds none."""
    job = {
        "path": source.path,
        "adapter": source.adapter,
        "dtype": dtype_name(model.dtype),
        "device": str(model.device),
        "quantize": getattr(model, "nbllm_quantized", None),
        "compiled": compiled,
        "prompt": list(prompt),
    }
    command = [sys.executable, "-m", "nbllm.bench.load_worker", json.dumps(job)]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_LOAD_S, check=True)
        found: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
        return found
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines()
        return {"problem": f"load not measured: {lines[-1][:150] if lines else 'no message'}"}
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"problem": f"load not measured: {_one_line(error)[:150]}"}


def _ready(runtime: Forward, backend: str, prompt: Sequence[int], compile: bool) -> str:
    """Gets the step ready; what is to be known of it. The row `compiled` has no other step to fall back on.

    Raises:
        UsageError: it is that row, and compiling wasn't to be waited for.
        RunError: it is that row, and there is no compiled step.
    """
    if backend == "compiled" and not compile:
        raise UsageError("Compiling wasn't to be waited for", next="Leave --no-compile out")
    if backend == "eager" or not compile:
        runtime.compiled.switch_off()
        return ""
    if runtime.compiled.wait():
        decode(runtime, prompt, 1, 3)  # the first step is compared with the plain one
    if runtime.compiled.why_not is not None and not allowed():
        runtime.compiled.why_not = "NBLLM_COMPILE is off"
    if runtime.compiled.why_not is None:
        return "one text at a time; several take the plain step"
    if backend == "compiled":
        raise RunError(f"The step isn't compiled: {runtime.compiled.why_not}")
    return f"not compiled: {runtime.compiled.why_not}"


def _whole(runtime: Any, prompt: Sequence[int], size: int, new_tokens: int) -> Timing:
    """Of a program that samples by itself."""
    from nbllm.sample.parameters import SamplingParameters

    found = runtime.generate([list(prompt)] * size, SamplingParameters(greedy=True, max_new_tokens=new_tokens))
    return Timing(first_token_ms=None, tokens_per_s=found[0].tokens_per_s, tokens=tuple(found[0].tokens))


def _failed(row: BenchRow, error: Exception) -> BenchRow:
    remedy = getattr(error, "next", None)
    return dataclasses.replace(row, error=_one_line(error), next=str(remedy) if remedy else None)


def _one_line(error: Exception) -> str:
    if isinstance(error, NbllmError):
        return str(error.what)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _device(model: Any) -> str:
    import torch

    if model.device.type == "cuda":
        return str(torch.cuda.get_device_name())
    return f"{model.device.type}, {torch.get_num_threads()} threads"


def _versions() -> dict[str, str]:
    found = {}
    for package in ("torch", "transformers", *sorted(set(_PACKAGES.values()))):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
