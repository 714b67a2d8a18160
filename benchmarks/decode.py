"""Greedy decoding of one prompt on this machine, every runtime in one run, interleaved.

    python benchmarks/decode.py --model FOLDER [--gguf FILE …] [--vllm-python PYTHON] [--tokens 64] [--rounds 5]

FOLDER is a transformers folder (SmolLM2-135M in bf16, say). Peers: transformers' `generate` with its dynamic cache,
llama.cpp on GGUF files (where llama-cpp-python is installed), vLLM in another Python. Ours: the plain step, and the
compiled one in bf16, int8 and int4; the last three are compiled before the clock starts, which takes minutes the first
time (in a notebook the plain step answers meanwhile). Tokens a second after the first token; the machine's limit is the
speed of reading a large array over the bytes of the weights that a token needs. Keeps every value and the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from kept import keep

from nbllm.bench.measure import bandwidth, read_bytes
from nbllm.model import load, quantize
from nbllm.sample import SamplingParameters, generate
from nbllm.sample.forward import Forward
from nbllm.tokenizer import Tokenizer

PROMPT = "The history of the library begins with"
Run = Callable[[], tuple[float, Sequence[int]]]
"""Tokens a second, and the tokens."""


def ours(model: Any, tokenizer: Tokenizer, tokens: int, *, compiled: bool) -> Run:
    state = Forward.of(model).compiled
    if compiled and not state.wait():
        raise SystemExit(f"The step isn't compiled: {state.why_not}")

    def run() -> tuple[float, Sequence[int]]:
        Forward.of(model).prefixes.clear()
        found = generate(model, tokenizer, PROMPT, SamplingParameters(greedy=True, max_new_tokens=tokens))
        assert found.compiled == compiled
        return found.tokens_per_s, found.tokens

    if compiled:
        run()  # its first step is compared with the plain one
    return run


def transformers(model: Any, ids: list[int], tokens: int) -> Run:
    from transformers.generation.streamers import BaseStreamer

    class Clock(BaseStreamer):
        times: list[float]

        def put(self, value: Any) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    def run() -> tuple[float, Sequence[int]]:
        clock = Clock()
        clock.times = []  # the prompt, the first token, …
        found = model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, streamer=clock
        )
        return (tokens - 1) / (clock.times[-1] - clock.times[1]), found[0, len(ids) :].tolist()

    return run


def llama_cpp(path: Path, ids: list[int], tokens: int) -> Run:
    from llama_cpp import Llama

    llama = Llama(str(path), n_ctx=512, n_threads=torch.get_num_threads(), verbose=False)

    def run() -> tuple[float, Sequence[int]]:
        llama.reset()
        found, times = [], []
        for token in llama.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
            found.append(token)
            times.append(time.perf_counter())
            if len(found) == tokens:
                return (tokens - 1) / (times[-1] - times[0]), found
        raise AssertionError("llama.cpp ended early")

    return run


def vllm(folder: Path, tokens: int) -> Run:
    from nbllm.export.runtimes.vllm import VllmRuntime

    runtime = VllmRuntime(folder, gpu_memory_utilization=0.2, max_model_len=512)

    def run() -> tuple[float, Sequence[int]]:
        found = runtime.generate([PROMPT], SamplingParameters(greedy=True, max_new_tokens=tokens))[0]
        return found.tokens_per_s, found.tokens

    run()
    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, nargs="*", default=[])
    parser.add_argument("--vllm-python")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_folder(options.model)
    ids = tokenizer.encode(PROMPT)
    model = load(options.model, dtype="bf16")
    small = {kind: quantize(model, kind) for kind in ("int8", "int4")}
    again = load(options.model, dtype="bf16")  # its step stays the plain one
    Forward.of(again).compiled.switch_off()
    runs: dict[str, Run] = {
        "transformers generate, bf16": transformers(model, ids, options.tokens),
        "nbllm plain, bf16": ours(again, tokenizer, options.tokens, compiled=False),
    }
    limits: dict[str, int] = {"nbllm compiled, bf16": read_bytes(model)}
    runs["nbllm compiled, bf16"] = ours(model, tokenizer, options.tokens, compiled=True)
    for kind, made in small.items():
        runs[f"nbllm compiled, {kind}"] = ours(made, tokenizer, options.tokens, compiled=True)
        limits[f"nbllm compiled, {kind}"] = read_bytes(made)
    for path in options.gguf:
        runs[f"llama.cpp, {path.name}"] = llama_cpp(path, ids, options.tokens)
        limits[f"llama.cpp, {path.name}"] = path.stat().st_size
    if options.vllm_python:
        os.environ["NBLLM_VLLM_PYTHON"] = options.vllm_python
        runs["vLLM, bf16"] = vllm(options.model, options.tokens)
    values: dict[str, list[float]] = {name: [] for name in runs}
    texts: dict[str, Sequence[int]] = {}
    speeds_of_memory = []
    for _ in range(options.rounds):
        speeds_of_memory.append(bandwidth("cpu") / 1e9)
        for name, run in runs.items():
            speed, texts[name] = run()
            values[name].append(round(speed, 1))
    reference = texts["transformers generate, bf16"]
    base = statistics.median(values["transformers generate, bf16"])
    gb_per_s = statistics.median(speeds_of_memory)
    rows = {}
    for name, speeds in values.items():
        median = statistics.median(speeds)
        same = next((i for i, (a, b) in enumerate(zip(texts[name], reference, strict=False)) if a != b), len(reference))
        rows[name] = {
            "tokens_per_s": median,
            "all": speeds,
            "times_generate": round(median / base, 2),
            "same_tokens": same,
        }
        if name in limits:
            rows[name]["limit_tokens_per_s"] = round(gb_per_s * 1e9 / limits[name], 1)
        print(f"{name:<45} {median:7.1f} tokens/s  {median / base:5.2f}x  first {same} tokens as generate's")
    print(f"memory read: {gb_per_s:.1f} GB/s")
    keep(
        "decode",
        {"model": options.model.name, "read_gb_per_s": round(gb_per_s, 1), "tokens": options.tokens, "rows": rows},
    )


if __name__ == "__main__":
    main()
