"""Training runs: what is asked (config), the process that trains (worker) and the handle that watches it (run).

Imports no torch; the worker does.
"""

from __future__ import annotations

from nbllm.train.config import AdapterConfig, TrainConfig

__all__ = ["AdapterConfig", "TrainConfig"]
