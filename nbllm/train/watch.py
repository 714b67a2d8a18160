"""The run's log with an eye on it: what the rules of `nbllm.findings` see is written beside every other event.

Findings are events of the kind `finding`, each name once, and again where it became worse or came back after a restart.
Rules are asked every few steps, so that they cost nothing beside a step. Knows no model and no loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbllm.findings import SEVERITIES, Curves, Finding, look
from nbllm.train.journal import Journal
from nbllm.train.metrics import METRICS, MetricsReader

EVERY = 20
"""Steps between two looks; a fiftieth of the run, where that is more."""
_SHARE = 50
_AT_ONCE = ("eval", "nonfinite", "structure")


class WatchedJournal(Journal):
    """Appends events, and the findings that they give.

    Args:
        folder: the run's folder; what an earlier generation wrote is taken in.
        generation: which start of the run this is.
        config: the run's `config.json`.
        call: what the run's manifest keeps of how it was asked for.
    """

    def __init__(
        self, folder: Path, *, generation: int, config: Mapping[str, Any], call: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(folder, generation=generation)
        self.curves = Curves(config, call, name=folder.name).extend(MetricsReader(folder / METRICS).poll())
        self._looked = len(self.curves)

    def write(self, kind: str, **fields: Any) -> None:
        """Appends one event; before the run's last one, what there is to be found."""
        self.curves.add({"kind": kind, **fields})
        if kind == "end":
            self._look()
        super().write(kind, **fields)
        due = len(self.curves) - self._looked >= max(EVERY, len(self.curves) // _SHARE)
        if kind in _AT_ONCE or (kind == "step" and due):
            self._look()

    def _look(self) -> None:
        self._looked = len(self.curves)
        for finding in look(self.curves):
            before = self.curves.said.get(finding.name)
            if before is None or _worse(finding, before):
                self.write("finding", **finding.as_event())


def _worse(finding: Finding, before: Mapping[str, Any]) -> bool:
    return SEVERITIES.index(finding.severity) < SEVERITIES.index(str(before["severity"]))
