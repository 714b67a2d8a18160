"""Findings about a training run, from what its log says: evidence and a remedy each.

Rules over curves, without a model, a file or a notebook, so that the process that trains asks them while it runs, and
the doctor afterwards. What needs the data or the weights is the doctor's.
"""

from nbllm.findings.curves import Curves
from nbllm.findings.finding import SEVERITIES, Finding
from nbllm.findings.rules import look

__all__ = ["SEVERITIES", "Curves", "Finding", "look"]
