"""The folder for vLLM, and the process it runs in, with a stand-in for vLLM itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from small_models import Build

from nbllm.errors import RunError, UsageError
from nbllm.export import export
from nbllm.export.runtimes import vllm
from nbllm.sample import SamplingParameters
from nbllm.tokenizer import Tokenizer

# what the worker would do: first that it is ready, then an answer a line
STAND_IN = """#!{python}
import json, sys
print(json.dumps({{"ready": True}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["settings"]["seed"] == 13:
        print(json.dumps({{"error": "no luck"}}), flush=True)
        continue
    samples = [[{{"text": "x", "tokens": [len(ids), asked["settings"]["top_k"]], "logprobs": [-1.0, -2.0],
                 "reason": "length"}}] * asked["settings"]["n"] for ids in asked["prompts"]]
    print(json.dumps({{"samples": samples, "tokens_per_s": 5.0}}), flush=True)
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "python"
    file.write_text(STAND_IN.format(python=sys.executable))
    file.chmod(0o755)
    monkeypatch.setenv("NBLLM_VLLM_PYTHON", str(file))
    return file


def test_the_folder_says_what_vllm_needs_and_that_it_was_not_checked(
    build: Build, words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NBLLM_VLLM_PYTHON", raising=False)
    monkeypatch.setattr(vllm, "installed", lambda module: False)
    source = build("llama")
    config = json.loads((source / "config.json").read_text())
    del config["dtype"]
    (source / "config.json").write_text(json.dumps(config))
    (source / "generation_config.json").unlink()
    found = export(source, tmp_path / "out", to="vllm")
    assert json.loads((found.folder / "config.json").read_text())["dtype"] == "float32"
    assert json.loads((found.folder / "generation_config.json").read_text()) == {"eos_token_id": words.eos_id}
    assert "transformers loads it and predicts the same next tokens" in found.message
    assert "vLLM didn't check it" in found.message
    assert "NBLLM_VLLM_PYTHON" in found.message
    with pytest.raises(UsageError, match="NBLLM_VLLM_PYTHON"):
        vllm.VllmRuntime(found.folder)


def test_prompts_go_in_and_texts_come_out(python: Path, build: Build) -> None:
    with vllm.VllmRuntime(build("llama")) as runtime:
        found = runtime.generate([[5, 6, 7], "The"], SamplingParameters(top_k=4, n=2, max_new_tokens=2))
        assert [one.samples[0].tokens[0] for one in found] == [3, len(found[1].prompt_tokens)]
        assert found[1].prompt == "The"
        assert [sample.tokens[1] for sample in found[0].samples] == [4, 4]
        assert found[0].samples[0].logprobs == (-1.0, -2.0)
        assert (found[0].stop_reason, found[0].tokens_per_s) == ("length", 5.0)
        with pytest.raises(RunError, match="vLLM says: no luck"):
            runtime.generate([[5]], SamplingParameters(seed=13))
        assert runtime.generate([[5]], SamplingParameters())[0].text == "x"  # it goes on


def test_settings() -> None:
    assert vllm.request(SamplingParameters(greedy=True, stop=("a",), seed=3)) == {
        "n": 1, "max_tokens": 100, "temperature": 0.0, "top_k": 0, "top_p": 0.95, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 3, "stop": ["a"],
        "logprobs": 0,
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"vLLM has no --typical-p\. Leave --typical-p out"):
        vllm.request(SamplingParameters(typical_p=0.5))


def test_the_cause_of_a_failure_is_told(python: Path, build: Build) -> None:
    python.write_text(
        f"#!{sys.executable}\nimport json, sys\nprint('(Worker) ValueError: too little memory', file=sys.stderr)\n"
        "print(json.dumps({'error': 'see above', 'fatal': True}))\n"
    )
    with pytest.raises(RunError, match=r"vLLM doesn't load the model: see above \(too little memory\)"):
        vllm.VllmRuntime(build("llama"))


def test_a_python_that_ends_at_once(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBLLM_VLLM_PYTHON", "/bin/false")
    with pytest.raises(RunError, match="exit code 1"):
        vllm.VllmRuntime(build("llama"))
