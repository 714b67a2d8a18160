"""How panels write numbers: units always there, thousands separated, the same in Python as in `kit.js`."""

from __future__ import annotations

import math
import re


def count(value: float) -> str:
    """An integer with separated thousands: 3,180."""
    return f"{round(value):,}"


def loss(value: float | None) -> str:
    """A loss or bits a byte, with two decimals; a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.2f}"


def duration(seconds: float | None) -> str:
    """A time span in at most two units: 24 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{round(whole / 60)} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def size(size_bytes: float) -> str:
    """An amount of memory: 1.1 GB (powers of ten)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{count(size_bytes / 1e3)} kB"


def typed(name: str) -> str:
    """A name as it must be typed on a magic's line: quoted where it isn't one plain word."""
    return name if re.fullmatch(r"[\w.+-]+", name) else '"' + name.replace('"', "") + '"'
