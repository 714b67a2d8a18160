"""The stages that a line of a cleaning cell can name, and the parser of such lines."""

from __future__ import annotations

from nbllm.corpus.stages.parse import STAGES, parse_stages

__all__ = ["STAGES", "parse_stages"]
