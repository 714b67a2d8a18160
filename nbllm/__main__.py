"""`python -m nbllm …`: the same commands from a terminal, and those that act on runs by name.

`stop`, `list` and `attach` work while a kernel is busy, since a run listens to its folder, not to a kernel.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from nbllm.errors import NbllmError, UsageError, did_you_mean
from nbllm.plain import plain

_SHORT = {
    "list": ("llm_train", "--list"),
    "stop": ("llm_train", "--stop"),
    "pause": ("llm_train", "--pause"),
    "resume": ("llm_train", "--resume"),
    "attach": ("llm_train", "--wait --attach"),
}
_HELP = """nbllm: a notebook workbench for language models

  python -m nbllm list                 every run of the store
  python -m nbllm attach NAME          follow a run
  python -m nbllm stop NAME            write a checkpoint and end; also pause, resume
  python -m nbllm COMMAND …            {commands}, as the magics
  python -m nbllm COMMAND --help       what it takes

The store is .nbllm in this folder, or NBLLM_HOME."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0, 1 for an error (one line on stderr), 130 for an interrupt."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _run(words)
    except NbllmError as error:
        print(_typed_here(str(error)), file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            print(interrupt, file=sys.stderr)
        return 130
    return 0


def _run(words: list[str]) -> None:
    from nbllm.commands import COMMANDS, Call

    names = [name.removeprefix("llm_") for name in COMMANDS if name != "llm_panel"]
    if not words or words[0] in ("help", "--help", "-h"):
        print(_HELP.format(commands=", ".join(names)))
        return
    verb, rest = words[0], words[1:]
    if verb in _SHORT:
        name, options = _SHORT[verb]
        line = [*options.split(), *rest]
        if verb != "list" and not rest:
            raise UsageError(f"{verb} needs the name of a run", next="python -m nbllm list shows them")
    elif verb in names:
        name, line = f"llm_{verb}", rest
        if verb in ("train", "finetune"):
            line = (
                [*rest, "--wait"]
                if not any(word.startswith(("--list", "--stop", "--pause")) for word in rest)
                else rest
            )
    else:
        raise UsageError(f"nbllm can't {verb!r}", next=did_you_mean(verb, [*_SHORT, *names]))
    command = COMMANDS[name]
    typed = " ".join(_quoted(word) for word in line)
    if command.wants_help(typed):
        print(command.help())
        return
    import nbllm

    call = Call(session=nbllm.session(), arguments=command.parse(typed), say=_say, write=_write)
    result = command.run(call)
    if result is not None and type(result).__name__ != "Generation":  # its text has been streamed
        _say(str(result))


def _quoted(word: str) -> str:
    """The shell has taken quotes away; put them back where our own splitting needs them."""
    if word.startswith("--") and "=" in word:
        option, _, value = word.partition("=")
        return f"{option}={_quoted(value)}"
    plain = word and not any(character.isspace() for character in word) and word[0] not in "\"'${"
    if plain:
        return word
    quote = "'" if '"' in word else '"'
    return f"{quote}{word}{quote}"


def _say(line: str) -> None:
    print(_typed_here(plain(line)))


def _typed_here(line: str) -> str:
    """A line of ours that names magics, with what is typed in a terminal in their place."""
    return re.sub(r"%%?llm_(?!panel)(\w+)", r"python -m nbllm \1", line)


def _write(text: str) -> None:
    sys.stdout.write(plain(text))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
