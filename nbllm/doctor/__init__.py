"""The doctor: findings about a model's output or a run, each with evidence and a remedy. It may know every room."""

from nbllm.doctor.asked import Asked
from nbllm.doctor.diagnosis import Diagnosis
from nbllm.findings import Finding

__all__ = ["Asked", "Diagnosis", "Finding"]
