"""What Tab offers: options, their values, actions, presets, stages, recipes, artefact names and files.

A pure function of the text before the cursor and the session; the front end's side is in the magics.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbllm.commands.base import Command
from nbllm.commands.options import Option
from nbllm.store import KINDS

if TYPE_CHECKING:
    from nbllm.sessions import Session

_MAGIC = re.compile(r"^\s*(?:\w+\s*=\s*)?%{1,2}(llm_\w+)(\s.*)?$", re.DOTALL)


def complete(lines: Sequence[str], session: Session) -> list[str]:
    """What can stand in the place of the last word.

    Args:
        lines: the cell's lines up to the cursor; the last one ends at it.
        session: for the names of artefacts.

    Returns:
        Whole words that start with what is typed of the last one; empty where this isn't one of our lines.
    """
    from nbllm.commands.registry import COMMANDS

    first = next((line for line in lines if line.strip()), "")
    current = lines[-1] if lines else ""
    match = _MAGIC.match(current)
    if match and match.group(1) in COMMANDS and match.group(2) is not None:
        return _on_line(COMMANDS[match.group(1)], match.group(2), session)
    head = _MAGIC.match(first)
    if head and first.lstrip().startswith("%%") and head.group(1) == "llm_clean" and first is not current:
        return _stage(current)
    return []


def _on_line(command: Command, rest: str, session: Session) -> list[str]:
    words = rest.split()
    typed = "" if not rest or rest[-1].isspace() else words.pop()
    if typed.startswith("--"):
        name, equals, value = typed.partition("=")
        if not equals:
            return _starting(
                typed, [option.name for option in command.all_options if not option.positional] + ["--help"]
            )
        return [f"{name}={found}" for found in _values(_option(command, name), value, session)]
    before = _option(command, words[-1]) if words else None
    if before is not None and before.kind != "flag":
        return _values(before, typed, session)
    positionals = [
        word for index, word in enumerate(words) if not word.startswith("--") and not _takes(command, words, index)
    ]
    if command.actions and not positionals:
        return _starting(typed, list(command.actions))
    slots = [option for option in command.options if option.positional and option.key != "action"]
    return _values(slots[0], typed, session) if slots else []


def _takes(command: Command, words: Sequence[str], index: int) -> bool:
    """Whether the word at `index` is the value of the option before it."""
    before = _option(command, words[index - 1]) if index else None
    return before is not None and before.kind != "flag"


def _option(command: Command, name: str) -> Option | None:
    return next((option for option in command.all_options if option.name == name and not option.positional), None)


def _values(option: Option | None, typed: str, session: Session) -> list[str]:
    if option is None:
        return []
    if option.choices:
        return _starting(typed, list(option.choices))
    what = option.completes
    if what == "file":
        found = glob.glob(glob.escape(os.path.expanduser(typed)) + "*")
        files = [path + "/" if os.path.isdir(path) else path for path in sorted(found)]
        return files + _starting(typed, ["builtin:pydocs"] if option.name == "source" else [])
    if what == "preset":
        from nbllm.model.presets import PRESETS

        return _starting(typed, [*PRESETS, *session.store.names("run")])
    if what == "recipe":
        from nbllm.corpus.recipe import RECIPES

        return _starting(typed, list(RECIPES))
    if what == "magic":
        from nbllm.commands.registry import COMMANDS

        return _starting(typed, list(COMMANDS))
    if what == "name":
        kinds = ("corpus", "tokenizer", "run", "adapter")
        return _starting(typed, sorted({name for kind in kinds for name in session.store.names(kind)}))
    if what in KINDS:
        return _starting(typed, [*session.store.names(what), *option.also])
    return _starting(typed, list(option.also))


def _stage(line: str) -> list[str]:
    from nbllm.corpus.stages import STAGES

    words = line.split()
    typed = "" if not line or line[-1].isspace() else words.pop()
    if not words:
        return _starting(typed, sorted({name.split()[0] for name in STAGES}))
    seconds = [name.split()[1] for name in STAGES if name.startswith(words[0] + " ")]
    name = " ".join(words[:2]) if seconds and len(words) > 1 else words[0]
    if seconds and len(words) == 1:
        return _starting(typed, seconds)
    if name not in STAGES:
        return []
    found = STAGES[name].arguments().values()
    bare = [choice for argument in found if argument.positional for choice in argument.choices]
    return _starting(typed, [*bare, *(f"{argument.name}=" for argument in found if not argument.positional)])


def _starting(typed: str, words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith(typed)]
