"""A small store with shards, and runs over it in this process, for the tests of the worker."""

import json
import random

import pytest
from accelerate.state import AcceleratorState, GradientState, PartialState

from nbllm import shards as shards_room
from nbllm import tokenizer as tokenizer_room
from nbllm.files import write_json
from nbllm.store import Store
from nbllm.train import worker
from nbllm.train.config import TrainConfig

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran", "far", "away", "from", "every", "dog", "in"]


def texts(count, seed):
    """Documents of very unequal length."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.choice([2, 5, 9, 40, 90]))) + "." for _ in range(count)]


class Kit:
    """A store with plain shards and shards of (prompt, answer) examples, and how to run on them."""

    def __init__(self, root):
        self.store = Store(root)
        tokenizer = tokenizer_room.train(self.store, texts(200, 1), vocab_size=300, name="words")
        parents = [tokenizer.manifest.as_parent()]
        self.tokenizer = tokenizer
        self.plain = shards_room.build(
            self.store,
            tokenizer,
            train=texts(60, 2),
            held_out=texts(12, 3),
            parents=parents,
            parameters={"kind": "plain"},
        )
        pairs = [(text[: len(text) // 3], text[len(text) // 3 :]) for text in texts(60, 4)]
        self.examples = shards_room.build(
            self.store, tokenizer, train=pairs[:50], held_out=pairs[50:], parents=parents, parameters={"kind": "pairs"}
        )

    def config(self, **changes):
        """A run that takes a second."""
        fields = {
            "shards": self.plain.name, "store_root": str(self.store.root), "steps": 6, "seq_len": 32, "batch_size": 4,
            "precision": "fp32", "eval_every": 0, "save_every": 0, "warmup": 2, **changes,
        }  # fmt: skip
        return TrainConfig(**fields)

    def run_folder(self, name, **changes):
        """A run's folder, not started."""
        folder = self.store.root / "runs" / name
        folder.mkdir(parents=True)
        write_json(folder / "config.json", self.config(**changes).as_json())
        return folder

    def train(self, name, **changes):
        """Trains in this process to the end; returns the folder.

        A run in this process takes its TERM signal, such as a time limit's, and stops: said here, where its losses
        would only look too few.
        """
        folder = self.run_folder(name, **changes)
        assert train(folder) == "done", events(folder, "end")[-1]["reason"]
        return folder


def train(folder, *, resume=False):
    """The worker in this process, with accelerate's global state as a new process has it."""
    reset()
    try:
        return worker.train(folder, resume=resume)
    finally:
        reset()


def reset():
    """Forgets accelerate's global state."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()


def events(folder, kind=None):
    """The lines of metrics.jsonl, by a parser that knows no NaN."""

    def refuse(name):
        raise ValueError(name)

    lines = (folder / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line, parse_constant=refuse) for line in lines]
    return [event for event in found if kind in (None, event["kind"])]


def losses(folder):
    """Loss by step; of a step taken twice, the later one."""
    return {event["step"]: event["loss"] for event in events(folder, "step")}


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return Kit(tmp_path_factory.mktemp("store"))
