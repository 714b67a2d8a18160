"""Runs side by side: the numbers of each in a table, and what was asked of them differently.

The curves over one another are a panel's business, which is handed the runs. Everything from the data is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import UsageError

if TYPE_CHECKING:
    from nbllm.train import Run

MOST = 8
"""Runs that can be told apart in one picture."""
_NOT_COMPARED = ("shards", "store_root", "adapter_name")
_HEAD = ("run", "status", "model", "step", "train loss", "held-out", "best", "bits a byte", "tokens/s", "time")


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """Some runs with their numbers, a row each."""

    head: tuple[str, ...] = _HEAD
    """What the columns are."""
    rows: tuple[tuple[str, ...], ...]
    """As text; losses in nats a token."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> RunTable:
        """Reads each run's metrics."""
        return cls(rows=tuple(_row(run) for run in runs))

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return "There are no runs yet. Start one with %llm_train."
        lines = [self.head, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{escape(str(self))}</p>"
        head = "".join(f"<th style='text-align:left'>{escape(cell)}</th>" for cell in self.head)
        body = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        return (
            "<table style='font-variant-numeric:tabular-nums'>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Two or more runs."""

    runs: tuple[Run, ...]
    """In the order in which they were named."""
    table: RunTable
    """Their numbers."""
    differences: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Options that weren't the same, with each run's value."""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> RunComparison:
        """Raises UsageError for fewer than two runs, more than eight, or one named twice."""
        names = [run.name for run in runs]
        if len(set(names)) != len(names):
            raise UsageError("A run is compared with others, not with itself", received=" ".join(names))
        if not 2 <= len(runs) <= MOST:
            raise UsageError(
                f"A comparison needs two runs, or up to {MOST}", received=len(runs), next="%llm_train --list names them"
            )
        configs = [run.config.as_json() for run in runs]
        differences = {
            key: tuple(_value(config[key]) for config in configs)
            for key in configs[0]
            if key not in _NOT_COMPARED and len({_value(config[key]) for config in configs}) > 1
        }
        return cls(runs=tuple(runs), table=RunTable.of(runs), differences=differences)

    def __str__(self) -> str:
        lines = [str(self.table)]
        lines += [f"--{key.replace('_', '-')}: {' | '.join(values)}" for key, values in self.differences.items()]
        return "\n".join(lines)

    __repr__ = __str__


def _row(run: Run) -> tuple[str, ...]:
    events = run.events()
    last: dict[str, Any] = {}
    evaluations = []
    for event in events:
        if event.get("kind") == "step":
            last = event
        elif event.get("kind") == "eval":
            evaluations.append(event)
    newest = evaluations[-1] if evaluations else {}
    losses = [event["eval_loss"] for event in evaluations if isinstance(event.get("eval_loss"), float)]
    total = run.total_steps
    return (
        run.name,
        run.status,
        Path(run.config.model).name,
        f"{last.get('step', 0):,}" + (f" / {total:,}" if total else ""),
        _number(last.get("loss")),
        _number(newest.get("eval_loss")),
        _number(min(losses, default=None)),
        _number(newest.get("bits_per_byte")),
        _number(last.get("tokens_per_s"), "{:,.0f}"),
        _number(last.get("seconds"), "{:,.0f} s"),
    )


def _number(value: object, shape: str = "{:.3f}") -> str:
    return shape.format(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else "–"


def _value(value: object) -> str:
    return "–" if value is None else str(value)
