"""`%llm_panel`: which panel is asked for, or all of them; the magics show it."""

from __future__ import annotations

from dataclasses import dataclass

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option

PANELS = ("clean", "train", "finetune", "generate", "attention", "tokenizer", "session")


@dataclass(frozen=True, kw_only=True)
class PanelRequest:
    """A panel that a front end should show."""

    name: str | None
    """One of `PANELS`; None for all of them as tabs."""


def _run(call: Call) -> PanelRequest:
    return PanelRequest(name=call.arguments.panel)


COMMAND = Command(
    name="llm_panel",
    summary="show a panel, such as the current run or sampling with sliders; without a name all of them, as tabs",
    example="%llm_panel generate\n%llm_panel",
    options=(Option(name="panel", help="which; none: all as tabs", choices=PANELS, completes="panel"),),
    run=_run,
)
