"""What a cleaning did: documents, characters and bytes in, dropped by stage and reason, and out.

Plain text here, the picture in `report_html.py`. Knows nothing of how the numbers came about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nbllm.corpus.mix_report import MixShare, mix_table, repeated
from nbllm.corpus.tally import Count

WARN_SHARE = 0.5
WARN_DOCUMENTS = 20


@dataclass(frozen=True, kw_only=True)
class Amount:
    """So many documents and what they hold."""

    documents: int = 0
    characters: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            documents=self.documents + other.documents,
            characters=self.characters + other.characters,
            bytes=self.bytes + other.bytes,
        )


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """What one stage did."""

    name: str
    """`read` for what stands before the first stage."""
    line: str
    """The stage with the arguments that differ from their defaults."""
    came_in: Amount
    went_out: Amount
    """Of the texts as the stage left them."""
    reasons: Mapping[str, Amount]
    """What was dropped, by reason, the most frequent first."""

    @property
    def dropped(self) -> Amount:
        """What was dropped for whatever reason, of the texts as they came in."""
        return sum(self.reasons.values(), Amount())


@dataclass(frozen=True)
class ReportRow:
    """One row of a report: what a stage dropped for one reason."""

    stage: str
    reason: str
    documents: int
    characters: int
    bytes: int


class CorpusReport:
    """The numbers of one cleaning.

    Args:
        name: the corpus.
        recipe: what was asked for, such as `default`.
        lines: the stage lines, in order.
        names: the stages' names, in order.
        counts: of every stage and source; stage 0 is `read`.
        notes: hints and warnings, as sentences.
        mix: what a stage `mix` took of each source.
    """

    def __init__(
        self,
        *,
        name: str,
        recipe: str,
        names: Sequence[str],
        lines: Sequence[str],
        counts: Iterable[Count],
        notes: Sequence[str] = (),
        mix: Sequence[MixShare] = (),
    ) -> None:
        self.name = name
        self.recipe = recipe
        self.counts = list(counts)
        self._names = list(names)
        self._lines = list(lines)
        self._notes = list(notes)
        self.mix = list(mix)

    @property
    def stages(self) -> list[StageReport]:
        """Every stage in order, `read` first."""
        return self._stages(None)

    @property
    def came_in(self) -> Amount:
        """What was read, empty documents included."""
        return self.stages[0].came_in

    @property
    def went_out(self) -> Amount:
        """What the corpus holds."""
        return self.stages[-1].went_out

    @property
    def rows(self) -> list[ReportRow]:
        """What was dropped, by stage and reason."""
        return [
            ReportRow(stage.name, reason, amount.documents, amount.characters, amount.bytes)
            for stage in self.stages
            for reason, amount in stage.reasons.items()
        ]

    @property
    def by_source(self) -> dict[str, dict[str, Amount]]:
        """By source: `in`, `out` and `dropped`."""
        found = {}
        for source in dict.fromkeys(count.source for count in self.counts if count.stage == 0):
            stages = self._stages(source)
            dropped = sum((stage.dropped for stage in stages), Amount())
            found[source] = {"in": stages[0].came_in, "dropped": dropped, "out": stages[-1].went_out}
        return found

    @property
    def notes(self) -> list[str]:
        """Hints, and a warning for each stage that dropped most of a source."""
        found = list(self._notes)
        for source in self.by_source:
            for stage in self._stages(source):
                share = stage.dropped.documents / max(1, stage.came_in.documents)
                if stage.name != "mix" and share > WARN_SHARE and stage.came_in.documents >= WARN_DOCUMENTS:
                    reason = next(iter(stage.reasons))
                    found.append(f"{stage.name} dropped {share:.0%} of {source}, mostly as “{reason}”")
        return found + repeated(self.mix)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON, for `from_json`."""
        counts = [asdict(count) for count in self.counts]
        return {"name": self.name, "recipe": self.recipe, "names": self._names, "lines": self._lines, "counts": counts,
                "notes": self._notes, "mix": [asdict(share) for share in self.mix]}  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CorpusReport:
        """The report that `to_json` wrote."""
        counts = [Count(**count) for count in value["counts"]]
        mix = [MixShare(**share) for share in value.get("mix", [])]
        return cls(**{**value, "counts": counts, "mix": mix})

    def __str__(self) -> str:
        came, went = self.came_in, self.went_out
        title = f"{self.name} · {self.recipe} · {came.documents:,} documents → {went.documents:,}"
        table = [["stage", "documents", "dropped", "characters", "bytes", "reason"]]
        table.append(["in", f"{came.documents:,}", "", f"{came.characters:,}", f"{came.bytes:,}", ""])
        for stage in self.stages:
            if stage.name == "read" and not stage.reasons:
                continue
            out, gone = stage.went_out, stage.dropped
            only = next(iter(stage.reasons)) if len(stage.reasons) == 1 else ""
            table.append([stage.name, f"{out.documents:,}", f"−{gone.documents:,}" if gone.documents else "0",
                          f"{out.characters:,}", f"{out.bytes:,}", only])  # fmt: skip
            if len(stage.reasons) > 1:
                for reason, amount in stage.reasons.items():
                    table.append(["", "", f"−{amount.documents:,}", "", "", reason])
        lines = [title, *_aligned(table)]
        if len(self.by_source) > 1:
            sources = [["source", "documents in", "dropped", "out", "bytes out"]]
            for source, amounts in self.by_source.items():
                sources.append([source, *(f"{amounts[kind].documents:,}" for kind in ("in", "dropped", "out")),
                                f"{amounts['out'].bytes:,}"])  # fmt: skip
            lines += ["", *_aligned(sources)]
        if self.mix:
            lines += ["", *_aligned(mix_table(self.mix))]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from nbllm.corpus.report_html import report_html

        return report_html(self)

    def _stages(self, source: str | None) -> list[StageReport]:
        found = []
        for number, name in enumerate(["read", *self._names]):
            sums: dict[str, Amount] = {}
            reasons: dict[str, Amount] = {}
            for count in self.counts:
                if count.stage == number and (source is None or count.source == source):
                    amount = Amount(documents=count.documents, characters=count.characters, bytes=count.bytes)
                    target, key = (reasons, count.reason or "") if count.kind == "dropped" else (sums, count.kind)
                    target[key] = target.get(key, Amount()) + amount
            ordered = sorted(reasons.items(), key=lambda item: (-item[1].documents, item[0]))
            line = self._lines[number - 1] if number else "read"
            found.append(
                StageReport(
                    name=name,
                    line=line,
                    came_in=sums.get("in", Amount()),
                    went_out=sums.get("out", Amount()),
                    reasons=dict(ordered),
                )
            )
        return found


def _aligned(table: list[list[str]]) -> list[str]:
    """Rows of cells as lines: the first and last column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    last = len(widths) - 1
    text_columns = {0, last} if table[0][last] == "reason" else {0}
    return [
        "  ".join(
            cell.ljust(width) if index in text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
