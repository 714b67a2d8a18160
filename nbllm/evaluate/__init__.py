"""Evaluation: how well a model predicts text, what it scores in benchmark tasks, several models side by side.

Importing this room loads neither torch nor lm-eval. It doesn't know how models are trained.
"""

from nbllm.evaluate.table import Comparison
from nbllm.evaluate.tasks import TaskScore, TaskScores, run_tasks
from nbllm.evaluate.text import EvalResult, compressed_bits_per_byte, evaluate

__all__ = [
    "Comparison",
    "EvalResult",
    "TaskScore",
    "TaskScores",
    "compressed_bits_per_byte",
    "evaluate",
    "run_tasks",
]
