"""Training runs: what is asked (config), the process that trains (worker) and the handle that watches it (run).

Imports no torch; the worker does.
"""

from __future__ import annotations

from nbllm.train.config import AdapterConfig, TrainConfig
from nbllm.train.forecast import Forecast, forecast
from nbllm.train.metrics import MetricsReader
from nbllm.train.run import LIVE, Run, Status
from nbllm.train.start import check_device, live_runs, runs, start

__all__ = [
    "LIVE",
    "AdapterConfig",
    "Forecast",
    "MetricsReader",
    "Run",
    "Status",
    "TrainConfig",
    "check_device",
    "forecast",
    "live_runs",
    "runs",
    "start",
]
