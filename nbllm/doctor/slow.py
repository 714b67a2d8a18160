"""Findings about a slow path: attention, dtype, threads, the compiled step, keys and values. Each remedy is measured.

A finding comes only where a short measurement (16 tokens, three times each way, some four seconds) shows that its
remedy makes this model on this machine faster by more than chance; where nothing is suspicious nothing is measured.
What can't be measured quickly (a step that isn't compiled) says so. Knows sampling and its measurements.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch

from nbllm.doctor.asked import Asked
from nbllm.doctor.pace import WORTH, Gain, in_turns, pace
from nbllm.findings import Finding
from nbllm.sample import Generation
from nbllm.sample.compiled import allowed
from nbllm.sample.forward import Forward
from nbllm.train.launch import cores

_MOST_COPIED_BYTES = 4e9
"""Weights that are copied in another dtype to be measured, within some seconds."""
_BF16_AGREES = 0.75
"""The share of greedy tokens that have to stay the same for bfloat16 to do."""
_FEWEST = 8
"""Greedy tokens below which nothing is said about agreement."""
_LONG = 64
"""Tokens below which running the whole text for each costs little."""


def slow_findings(model: Any, generation: Generation, asked: Asked) -> list[Finding]:
    """A slow way of running the model, where a faster one is there; measured.

    Args:
        model: as it was sampled from; it is left as it was.
        generation: whose text is continued for the measurements.
        asked: how it was asked for.
    """
    ids = [*generation.prompt_tokens, *generation.tokens]
    found: list[Finding] = []
    for look in (_attention, _dtype, _threads, _compiled, _no_cache):
        with torch.no_grad():
            one = look(model, ids, generation, asked)
        found += [one] if one is not None else []
    return found


def _attention(model: Any, ids: list[int], generation: Generation, asked: Asked) -> Finding | None:
    config = model.config.get_text_config()
    if getattr(config, "_attn_implementation", None) != "eager" or not getattr(model, "_supports_sdpa", False):
        return None
    if getattr(config, "attn_logit_softcapping", None):  # the fused attention would leave it out
        return None

    def take(kind: str) -> Any:
        model.set_attn_implementation(kind)
        return model

    with contextlib.ExitStack() as back:
        back.callback(take, "eager")
        gain = in_turns(ids, lambda: take("eager"), lambda: take("sdpa"))
    return _worth(
        gain,
        name="attention is written out",
        evidence="the model's attention is `eager`, which keeps every weight of every head",
        remedy="Take the fused attention",
        command=f'{asked.loading()}[0].set_attn_implementation("sdpa")',
    )


def _dtype(model: Any, ids: list[int], generation: Generation, asked: Asked) -> Finding | None:
    size = sum(weight.nbytes for weight in model.parameters())
    quantized = getattr(model, "nbllm_quantized", None)
    if getattr(model, "dtype", None) is not torch.float32 or quantized or not 0 < size <= _MOST_COPIED_BYTES:
        return None
    half = copy.deepcopy(model).to(torch.bfloat16).eval()
    gain = in_turns(ids, lambda: model, lambda: half)
    if gain.compared < _FEWEST or gain.same < _BF16_AGREES * gain.compared:
        return None
    return _worth(
        gain,
        name="float32 where bfloat16 would do",
        evidence=f"{size / 1e9:.2g} GB of weights are read for each token, {size / 2e9:.2g} would be; the first "
        f"{gain.same} of {gain.compared} greedy tokens stay the same",
        remedy="Halve the weights (save_pretrained keeps them so)",
        command=f"import torch; {asked.loading()}[0].to(torch.bfloat16)",
    )


def _threads(model: Any, ids: list[int], generation: Generation, asked: Asked) -> Finding | None:
    now, usable = torch.get_num_threads(), cores()
    if now == usable or Forward.of(model).device.type != "cpu":
        return None

    def take(count: int) -> Any:
        torch.set_num_threads(count)
        return model

    with contextlib.ExitStack() as back:
        back.callback(torch.set_num_threads, now)
        gain = in_turns(ids, lambda: take(now), lambda: take(usable))
    return _worth(
        gain,
        name="cores that do nothing" if now < usable else "more threads than cores",
        evidence=f"torch computes with {now} thread{'' if now == 1 else 's'}, and {usable} physical cores may be used",
        remedy="Take as many threads as cores",
        command=f"import torch; torch.set_num_threads({usable})",
    )


def _compiled(model: Any, ids: list[int], generation: Generation, asked: Asked) -> Finding | None:
    """Compiling that failed, or is switched off though the package is there; that it isn't done yet is no fault."""
    state = Forward.of(model).compiled
    if generation.compiled or generation.parameters.n > 1:
        return None
    again = asked.loading().replace("load_model(", "compile_again(", 1)
    if "Unsupported" in (state.why_not or ""):  # its step can't be compiled, so there is nothing to mend
        return None
    if state.failed or (state.gave_up and allowed()):
        return Finding(
            name="the decode step isn't compiled",
            severity="warning" if state.failed else "hint",
            evidence=f"{state.why_not}; every token takes the plain step. What it would give can't be measured before "
            "it works",
            remedy="Once the reason is gone, forget the failure and compile again (minutes)",
            command=again,
        )
    if allowed() or not state.on_disk:
        return None
    with _compiling():
        gain = in_turns(ids, lambda: model, lambda: model, compiled=True)
    return _worth(
        gain,
        name="the compiled step is switched off",
        evidence="NBLLM_COMPILE is off in this kernel, and the step is on disk",
        remedy="Switch it on",
        command=f'import os; os.environ.pop("NBLLM_COMPILE"); {again}',
    )


def _no_cache(model: Any, ids: list[int], generation: Generation, asked: Asked) -> Finding | None:
    """A model that keeps no keys and values: each token runs the whole text again."""
    if len(ids) < _LONG or Forward(model).new_cache() is not None:
        return None
    short, long = pace(model, ids[:8])[0], pace(model, ids)[0]
    if short < WORTH * long:
        return None
    few = max(1, generation.parameters.max_new_tokens // 2)
    return Finding(
        name="the model keeps no keys and values",
        severity="hint",
        evidence="its class takes no cache, so that each token runs the whole text again: "
        f"{short:.3g} tokens/s after 8 tokens, {long:.3g} after {min(len(ids), _LONG)}, measured",
        remedy="Ask for fewer tokens, or take a model whose class has a cache",
        command=asked.line(generation, max_new_tokens=few),
    )


def _worth(gain: Gain, *, name: str, evidence: str, remedy: str, command: str) -> Finding | None:
    """A finding, where its remedy is worth typing."""
    if not gain.worth:
        return None
    severity = "warning" if gain.factor >= 1.5 else "hint"
    return Finding(name=name, severity=severity, evidence=f"{evidence}: {gain}", remedy=remedy, command=command)


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Steps may be compiled for a while."""
    import os

    kept = os.environ.pop("NBLLM_COMPILE", None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ["NBLLM_COMPILE"] = kept
