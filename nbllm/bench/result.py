"""What a measurement of several runtimes found: one row each, shown as a table and a bar chart.

Rows that couldn't be measured say why, and what to type to change that. Text from data is escaped. Knows numbers only:
neither models nor runtimes.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

_DASH = "–"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first token that differs between two greedy texts, and how sure the reference was of its own."""

    token: int
    """Which one, counted from 0: so many are the same before it."""
    wanted: float | None
    """The probability that the reference gives its own token there; None where the other text only ended sooner."""
    chosen: float | None
    """The probability that the reference gives the other's."""

    def __str__(self) -> str:
        if self.wanted is None or self.chosen is None:
            return f"ends after {self.token}"
        return f"token {self.token + 1}: {self.wanted:.1%} / {self.chosen:.1%}"


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One runtime with one precision."""

    backend: str
    """As it is asked for: `eager`, `compiled`, `int8`, `int4`, `onnx`, `llamacpp`, `vllm`, `tensorrt`."""
    name: str
    """Which program: `PyTorch`, `ONNX Runtime`."""
    precision: str = ""
    """Of the weights: `bf16`, `int8`, `q8_0`."""
    compiled: bool | None = None
    """Whether the decode step was compiled; None where that means nothing."""
    load_s: float | None = None
    """Seconds from the files to a model that can answer; exports and compiling aren't in it."""
    first_token_ms: float | None = None
    """Of a prompt that nothing is known of: the median over the rounds."""
    tokens_per_s: Mapping[int, float] = field(default_factory=dict)
    """New tokens a second after the first, of all texts together, by how many texts: medians over the rounds."""
    rounds: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """The same of every round."""
    weight_bytes: int | None = None
    """Of the weights: in memory for PyTorch, of the file for others."""
    read_bytes: int | None = None
    """What a step has to read of them: embeddings that only serve a look-up aren't in it."""
    peak_bytes: int | None = None
    """By how much memory grew while it loaded and answered once: of the device on CUDA, else of the process."""
    limit_tokens_per_s: float | None = None
    """What memory's speed allows for one text: read bandwidth over `read_bytes`."""
    agreement: tuple[int, int] | None = None
    """How many tokens of the reference's greedy text it would have chosen, each after the reference's own tokens before
    it, and how many there were; None for a program that can't be asked so. One near tie costs one token, not the rest
    of the text."""
    first_difference: Difference | None = None
    """Where the text that it made by itself leaves the reference's; None where they are the same."""
    note: str = ""
    """What else is to be known of these numbers."""
    error: str | None = None
    """Why there are none."""
    next: str | None = None
    """What to type then."""

    @property
    def label(self) -> str:
        """Program, precision and the kind of step in a few words."""
        step = {True: "compiled", False: "eager", None: ""}[self.compiled]
        return " ".join(part for part in (self.name, self.precision, step) if part)

    @property
    def problem(self) -> str:
        """Error and remedy in one line; empty where there is none."""
        if self.error is None:
            return ""
        return f"{self.error.rstrip('.')}. {self.next}" if self.next else self.error


