"""The lines of a cleaning cell: which stages there are, and what `length min=100` means.

Empty lines and those that start with `#` are skipped. An unknown stage or argument is an error with the line's number
and the nearest name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbllm.corpus.stage import Argument, Stage
from nbllm.corpus.stages.blocklist import Blocklist
from nbllm.corpus.stages.c4 import QualityC4
from nbllm.corpus.stages.exact import DedupExact
from nbllm.corpus.stages.fineweb import QualityFineweb
from nbllm.corpus.stages.html import Html
from nbllm.corpus.stages.language import Language
from nbllm.corpus.stages.length import Length
from nbllm.corpus.stages.line import DedupLine
from nbllm.corpus.stages.minhash import DedupMinhash
from nbllm.corpus.stages.mix import Mix
from nbllm.corpus.stages.mojibake import FixMojibake
from nbllm.corpus.stages.normalize import Normalize
from nbllm.corpus.stages.paragraph import DedupParagraph
from nbllm.corpus.stages.pii import Pii
from nbllm.corpus.stages.python import Python
from nbllm.corpus.stages.quality import QualityGopher
from nbllm.corpus.stages.repetition import RepetitionGopher
from nbllm.corpus.stages.toxicity import Toxicity
from nbllm.errors import NbllmError, NotFoundError, UsageError, did_you_mean

STAGES: Mapping[str, type[Stage]] = {
    stage.NAME: stage
    for stage in (
        *(Normalize, FixMojibake, Html, Language, Length, QualityGopher, QualityC4, QualityFineweb, RepetitionGopher),
        *(DedupExact, DedupMinhash, DedupParagraph, DedupLine, Toxicity, Pii, Blocklist, Python, Mix),
    )
}
"""By name; each has `SUMMARY` and `arguments()` (name -> Argument with default, summary, choices, positional)."""


def parse_stages(lines: Sequence[str], functions: Mapping[str, Callable[..., Any]] | None = None) -> list[Stage]:
    """The stages that the lines of a cell name, in order.

    Args:
        lines: one stage a line; line 1 is the first.
        functions: what `python NAME` may name.

    Raises:
        UsageError: an unknown stage or argument, or a value that isn't allowed; names the line.
        NotFoundError: `python NAME` with an unknown name.
    """
    found = []
    for number, line in enumerate(lines, 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        try:
            found.append(_parse(bare, functions or {}))
        except NbllmError as error:
            raise type(error)(f"line {number}: {error.what}", received=error.received, next=error.next) from None
    return found


def _parse(line: str, functions: Mapping[str, Callable[..., Any]]) -> Stage:
    verb, *rest = line.split()
    firsts = {name.split()[0] for name in STAGES}
    if verb not in firsts:
        raise UsageError(f"no stage is named {verb!r}", next=did_you_mean(verb, firsts))
    if verb in STAGES:
        stage = STAGES[verb]
    else:
        kinds = [name.split()[1] for name in STAGES if name.split()[0] == verb]
        if not rest or "=" in rest[0]:
            raise UsageError(f"{verb} needs a kind", next=f"Type for example {verb} {kinds[0]}")
        kind, *rest = rest
        if kind not in kinds:
            raise UsageError(f"{verb} has no kind {kind!r}", next=did_you_mean(kind, kinds))
        stage = STAGES[f"{verb} {kind}"]
    values = _values(stage, rest)
    if stage is Python:
        return Python(**values, call=_function(values["function"], functions))
    return stage(**values)


def _function(name: str, functions: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    if name not in functions:
        hint = did_you_mean(name, [other for other, value in functions.items() if callable(value) and other[0] != "_"])
        near = hint if hint and hint.startswith("Did") else f"Define it in a cell first: def {name}(text): return text"
        raise NotFoundError(f"there is no function {name!r}", next=near)
    return functions[name]


def _values(stage: type[Stage], words: list[str]) -> dict[str, Any]:
    known = stage.arguments()
    positional = [one for one in known.values() if one.positional]
    values: dict[str, Any] = {}
    bare = 0
    for word in words:
        name, equals, typed = word.partition("=")
        if not equals:
            if bare >= len(positional):
                raise UsageError(f"{stage.NAME} doesn't take {word!r}", next=_usage(stage))
            one, typed = positional[bare], word
            bare += 1
        elif name in known:
            one = known[name]
        else:
            names = [other.name for other in known.values() if not other.positional]
            hint = did_you_mean(name, names) or _usage(stage)
            raise UsageError(f"{stage.NAME} has no argument {name!r}", next=hint)
        if one.name in values:
            raise UsageError(f"{stage.NAME} has {one.name} twice", next=_usage(stage))
        values[one.name] = _value(stage, one, typed)
    for one in known.values():
        if one.default is dataclasses.MISSING and one.name not in values:
            raise UsageError(f"{stage.NAME} needs {one.name.upper()}", next=_usage(stage))
    return values


def _value(stage: type[Stage], one: Argument, typed: str) -> Any:
    if typed == "" and one.default is None:
        return None  # `max=` as it stands in the help means no limit
    try:
        value = one.parse(typed)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}.get(one.parse, "something else")  # type: ignore[call-overload]
        raise UsageError(f"{stage.NAME}: {one.name} is {kind}", received=typed) from None
    if one.choices and value not in one.choices:
        raise UsageError(
            f"{stage.NAME} has no {one.name} {typed!r}",
            next=did_you_mean(str(value), one.choices),
        )
    return value


def _usage(stage: type[Stage]) -> str:
    parts = [stage.NAME]
    for one in stage.arguments().values():
        shown = one.name.upper() if one.positional else f"{one.name}={'' if one.default is None else one.default}"
        parts.append(shown if one.default is dataclasses.MISSING else f"[{shown}]")
    return "It is " + " ".join(parts)
