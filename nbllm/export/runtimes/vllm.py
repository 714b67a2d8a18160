"""vLLM in a process of its own, perhaps of another Python: whole prompts in, whole texts out.

vLLM samples by itself, with its own random numbers, so it isn't one of sampling's runtimes: no traces, no branches, no
streaming. It is started once and answers JSON lines. Knows nothing of vLLM's API, which is the worker's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nbllm.errors import NotFoundError, RunError, UsageError
from nbllm.export.extras import installed

if TYPE_CHECKING:
    from nbllm.sample import Generation, SamplingParameters

VARIABLE = "NBLLM_VLLM_PYTHON"
"""The environment variable that names a Python with vLLM."""
_OPTIONS = {"gpu_memory_utilization": 0.5}  # vLLM would take 0.92 of all memory, and the notebook has models too
_CAUSE = re.compile(rb"\b\w+(?:Error|Exception): (.+)")
_UNSUPPORTED = {"typical_p": 1.0, "beams": 1, "prompt_lookup": 0, "sliding": False, "length_penalty": 1.0}


def find_python() -> str | None:
    """The Python that has vLLM: the one that `NBLLM_VLLM_PYTHON` names, else this one, else none."""
    named = os.environ.get(VARIABLE)
    return named or (sys.executable if installed("vllm") else None)


def need_python() -> str:
    """The Python that has vLLM; raises UsageError where there is none."""
    python = find_python()
    if python is None:
        raise UsageError("vLLM isn't installed here", next=f"Name a Python that has it in {VARIABLE}")
    return python


class VllmRuntime:
    """A model in vLLM; close it, or use it as a context, to free its memory.

    Args:
        folder: a transformers folder, as `export(…, to="vllm")` writes it.
        options: arguments of vLLM's `LLM`, JSON values, such as `max_model_len`, or `gpu_memory_utilization` (0.5
            here; on a CPU it is the part of main memory).

    Raises:
        UsageError: there is no Python with vLLM.
        NotFoundError: no such folder.
        RunError: vLLM doesn't load the model.
    """

    name = "vllm"

    def __init__(self, folder: str | Path, **options: Any) -> None:
        path = Path(folder).expanduser().absolute()
        python = need_python()
        if not (path / "config.json").is_file():
            raise NotFoundError(f"{path} holds no model", next="Make one with %llm_export --to vllm FOLDER")
        from nbllm.tokenizer import Tokenizer

        self._tokenizer = Tokenizer.from_folder(path)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (read after the process has ended)
        worker = Path(__file__).with_name("vllm_worker.py")
        try:
            self._process = subprocess.Popen(
                # isolated: this file's folder and this Python's packages stay out of its path
                [python, "-I", "-u", str(worker), str(path), json.dumps(_OPTIONS | options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            raise UsageError(f"{python} can't be started: {error.strerror}", next=f"Correct {VARIABLE}") from error
        self._read()  # it says once that it is ready

    def __enter__(self) -> VllmRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()  # the worker ends with its input
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def generate(self, prompts: Sequence[str | Sequence[int]], parameters: SamplingParameters) -> list[Generation]:
        """Continues prompts, all at once.

        Args:
            prompts: texts, or ids.
            parameters: the settings; the random numbers are vLLM's own.

        Raises:
            UsageError: a setting that vLLM doesn't have.
            RunError: vLLM failed.
        """
        from nbllm.sample.generation import Generation, Sample
        from nbllm.sample.prompt import encode_prompt

        settings = request(parameters)
        ids = [encode_prompt(self._tokenizer, prompt) for prompt in prompts]
        answer = self._ask({"prompts": ids, "settings": settings})
        generations = []
        for prompt, typed, samples in zip(ids, prompts, answer["samples"], strict=True):
            generations.append(
                Generation(
                    prompt=typed if isinstance(typed, str) else self._tokenizer.decode(prompt, skip_special=False),
                    prompt_tokens=tuple(prompt),
                    samples=tuple(
                        Sample(
                            text=sample["text"],
                            tokens=tuple(sample["tokens"]),
                            logprobs=tuple(sample["logprobs"]),
                            stop_reason=sample["reason"],
                        )
                        for sample in samples
                    ),
                    parameters=parameters,
                    tokens_per_s=answer["tokens_per_s"],
                    first_token_ms=None,
                )
            )
        return generations

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise RunError("vLLM's process has ended", next="Start it again") from error
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise RunError(f"vLLM's process ended with exit code {code}{self._cause()}")
        answer: dict[str, Any] = json.loads(line)
        if answer.get("fatal"):
            self.close()
            raise RunError(f"vLLM doesn't load the model: {answer['error']}{self._cause()}")
        if "error" in answer:
            raise RunError(f"vLLM says: {answer['error']}")
        return answer

    def _cause(self) -> str:
        """The first error that vLLM's own processes wrote, in brackets: what it raises only points there."""
        self._log.seek(0)
        found = _CAUSE.search(self._log.read())
        return "" if found is None else f" ({found[1].decode(errors='replace').strip()[:300]})"


def request(parameters: SamplingParameters) -> dict[str, Any]:
    """The settings as vLLM's `SamplingParams` takes them; raises UsageError for one that it doesn't have."""
    for key, neutral in _UNSUPPORTED.items():
        if getattr(parameters, key, neutral) != neutral:
            flag = f"--{key.replace('_', '-')}"
            raise UsageError(f"vLLM has no {flag}", next=f"Leave {flag} out, or choose another --backend")
    return {
        "n": parameters.n,
        "max_tokens": parameters.max_new_tokens,
        "temperature": 0.0 if parameters.greedy else parameters.temperature,
        "top_k": parameters.top_k,
        "top_p": parameters.top_p,
        "min_p": parameters.min_p,
        "repetition_penalty": parameters.repetition_penalty,
        "presence_penalty": parameters.presence_penalty,
        "frequency_penalty": parameters.frequency_penalty,
        "seed": parameters.seed,
        "stop": list(parameters.stop),
        "logprobs": 0,  # of the chosen tokens only
    }
