"""`python FUNCTION`: a function of the notebook, from a text to a text, or to None where the document goes.

What makes two such stages the same is the function's source with what it refers to: the plain values and functions of
its module that it names, its defaults and its closure. A function that reads a file or a clock can't be told apart.
"""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.stage import Outcome, Rules, Stage, argument, scores_of
from nbllm.errors import DataError, UsageError

_PLAIN = (str, bytes, int, float, bool, type(None))


@dataclass(frozen=True, kw_only=True)
class Python(Stage):
    """Score: `returned`, whether the function returned a text."""

    NAME: ClassVar = "python"
    SUMMARY: ClassVar = "a function of yours: text to text, or None to drop it"
    function: str = argument(MISSING, "the function's name in the notebook", positional=True)
    call: Callable[[str], str | None] = field(compare=False, repr=False)
    """The function itself."""

    def __post_init__(self) -> None:
        if not callable(self.call):
            raise UsageError(f"{self.function} is no function but a {type(self.call).__name__}", next="Define it first")

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        return {self.function: self.call}

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "source": function_hash(self.call)}

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        results: list[str | None] = []
        for text, identity in zip(batch["text"].to_pylist(), batch["id"].to_pylist(), strict=True):
            try:
                result = self.call(text)
            except Exception as error:
                raise DataError(
                    f"python {self.function} failed on document {identity}: {type(error).__name__}: {error}",
                    next="Mend the function, then clean again",
                ) from error
            if result is not None and not isinstance(result, str):
                raise UsageError(
                    f"python {self.function} returned a {type(result).__name__} for document {identity}",
                    next="Return the text, or None to drop the document",
                )
            results.append(result)
        texts = pa.array(
            [
                text if text is not None else before
                for text, before in zip(results, batch["text"].to_pylist(), strict=True)
            ],
            pa.string(),
        )
        return Outcome(scores_of(len(batch), returned=pa.array([text is not None for text in results])), texts)

    def rules(self, scores: pa.RecordBatch) -> Rules:
        return [(pc.invert(scores["returned"]), f"{self.function} returned None")]


def changed_functions(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the functions whose code is another, where two lists of stages differ in nothing else.

    Args:
        before, now: the stages' `parameters`.
    """

    def without(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in stage.items() if key != "source"} for stage in stages]

    if without(before) != without(now):
        return []
    pairs = zip(before, now, strict=True)
    return [str(new["stage"]).split()[1] for old, new in pairs if old.get("source") != new.get("source")]


def function_hash(function: Callable[..., Any]) -> str:
    """A hash of a function's source and of what it refers to, as hex."""
    digest = hashlib.sha256()
    _describe(function, digest, set())
    return digest.hexdigest()


def _describe(value: Any, digest: Any, seen: set[int]) -> None:
    if isinstance(value, _PLAIN):
        digest.update(f"{type(value).__name__}{value!r}\0".encode("utf-8", "surrogatepass"))
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (list, tuple)):
        digest.update(f"{type(value).__name__}{len(value)}\0".encode())
        for item in value:
            _describe(item, digest, seen)
    elif isinstance(value, (set, frozenset)):
        _describe(sorted(map(repr, value)), digest, seen)
    elif isinstance(value, dict):
        _describe([(repr(key), item) for key, item in value.items()], digest, seen)
    elif isinstance(value, types.FunctionType):
        _describe_function(value, digest, seen)
    elif hasattr(value, "pattern") and hasattr(value, "flags"):  # a compiled regular expression
        _describe((value.pattern, value.flags), digest, seen)
    else:
        kind = value if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)) else type(value)
        digest.update(f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind.__name__)}\0".encode())


def _describe_function(function: types.FunctionType, digest: Any, seen: set[int]) -> None:
    try:
        digest.update(inspect.getsource(function).encode())
    except (OSError, TypeError):  # typed at a prompt or made by exec
        digest.update(function.__code__.co_code)
    code = function.__code__
    _describe([value for value in code.co_consts if isinstance(value, _PLAIN)], digest, seen)
    _describe((function.__defaults__, function.__kwdefaults__), digest, seen)
    for cell in function.__closure__ or ():
        try:
            _describe(cell.cell_contents, digest, seen)
        except ValueError:  # not filled yet
            continue
    for name in sorted(_names(code)):
        if name in function.__globals__:
            digest.update(f"{name}\0".encode())
            _describe(function.__globals__[name], digest, seen)


def _names(code: types.CodeType) -> set[str]:
    """The global names that a function and those inside it mention."""
    found = set(code.co_names)
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            found |= _names(value)
    return found
