"""The settings that the sampling panel moves, and the cell that samples again what it shows.

Reads the settings from whatever dataclass the session holds: one that it doesn't have gets no slider. Knows nothing of
widgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbllm.errors import UsageError
from nbllm.panels import text

SETTINGS: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "typical_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "max_new_tokens": int,
    "seed": int,
}
"""The settings with a slider, in their order, and their types."""


_ONE_TEXT = {"n": 1, "beams": 1, "prompt_lookup": 0}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Which model said a text."""

    model: str | None
    """The run, folder, file or hub name; None where there is no model yet."""
    checkpoint: int | None
    """The step of the run's checkpoint that was the one meant then; None for a model that isn't a run."""
    chosen: int | None
    """The step that was asked for; None: whatever is the newest."""
    adapter: str | None
    """The adapter's name; None where none is on."""

    @property
    def label(self) -> str:
        """For a chip: `pydocs-nano · step 600 · adapter off`."""
        if self.model is None:
            return "no model yet"
        name = self.model.rstrip("/").rsplit("/", 1)[-1]
        step = [f"step {self.checkpoint:,}"] if self.checkpoint is not None else []
        return " · ".join([name, *step, f"adapter {self.adapter or 'off'}"])


def values(sampling: Any) -> dict[str, int | float]:
    """The settings with a slider that this dataclass has, with their values."""
    return {name: getattr(sampling, name) for name in SETTINGS if hasattr(sampling, name)}


def one_text(sampling: Any) -> dict[str, int]:
    """What the panel sets beside the sliders, as far as the dataclass has it: one text, a drawn token at a time."""
    return {name: value for name, value in _ONE_TEXT.items() if hasattr(sampling, name)}


def setting(name: str, value: Any) -> int | float:
    """A value as the page sent it, in the setting's own type; raises UsageError where it isn't a number."""
    if name not in SETTINGS:
        raise UsageError("The panel doesn't know this setting", received=name)
    try:
        return SETTINGS[name](value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name.replace('_', ' ')} must be a number", received=value) from error


def written(value: float) -> str:
    """A setting's value as it is typed: 0.7, 40."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_cell(prompt: str | Sequence[int], sampling: Any, source: Source) -> str:
    """The cell that samples the same again, whatever the session's settings and model are then.

    Args:
        prompt: text, or token ids where no text has exactly these tokens.
        sampling: the settings.
        source: the model.

    Returns:
        A `%%llm_generate` cell; Python where the magic's line can't hold the stop texts, or the prompt is ids.
    """
    stops = tuple(getattr(sampling, "stop", ()))
    if not isinstance(prompt, str) or any(set(stop) & set('"\n\r') for stop in stops):
        return _as_python(prompt, sampling, source)
    options = []
    if source.model is not None:
        options.append(f"--model {text.typed(source.model)}")
        options += [f"--checkpoint {source.checkpoint}"] if source.checkpoint is not None else []
        options.append(f"--adapter {text.typed(source.adapter or 'off')}")
    options += [f"--{name.replace('_', '-')} {written(value)}" for name, value in values(sampling).items()]
    options += ["--greedy"] if getattr(sampling, "greedy", False) else []
    options += ["--sliding"] if getattr(sampling, "sliding", False) else []
    options += [f"--{name} 1" for name in ("n", "beams") if hasattr(sampling, name)]
    options += [f'--stop "{stop}"' for stop in stops]
    return f"%%llm_generate {' '.join(options)}\n{prompt}"


def _as_python(prompt: str | Sequence[int], sampling: Any, source: Source) -> str:
    arguments: dict[str, Any] = {}
    if source.model is not None:
        arguments = {"model": source.model, "checkpoint": source.checkpoint, "adapter": source.adapter or "off"}
    switches = {name: getattr(sampling, name) for name in ("greedy", "sliding", "stop") if hasattr(sampling, name)}
    arguments |= {**values(sampling), **switches, **one_text(sampling)}
    start = prompt if isinstance(prompt, str) else list(prompt)
    lines = [f"    {name}={value!r}," for name, value in arguments.items() if value is not None]
    return "\n".join(["import nbllm", "", "nbllm.session().generate(", f"    {start!r},", *lines, ")"])
