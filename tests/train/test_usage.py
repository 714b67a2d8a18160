"""Memory and use of workers seen from outside, by rank."""

import subprocess
import sys

from nbllm.train.phase import ProcessId
from nbllm.train.usage import UsageMeter

SPIN = "import time\nprint(flush=True)\nwhile True: sum(range(1000))"


def test_workers_are_told_apart_by_rank_and_the_gone_are_left_out():
    workers = [
        subprocess.Popen([sys.executable, "-c", SPIN], env={"RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in (1, 0)
    ]
    try:
        for worker in workers:
            worker.stdout.readline()
        known = [ProcessId.of(worker.pid) for worker in workers]
        meter = UsageMeter()
        first = meter.look([*known, None])
        assert [use.rank for use in first] == [0, 1]
        assert all(use.memory_bytes > 1_000_000 for use in first)
        assert all(use.cores is None for use in first)
        again = meter.look(known)
        assert all(use.cores is not None and use.cores >= 0 for use in again)
        workers[0].kill()
        workers[0].wait()
        assert [use.rank for use in meter.look(known)] == [0]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
