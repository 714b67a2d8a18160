"""One process of a group that trains several runs one after the other: `group_worker.py JSON`, as launchers start it.

The JSON is a list of [folder, resume]. Several runs in one process save the seconds that loading takes.
"""

import json
import sys

import torch.distributed as dist
from worker_kit import reset

from nbllm.errors import NbllmError
from nbllm.train import worker

for folder, resume in json.loads(sys.argv[1]):
    reset()
    try:
        worker.train(worker.Path(folder), resume=resume)
    except NbllmError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
dist.barrier()  # gloo's threads abort a process whose neighbour has left already
dist.destroy_process_group()
