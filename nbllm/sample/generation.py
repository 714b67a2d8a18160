"""What a sampling gives back: plain Python values, so that keeping it keeps nothing of the model or the device.

Knows neither torch nor models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from nbllm.sample.parameters import SamplingParameters

if TYPE_CHECKING:
    from nbllm.sample.trace import Trace

_PRE = "white-space:pre-wrap;overflow-wrap:anywhere;margin:0 0 .5em"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One continuation of a prompt."""

    text: str
    """The new text, without special tokens and without the stop text that ended it."""
    tokens: tuple[int, ...]
    """Every token that was chosen, with the one that ended the text."""
    logprobs: tuple[float, ...]
    """For each token the logarithm (natural) of its probability under the model, before any filter."""
    stop_reason: str
    """`eos` (the model ended it), `length` (of `max_new_tokens`), `stop` (a stop text), `context` (prompt and text fill
    the model's context) or `interrupted`."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Generation:
    """The continuations of one prompt. `print` shows the first one's text; a notebook shows all, with the prompt."""

    prompt: str
    """The prompt as text, special tokens included."""
    prompt_tokens: tuple[int, ...]
    """Its ids, as the model got them."""
    samples: tuple[Sample, ...]
    """One or more continuations."""
    parameters: SamplingParameters
    """What they were sampled with."""
    tokens_per_s: float
    """New tokens a second after the first, of the whole batch; 0 where there was only one step."""
    first_token_ms: float | None
    """From the start, with the prompt's own run, to the first token; None where there is none."""
    prompt_tokens_reused: int = 0
    """How many of the prompt's tokens were known from an earlier call."""
    compiled: bool = False
    """Whether the compiled step made some of the tokens."""
    trace: Trace | None = field(default=None, compare=False)
    """The alternatives at each step, where they were asked for."""

    @property
    def text(self) -> str:
        """The first sample's text."""
        return self.samples[0].text

    @property
    def texts(self) -> list[str]:
        """Every sample's text."""
        return [sample.text for sample in self.samples]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The first sample's tokens."""
        return self.samples[0].tokens

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The first sample's logprobs."""
        return self.samples[0].logprobs

    @property
    def stop_reason(self) -> str:
        """`interrupted` where any sample was, else why the first one ended."""
        reasons = [sample.stop_reason for sample in self.samples]
        return "interrupted" if "interrupted" in reasons else reasons[0]

    @property
    def summary(self) -> str:
        """One line: tokens, why it ended, speed."""
        count = sum(len(sample.tokens) for sample in self.samples)
        several = f" in {len(self.samples)} samples" if len(self.samples) > 1 else ""
        parts = [f"{count:,} token{'' if count == 1 else 's'}{several}", self.stop_reason]
        if self.tokens_per_s:
            parts.append(f"{self.tokens_per_s:.{0 if self.tokens_per_s >= 10 else 1}f} tokens/s")
        if self.first_token_ms is not None:
            parts.append(f"first token {self.first_token_ms:.0f} ms")
        return " · ".join(parts)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 80 else self.text[:79] + "…"
        return f"Generation({shown!r}, {self.summary})"

    def _repr_html_(self) -> str:
        prompt = f'<span style="opacity:.65">{escape(self.prompt)}</span>'
        texts = "".join(
            f'<pre style="{_PRE}"{_label(number, len(self.samples))}>{prompt}{escape(sample.text)}</pre>'
            for number, sample in enumerate(self.samples, 1)
        )
        return f'<div class="nbllm-generation">{texts}<small style="opacity:.65">{escape(self.summary)}</small></div>'


def _label(number: int, count: int) -> str:
    return f' aria-label="sample {number} of {count}"' if count > 1 else ""
