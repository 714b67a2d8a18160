"""Export: the current model in a form that other tools load, and the runtimes that load it.

Doesn't know how models are trained.
"""

from __future__ import annotations

from nbllm.export.export import FORMATS, export
from nbllm.export.exported import Check, Exported

__all__ = ["FORMATS", "Check", "Exported", "export"]
