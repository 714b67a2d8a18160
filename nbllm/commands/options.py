"""What a command accepts: options declared once, from which parsing, help and completion follow.

argparse does the parsing; values that come from the notebook are objects, so they travel through it as placeholders
and are put back before a converter sees them. Option names are never abbreviated, and a wrong one gets the nearest
right one. Knows nothing of what a command does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from nbllm.commands.line import Word
from nbllm.errors import UsageError, did_you_mean

_PLACEHOLDER = "\0value-{}\0"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option (`--name`) or one positional word (`name`) of a command."""

    name: str
    """As typed: `--vocab-size`, or `source` for a positional word."""
    help: str
    """What it does: a phrase without a full stop."""
    kind: str = "text"
    """`text`, `integer`, `number`, `flag`, or `any` (a value of the notebook is kept as it is)."""
    default: Any = None
    """What counts when it isn't given; None where the command decides, or something else is said in `help`."""
    choices: Sequence[str] = ()
    """The values allowed, where they are few."""
    many: bool = False
    """Whether it takes several words."""
    completes: str | None = None
    """What Tab offers for its value: `file`, `preset`, `stage`, `recipe`, `magic`, `name`, or a kind of artefact."""
    also: Sequence[str] = ()
    """Words that are allowed beside integers, such as `auto`."""

    @property
    def key(self) -> str:
        """Its name as a Python keyword."""
        return self.name.lstrip("-").replace("-", "_")

    @property
    def positional(self) -> bool:
        """Whether it is a positional word."""
        return not self.name.startswith("-")

    @property
    def usage(self) -> str:
        """How it is written in a help text."""
        if self.kind == "flag":
            return self.name
        if self.positional:
            return f"{self.name.upper()} …" if self.many else self.name.upper()
        words = "|".join(self.choices) or {"integer": "N", "number": "X", "any": "VALUE"}.get(self.kind, "TEXT")
        words = "|".join([*self.also, words]) if self.also else words
        return f"{self.name} {words}" + (" …" if self.many else "")


@dataclass
class Arguments:
    """The parsed line: what was given, and defaults for the rest."""

    values: dict[str, Any] = field(default_factory=dict)
    """Every option's value by its Python keyword."""
    given: set[str] = field(default_factory=set)
    """The keywords that the user typed."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self.__dict__["values"][key]
        except KeyError:
            raise AttributeError(key) from None

    def only(self, *keys: str) -> dict[str, Any]:
        """The options among `keys` that were typed, as keyword arguments for the Python twin."""
        return {key: self.values[key] for key in keys if key in self.given}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message[:1].upper() + message[1:], next=f"Type %{self.prog} --help")


def parse(name: str, options: Sequence[Option], words: Sequence[Word]) -> Arguments:
    """Parses expanded words against a command's options.

    Args:
        name: the command, for messages.
        options: what it accepts.
        words: what `expand` returned.

    Raises:
        UsageError: an unknown option (with the nearest name), a missing or wrong value, too many words.
    """
    objects: list[Any] = []
    texts: list[str] = []
    for word in words:
        if (word.text.startswith("--") and not word.quoted) or (word.has_value and word.text.startswith("--")):
            _check_known(name, options, word.text)
            if word.has_value:
                flag = next(option for option in options if option.name == word.text)
                if flag.kind == "flag":
                    raise UsageError(f"{word.text} takes no value", received=word.value, next=f"Type {word.text} alone")
                texts.append(word.text)
                texts.append(_stand_in(word.value, objects))
            else:
                texts.append(word.text)
        elif word.has_value:
            texts.append(_stand_in(word.value, objects))
        elif not word.quoted and word.text[:1] == "-" and word.text[1:2].isalpha():
            raise UsageError(
                f"%{name} has no option {word.text}",
                next=did_you_mean("--" + word.text[1:], [option.name for option in options if not option.positional]),
            )
        else:  # also a quoted word that starts with a dash is a value, not an option
            texts.append(_stand_in(word.text, objects))
    parser = _Parser(prog=name, add_help=False, allow_abbrev=False)
    for option in options:
        _add(parser, option, objects)
    parsed, rest = parser.parse_known_intermixed_args(texts)
    if rest:
        extra = [objects[_index(text)] if _index(text) is not None else text for text in rest]  # type: ignore[index]
        shown = " ".join(str(item) for item in extra)[:60]
        raise UsageError(
            f"%{name} doesn't know what to do with: {shown}",
            next='Text of several words stands in quotes: "like this"',
        )
    arguments = Arguments()
    for option in options:
        value = getattr(parsed, option.key)
        if value is _MISSING:
            value = [] if option.many and option.default is None else option.default
            if option.kind == "flag":
                value = bool(option.default)
        else:
            if option.many and not value:
                arguments.values[option.key] = []
                continue
            arguments.given.add(option.key)
        arguments.values[option.key] = value
    return arguments


_MISSING = object()


def _stand_in(value: Any, objects: list[Any]) -> str:
    objects.append(value)
    return _PLACEHOLDER.format(len(objects) - 1)


def _index(text: str) -> int | None:
    return int(text[7:-1]) if text.startswith("\0value-") else None


def _check_known(name: str, options: Sequence[Option], typed: str) -> None:
    known = [option.name for option in options if not option.positional]
    if typed not in known:
        raise UsageError(f"%{name} has no option {typed}", next=did_you_mean(typed, known) or f"Type %{name} --help")


def _add(parser: argparse.ArgumentParser, option: Option, objects: list[Any]) -> None:
    if option.kind == "flag":
        parser.add_argument(option.name, dest=option.key, action="store_true", default=_MISSING)
        return
    arguments: dict[str, Any] = {"type": _converter(option, objects), "default": _MISSING}
    if option.positional:
        arguments["nargs"] = "*" if option.many else "?"
        parser.add_argument(option.key, **arguments)
    else:
        if option.many:
            arguments |= {"nargs": "+", "action": _Extend}
        parser.add_argument(option.name, dest=option.key, **arguments)


class _Extend(argparse.Action):
    """Collects repeated options; argparse's own `extend` needs a list as its default."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, ([] if before is _MISSING else before) + list(values))


def _converter(option: Option, objects: list[Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        index = _index(text)
        value = objects[index] if index is not None else text
        return check_value(option, value)

    return convert


def check_value(option: Option, value: Any) -> Any:
    """Returns `value` as the option's kind; raises UsageError with what was received."""
    if option.kind == "any":
        return value
    if isinstance(value, str) and value in option.also:
        return value
    if option.kind in ("integer", "number"):
        convert = int if option.kind == "integer" else float
        try:
            if isinstance(value, bool):
                raise ValueError
            number = convert(value.replace("_", "") if isinstance(value, str) else value)
            if option.kind == "integer" and float(number) != float(value if not isinstance(value, str) else number):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            what = "a whole number" if option.kind == "integer" else "a number"
            or_words = f" or {' or '.join(option.also)}" if option.also else ""
            raise UsageError(f"{option.name} takes {what}{or_words}", received=value) from None
        return number
    text = str(value)
    if option.choices and text not in option.choices:
        raise UsageError(
            f"{option.name} can't be {text!r}",
            next=did_you_mean(text, option.choices) or f"Choose from {', '.join(option.choices)}",
        )
    return text
