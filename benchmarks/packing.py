"""Text to packed token shards: ours beside the usual recipe of datasets (map, tokenize, group), with the same ids.

    python benchmarks/packing.py [--megabytes 8] [--rounds 3]

English of this Python's own documentation, repeated to the size asked for, one tokenizer of 8,192 entries, on the cores
there are. The peer is the recipe of transformers' language-modelling examples: a batched `map` that tokenizes and a
second one that joins and cuts into blocks of 256, with two processes. Ours writes the store's shards. Both end on disk;
the ids are compared one by one. Interleaved.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from kept import keep

BLOCK = 256


def ours(store: Any, tokenizer: Any, texts: list[str], number: int) -> tuple[float, np.ndarray[Any, Any]]:
    from nbllm.shards import build

    began = time.perf_counter()
    shards = build(store, tokenizer, train=texts, parents=[tokenizer.as_parent()], parameters={"round": number})
    seconds = time.perf_counter() - began
    return seconds, np.asarray(shards.train.tokens)


def recipe(folder: Path, tokenizer: Any, texts: list[str]) -> tuple[float, np.ndarray[Any, Any]]:
    import datasets
    from transformers import PreTrainedTokenizerFast

    datasets.disable_progress_bars()
    fast = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer.save(folder / "tokenizer") / "tokenizer.json"), eos_token="<|endoftext|>"
    )
    prefix, end = list(tokenizer.document_prefix), tokenizer.eos_id

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"ids": [[*prefix, *ids, end] for ids in fast(batch["text"], add_special_tokens=False)["input_ids"]]}

    def group(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = list(itertools.chain.from_iterable(batch["ids"]))
        return {"ids": [joined[start : start + BLOCK] for start in range(0, len(joined), BLOCK)]}

    began = time.perf_counter()
    data = datasets.Dataset.from_dict({"text": texts})
    options: dict[str, Any] = {"batched": True, "num_proc": 2, "load_from_cache_file": False}
    data = data.map(tokenize, remove_columns=["text"], **options).map(group, **options)
    data.save_to_disk(str(folder / "packed"))
    seconds = time.perf_counter() - began
    return seconds, np.concatenate([np.asarray(row) for row in data["ids"]])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    from nbllm.sessions import Session
    from nbllm.store import Store

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / ".nbllm")
        session = Session(store)
        corpus = session.clean("builtin:pydocs", recipe="none", name="docs")
        tokenizer = session.train_tokenizer(vocab_size=8192, name="words")
        source = [document["text"] for document in corpus if document["text"]]
        texts, size = [], 0
        for text in itertools.cycle(source):
            texts.append(text)
            size += len(text.encode())
            if size >= options.megabytes * 1e6:
                break
        found: dict[str, list[float]] = {"ours": [], "recipe": []}
        same = True
        for number in range(options.rounds):
            seconds, mine = ours(store, tokenizer, texts, number)
            found["ours"].append(seconds)
            seconds, other = recipe(Path(folder) / f"recipe-{number}", tokenizer, texts)
            found["recipe"].append(seconds)
            same = same and np.array_equal(mine, other)
            print({name: round(size / values[-1] / 1e6, 2) for name, values in found.items()}, "MB/s", flush=True)
    rates = {name: size / statistics.median(values) / 1e6 for name, values in found.items()}
    times = rates["ours"] / rates["recipe"]
    print(f"ours {rates['ours']:.1f} MB/s, recipe {rates['recipe']:.1f} MB/s: {times:.1f} times; the same ids: {same}")
    keep("packing", {"megabytes": size / 1e6, "mb_per_s": rates, "times": times, "same_ids": same, "all_s": found})


if __name__ == "__main__":
    main()
