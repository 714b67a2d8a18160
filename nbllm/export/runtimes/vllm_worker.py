"""Runs inside the Python that has vLLM: reads requests as JSON lines, answers as JSON lines, ends with its input.

Imports nothing of nbllm, which that Python needn't have. What vLLM prints goes to the error stream, so that the answers
stay alone on the output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main(folder: str, options: dict[str, Any]) -> None:
    """Loads the model, says that it is ready, then answers until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        from vllm import LLM, SamplingParams

        engine = LLM(model=folder, **{"enforce_eager": True, **options})
    except Exception as error:  # whatever vLLM raises
        answer({"error": _line(error), "fatal": True})
        return
    answer({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            started = time.perf_counter()
            prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
            found = engine.generate(prompts, SamplingParams(**asked["settings"]), use_tqdm=False)
            seconds = time.perf_counter() - started
            samples = [[_sample(output) for output in one.outputs] for one in found]
            count = sum(len(sample["tokens"]) for one in samples for sample in one)
            answer({"samples": samples, "tokens_per_s": count / seconds})
        except Exception as error:
            answer({"error": _line(error)})


def _sample(output: Any) -> dict[str, Any]:
    tokens = list(output.token_ids)
    chances = output.logprobs or []
    reason = "length" if output.finish_reason == "length" else "stop" if isinstance(output.stop_reason, str) else "eos"
    logprobs = [chance[token].logprob for token, chance in zip(tokens, chances, strict=False)]
    return {"text": output.text, "tokens": tokens, "logprobs": logprobs, "reason": reason}


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
