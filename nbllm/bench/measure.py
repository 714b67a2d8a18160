"""The clocks of a benchmark: decoding in any runtime, memory that grows, and memory's own speed.

Decoding is greedy and goes through the loop that sampling uses, without text and without an end: every text gets all
its tokens. Knows runtimes through their protocol.

Legend: B texts, N new tokens.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil
import torch

from nbllm.sample.decode import DecodeLoop
from nbllm.sample.parameters import SamplingParameters

if TYPE_CHECKING:
    from nbllm.sample.runtime import Runtime

_ARRAY_BYTES = 2**28
"""256 MiB: several times the caches of the machines there are."""
_CUDA_BYTES = 2**30
_LOOK_S = 0.005


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One decoding."""

    first_token_ms: float | None
    """From the prompt to its first new token; None where a program doesn't say."""
    tokens_per_s: float | None
    """Of all texts, after the first token; None where there was only one."""
    tokens: tuple[int, ...]
    """The first text's."""
    compiled: bool = False
    """Whether the compiled step made some of them."""


def decode(runtime: Runtime, prompt: Sequence[int], batch: int, new_tokens: int) -> Timing:
    """Continues the same prompt B times side by side, greedily, N tokens each.

    Args:
        runtime: the model, with nothing of this prompt in its memory.
        prompt: at least one id.
        batch: B.
        new_tokens: N; prompt and new tokens fit the context.
    """
    parameters = SamplingParameters(greedy=True, max_new_tokens=new_tokens)
    rows = runtime.rows()
    started = time.perf_counter()
    loop = DecodeLoop(runtime, rows, [list(prompt)] * batch, parameters)
    tokens = [loop.step()[0].token]  # a step's tokens are on the host when it returns
    first = time.perf_counter()
    tokens += [loop.step()[0].token for _ in range(new_tokens - 1)]
    rest_s = time.perf_counter() - first
    return Timing(
        first_token_ms=(first - started) * 1e3,
        tokens_per_s=batch * (new_tokens - 1) / rest_s if new_tokens > 1 else None,
        tokens=tuple(tokens),
        compiled=bool(getattr(rows, "compiled_steps", 0)),
    )


def forced(runtime: Runtime, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """The logits with which a runtime would choose each token of a given text, whatever it chose before.

    Args:
        runtime: the model.
        prompt: at least one id.
        tokens: what follows it, N ids.

    Returns:
        float32 [N, V], on the host.
    """
    rows = runtime.rows()
    found = [rows.start([list(prompt)], 1)[0].detach().float().cpu()]
    found += [
        rows.advance(torch.tensor([token], device=runtime.device))[0].detach().float().cpu() for token in tokens[:-1]
    ]
    return torch.stack(found)


def weight_bytes(model: Any) -> int:
    """Of a model's parameters and buffers, shared ones counted once."""
    return sum({id(tensor): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}.values())


def read_bytes(model: Any) -> int:
    """Of them, what a step reads: all but an embedding that only serves a look-up."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    looked_up = getattr(head, "weight", None) is not embedding.weight
    return weight_bytes(model) - (embedding.weight.nbytes if looked_up else 0)


def bandwidth(device: str) -> float:
    """Bytes a second that memory gives: the best of three sums over an array, or on CUDA of three copies (read and
    written bytes together)."""
    best = 0.0
    if device.startswith("cuda"):
        source = torch.zeros(_CUDA_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        target.copy_(source)
        for _ in range(3):
            torch.cuda.synchronize()
            started = time.perf_counter()
            target.copy_(source)
            torch.cuda.synchronize()
            best = max(best, 2 * _CUDA_BYTES / (time.perf_counter() - started))
        return best
    array = torch.ones(_ARRAY_BYTES // 4)
    array.sum()
    for _ in range(3):
        started = time.perf_counter()
        array.sum()
        best = max(best, _ARRAY_BYTES / (time.perf_counter() - started))
    return best


@dataclass
class Growth:
    """Memory that came to be in use."""

    peak_bytes: int = field(default=0)
    """The most, above what there was before."""


@contextlib.contextmanager
def growth(device: str, *, children: bool = False) -> Iterator[Growth]:
    """Watches memory: the device's on CUDA, else this process's own, every five milliseconds.

    Args:
        device: `cuda…`, or another.
        children: count the processes that this one started, too.
    """
    found = Growth()
    give_back()
    if device.startswith("cuda") and not children:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        yield found
        found.peak_bytes = torch.cuda.max_memory_allocated() - before
        return
    before = _resident(children)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_S):
            found.peak_bytes = max(found.peak_bytes, _resident(children) - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
        found.peak_bytes = max(found.peak_bytes, _resident(children) - before)


def give_back() -> None:
    """Frees what nothing holds, down to the system, so that the next measurement doesn't hide in it."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _resident(children: bool) -> int:
    process = psutil.Process()
    total = int(process.memory_info().rss)
    for child in process.children(recursive=True) if children else ():
        with contextlib.suppress(psutil.Error):
            total += int(child.memory_info().rss)
    return total