@dataclass(frozen=True, kw_only=True, repr=False)
class Bench:
    """One model on one machine, through several runtimes; shows itself as a table, in a notebook with bars."""

    model: str
    """Its name."""
    device: str
    """What PyTorch computed on."""
    prompt_tokens: int
    """Ids of the prompt."""
    new_tokens: int
    """Tokens made a text."""
    batch: tuple[int, ...]
    """How many texts at once were measured."""
    reference: str
    """What `agreement` compares with."""
    bandwidth_bytes_per_s: float
    """Memory's speed as measured in the same rounds: the best of them."""
    rows: tuple[BenchRow, ...]
    """The runtimes."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages that took part."""

    @property
    def measured(self) -> list[BenchRow]:
        """The rows that have numbers."""
        return [row for row in self.rows if row.error is None]

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON, which is also written to a file where one is named. Numbers that aren't finite are
        null."""
        text = json.dumps(_plain(dataclasses.asdict(self)), indent=1, allow_nan=False)
        if path is not None:
            Path(path).expanduser().write_text(text + "\n", encoding="utf-8")
        return text

    @property
    def legend(self) -> str:
        """What the two columns of agreement count."""
        return (
            "agreement: tokens of the reference's greedy text that the runtime would choose too, each after the "
            "reference's own; first difference: where its own text leaves the reference's, and how probable the "
            "reference finds its token and the other's (nearly equal: a tie, no fault)"
        )

    @property
    def heading(self) -> str:
        """What was measured, in one line."""
        return (
            f"{self.model} on {self.device} · prompt of {self.prompt_tokens:,} tokens, {self.new_tokens:,} new · "
            f"memory {self.bandwidth_bytes_per_s / 1e9:.1f} GB/s · agreement with {self.reference}"
        )

    def table(self) -> list[list[str]]:
        """Cells as text, the head first; columns that no row has are left out."""
        head = ["runtime", "load s", "first token ms", *(f"tokens/s ×{size}" for size in self.batch)]
        head += ["limit ×1", "of limit", "weights", "peak memory", "agreement", "first difference", "note"]
        return [head, *(self._cells(row) for row in self.rows)]

    def _cells(self, row: BenchRow) -> list[str]:
        if row.error is not None:
            return [row.label, *[_DASH] * (len(self.batch) + 8), row.problem]
        one = row.tokens_per_s.get(1)
        share = one / row.limit_tokens_per_s if one and row.limit_tokens_per_s else None
        return [
            row.label,
            _number(row.load_s),
            _number(row.first_token_ms),
            *(_number(row.tokens_per_s.get(size)) for size in self.batch),
            _number(row.limit_tokens_per_s),
            _DASH if share is None else f"{share:.0%}",
            _size(row.weight_bytes),
            _size(row.peak_bytes),
            _DASH if row.agreement is None else f"{row.agreement[0]} of {row.agreement[1]}",
            "none" if row.first_difference is None else str(row.first_difference),
            row.note,
        ]

    def __str__(self) -> str:
        rows = self.table()
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
        lines = []
        for row in rows:
            numbers = (f"{cell:>{width}}" for cell, width in zip(row[1:-1], widths[1:], strict=True))
            lines.append("  ".join([f"{row[0]:<{widths[0]}}", *numbers, row[-1]]).rstrip())
        return "\n".join([self.heading, "", *lines, "", self.legend])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from nbllm.bench.chart import bars
        from nbllm.panels.face import wrap

        head, *rows = self.table()
        left = "text-align:left"
        shown = "".join(
            f'<th scope="col"{f" style={left}" if place in (0, len(head) - 1) else ""}>{escape(cell)}</th>'
            for place, cell in enumerate(head)
        )
        body = "".join(_html_row(cells) for cells in rows)
        return wrap(
            f'<div class="nbllm-head"><strong>Benchmark</strong><span class="nbllm-chip">{escape(self.model)}</span>'
            f'<span class="nbllm-dim">{escape(self.heading.removeprefix(self.model).strip())}</span></div>'
            f'<div class="nbllm-body">{bars(self.measured)}'
            f'<div class="nbllm-table" style="overflow-x:auto"><table><thead><tr>{shown}</tr></thead>'
            f'<tbody>{body}</tbody></table></div><div class="nbllm-dim">{escape(self.legend)}</div></div>'
        )


def _html_row(cells: Sequence[str]) -> str:
    left = "text-align:left"
    last = len(cells) - 1
    inside = "".join(
        f'<th scope="row" style="{left};white-space:nowrap">{escape(cell)}</th>'
        if place == 0
        else f'<td style="{left};min-width:16em">{escape(cell)}</td>'
        if place == last
        else f"<td>{escape(cell)}</td>"
        for place, cell in enumerate(cells)
    )
    return f"<tr>{inside}</tr>"


def _number(value: float | None) -> str:
    """Three digits or so; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return _DASH
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def _size(value: int | None) -> str:
    if value is None:
        return _DASH
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if value >= scale:
            return f"{value / scale:.{2 if unit == 'GB' else 0}f} {unit}"
    return f"{value / 1e3:.0f} kB"


def _plain(value: Any) -> Any:
    """Only what JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
