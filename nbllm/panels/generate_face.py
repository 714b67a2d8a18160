"""The static face of the sampling panel: settings, numbers and coloured text as HTML that needs no kernel.

Colours are eight classes of the shared style sheet, as in the living panel (`generate_scale.js` has the same levels).
All text from data is escaped.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Sequence
from typing import Any

from nbllm.panels import text
from nbllm.panels.generate_settings import Source, values, written
from nbllm.panels.generate_tokens import Token
from nbllm.panels.generate_tree import Branch, Pin

COLOURS = ("probability", "rank", "entropy", "none")
"""What a token's colour can say."""
LEVELS = 8
"""From 0, what surprised the model, to 7, what it was sure of."""
_ENTROPY_STEP = 0.75
_COLOURED = 1000
_ENDS = {
    "eos": "end of text",
    "length": "length",
    "stop": "stop text",
    "context": "full context",
    "interrupted": "being stopped",
}


def level(token: Token, colour: str) -> int | None:
    """A token's class of colour; None for no colour."""
    if colour == "probability":
        return min(LEVELS - 1, int(token.probability * LEVELS))
    if colour == "rank":  # 1, 2, to 4, to 8 … beyond 64
        return LEVELS - 1 - min(LEVELS - 1, math.ceil(math.log2(max(1, token.rank))))
    if colour == "entropy":  # steps of 0.75 nats
        return LEVELS - 1 - min(LEVELS - 1, int(token.entropy / _ENTROPY_STEP))
    return None


def facts_line(facts: dict[str, Any]) -> str:
    """What is known of a sampling, in one line."""
    if not facts:
        return ""
    parts = []
    if facts.get("first_token_ms") is not None:
        parts.append(f"first token {facts['first_token_ms']:.0f} ms")
    if facts.get("tokens_per_s"):
        parts.append(f"{text.count(facts['tokens_per_s'])} tokens/s")
    if facts.get("reused"):
        parts.append(f"{text.count(facts['reused'])} prompt tokens reused")
    if facts.get("compiled") is not None:
        parts.append("compiled" if facts["compiled"] else "eager")
    end = facts["stop_reason"]
    return " · ".join(
        [
            *parts,
            f"{text.count(facts['tokens'])} token{'' if facts['tokens'] == 1 else 's'}",
            f"ended by {_ENDS.get(end, end)}",
        ]
    )


def settings_line(sampling: Any) -> str:
    """The settings in one line."""
    greedy = ["greedy"] if getattr(sampling, "greedy", False) else []
    shown = [f"{name.replace('_', ' ')} {written(value)}" for name, value in values(sampling).items()]
    return " · ".join([*greedy, *shown])


def as_html(
    *, prompt: str, branch: Branch | None, sampling: Any, source: Source, pins: Sequence[Pin], colour: str
) -> str:
    """The panel's body.

    Args:
        prompt: what stands in the prompt field, shown where there is no text yet.
        branch: the text that is shown.
        sampling: the settings, where there is no text yet.
        source: the model, where there is no text yet.
        pins: texts beside it.
        colour: one of `COLOURS`.
    """
    shown = (branch.sampling if branch else None) or sampling
    model = (branch.source if branch else None) or source
    tokens = branch.tokens if branch else []
    column = _column(branch.prompt if branch else prompt, tokens, settings_line(shown), colour)
    columns = [column, *(_column(pin.prompt, pin.tokens, _pin_line(pin), colour) for pin in pins)]
    legend = "" if colour == "none" or not tokens else _legend(colour)
    return (
        f'<div class="nbllm-head"><strong>Sampling</strong>'
        f'<span class="nbllm-chip">{html.escape(model.label)}</span>'
        f'<span class="nbllm-dim">{html.escape(facts_line(branch.facts if branch else {}))}</span></div>'
        f'<div class="nbllm-body">{legend}<div class="nbllm-texts">{"".join(columns)}</div>'
        f'<div class="nbllm-label nbllm-gap">live again with <code>%llm_panel generate</code></div></div>'
    )


def as_text(*, prompt: str, branch: Branch | None, sampling: Any, source: Source, pins: Sequence[Pin]) -> str:
    """The same in plain text."""
    shown = (branch.sampling if branch else None) or sampling
    model = (branch.source if branch else None) or source
    first = f"Sampling ({model.label}; {settings_line(shown)})"
    parts = [f"{first}\n{branch.prompt if branch else prompt}{branch.text if branch else ''}"]
    parts += [f"Pinned ({_pin_line(pin)})\n{pin.prompt}{_plain(pin.tokens)}" for pin in pins]
    return "\n\n".join(parts)


def _pin_line(pin: Pin) -> str:
    return " · ".join([*([pin.source.label] if pin.source else []), settings_line(pin.sampling)])


def _column(prompt: str, tokens: Sequence[Token], caption: str, colour: str) -> str:
    return (
        f'<div><div class="nbllm-label">{html.escape(caption)}</div>'
        f'<div class="nbllm-mono nbllm-said"><span class="nbllm-dim">{html.escape(prompt)}</span>'
        f"{_coloured(tokens, colour)}</div></div>"
    )


def _coloured(tokens: Sequence[Token], colour: str) -> str:
    """Runs of tokens of one level as spans; plain where there are very many, to keep a saved notebook small."""
    if len(tokens) > _COLOURED:
        colour = "none"
    spans = []
    for found, run in itertools.groupby(tokens, key=lambda token: level(token, colour)):
        said = html.escape(_plain(list(run)))
        spans.append(said if found is None or not said else f'<span class="nbllm-v{found}">{said}</span>')
    return "".join(spans)


def _legend(colour: str) -> str:
    swatches = "".join(f'<i class="nbllm-v{place}"></i>' for place in range(LEVELS))
    low, high = {"probability": ("0", "1"), "rank": ("over 64", "1"), "entropy": ("over 5 nats", "0")}[colour]
    return f'<div class="nbllm-label">{colour} <span class="nbllm-scale">{low} {swatches} {high}</span></div>'


def _plain(tokens: Sequence[Token]) -> str:
    return "".join(token.text for token in tokens)
