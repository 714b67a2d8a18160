"""The browser's half of a panel: the kit's modules with the panel's own after them, and the style sheet they share.

Plain ES modules, read from this folder; no build step and no network. `kit.js`, `series.js` and `chart.js` export
nothing: they are put in front of the panel's module, so that a widget ships as one piece of text.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@cache
def module(name: str, *kit: str) -> str:
    """The ES module of a panel: `kit.js`, the other parts of the kit it names, then `NAME.js`."""
    return "\n".join(_read(f"{part}.js") for part in ("kit", *kit, name))


@cache
def style() -> str:
    """The style sheet that the panels and their static faces share."""
    return _read("panel.css")


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
