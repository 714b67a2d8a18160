"""Local stages in other processes: batches go out and scores come back as Arrow streams over pipes.

The processes are plain `python -m nbllm.corpus.workers`, so that neither the notebook's main module is imported again
nor a kernel with threads forked, and nothing is pickled. What comes back is applied here by the same code that a single
process uses, in the order of the batches, so that the result can't depend on the number of workers. Stages that hold a
function of the notebook, and those after one, run here.

Frames on a pipe: 8 bytes length (big-endian), then so many bytes. To a worker: first the stages' lines and the ids to
keep as JSON, then one Arrow stream a batch. From a worker for each batch: a JSON list of the following frames' kinds,
then the frames.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

import pyarrow as pa

from nbllm.corpus.engine import Step, allow_list, apply_outcome, run_here
from nbllm.corpus.stage import Outcome, Stage
from nbllm.errors import DataError, NbllmError, RunError, UsageError

_ERRORS: dict[str, type[NbllmError]] = {error.__name__: error for error in (UsageError, DataError)}
_Chain = Sequence[tuple[int, Stage]]
_Reply = list[tuple[pa.RecordBatch, pa.Array, "pa.Array | None"]]


class Workers:
    """A runner that shares batches out to processes; a context manager that ends them.

    Args:
        count: how many processes.
        keep: ids of documents that no stage drops.
    """

    def __init__(self, count: int, keep: Iterable[str] = ()) -> None:
        self._count = count
        self._ids = list(keep)
        self._keep = allow_list(self._ids)

    def __call__(self, chain: _Chain, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, list[Step]]]:
        """Applies a chain to batches, as `engine.Runner` says."""
        here = next((index for index, (_, stage) in enumerate(chain) if not stage.PORTABLE), len(chain))
        first = next((index for index, (number, _) in enumerate(chain) if number), len(chain))
        away = chain[first:here]
        if not away:
            yield from run_here(chain, batches, keep=self._keep)
            return
        prepared = run_here(chain[:first], batches, keep=self._keep)
        for batch, steps in self._away(away, prepared):
            for rest, more in run_here(chain[here:], [batch], keep=self._keep):
                yield rest, steps + more

    def _away(
        self, chain: _Chain, prepared: Iterator[tuple[pa.RecordBatch, list[Step]]]
    ) -> Iterator[tuple[pa.RecordBatch, list[Step]]]:
        lines = [stage.line() for _, stage in chain]
        with contextlib.ExitStack() as stack:
            idle: queue.Queue[_Worker] = queue.Queue()
            for _ in range(self._count):
                worker = _Worker(lines, self._ids)
                stack.callback(worker.close)
                idle.put(worker)
            pool = ThreadPoolExecutor(self._count)
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            waiting: deque[tuple[pa.RecordBatch, list[Step], Future[_Reply]]] = deque()
            for batch, steps in prepared:
                waiting.append((batch, steps, pool.submit(_ask, idle, batch)))
                if len(waiting) > 2 * self._count:
                    yield _applied(chain, *waiting.popleft(), self._keep)
            while waiting:
                yield _applied(chain, *waiting.popleft(), self._keep)


def _ask(idle: queue.Queue[_Worker], batch: pa.RecordBatch) -> _Reply:
    worker = idle.get()
    try:
        return worker.ask(batch) if len(batch) else []
    finally:
        idle.put(worker)


def _applied(
    chain: _Chain, batch: pa.RecordBatch, steps: list[Step], reply: Future[_Reply], keep: pa.Array | None
) -> tuple[pa.RecordBatch, list[Step]]:
    steps = list(steps)
    for (number, _), (scores, reasons, texts) in zip(chain, reply.result(), strict=False):
        step = apply_outcome(number, batch, Outcome(scores, texts), reasons, keep)
        steps.append(step)
        batch = step.after
    return batch, steps


class _Worker:
    """One process and its pipes."""

    def __init__(self, lines: list[str], keep: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nbllm.corpus.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of the kernel is for the kernel, which then ends this process
        )
        assert self._process.stdin is not None
        _write(self._process.stdin, json.dumps({"stages": lines, "keep": keep}).encode())

    def ask(self, batch: pa.RecordBatch) -> _Reply:
        """What the chain finds in a batch: scores, reasons and edited texts of each stage."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _write(self._process.stdin, _to_bytes(batch))
            kinds = json.loads(_read(self._process.stdout))
            if isinstance(kinds, dict):
                error = _ERRORS.get(kinds["error"], RunError)
                raise error(kinds["what"], received=kinds["received"], next=kinds["next"])
            frames = [_from_bytes(_read(self._process.stdout)) for _ in kinds]
        except (BrokenPipeError, EOFError) as error:
            raise RunError(
                f"A cleaning process ended by itself (exit code {self._process.poll()})", next="Clean with --workers 1"
            ) from error
        reply: _Reply = []
        for kind, frame in zip(kinds, frames, strict=True):
            if kind == "texts":
                scores, reasons, _ = reply[-1]
                reply[-1] = (scores, reasons, frame["text"])
            else:
                names = frame.schema.names
                reply.append((frame.select([name for name in names if name != "reason"]), frame["reason"], None))
        return reply

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()


def _serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """The worker's side: reads batches until the pipe closes."""
    from nbllm.corpus.stages import parse_stages

    asked = json.loads(_read(source))
    stages, keep = parse_stages(asked["stages"]), allow_list(asked["keep"])
    while True:
        try:
            batch = _from_bytes(_read(source))
        except EOFError:
            return
        kinds, frames = [], []
        try:
            for stage in stages:
                outcome = stage.measure(batch)
                reasons = stage.decide(outcome.scores)
                columns = dict(zip(outcome.scores.schema.names, outcome.scores.columns, strict=True))
                kinds.append("scores")
                frames.append(pa.record_batch({**columns, "reason": reasons}))
                if outcome.texts is not None:
                    kinds.append("texts")
                    frames.append(pa.record_batch({"text": outcome.texts}))
                batch = apply_outcome(0, batch, outcome, reasons, keep).after
                if not len(batch):
                    break
        except NbllmError as error:
            received = None if error.received is None else str(error.received)
            _write(sink, json.dumps({"error": type(error).__name__, "what": error.what, "received": received,
                                     "next": error.next}).encode())  # fmt: skip
            continue
        except Exception:
            what = f"A cleaning process failed: {traceback.format_exc(limit=-1).strip().splitlines()[-1]}"
            _write(sink, json.dumps({"error": "", "what": what, "received": None, "next": None}).encode())
            continue
        _write(sink, json.dumps(kinds).encode())
        for frame in frames:
            _write(sink, _to_bytes(frame))


def _to_bytes(batch: pa.RecordBatch) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def _from_bytes(data: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(data).read_next_batch()


def _write(pipe: IO[bytes], data: Any) -> None:
    size = data.size if isinstance(data, pa.Buffer) else len(data)
    pipe.write(size.to_bytes(8, "big"))
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError
    size = int.from_bytes(head, "big")
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
