"""Training beside transformers' Trainer and a bare PyTorch loop: speed, memory, and the time to a first step.

    python benchmarks/train_vs_trainer.py [--rounds 6] [--vocabularies 8192 49152] [--precision bf16] [--only NAME …]

One model (Llama of 6 blocks and width 256, 8.4 M parameters at vocabulary 8,192), one set of packed rows in one order,
one batch (8 rows of 256 tokens), one precision and AdamW with clipping for all. Each contender is a process of its
own; they are started one after the other, take their first steps, and then take turns of three steps, so that what
else the machine does falls on all alike. Ours is the worker that `%llm_train` starts, with all that it writes.

Kept for each: median seconds a step and tokens/s, peak resident memory, seconds from the process's start to the end of
the first step; for ours also from `train.start`, by way of supervisor and launcher. `log` is what a line in
metrics.jsonl costs, as a share of the time when ten are written a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONTENDERS = ("ours", "ours compiled", "trainer", "bare")
ROWS, LENGTH, STEPS_A_TURN, WARM = 8, 256, 3, 3
LR = 1e-3
BEGAN = time.perf_counter()


class Turn:
    """Takes part in turns: says that a step is done, and waits before it takes the next one when a turn is over."""

    def __init__(self, left: int = WARM) -> None:
        self.left = left
        self.times: list[float] = []
        self._began = 0.0
        self._first: float | None = None

    def step_begins(self) -> None:
        if self.left == 0:
            self.say({"seconds": self.times})
            self.times = []
            words = sys.stdin.readline().split()
            if not words:
                raise SystemExit(0)
            self.left = int(words[0])
        self._began = time.perf_counter()

    def step_ended(self, loss: float) -> None:
        now = time.perf_counter()
        if self._first is None:
            self._first = now - BEGAN
            self.say({"first_step_s": self._first, "loss": loss})
        self.times.append(now - self._began)
        self.left -= 1

    @staticmethod
    def say(what: dict[str, Any]) -> None:
        import resource

        what["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        os.write(3, (json.dumps(what) + "\n").encode())


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows in the order that ours reads them in, with labels as transformers wants them."""
    import numpy as np

    with np.load(folder / "rows.npz") as kept:
        ids, targets, positions = kept["ids"], kept["targets"], kept["positions"]
    while True:
        for row in range(len(ids)):
            labels = np.concatenate([[-100], targets[row, :-1]])  # they are shifted in the model
            yield {"input_ids": ids[row], "labels": labels, "position_ids": positions[row]}


def ours(folder: Path, compiled: bool) -> None:
    from nbllm.train import worker
    from nbllm.train.trainer import Trainer

    turn, step = Turn(), Trainer._step

    def in_turn(self: Trainer, *given: Any, **named: Any) -> None:
        turn.step_begins()
        step(self, *given, **named)
        turn.step_ended(0.0)

    Trainer._step = in_turn  # type: ignore[method-assign]
    worker.train(folder / ".nbllm" / "runs" / ("run-compiled" if compiled else "run"))


def bare(folder: Path, precision: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    source, turn = rows(folder), Turn()
    while True:
        turn.step_begins()
        batch = [next(source) for _ in range(ROWS)]
        inputs = {key: torch.stack([torch.from_numpy(row[key]) for row in batch]) for key in batch[0]}
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**inputs, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        turn.step_ended(float(loss.detach()))


def trainer(folder: Path, precision: str) -> None:
    import torch
    from torch.utils.data import IterableDataset
    from transformers import AutoModelForCausalLM, TrainerCallback, TrainingArguments
    from transformers import Trainer as Peer

    class Rows(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return rows(folder)

    turn = Turn()

    class InTurn(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turn.step_begins()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turn.step_ended(0.0)

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model.config.use_cache = False
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"), per_device_train_batch_size=ROWS, max_steps=100_000, learning_rate=LR,
        adam_beta2=0.95, weight_decay=0.1, max_grad_norm=1.0, lr_scheduler_type="constant", bf16=precision == "bf16",
        use_cpu=True, save_strategy="no", logging_steps=1, report_to=[], disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    Peer(model=model, args=arguments, train_dataset=Rows(), callbacks=[InTurn()]).train()


def prepare(folder: Path, vocabulary: int, precision: str) -> None:
    """A model, shards and two runs that aren't started, and the same rows for the peers."""
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from nbllm.files import write_json
    from nbllm.sessions import Session
    from nbllm.sessions.starting import new_shards
    from nbllm.shards import Loader
    from nbllm.store import Store
    from nbllm.train import TrainConfig

    store = Store(folder / ".nbllm")
    session = Session(store, "bench")
    corpus = session.clean("builtin:pydocs", name="pydocs")
    tokenizer = session.train_tokenizer(vocab_size=8192)
    shards = new_shards(session, corpus, tokenizer, 0.05)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=256, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=LENGTH, tie_word_embeddings=True, bos_token_id=0,
            eos_token_id=0, pad_token_id=None,
        )
    )  # fmt: skip
    model.save_pretrained(folder / "model")
    runs = store.path("run", "x").parent
    for name, compiled in (("run", False), ("run-compiled", True)):
        config = TrainConfig(
            shards=shards.name, store_root=str(store.root), model=str(folder / "model"), tokenizer=tokenizer.name,
            steps=100_000, seq_len=LENGTH, batch_size=ROWS, optimizer="adamw", lr=LR, schedule="constant", warmup=0,
            precision=precision, eval_every=100_000, save_every=100_000, compile=compiled, objective="clm",
        )  # fmt: skip
        (runs / name).mkdir(parents=True)
        write_json(runs / name / "config.json", config.as_json())
    write_json(folder / "config.json", config.as_json())
    loader = Loader(shards.train, seq_len=LENGTH, batch_size=ROWS, grad_accum=1, rank=0, world_size=1, seed=0)
    parts: dict[str, list[Any]] = {"ids": [], "targets": [], "positions": []}
    for _ in range(100):
        for batch in loader.next_batch().micro_batches:
            for key, array in zip(parts, (batch.input_ids, batch.targets, batch.position_ids), strict=True):
                parts[key] += list(array)
    np.savez(folder / "rows.npz", **{key: np.stack(value) for key, value in parts.items()})


class Child:
    """A contender's process."""

    def __init__(self, name: str, folder: Path, precision: str) -> None:
        self.name = name
        reader, writer = os.pipe()
        command = [sys.executable, __file__, "--child", name, str(folder), precision]
        environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
        # the child finds the pipe as number 3
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec 3>&{writer}; exec "$@"', "x", *command], stdin=subprocess.PIPE,
            stdout=(folder / f"{name}.log").open("w"), stderr=subprocess.STDOUT, env=environment, pass_fds=(writer,),
        )  # fmt: skip
        os.close(writer)
        self._lines = os.fdopen(reader)
        self.log = folder / f"{name}.log"
        first = self._read()
        self.first_step_s, self.loss = first["first_step_s"], first["loss"]
        self._read()
        self.seconds: list[float] = []
        self.peak_bytes = 0

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise SystemExit(f"{self.name} ended:\n{self.log.read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def take_turn(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{STEPS_A_TURN}\n".encode())
        self.process.stdin.flush()
        found = self._read()
        self.seconds += found["seconds"]
        self.peak_bytes = found["peak_bytes"]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def from_the_command(folder: Path) -> float:
    """Seconds from `train.start` to the first step in metrics.jsonl, by way of supervisor and launcher."""
    from nbllm.files import read_json
    from nbllm.store import Store
    from nbllm.train import TrainConfig, start

    config = TrainConfig.from_json({**read_json(folder / "config.json"), "compile": False})
    began = time.perf_counter()
    run = start(Store(config.store_root), config)
    while not any(event["kind"] == "step" for event in run.events()):
        if not run.alive:
            raise SystemExit(f"The run {run.status}: {run.error}")
        time.sleep(0.05)
    seconds = time.perf_counter() - began
    run.stop()
    return seconds


