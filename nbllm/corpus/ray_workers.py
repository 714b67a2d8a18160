"""Local stages on a Ray cluster: the same stages by the same code as in `workers.py`, in actors instead of processes.

Batches are read and results are written here, in order, so that the corpus is the same byte for byte; what is spread
over the cluster is measuring, and the keys of global stages, which are settled here. The machines of the cluster need
nbllm, of the same version. Ray's own serialisation carries orders and Arrow streams between processes of this job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from nbllm.corpus.workers import Measure, Reply, Workers, reply_of, to_bytes
from nbllm.errors import NotFoundError, RunError, UsageError


@contextlib.contextmanager
def on_ray(count: int | None, keep: Iterable[str], address: str | None) -> Iterator[RayWorkers]:
    """A runner on a cluster, which is left as it was found; one that was started here ends with it.

    Args:
        count: how many actors; by default as many as the cluster has CPUs.
        keep: ids of documents that no stage drops.
        address: of a running cluster (`auto`, `ray://HOST:10001`); by default what `RAY_ADDRESS` names, the one that
            this kernel is connected to already, or a new one on this machine.

    Raises:
        UsageError: Ray isn't installed.
        NotFoundError: no cluster answers at the address.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError("--engine ray needs Ray", next='pip install "nbllm[ray]"') from error
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, TimeoutError) as error:
            raise NotFoundError(
                f"No Ray cluster answers at {address or 'RAY_ADDRESS'}", next="Start one with: ray start --head"
            ) from error
    try:
        yield RayWorkers(count or max(1, int(ray.cluster_resources().get("CPU", 1))), keep)
    finally:
        if ours:
            ray.shutdown()


class RayWorkers(Workers):
    """A runner that shares batches out to actors; made by `on_ray`."""

    @contextlib.contextmanager
    def _asked(self, orders: dict[str, Any]) -> Iterator[Callable[[pa.RecordBatch], Callable[[], Reply]]]:
        import ray

        kind = ray.remote(num_cpus=1)(Measure)
        actors = [kind.remote(orders) for _ in range(self._count)]
        turn = 0

        def ask(batch: pa.RecordBatch) -> Callable[[], Reply]:
            nonlocal turn
            turn += 1
            answer = actors[turn % len(actors)].answer.remote(to_bytes(batch).to_pybytes())

            def wait() -> Reply:
                try:
                    return reply_of(*ray.get(answer))
                except ray.exceptions.RayError as error:
                    what = str(error).strip().splitlines()[0]
                    raise RunError(f"A cleaning process of the cluster ended by itself: {what}") from error

            return wait

        try:
            yield ask
        finally:
            for actor in actors:
                ray.kill(actor)
