"""Benchmark tasks through lm-eval: names that it knows, or a task's own YAML file, on a model that is loaded already.

lm-eval has the tasks, their data and their metrics; the model's answers are ours (`harness`). Data that isn't on this
machine is downloaded by the datasets library. Sources: lm-evaluation-harness (Gao et al.,
https://github.com/EleutherAI/lm-evaluation-harness).
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import DataError, NotFoundError, UsageError, did_you_mean
from nbllm.evaluate.table import html_table, text_table

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from nbllm.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One metric of one task, or of a group of tasks."""

    task: str
    """The task's name."""
    metric: str
    """Such as `acc`, `acc_norm` or `exact_match`; with what was done to the answers first, where something was."""
    value: float
    """The score."""
    error: float | None
    """Its standard error; None where lm-eval has none."""
    higher_is_better: bool | None
    """None where lm-eval doesn't say."""
    examples: int
    """How many examples were asked."""
    shots: int
    """How many solved examples stood before each."""

    @property
    def shown(self) -> str:
        """The score with its standard error."""
        return f"{self.value:.4f}" + ("" if self.error is None else f" ± {self.error:.4f}")


@dataclass(frozen=True, kw_only=True, repr=False)
class TaskScores:
    """What a model scored."""

    scores: tuple[TaskScore, ...]
    """One a task and metric."""

    def __iter__(self) -> Iterator[TaskScore]:
        return iter(self.scores)

    def rows(self) -> list[tuple[str, str]]:
        """Task and metric, and the score with its standard error."""
        return [(f"{one.task} {one.metric}{_ARROWS[one.higher_is_better]}", one.shown) for one in self.scores]

    def _table(self) -> list[tuple[str, ...]]:
        head = ("", "metric", "score ± standard error", "examples", "shots")
        body = [
            (one.task, one.metric + _ARROWS[one.higher_is_better], one.shown, f"{one.examples:,}", str(one.shots))
            for one in self.scores
        ]
        return [head, *body]

    def __str__(self) -> str:
        return text_table(self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._table())


_SEED = 1234
"""lm-eval's own, for the examples that stand before each and whatever a task draws."""
_ARROWS = {True: " ↑", False: " ↓", None: ""}


def run_tasks(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    tasks: Sequence[str],
    *,
    limit: int | None = None,
    shots: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TaskScores:
    """Scores of benchmark tasks.

    Args:
        model: a causal language model of transformers.
        tokenizer: the model's.
        tasks: names that lm-eval knows (tasks, groups or tags), or YAML files of tasks.
        limit: ask only so many examples of each task; the standard error then says how little that is.
        shots: how many solved examples stand before each; the task's own number by default.
        progress: called with requests done and requests in all, for each kind of request.

    Raises:
        UsageError: lm-eval isn't installed, or a number is out of range, or a task needs what the model doesn't have.
        NotFoundError: there is no such task or file.
        DataError: a task's data can't be loaded, or its file can't be read.
    """
    try:
        from lm_eval.evaluator import evaluate

        from nbllm.evaluate.harness import LoadedModel
    except ModuleNotFoundError as error:
        raise UsageError("Benchmark tasks need lm-eval", next='pip install "nbllm[eval]"') from error
    if not tasks:
        raise UsageError("No task is named", next="%llm_eval --tasks hellaswag,arc_easy")
    for name, number in (("limit", limit), ("shots", shots)):
        if number is not None and number < (1 if name == "limit" else 0):
            raise UsageError(f"{name} is at least {1 if name == 'limit' else 0}", received=number)
    with _quiet(), _same_random_numbers():
        manager = _manager(not all(Path(task).expanduser().is_file() for task in tasks))
        loaded = manager.load([found for task in tasks for found in _load(manager, task)])
        for task in loaded["tasks"].values():
            _set_shots(task, shots)
        try:
            # not `simple_evaluate`, which runs pip to note what is installed
            found: Any = evaluate(
                LoadedModel(model, tokenizer, progress), task_dict=loaded, limit=limit, log_samples=False
            )
        except ValueError as error:
            raise UsageError(f"lm-eval refuses: {_first_line(error)}") from error
    return TaskScores(scores=tuple(_scores(found)))


@lru_cache
def _manager(defaults: bool) -> Any:
    """lm-eval's list of tasks; its thousands of files take seconds to look through."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=defaults)


def _load(manager: Any, name: str) -> list[Any]:
    """The tasks that a name or file means, with their data."""
    path = Path(name).expanduser()
    if name not in manager.task_index and not path.is_file():
        if path.suffix in (".yaml", ".yml"):
            raise NotFoundError(f"There is no task file {path}")
        raise NotFoundError(f"lm-eval has no task {name!r}", next=did_you_mean(name, manager.all_tasks))
    try:
        found = manager.load([name])
    except ImportError as error:
        raise UsageError(f"The task {name} needs more: {_first_line(error)}", next="Install it") from error
    except Exception as error:  # whatever datasets, the hub and YAML raise
        raise DataError(
            f"The task {name} can't be loaded, most likely its data: {type(error).__name__}: {_first_line(error)}",
            next="Download it once with a network, or name a task's YAML file with data of your own",
        ) from error
    if not found["tasks"]:
        raise DataError(f"{name} holds no task", next="A task's file has task:, dataset_path: and doc_to_text:")
    # a group is kept whole, so that its own score comes out too
    inside = {task for group in found.get("groups", {}).values() for task in _names(group)}
    nested = {child for children in found.get("group_map", {}).values() for child in children}
    groups = [group for key, group in found.get("groups", {}).items() if key not in nested]
    return [*groups, *(task for key, task in found["tasks"].items() if key not in inside)]


def _set_shots(task: Any, shots: int | None) -> None:
    """As lm-eval's command line does: a task that says 0 keeps it."""
    own = task.get_config("num_fewshot")
    if own is None or (shots is not None and own != 0):
        task.set_config(key="num_fewshot", value=shots or 0)
    task.set_fewshot_seed(seed=_SEED)


def _names(group: Any) -> list[str]:
    return [task.task_name for task in group.get_all_tasks()]


def _scores(found: Any) -> Iterator[TaskScore]:
    for task, values in {**found["results"], **found.get("groups", {})}.items():
        better = found.get("higher_is_better", {}).get(task) or {}
        for key, value in values.items():
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, (int, float)):
                continue
            error = values.get(f"{metric}_stderr,{filtered}")
            samples = found.get("n-samples", {}).get(task, {})
            yield TaskScore(
                task=task,
                metric=metric if filtered == "none" else f"{metric} ({filtered})",
                value=float(value),
                error=float(error) if isinstance(error, (int, float)) else None,
                higher_is_better=better.get(metric),
                examples=int(samples.get("effective", values.get("sample_len", 0))),
                shots=int(found.get("n-shot", {}).get(task) or 0),
            )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else "no more is said"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without lm-eval's log and bars: `progress` says how far it is."""
    log = logging.getLogger("lm_eval")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Seeds the process's generators as lm-eval's command line does; the notebook gets its own back."""
    import numpy as np
    import torch

    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(0)
    np.random.seed(_SEED)
    torch.manual_seed(_SEED)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
