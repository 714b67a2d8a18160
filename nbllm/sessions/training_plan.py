"""What a training would take, before it starts: parameters, memory a device by kind, length, time, command.

Shown by `--dry-run` as text and HTML. Everything from the data is escaped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbllm.train import Forecast, TrainConfig
    from nbllm.train.launch import Launch

_COLOURS = {
    "base": "var(--jp-ui-font-color3, #9a9a9a)",
    "weights": "#0072b2",
    "gradients": "#d55e00",
    "optimizer": "#009e73",
    "activations": "#8a4f9e",
    "logits": "#c9a227",
    "rest": "var(--jp-ui-font-color3, #9a9a9a)",
}
_MEANING = {
    "base": "Python and libraries",
    "weights": "fp32",
    "gradients": "fp32",
    "activations": "kept for the backward pass",
    "logits": "the most at once",
    "rest": "freed pieces that the allocator keeps",
}


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What a training would take."""

    config: TrainConfig
    """What was asked."""
    forecast: Forecast
    """Memory, length and time."""
    launch: Launch
    """The exact command and accelerate configuration."""

    @property
    def memory(self) -> dict[str, int]:
        """Bytes on the fullest device by kind, and `peak`, the most at once."""
        found = self.forecast.memory
        kinds = {kind: getattr(found, kind) for kind in _COLOURS if getattr(found, kind)}
        return {**kinds, "peak": found.peak}

    @property
    def lines(self) -> list[str]:
        """Everything but memory and command, a line each."""
        config, found = self.config, self.forecast
        processes = self.launch.processes * config.machines
        what = f"{found.parameters:,} parameters, {found.optimizer} at {found.lr:.3g}, {found.precision}"
        where = f"{processes} process{'es' if processes > 1 else ''} on {self.launch.devices.kind}"
        plan = f", --parallel {config.parallel}" if processes > 1 else ""
        loss = "loss without logits" if found.fused else "loss from all logits"
        how = "a step was timed here" if found.timed else "roughly, from this device's speed"
        a_step = found.tokens // max(1, found.total_steps)
        read = f"{found.tokens:,} tokens, {found.epochs:.2f} passes over the corpus"
        return [
            f"{config.model}: {what}, {loss}",
            f"{found.total_steps:,} steps of {a_step:,} tokens: {read}",
            f"{where}{plan}: about {_duration(found.seconds)} ({_duration(found.seconds_a_step)} a step, {how})",
        ]

    @property
    def verdict(self) -> str:
        """Whether it fits, and else what would make it fit."""
        found = self.forecast
        free = f"{_size(found.memory.peak)} at the peak, {_size(found.available_bytes)} free a process"
        return f"It fits: {free}" if found.fits else f"It won't fit: {free}. Try {found.suggestion}"

    def __str__(self) -> str:
        rows = [f"  {name:<12}{_size(size):>10}  {self._meaning(name)}".rstrip() for name, size in self.memory.items()]
        return "\n".join(
            [
                *self.lines,
                f"Memory of {'a' if self._several else 'the'} device, by kind:",
                *rows,
                self.verdict,
                f"accelerate configuration: {json.dumps(self.launch.accelerate)}",
                f"command: {self.launch.shell()}",
                "Nothing was started.",
            ]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        most = max(self.memory.values())
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(name)}</td><td style='text-align:right'>{_size(size)}</td>"
            f"<td style='text-align:left;min-width:16em'><span aria-hidden='true' style='display:inline-block;height:"
            f".8em;width:{12 * size / most:.2f}em;background:{_COLOURS.get(name, 'currentColor')}'></span> "
            f"{escape(self._meaning(name))}</td></tr>"
            for name, size in self.memory.items()
        )
        accelerate = escape(json.dumps(self.launch.accelerate, indent=1))
        return (
            "<div class='nbllm-plan' style='max-width:760px'>"
            + "".join(f"<p style='margin:2px 0'>{escape(line)}</p>" for line in self.lines)
            + "<table style='margin:8px 0;font-variant-numeric:tabular-nums'><thead><tr>"
            "<th style='text-align:left'>memory</th><th>a device</th><th></th></tr></thead>"
            f"<tbody>{rows}</tbody></table><p style='margin:2px 0'><strong>{escape(self.verdict)}</strong></p>"
            "<details><summary>command and accelerate configuration</summary>"
            f"<pre style='white-space:pre-wrap;overflow-wrap:anywhere'>{escape(self.launch.shell())}\n\n{accelerate}"
            "</pre></details><p style='margin:2px 0'>Nothing was started.</p></div>"
        )

    @property
    def _several(self) -> bool:
        return self.launch.processes * self.config.machines > 1

    def _meaning(self, kind: str) -> str:
        if kind == "optimizer":
            return "one number a weight" if self.forecast.optimizer == "muon" else "two numbers a weight"
        if kind == "peak":
            return "gradients come as activations go"
        return _MEANING[kind]


def _size(size_bytes: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes / 1e3:.1f} kB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
