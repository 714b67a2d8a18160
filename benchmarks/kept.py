"""Keeps a benchmark's result beside the script, with date, versions and hardware."""

from __future__ import annotations

import datetime
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("nbllm", "torch", "transformers", "tokenizers", "accelerate", "peft", "numpy", "pyarrow")


def keep(name: str, result: dict[str, Any]) -> Path:
    """Writes `results/NAME.json`, replacing the last one; returns its path."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    record = {
        "date": datetime.date.today().isoformat(),
        "hardware": {"cpu": _cpu(), "cores": os.cpu_count(), "machine": platform.machine()},
        "versions": versions,
        **result,
    }
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
