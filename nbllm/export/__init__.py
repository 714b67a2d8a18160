"""Export: the current model in a form that other tools load. Doesn't know how models are trained."""

from __future__ import annotations

from nbllm.export.export import FORMATS, export

__all__ = ["FORMATS", "export"]
