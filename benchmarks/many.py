"""Thirty-two prompts at once: `generate_many` beside transformers' own `generate_batch`, in one run, interleaved.

    python benchmarks/many.py --model FOLDER [--tokens 24] [--rounds 3]

FOLDER is a transformers folder (SmolLM2-135M in bf16, say). Greedy and sampled; the prompts are beginnings of a text,
3 to 96 tokens long. Tokens a second over everything, the model's loading left out. Keeps every value and the medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from kept import keep
from transformers import GenerationConfig

from nbllm.model import load
from nbllm.sample import SamplingParameters, generate_many
from nbllm.tokenizer import Tokenizer

TEXT = "The library was built beside the river, and every winter the water came up to its steps. " * 12
PROMPTS = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_folder(options.model)
    model = load(options.model, dtype="bf16")
    ids = tokenizer.encode(TEXT)
    prompts = [ids[: 3 * (number + 1)] for number in range(PROMPTS)]
    texts = [tokenizer.decode(prompt) for prompt in prompts]

    def theirs(sampled: bool) -> int:
        config = GenerationConfig(
            max_new_tokens=options.tokens,
            do_sample=sampled,
            temperature=0.8,
            top_p=0.95,
            eos_token_id=-1,
            pad_token_id=0,
        )
        found = model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False)
        return sum(len(one.generated_tokens) for one in found.values())

    def ours(sampled: bool) -> int:
        settings = SamplingParameters(greedy=not sampled, temperature=0.8, top_p=0.95, max_new_tokens=options.tokens)
        return generate_many(model, tokenizer, texts, settings).tokens

    runs: dict[str, Callable[[bool], int]] = {"transformers generate_batch": theirs, "nbllm generate_many": ours}
    values: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for sampled in (False, True):
            for name, run in runs.items():
                start = time.perf_counter()
                count = run(sampled)
                speed = round(count / (time.perf_counter() - start), 1)
                values.setdefault(f"{name}, {'sampled' if sampled else 'greedy'}", []).append(speed)
    rows = {name: {"tokens_per_s": statistics.median(speeds), "all": speeds} for name, speeds in values.items()}
    for name, row in rows.items():
        print(f"{name:<45} {row['tokens_per_s']:7.1f} tokens/s")
    keep("many", {"model": options.model.name, "prompts": PROMPTS, "tokens": options.tokens, "rows": rows})


if __name__ == "__main__":
    main()
