"""`%llm_panel`: which panel is asked for; the magics show it."""

from __future__ import annotations

from dataclasses import dataclass

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option

PANELS = ("clean", "train", "generate", "attention", "tokenizer", "session")


@dataclass(frozen=True, kw_only=True)
class PanelRequest:
    """A panel that a front end should show."""

    name: str
    """One of `PANELS`."""


def _run(call: Call) -> PanelRequest:
    return PanelRequest(name=call.arguments.panel)


COMMAND = Command(
    name="llm_panel",
    summary="show a panel: cleaning, the current run, sampling with sliders, attention, tokenizer, session",
    example="%llm_panel generate",
    options=(Option(name="panel", help="which", default="session", choices=PANELS, completes="panel"),),
    run=_run,
)
