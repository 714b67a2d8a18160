"""Which layers an adapter gives weights to, with their shapes, and what share of the model is trained.

Works on a model without numbers (torch's meta device), so that it takes no time and no memory before a run starts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Outline:
    """What is trained of a model."""

    method: str
    """The method, `full` for all weights."""
    layers: tuple[tuple[str, tuple[int, ...], int], ...]
    """Short name, shape and number of the layers that get weights; empty where it isn't about layers."""
    trainable: int
    """Parameters trained."""
    total: int
    """Parameters of the base."""

    @property
    def summary(self) -> str:
        """All of it in one line."""
        share = self.trainable / max(self.total, 1)
        return (
            f"{self.method}{self._where()}: {self.trainable:,} of {self.total:,} parameters are trained ({share:.2%})"
        )

    def _where(self) -> str:
        if not self.layers:
            return ""
        parts = [f"{name} {'×'.join(map(str, shape))} ({count})" for name, shape, count in self.layers[:_SHOWN]]
        return " on " + ", ".join([*parts, *(["…"] if len(self.layers) > _SHOWN else [])])

    def __str__(self) -> str:
        rows = [f"  {name:24} {'×'.join(map(str, shape)):>14} {count:>5} layers" for name, shape, count in self.layers]
        share = self.trainable / max(self.total, 1)
        head = f"{self.method}: {self.trainable:,} of {self.total:,} parameters are trained ({share:.2%})"
        return "\n".join([head, *rows])

    def _repr_html_(self) -> str:
        cells = [(name, "×".join(map(str, shape)), f"{count:,}") for name, shape, count in self.layers]
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        head = "<tr><th>layer</th><th>shape (out×in)</th><th>how many</th></tr>"
        share = self.trainable / max(self.total, 1)
        table = f"<table>{head}{rows}</table>" if rows else ""
        return (
            f"<p><b>{escape(self.method)}</b>: {self.trainable:,} of {self.total:,} parameters are trained "
            f"({share:.2%})</p>{table}"
        )


def outline(source: str, settings: dict[str, Any] | None) -> Outline:
    """What an adapter would train of a model.

    Args:
        source: a transformers folder, GGUF file or hub name.
        settings: the keyword arguments of `create` that say what adapter; None: all weights are trained.

    Raises:
        UsageError: a target that isn't there.
    """
    from nbllm.adapters.lora import create
    from nbllm.model import parameter_count

    model = _without_numbers(source)
    total = parameter_count(model)
    if settings is None:
        return Outline(method="full", layers=(), trainable=total, total=total)
    method = str(settings["method"])
    before = {name: module for name, module in model.named_modules() if hasattr(module, "weight")}
    shapes = {name: tuple(module.weight.shape) for name, module in before.items()}
    adapter = create(model, **settings)
    own = getattr(adapter.tuner, "layers", ())
    counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for name, module in model.named_modules():
        if name in shapes and module is not before[name] and hasattr(module, "base_layer"):
            counts[name.rpartition(".")[2], shapes[name]] += 1
    return Outline(
        method=method,
        layers=own or tuple((name, shape, count) for (name, shape), count in counts.items()),
        trainable=parameter_count(model, trainable=True),
        total=total,
    )


def _without_numbers(source: str) -> PreTrainedModel:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from nbllm.model import load

    if Path(source).suffix == ".gguf" or (Path(source).is_dir() and not (Path(source) / "config.json").is_file()):
        return load(source)  # what is in the file is only known by reading it
    config = AutoConfig.from_pretrained(source, local_files_only=Path(source).is_dir())
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)
