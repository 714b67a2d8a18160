"""Local stages in other processes: batches go out and scores come back as Arrow streams over pipes.

The processes are plain `python -m nbllm.corpus.workers`, so that neither the notebook's main module is imported again
nor a kernel with threads forked. What comes back is applied here by the same code that a single process uses, in the
order of the batches, so that the result can't depend on the number of workers. A function of the notebook goes to the
processes by cloudpickle, over the pipe from this process and from nowhere else; where it holds something that can't go
(an open file, a lock), its stage and those after it run here.

Frames on a pipe: 8 bytes length (big-endian), then so many bytes. To a worker: first the lines of the stages and of the
global stage that follows, functions, import paths and the ids to keep, as JSON, then one Arrow stream a batch. From a
worker for each batch: a JSON list of the following frames' kinds, then the frames.
"""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any

import pyarrow as pa

from nbllm.corpus.stage import GlobalStage, Outcome, Stage
from nbllm.corpus.steps import Chain, Done, Step, allow_list, apply_outcome, run_here
from nbllm.errors import DataError, NbllmError, RunError, UsageError

_ERRORS: dict[str, type[NbllmError]] = {error.__name__: error for error in (UsageError, DataError)}
Prepared = tuple[pa.RecordBatch, list[Step]]


@dataclass
class Reply:
    """What a worker found in a batch."""

    outcomes: list[tuple[pa.RecordBatch, pa.Array, pa.Array | None]] = field(default_factory=list)
    """Scores, reasons and edited texts of each stage."""
    keys: pa.RecordBatch | None = None
    """Of the global stage that follows."""


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

    def __call__(self, chain: Chain, following: GlobalStage | None, stream: Iterable[Prepared]) -> Iterator[Done]:
        """Applies a chain to batches, as `steps.Runner` says."""
        here = next((index for index, (_, stage) in enumerate(chain) if packed(stage) is None), len(chain))
        first = next((index for index, (number, _) in enumerate(chain) if number), len(chain))
        away, after = chain[first:here], chain[here:]
        last = following if not after else None
        if not away and last is None:
            yield from run_here(chain, following, stream, keep=self._keep)
            return
        prepared = ((done.batch, done.steps) for done in run_here(chain[:first], None, stream, keep=self._keep))
        for done in self._away(away, last, prepared):
            if after:
                yield from run_here(after, following, [(done.batch, done.steps)], keep=self._keep)
            else:
                yield done

    def _away(self, chain: Chain, following: GlobalStage | None, prepared: Iterator[Prepared]) -> Iterator[Done]:
        orders = {
            "stages": [stage.line() for _, stage in chain],
            "following": following.line() if following is not None else None,
            "keep": self._ids,
            "functions": {name: value for _, stage in chain for name, value in (packed(stage) or {}).items()},
            "path": sys.path,
        }
        with self._asked(orders) as ask:
            waiting: deque[tuple[Prepared, Callable[[], Reply]]] = deque()
            for one in prepared:
                waiting.append((one, ask(one[0]) if len(one[0]) else Reply))
                if len(waiting) > 2 * self._count:
                    yield _applied(chain, *waiting.popleft(), self._keep)
            while waiting:
                yield _applied(chain, *waiting.popleft(), self._keep)

    @contextlib.contextmanager
    def _asked(self, orders: dict[str, Any]) -> Iterator[Callable[[pa.RecordBatch], Callable[[], Reply]]]:
        """Gives what hands a batch to a worker; what that returns waits for the reply."""
        with contextlib.ExitStack() as stack:
            idle: queue.Queue[_Worker] = queue.Queue()
            for _ in range(self._count):
                worker = _Worker(orders)
                stack.callback(worker.close)
                idle.put(worker)
            pool = ThreadPoolExecutor(self._count)
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            yield lambda batch: pool.submit(_ask, idle, batch).result


def packed(stage: Stage) -> dict[str, str] | None:
    """A stage's functions by name, as text for another process; None where one can't go."""
    import cloudpickle

    try:
        return {
            name: base64.b64encode(cloudpickle.dumps(function)).decode() for name, function in stage.functions().items()
        }
    except Exception:  # whatever a value that the function refers to raises
        return None


