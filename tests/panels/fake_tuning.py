"""A session that only seems to compare adapters: words drawn by seed and adapter, which a weight moves."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace
from typing import Any

from fake_session import FakeSampling
from traitlets import Any as AnyTrait
from traitlets import HasTraits

from nbllm.adapters import Change
from nbllm.errors import NotFoundError
from nbllm.sessions.adapter_report import AdapterReport, Moved
from nbllm.sessions.comparison import Column, Comparison

HOSTILE = "<img src=x onerror=alert(1)>"
WORDS = [
    "a",
    "list",
    "holds",
    "items",
    "in",
    "their",
    "order",
    "and",
    "can",
    "grow",
    HOSTILE,
    "which",
    "tuples",
    "don't",
]
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class FakeTuning(HasTraits):
    """As much of a session as the fine-tuning panel asks for."""

    sampling = AnyTrait(FakeSampling(max_new_tokens=24))
    adapter = AnyTrait(None)

    def __init__(self, *, names=("polite", "curt", "<b>odd</b>"), pace_s: float = 0.0) -> None:
        super().__init__()
        self.model = None
        self.lock = threading.RLock()
        self.names, self.pace_s = list(names), pace_s
        self.asked: list[tuple[str | None, float]] = []
        self.models = SimpleNamespace(base_of=lambda *_: SimpleNamespace(name="SmolLM2-135M-Instruct"))

    def adapters(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.names]

    def adapters_to_compare(self, names=()) -> tuple[str, ...]:
        if not self.names:
            raise NotFoundError("There is no adapter yet", next="Make one with %llm_finetune --data FILE")
        return tuple(names) or (self.names[0],)

    def trained_on_chat(self, _name: str) -> bool:
        return True

    def adapter_column(self, name, beside, prompt, *, scale, chat, parameters, on_text, should_stop) -> Column:
        self.asked.append((name, scale))
        draw = random.Random(parameters.seed)
        other = random.Random(f"{name}{parameters.seed}")
        said = []
        for _ in range(parameters.max_new_tokens):
            if should_stop():
                break
            time.sleep(self.pace_s)
            plain, bent = draw.choice(WORDS), other.choice(WORDS)
            said.append(bent if name is not None and other.random() < 0.4 * scale else plain)
            said[0] = HOSTILE
            on_text(said[-1] + " ")
        done = len(said) == parameters.max_new_tokens
        return Column(
            adapter=name, scale=scale, text="".join(word + " " for word in said), tokens=tuple(range(len(said))),
            logprob=-1.25, stop_reason="length" if done else "interrupted",
        )  # fmt: skip

    def comparison(self, names, prompt, parameters, columns) -> Comparison:
        settings = f"temperature {parameters.temperature} · seed {parameters.seed}"
        return Comparison(model="SmolLM2-135M-Instruct", prompt=prompt, settings=settings, columns=tuple(columns))

    def adapter_report(self, name: str) -> AdapterReport:
        draw = random.Random(name)
        changes = [
            Change(layer=layer, module=module, norm=draw.random(), share=(0.02 + layer / 400) * draw.random())
            for layer in range(30)
            for module in MODULES
        ]
        moved = [
            Moved(context=f"What is a {word}? ", token=f"␣{word}", before=draw.random(), after=draw.random())
            for word in [*WORDS[:8], HOSTILE]
        ]
        return AdapterReport(
            adapter=name, changes=tuple(changes), moved=tuple(moved), tokens=1840, loss_before=2.314, loss_after=1.702,
            on="held-out text",
        )  # fmt: skip
