"""Compiles a model's decode step ahead of time, in a process of its own: `python -m nbllm.sample.compile_worker`.

The package holds code and no weights: it is made from the model's configuration alone, with weights that are never
written to, so that it takes no memory for them, and serves every model of that shape. Arguments: the folder with
`config.json`, and `job.json` with dtype, device and quantisation; the package is written there under `step.pt2`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

PACKAGE = "step.pt2"
_ANY = 2**20
"""The most places a buffer can have."""


def compile_step(folder: Path) -> None:
    """Writes the package into `folder`."""
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    from nbllm.model import quantize, torch_dtype
    from nbllm.sample.slots import Slots
    from nbllm.sample.step import Step

    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    torch.set_num_threads(int(job["threads"]))  # the code is made for so many
    config = AutoConfig.from_pretrained(folder)
    dtype = torch_dtype(job["dtype"])
    with init_empty_weights(include_buffers=False):  # buffers may become numbers in the code
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            # pages that nothing touches take no memory
            setattr(module, name, torch.nn.Parameter(torch.empty_like(weight, device=job["device"]), False))
    model.tie_weights()
    model.to(job["device"])
    if job["quantize"]:
        model = quantize(model, job["quantize"])
    step = Step(model)
    slots = Slots(Slots.layers_of(config) or 0)
    with torch.no_grad():
        probe = torch.zeros(1, 1, dtype=torch.int64, device=job["device"])
        model(input_ids=probe, cache=slots, use_cache=True)  # how large keys and values are
        keys, values = [layer.keys for layer in slots.layers], [layer.values for layer in slots.layers]
        places = torch.export.Dim("places", min=64, max=_ANY)
        grows = [{2: places} for _ in keys]
        exported = torch.export.export(
            step, (probe, probe[0], keys, values), strict=False, dynamic_shapes=(None, None, grows, list(grows))
        )
        draft = str(folder / f"{os.getpid()}.pt2")
        torch._inductor.aoti_compile_and_package(
            exported, package_path=draft, inductor_configs={"aot_inductor.package_constants_in_so": False}
        )
    os.replace(draft, folder / PACKAGE)


def _end_with(parent: int) -> None:
    """Nobody waits for the package once the process that asked for it has gone."""
    while os.getppid() == parent:
        time.sleep(2)
    os._exit(1)


if __name__ == "__main__":
    os.nice(19)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    compile_step(Path(sys.argv[1]))