def unpacked(functions: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
    """The functions that `packed` gave, in the other process."""
    import cloudpickle

    return {name: cloudpickle.loads(base64.b64decode(value)) for name, value in functions.items()}


def _ask(idle: queue.Queue[_Worker], batch: pa.RecordBatch) -> Reply:
    worker = idle.get()
    try:
        return worker.ask(batch)
    finally:
        idle.put(worker)


def _applied(chain: Chain, prepared: Prepared, reply: Callable[[], Reply], keep: pa.Array | None) -> Done:
    batch, steps = prepared[0], list(prepared[1])
    found = reply()
    for (number, _), (scores, reasons, texts) in zip(chain, found.outcomes, strict=False):
        step = apply_outcome(number, batch, Outcome(scores, texts), reasons, keep)
        steps.append(step)
        batch = step.after
    return Done(batch, steps, found.keys)


def reply_of(head: Any, frames: list[bytes]) -> Reply:
    """What `Measure.answer` said, in this process; raises the error that it tells of."""
    if isinstance(head, dict):
        error = _ERRORS.get(head["error"], RunError)
        raise error(head["what"], received=head["received"], next=head["next"])
    reply = Reply()
    for kind, data in zip(head, frames, strict=True):
        frame = from_bytes(data)
        if kind == "keys":
            reply.keys = frame
        elif kind == "texts":
            scores, reasons, _ = reply.outcomes[-1]
            reply.outcomes[-1] = (scores, reasons, frame["text"])
        else:
            names = [name for name in frame.schema.names if name != "reason"]
            reply.outcomes.append((frame.select(names), frame["reason"], None))
    return reply


class _Worker:
    """One process and its pipes."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nbllm.corpus.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of the kernel is for the kernel, which then ends this process
        )
        assert self._process.stdin is not None
        _write(self._process.stdin, json.dumps(orders).encode())

    def ask(self, batch: pa.RecordBatch) -> Reply:
        """What the chain finds in a batch."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _write(self._process.stdin, to_bytes(batch))
            head = json.loads(_read(self._process.stdout))
            frames = [_read(self._process.stdout) for _ in head] if isinstance(head, list) else []
        except (BrokenPipeError, EOFError) as error:
            raise RunError(
                f"A cleaning process ended by itself (exit code {self._process.poll()})", next="Clean with --workers 1"
            ) from error
        return reply_of(head, frames)

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
    measure = Measure(json.loads(_read(source)))
    while True:
        try:
            data = _read(source)
        except EOFError:
            return
        head, frames = measure.answer(data)
        _write(sink, json.dumps(head).encode())
        for frame in frames:
            _write(sink, frame)


class Measure:
    """The stages of a worker, made from its orders when the first batch comes."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self._orders: dict[str, Any] | None = orders
        self._stages: list[Stage] = []
        self._keep = allow_list(orders["keep"])
        self._following: GlobalStage | None = None

    def answer(self, data: bytes) -> tuple[Any, list[Any]]:
        """What the stages find in a batch: the kinds of frames, and the frames; or what went wrong."""
        try:
            self._prepare()
            kinds, frames = self._measure(from_bytes(data))
        except NbllmError as error:
            received = None if error.received is None else str(error.received)
            return {"error": type(error).__name__, "what": error.what, "received": received, "next": error.next}, []
        except Exception:
            what = f"A cleaning process failed: {traceback.format_exc(limit=-1).strip().splitlines()[-1]}"
            return {"error": "", "what": what, "received": None, "next": None}, []
        return kinds, [to_bytes(frame).to_pybytes() for frame in frames]

    def _prepare(self) -> None:
        from nbllm.corpus.stages import parse_stages

        if self._orders is None:
            return
        orders = self._orders
        sys.path.extend(path for path in orders["path"] if path not in sys.path)
        try:
            functions = unpacked(orders["functions"])
        except Exception as error:
            raise UsageError(
                f"{', '.join(orders['functions'])} can't be used in another process: {error}",
                next="Clean with --workers 1",
            ) from error
        self._stages = parse_stages(orders["stages"], functions)
        following = parse_stages([orders["following"]])[0] if orders["following"] else None
        assert following is None or isinstance(following, GlobalStage)
        self._following = following
        self._orders = None

    def _measure(self, batch: pa.RecordBatch) -> tuple[list[str], list[pa.RecordBatch]]:
        kinds, frames = [], []
        for stage in self._stages:
            outcome = stage.measure(batch)
            reasons = stage.decide(outcome.scores)
            columns = dict(zip(outcome.scores.schema.names, outcome.scores.columns, strict=True))
            kinds.append("scores")
            frames.append(pa.record_batch({**columns, "reason": reasons}))
            if outcome.texts is not None:
                kinds.append("texts")
                frames.append(pa.record_batch({"text": outcome.texts}))
            batch = apply_outcome(0, batch, outcome, reasons, self._keep).after
            if not len(batch):
                return kinds, frames
        if self._following is not None:
            kinds.append("keys")
            frames.append(self._following.keys(batch))
        return kinds, frames


def to_bytes(batch: pa.RecordBatch) -> Any:
    """A batch as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def from_bytes(data: bytes) -> pa.RecordBatch:
    """The batch of an Arrow stream."""
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
