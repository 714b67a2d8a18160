"""Registers one magic a command, Tab completion and the display of results; unloading removes all of it."""

from __future__ import annotations

import sys
from typing import Any

from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.core.magic import no_var_expand

from nbllm.commands import COMMANDS, Call, Command
from nbllm.errors import Interrupted, UsageError
from nbllm.magics.display import Display, Stream
from nbllm.plain import plain

_ATTRIBUTE = "_nbllm_extension"


class Extension:
    """What loading adds to a shell.

    Args:
        shell: the running InteractiveShell.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.display = Display(shell)
        self._matcher = _matcher()
        for command in COMMANDS.values():
            line, cell = self._functions(command)
            shell.register_magic_function(line, "line", command.name)
            if cell is not None:
                shell.register_magic_function(cell, "cell", command.name)
        shell.Completer.custom_matchers.append(self._matcher)

    def remove(self) -> None:
        """Takes everything away again."""
        magics = self.shell.magics_manager.magics
        for name in COMMANDS:
            for kind in ("line", "cell"):
                magics[kind].pop(name, None)
        if self._matcher in self.shell.Completer.custom_matchers:
            self.shell.Completer.custom_matchers.remove(self._matcher)
        self.display.remove()

    def greet(self) -> None:
        """Says in one line where the reader is and where to start."""
        import nbllm
        from nbllm.sessions.card import device_line
        from nbllm.train import live_runs

        session = nbllm.session()
        live = [run.name for run in live_runs(session.store)]
        running = f" · live: {', '.join(live)} (%llm_train --attach {live[0]})" if live else ""
        print(f"nbllm {nbllm.__version__} · {device_line()} · session {session.name}{running} · start with %llm_help")

    def _functions(self, command: Command) -> tuple[Any, Any]:
        @no_var_expand
        def line_magic(line: str) -> Any:
            return self._run(command, line, None)

        line_magic.__doc__ = command.help()
        line_magic.__name__ = command.name
        if not command.body:
            return line_magic, None

        @no_var_expand
        def cell_magic(line: str, cell: str) -> Any:
            return self._run(command, line, cell)

        cell_magic.__doc__ = command.help()
        cell_magic.__name__ = command.name
        return line_magic, cell_magic

    def _run(self, command: Command, line: str, body: str | None) -> Any:
        import nbllm

        if command.wants_help(line):
            print(command.help())
            return None
        namespace = self.shell.user_ns
        arguments = command.parse(line, namespace, self.shell.ev)
        name = arguments.out
        if name is not None and not name.isidentifier():
            raise UsageError("--out takes the name of a variable", received=name)
        session = nbllm.session()
        shown = self.display.watch(session)
        stream = Stream() if self.display.live else None
        call = Call(
            session=session,
            arguments=arguments,
            body=body,
            namespace=namespace,
            say=_say,
            write=stream.write if stream else _write,
        )
        try:
            with shown:
                result = command.run(call)
        except Interrupted as interrupt:
            if name is not None:
                namespace[name] = interrupt.result
            namespace["_llm"] = interrupt.result
            raise
        finally:
            if stream is not None:
                stream.flush()
        result = self.display.show(command, result, arguments, session)
        if result is not None:
            namespace["_llm"] = result
            if name is not None:
                namespace[name] = result
        return result


def load(shell: Any) -> None:
    """Adds the magics to a shell and greets; does nothing but greet when they are there already."""
    extension = getattr(shell, _ATTRIBUTE, None)
    if extension is None:
        extension = Extension(shell)
        setattr(shell, _ATTRIBUTE, extension)
    extension.greet()


def unload(shell: Any) -> None:
    """Removes everything that loading added."""
    extension = getattr(shell, _ATTRIBUTE, None)
    if extension is not None:
        extension.remove()
        delattr(shell, _ATTRIBUTE)


def _say(text: str) -> None:
    print(plain(text))


def _write(text: str) -> None:
    sys.stdout.write(plain(text))
    sys.stdout.flush()


def _matcher() -> Any:
    @context_matcher(identifier="nbllm")
    def match(context: Any) -> Any:
        import nbllm
        from nbllm.commands.completion import complete

        lines = [*context.full_text.splitlines()[: context.cursor_line], context.text_until_cursor]
        found = complete(lines, nbllm.session())
        typed = context.text_until_cursor.split()
        word = "" if not typed or context.text_until_cursor[-1:].isspace() else typed[-1]
        cut = len(word) - len(context.token)  # IPython's token may start later, such as after an equals sign
        return {
            "completions": [SimpleCompletion(text=item[cut:], type="nbllm") for item in found],
            "suppress": bool(found),
        }

    return match
