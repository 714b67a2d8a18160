"""Attention of all heads beside bertviz, in one run, interleaved: bytes for the page, and time until they are ready.

    pip install --no-deps --target BERTVIZ bertviz
    python benchmarks/attention_view.py --model FOLDER --bertviz BERTVIZ [--tokens 256] [--rounds 3]

FOLDER is a transformers folder (SmolLM2-135M in bf16, say). Ours: one forward pass, then what the panel sends to a page
that opens it (thumbnails of all heads, their scores, one map), and what each further head costs. bertviz: the eager
forward pass with all attentions, then the HTML of its `head_view`, which holds every map. Both times end where the
kernel has everything ready to send; the browser's own time, and reading the model, are left out.

bertviz isn't run at 1,024 tokens: its bytes there are extrapolated (its numbers grow with the square of the tokens) and
marked so. Ours are measured there. Keeps every value and the medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from kept import keep
from transformers import AutoModelForCausalLM

from nbllm.panels.attention import AttentionPanel
from nbllm.panels.attention_view import Side, Wanted
from nbllm.sessions import Session
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer

TEXT = (
    "The library was built beside the river, and every winter the water came up to its steps. In 1887 a clerk wrote: "
)
LONG = 1024


class _Page(AttentionPanel):
    """A panel whose messages are counted instead of sent."""

    sent_bytes = 0

    def send(self, content: Any, buffers: Any = None) -> None:
        self.sent_bytes += len(json.dumps(content).encode()) + sum(len(buffer) for buffer in buffers or ())


class Ours:
    """One look through the session."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.session = str(model), Session(Store(folder), "benchmark")

    def __call__(self, ids: list[int]) -> dict[str, float]:
        start = time.perf_counter()
        maps = self.session.attention(ids, model=self.model)
        forward = time.perf_counter()
        side = Side(wanted=Wanted(text="", model=self.model), maps=maps)
        page = _Page(self.session, [side], layer=0, head=0)
        page.sent_bytes = 0  # what making a widget sends is the same for all
        page._obey({"do": "snapshot"})
        ready = time.perf_counter()
        first = page.sent_bytes
        heads = min(10, maps.heads)
        for head in range(heads):
            page._obey({"do": "head", "layer": maps.layers // 2, "head": head})
        switched = time.perf_counter()
        page.close()
        return {
            "bytes": first,
            "seconds": ready - start,
            "seconds_after_forward": ready - forward,
            "bytes_a_further_head": (page.sent_bytes - first) / heads,
            "seconds_a_further_head": (switched - ready) / heads,
        }


class Theirs:
    """bertviz' head view of all layers."""

    def __init__(self, model: Path, tokenizer: Tokenizer) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype="auto").eval()
        self.tokenizer = tokenizer

    def __call__(self, ids: list[int]) -> dict[str, float]:
        from bertviz import head_view

        start = time.perf_counter()
        with torch.inference_mode():
            attentions = self.model(torch.tensor([ids]), output_attentions=True).attentions
        forward = time.perf_counter()
        page = head_view(
            [one.float() for one in attentions], [self.tokenizer.token_text(id) for id in ids], html_action="return"
        )
        ready = time.perf_counter()
        return {
            "bytes": len(page.data.encode()),
            "seconds": ready - start,
            "seconds_after_forward": ready - forward,
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--bertviz", type=Path, required=True, help="where pip put bertviz")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sys.path.append(str(options.bertviz))
    tokenizer = Tokenizer.from_folder(options.model)
    ids = tokenizer.encode(TEXT * 60)
    values: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Ours(options.model, Path(folder)), Theirs(options.model, tokenizer)
        ours(ids[:16])  # the model is read once, before the clock runs
        for _ in range(options.rounds):
            values.setdefault(f"nbllm, {options.tokens} tokens", []).append(ours(ids[: options.tokens]))
            values.setdefault(f"bertviz head_view, {options.tokens} tokens", []).append(theirs(ids[: options.tokens]))
            values.setdefault(f"nbllm, {LONG} tokens", []).append(ours(ids[:LONG]))
    rows: dict[str, dict[str, Any]] = {
        name: {key: _rounded(statistics.median(one[key] for one in found)) for key in found[0]} | {"all": found}
        for name, found in values.items()
    }
    mine, other = (rows[f"{name}, {options.tokens} tokens"] for name in ("nbllm", "bertviz head_view"))
    extrapolated = round(other["bytes"] * (LONG / options.tokens) ** 2)
    rows[f"bertviz head_view, {LONG} tokens"] = {"bytes": extrapolated, "extrapolated": True}
    ratios = {
        "bytes_less": _rounded(other["bytes"] / mine["bytes"]),
        f"bytes_less_at_{LONG}_extrapolated": _rounded(extrapolated / rows[f"nbllm, {LONG} tokens"]["bytes"]),
        "times_faster": _rounded(other["seconds"] / mine["seconds"]),
    }
    for name, row in rows.items():
        said = f"{row['bytes'] / 1e6:9.2f} MB"
        said += "   (extrapolated)" if row.get("extrapolated") else f"   {row['seconds']:6.2f} s"
        if "seconds_a_further_head" in row:
            said += f"   a further head {1e3 * row['seconds_a_further_head']:.0f} ms"
            said += f", {row['bytes_a_further_head'] / 1e3:.0f} kB"
        print(f"{name:<32} {said}")
    print(ratios)
    keep("attention_view", {"model": options.model.name, "rows": rows, "ratios": ratios})


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
