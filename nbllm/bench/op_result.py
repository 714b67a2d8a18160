"""What a measurement of the fused ops found: a row for each op and form, and what `--fused auto` takes because of it.

Shown as a table with bars, and as text. Knows numbers only, neither tensors nor models.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

_DASH = "–"
_BAR_PIXELS = 140


@dataclass(frozen=True, kw_only=True)
class OpRow:
    """One op in one form, forward and backward."""

    op: str
    """`linear_loss`, `add_rms_norm`, `rms_norm`, `swiglu` or `rope`."""
    title: str
    """The same in words."""
    shape: str
    """Of its inputs."""
    form: str
    """`eager` (the models' own code), `compiled`, `PyTorch` (its own op), `nbllm`, `nbllm Triton`, `Liger`."""
    ms: float | None = None
    """Milliseconds: the median over the rounds."""
    memory_bytes: int | None = None
    """The most that was held beside the inputs, gradients and results included."""
    gb_per_s: float | None = None
    """Bytes that the op has to move at least, over its time; None where products count."""
    tflop_per_s: float | None = None
    """Operations of its products, over its time; None where there are none."""
    share: float | None = None
    """The time that memory and arithmetic of this machine allow at best, over its time."""
    error: float | None = None
    """Largest error of results and gradients against float64, of each tensor's largest entry."""
    right: bool | None = None
    """Whether that is at most twice the eager form's, and a trifle."""
    used: bool = False
    """Whether `--fused auto` takes this form here."""
    problem: str | None = None
    """Why there are no numbers."""


@dataclass(frozen=True, kw_only=True, repr=False)
class OpsBench:
    """The fused ops on one machine; shows itself as a table."""

    device: str
    """What computed."""
    dtype: str
    """Of all inputs."""
    bandwidth_bytes_per_s: float
    """Memory's speed as measured in the same run."""
    peak_flop_per_s: float
    """Operations a second of a large matrix product in that dtype, measured in the same run."""
    rows: tuple[OpRow, ...]
    """By op, in the order of what they are worth."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages that took part."""
    kept: str | None = None
    """Where `--fused auto` finds the outcome; None where there was nothing to choose (no GPU)."""

    @property
    def heading(self) -> str:
        """What was measured, in one line."""
        return (
            f"Fused ops on {self.device} in {self.dtype}, forward and backward · memory "
            f"{self.bandwidth_bytes_per_s / 1e9:.1f} GB/s · products {self.peak_flop_per_s / 1e12:.2f} TFLOP/s"
        )

    @property
    def outcome(self) -> str:
        """What `--fused auto` takes, in one line."""
        used = "; ".join(f"{row.title}: {row.form}" for row in self.rows if row.used)
        why = f"kept in {self.kept}"
        if self.kept is None:
            why = "the kernels need a GPU; the loss without logits is taken for its memory"
        return f"--fused auto takes here: {used} ({why}). Errors are against float64; over: more than twice eager's"

    @property
    def wrong(self) -> list[OpRow]:
        """The rows whose results aren't right."""
        return [row for row in self.rows if row.right is False]

    def table(self) -> list[list[str]]:
        """Cells as text, the head first."""
        head = ["op", "form", "ms", "against eager", "memory", "GB/s", "TFLOP/s", "of limit", "error", "auto"]
        return [head, *(self._cells(row) for row in self.rows)]

    def _eager(self, row: OpRow) -> OpRow | None:
        return next((other for other in self.rows if other.op == row.op and other.form == "eager"), None)

    def _cells(self, row: OpRow) -> list[str]:
        if row.ms is None:
            return [row.title, row.form, *[_DASH] * 7, row.problem or ""]
        eager = self._eager(row)
        times = _DASH if eager is None or not eager.ms else f"{eager.ms / row.ms:.2f}×"
        error = _DASH if row.error is None else f"{row.error:.1e}{' over' if row.right is False else ''}"
        return [
            row.title, row.form, f"{row.ms:.3g}", times, _size(row.memory_bytes),
            _DASH if row.gb_per_s is None else f"{row.gb_per_s:.3g}",
            _DASH if row.tflop_per_s is None else f"{row.tflop_per_s:.3g}",
            _DASH if row.share is None else f"{row.share:.0%}", error, "taken" if row.used else "",
        ]  # fmt: skip

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON, which is also written to a file where one is named."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        if path is not None:
            Path(path).expanduser().write_text(text + "\n", encoding="utf-8")
        return text

    def __str__(self) -> str:
        rows = self.table()
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
        lines = []
        for row in rows:
            cells = [
                f"{cell:<{width}}" if place < 2 else f"{cell:>{width}}"
                for place, (cell, width) in enumerate(zip(row[:-1], widths, strict=True))
            ]
            lines.append("  ".join([*cells, row[-1]]).rstrip())
        return "\n".join([self.heading, "", *lines, "", self.outcome])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from nbllm.panels.face import wrap

        left = "text-align:left"
        head, *cells = self.table()
        heads = "".join(
            f'<th scope="col"{f" style={left}" if place < 2 or place == len(head) - 1 else ""}>{escape(word)}</th>'
            for place, word in enumerate(["", *head[1:3], "time", *head[3:]])
        )
        body = []
        for row, line in zip(self.rows, cells, strict=True):
            if self._eager(row) is row or row.form == "eager":
                span = len(head) + 1
                body.append(
                    f'<tr><th scope="rowgroup" colspan="{span}" style="{left};padding-top:8px">{escape(row.title)} '
                    f'<span class="nbllm-dim">{escape(row.shape)}</span></th></tr>'
                )
            form = f'<td></td><th scope="row" style="{left};white-space:nowrap">{escape(row.form)}</th>'
            numbers = "".join(f"<td>{escape(cell)}</td>" for cell in line[3:-1])
            last = f'<td style="{left}">{escape(line[-1])}</td>'
            body.append(f"<tr>{form}<td>{escape(line[2])}</td><td>{self._bar(row)}</td>{numbers}{last}</tr>")
        return wrap(
            f'<div class="nbllm-head"><strong>Fused ops</strong><span class="nbllm-chip">{escape(self.device)}</span>'
            f'<span class="nbllm-dim">{escape(self.heading)}</span></div><div class="nbllm-body">'
            f'<div class="nbllm-table" style="overflow-x:auto"><table><thead><tr>{heads}</tr></thead>'
            f'<tbody>{"".join(body)}</tbody></table></div><div class="nbllm-dim">{escape(self.outcome)}</div></div>'
        )

    def _bar(self, row: OpRow) -> str:
        """The row's time as a bar, as long as it takes beside the op's slowest form."""
        if row.ms is None:
            return ""
        slowest = max(other.ms for other in self.rows if other.op == row.op and other.ms is not None)
        width = max(1.0, row.ms / slowest * _BAR_PIXELS)
        variable, colour = ("--nb-s1", "#0072b2") if row.form.startswith("nbllm") else ("--nb-line", "#9aa3ad")
        return (
            f'<svg width="{_BAR_PIXELS}" height="10" role="img" aria-label="{row.ms:.3g} ms">'
            f'<rect width="{width:.0f}" height="10" fill="{colour}" style="fill:var({variable},{colour})"/></svg>'
        )


def _size(value: int | None) -> str:
    if value is None:
        return _DASH
    unit, scale = next(((unit, scale) for unit, scale in (("GB", 1e9), ("MB", 1e6)) if value >= scale), ("kB", 1e3))
    return f"{value / scale:.3g} {unit}"
