"""A folder that vLLM serves: a transformers folder whose config names the weights' dtype and whose ids end a text.

Checked in vLLM where a Python with it is at hand; see `nbllm.export.runtimes.vllm`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nbllm.export import hugging_face
from nbllm.export.checks import ROUNDING, TOKENS, accept, agreeing, probe
from nbllm.export.exported import Check
from nbllm.export.runtimes.vllm import VllmRuntime, find_python
from nbllm.files import read_json
from nbllm.tokenizer import Tokenizer


def write(source: str | Path, folder: Path, *, adapter: str | Path | None = None) -> tuple[list[Check], str | None]:
    """Writes the model of `source` into a new folder; returns the checks, and why vLLM didn't check it, as a clause.

    Raises:
        RunError: transformers or vLLM doesn't predict the same next tokens.
    """
    checks = [hugging_face.write(source, folder, adapter=adapter)]
    tokenizer = Tokenizer.from_folder(folder)
    _complete(folder, tokenizer)
    if find_python() is None:
        return checks, (
            "vLLM didn't check it, since it isn't installed here: name a Python that has it in NBLLM_VLLM_PYTHON, "
            "or type vllm serve FOLDER there"
        )
    from nbllm.model import load
    from nbllm.sample import SamplingParameters

    model: Any = load(folder)
    prompt = probe(tokenizer, model.config.get_text_config())
    with VllmRuntime(folder) as runtime:
        parameters = SamplingParameters(greedy=True, max_new_tokens=TOKENS)
        tokens = runtime.generate([prompt], parameters)[0].samples[0].tokens
    # vLLM computes in half precision where the weights are fp32
    agreed = agreeing(model, prompt, tokens, ROUNDING["bf16"])
    return [*checks, accept(Check(runtime="vLLM", tokens=len(tokens), agreed=agreed))], None


def _complete(folder: Path, tokenizer: Tokenizer) -> None:
    """Writes what vLLM would have to guess: the dtype, and which ids end a text."""
    from safetensors import safe_open

    config = read_json(folder / "config.json")
    if not config.get("dtype"):
        with safe_open(next(iter(sorted(folder.glob("*.safetensors")))), framework="pt") as weights:
            first = weights.get_slice(next(iter(weights.keys()))).get_dtype()
        config["dtype"] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(first, "float32")
        _dump(folder / "config.json", config)
    path = folder / "generation_config.json"
    settings = read_json(path) if path.is_file() else {}
    ends = settings.get("eos_token_id", config.get("eos_token_id"))
    ids = {int(id) for id in (*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_id) if id is not None}
    if ids:
        settings["eos_token_id"] = sorted(ids) if len(ids) > 1 else ids.pop()
    _dump(path, settings)


def _dump(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
