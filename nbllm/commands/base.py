"""A command: what a magic, and `python -m nbllm`, can be asked for. No IPython here.

A command gets a `Call`: the session, the parsed options, the cell body and a way to say a line; it returns the result,
and whoever called it shows that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbllm.commands import line as lines
from nbllm.commands.options import Arguments, Option, parse
from nbllm.errors import UsageError

if TYPE_CHECKING:
    from nbllm.sessions import Session

OUT = Option(name="--out", help="bind the result to this variable of the notebook")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One invocation of a command."""

    session: Session
    """The current session."""
    arguments: Arguments
    """The parsed line."""
    body: str | None = None
    """The cell below the first line, untouched; None for a line magic."""
    namespace: Mapping[str, Any] = field(default_factory=dict)
    """The notebook's variables."""
    say: Callable[[str], None] = print
    """Shows one line of text."""
    write: Callable[[str], None] = print
    """Shows text as it is, without a line's end: streaming, where all pieces of one call make one text."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """What a magic does and how it is asked."""

    name: str
    """The magic's name, without percent signs."""
    summary: str
    """One line: what it does."""
    example: str
    """One or more lines that work, shown in the help."""
    options: Sequence[Option]
    """Options and positional words."""
    run: Callable[[Call], Any]
    """Does it; returns the result or None."""
    body: str | None = None
    """What the cell body is, for a cell magic; None where there is no cell magic of this name."""
    actions: Mapping[str, str] = field(default_factory=dict)
    """First words that choose what is done, with what each does."""

    @property
    def all_options(self) -> tuple[Option, ...]:
        """Its options and those that every command has."""
        return (*self.options, OUT)

    def parse(
        self,
        line: str,
        namespace: Mapping[str, Any] | None = None,
        evaluate: Callable[[str], Any] | None = None,
    ) -> Arguments:
        """Splits, expands and parses a line; raises UsageError or NotFoundError, each one line."""
        words = lines.expand(lines.split(line), namespace or {}, evaluate)
        return parse(self.name, self.all_options, words)

    def wants_help(self, line: str) -> bool:
        """Whether `--help` or `-h` stands, unquoted, in the line."""
        try:
            return any(not word.quoted and word.text in ("--help", "-h") for word in lines.split(line))
        except UsageError:
            return False

    def help(self) -> str:
        """The help text: usage, options with defaults, an example."""
        percent = "%%" if self.body else "%"
        text = [f"{percent}{self.name}: {self.summary}", "", f"  {percent}{self.name} {self.usage}".rstrip(), ""]
        if self.body:
            text += [f"  cell body: {self.body}", ""]
        rows = [(word, meaning) for word, meaning in self.actions.items()]
        rows += [(option.usage, _meaning(option)) for option in self.all_options if option.key != "action"]
        width = min(max(len(row[0]) for row in rows), 34)
        for left, right in rows:
            if len(left) > width:
                text += [f"  {left}", f"  {'':{width}}  {right}"]
            else:
                text.append(f"  {left:{width}}  {right}")
        return "\n".join([*text, "", "Example:", *("  " + row for row in self.example.splitlines())])

    @property
    def usage(self) -> str:
        """The positional words, then `[options]`."""
        words = "|".join(self.actions) if self.actions else ""
        rest = " ".join(f"[{option.usage}]" for option in self.options if option.positional and option.key != "action")
        return " ".join(part for part in (f"[{words}]" if words else "", rest, "[options]") if part)


def _meaning(option: Option) -> str:
    if option.default is None or option.kind == "flag":
        return option.help
    shown = " ".join(option.default) if isinstance(option.default, (list, tuple)) else option.default
    return f"{option.help} (default {shown})"