def log_share(folder: Path) -> float:
    """Share of the time that ten lines a second in metrics.jsonl take."""
    from nbllm.train.journal import Journal

    journal = Journal(folder, generation=0)
    fields = {"loss": 3.14159, "lr": 1e-3, "grad_norm": 0.5, "tokens": 10**6, "tokens_per_s": 3000.0, "seconds": 1.0}
    began = time.perf_counter()
    for step in range(500):
        journal.write("step", step=step, memory_bytes=10**9, **fields)
    seconds = (time.perf_counter() - began) / 500
    journal.close()
    return 10 * seconds


def measure(vocabulary: int, precision: str, rounds: int, names: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder, vocabulary, precision)
        children: list[Child] = []
        try:
            for name in names:
                children.append(Child(name, folder, precision))
            for number in range(rounds):
                for child in children if number % 2 == 0 else reversed(children):
                    child.take_turn()
        finally:
            for child in children:
                child.end()
        found: dict[str, Any] = {}
        for child in children:
            second = statistics.median(child.seconds)
            found[child.name] = {
                "seconds_a_step": round(second, 4),
                "tokens_per_s": round(ROWS * LENGTH / second),
                "peak_mb": round(child.peak_bytes / 1e6),
                "first_step_s": round(child.first_step_s, 2),
                "all": [round(value, 4) for value in child.seconds],
            }
            if "bare" in names:  # step by step beside the one that ran at the same time
                peer = next(each for each in children if each.name == "bare")
                turns = [sum(each.seconds[i : i + STEPS_A_TURN]) for each in (peer, child)
                         for i in range(0, len(child.seconds), STEPS_A_TURN)]  # fmt: skip
                half = len(turns) // 2
                ratios = [a / b for a, b in zip(turns[:half], turns[half:], strict=True)]
                found[child.name]["times_bare"] = round(statistics.median(ratios), 3)
            print(f"{vocabulary:>6}  {child.name:<14} " + "  ".join(
                f"{key} {value}" for key, value in found[child.name].items() if key != "all"), flush=True)  # fmt: skip
        if "ours" in names:
            found["ours"]["from_command_s"] = round(from_the_command(folder), 2)
            found["log_share"] = round(log_share(folder), 5)
            print(f"        from command to first step {found['ours']['from_command_s']} s; "
                  f"ten lines a second cost {found['log_share']:.2%}", flush=True)  # fmt: skip
        return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--vocabularies", type=int, nargs="*", default=[8192, 49_152])
    parser.add_argument("--precision", default="bf16", choices=("fp32", "bf16"))
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--child", nargs=3)
    parser.add_argument("--dry", action="store_true", help="keep nothing")
    options = parser.parse_args()
    if options.child:
        name, folder, precision = options.child
        if name.startswith("ours"):
            ours(Path(folder), name.endswith("compiled"))
        else:
            {"bare": bare, "trainer": trainer}[name](Path(folder), precision)
        return
    found = {
        str(vocabulary): measure(vocabulary, options.precision, options.rounds, options.only)
        for vocabulary in options.vocabularies
    }
    if not options.dry:
        from kept import keep

        keep("train_vs_trainer", {"precision": options.precision, "rows": ROWS, "length": LENGTH, "found": found})


if __name__ == "__main__":
    main()
