"""The session's card: what is current and from what, which runs live, what the store takes; as text and as HTML.

Reads the session and the store, changes nothing. Names come from users, so everything is escaped.
"""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nbllm.sessions.lineage import stale_because
from nbllm.store import Manifest

if TYPE_CHECKING:
    from nbllm.sessions.core import Session


@dataclass(frozen=True, kw_only=True)
class CardRow:
    """One current artefact."""

    kind: str
    """What it is."""
    name: str
    """Its name, or `none yet`."""
    detail: str
    """Its few numbers, parents, or the command that makes one."""
    stale: str | None = None
    """Why it is stale; None where it isn't."""


@dataclass(frozen=True, kw_only=True)
class SessionCard:
    """What `%llm_session` shows."""

    session: str
    """The session's name."""
    store: str
    """The store's directory."""
    device: str
    """What trains and samples here."""
    disk_bytes: int
    """Bytes that the store takes."""
    rows: tuple[CardRow, ...]
    """What is current, in the order of the flow of data."""
    others: tuple[tuple[str, tuple[str, ...]], ...]
    """Names of the other artefacts, by kind, and what can go on."""
    live_runs: tuple[str, ...]
    """Names of the runs that live now."""

    @classmethod
    def of(cls, session: Session) -> SessionCard:
        """The card of a session as it is now."""
        from nbllm.corpus.scratch import unfinished
        from nbllm.train import live_runs

        with session.lock:
            rows = [
                _row(session, "corpus", session.corpus and session.corpus.manifest, "%llm_clean builtin:pydocs"),
                _row(session, "tokenizer", session.tokenizer and session.tokenizer.manifest, "%llm_tokenizer train"),
                _model_row(session),
                CardRow(kind="adapter", name=session.adapter or "none", detail="in use" if session.adapter else ""),
            ]
            if session.tokenizer is not None and session.tokenizer.manifest is None:
                rows[1] = CardRow(
                    kind="tokenizer",
                    name=session.tokenizer.name,
                    detail=f"{session.tokenizer.vocab_size:,} entries, brought by the model",
                )
        current = {row.kind: row.name for row in rows}
        others = []
        for kind in ("corpus", "tokenizer", "run", "adapter"):
            shown = current["model"].split(" ")[0] if kind == "run" else current.get(kind)
            names = tuple(name for name in session.store.names(kind) if name != shown)
            if names:
                others.append((kind, names))
        waiting = tuple(map(str, unfinished(session.store)))
        if waiting:
            others.append(("interrupted cleaning, goes on with its cell", waiting))
        return cls(
            session=session.name,
            store=_short(session.store.root),
            device=device_line(),
            disk_bytes=session.store.size_bytes(),
            rows=tuple(rows),
            others=tuple(others),
            live_runs=tuple(run.name for run in live_runs(session.store)),
        )

    def __str__(self) -> str:
        lines = [f"session {self.session} · {self.device} · {self._disk()} in {self.store}"]
        for row in self.rows:
            mark = f"  [stale: {row.stale}]" if row.stale else ""
            lines.append(f"  {row.kind:9} {row.name:23} {row.detail}{mark}")
        lines += [f"  also, {kind}: {', '.join(names)}" for kind, names in self.others]
        lines.append(f"  live runs: {', '.join(self.live_runs) or 'none'}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = []
        for row in self.rows:
            mark = (
                f' <span style="color:var(--jp-warn-color0,#a15c00)">⚠ stale: {html.escape(row.stale)}</span>'
                if row.stale
                else ""
            )
            cells.append(
                f'<tr><th scope="row" style="{_CELL}{_SOFT}font-weight:400">{row.kind}</th>'
                f'<td style="{_CELL}font-weight:600">{html.escape(row.name)}</td>'
                f'<td style="{_CELL}">{html.escape(row.detail)}{mark}</td></tr>'
            )
        notes = [f"also, {kind}: {', '.join(names)}" for kind, names in self.others]
        notes.append(f"live runs: {', '.join(self.live_runs) or 'none'}")
        foot = "".join(f'<div style="{_SOFT}">{html.escape(note)}</div>' for note in notes)
        return (
            f'<div style="{_BOX}"><div style="{_HEAD}"><b>Session</b> '
            f'<span style="{_CHIP}">{html.escape(self.session)}</span> '
            f'<span style="{_SOFT}">{html.escape(self.device)} · {self._disk()} on disk</span></div>'
            f'<div style="padding:8px 12px"><table style="border-collapse:collapse;margin:0;font-size:13px">'
            f"{''.join(cells)}</table>{foot}</div></div>"
        )

    def _disk(self) -> str:
        return f"{self.disk_bytes / 1e6:,.1f} MB"


_BOX = (
    "border:1px solid var(--jp-border-color2,#d0d7de);border-radius:4px;font:13px var(--jp-ui-font-family,system-ui);"
    "color:var(--jp-ui-font-color1,currentColor);font-variant-numeric:tabular-nums"
)
_HEAD = "padding:8px 12px;border-bottom:1px solid var(--jp-border-color2,#d0d7de)"
_CHIP = "padding:1px 8px;border-radius:9px;border:1px solid currentColor;color:var(--jp-brand-color1,#0072b2)"
_SOFT = "color:var(--jp-ui-font-color2,#666);"
_CELL = "text-align:left;padding:2px 16px 2px 0;border:0;"


def _short(path: Path) -> str:
    """The path from the current folder where it lies below, so that a saved notebook doesn't tell of its machine."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


_SHOWN = {"documents": "documents", "bytes": "bytes", "vocab_size": "entries"}


def device_line() -> str:
    """What trains and samples here, without loading torch where there is only a CPU."""
    if Path("/dev/nvidiactl").exists():
        import torch

        if torch.cuda.is_available():
            count = torch.cuda.device_count()
            return f"{count} × {torch.cuda.get_device_name(0)}" if count > 1 else torch.cuda.get_device_name(0)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"CPU, {cores} cores"


def _row(session: Session, kind: str, manifest: Manifest | None, command: str) -> CardRow:
    if manifest is None:
        return CardRow(kind=kind, name="none yet", detail=f"make one with {command}")
    shown = [(_number(manifest.summary[key]), label) for key, label in _SHOWN.items() if key in manifest.summary]
    detail = ", ".join(f"{value} {label}" for value, label in shown)
    parents = ", ".join(f"{parent.kind} {parent.name}" for parent in manifest.parents if parent.kind != "shards")
    if parents:
        detail = f"{detail}; from {parents}" if detail else f"from {parents}"
    return CardRow(kind=kind, name=manifest.name, detail=detail, stale=stale_because(session, manifest))


def _model_row(session: Session) -> CardRow:
    reference = session.model
    if reference is None:
        return CardRow(kind="model", name="none yet", detail="make one with %llm_train")
    if reference.kind == "folder":
        return CardRow(kind="model", name=reference.name, detail=_short(Path(reference.source)))
    manifest = session.store.get("run", reference.source)
    row = _row(session, "model", manifest, "")
    from nbllm.train import Run

    run = Run(session.store, reference.source)
    last = run.checkpoints[-1] if run.checkpoints else None
    parts: list[str] = [run.status]
    if last is not None:
        parts.append(f"checkpoint at step {last.step:,}")
        if last.bits_per_byte is not None:
            parts.append(f"{last.bits_per_byte:.3f} held-out bits a byte")
    started = run.events("start")
    fused = f"; {started[-1]['fused_summary']}" if started and started[-1].get("fused_summary") else ""
    detail = f"{', '.join(parts)}; {row.detail}{fused}"
    return CardRow(kind="model", name=reference.source, detail=detail, stale=row.stale)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)
