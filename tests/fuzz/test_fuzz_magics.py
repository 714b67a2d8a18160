"""Any line and any cell body, for every magic: a result, or one clear line; never a traceback, never a hang."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz_kit import CASES, MANY, bounded, cases, one_line
from fuzz_lines import bodies, lines, namespace
from hypothesis import given
from IPython.core.error import UsageError as CellError
from IPython.core.interactiveshell import InteractiveShell

from nbllm.commands import COMMANDS
from nbllm.errors import Interrupted, NbllmError


def faces(result: Any) -> None:
    """Shows a result as text and as HTML, as a notebook would."""
    assert isinstance(repr(result), str)
    if hasattr(result, "_repr_html_"):
        html = result._repr_html_()
        assert "<script>alert" not in html
        html.encode("utf-8")


def check(name: str, fresh: Callable[[], Path], count: int) -> None:
    command = COMMANDS[name]
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "nbllm")

    def one(line: str, body: str | None) -> None:
        fresh()
        shell.user_ns.update(namespace())
        try:
            with bounded():
                if body is None:
                    result = shell.run_line_magic(name, line)
                else:
                    result = shell.run_cell_magic(name, line, body)
                faces(result)
        except NbllmError as error:
            one_line(error)
        except (Interrupted, CellError):  # the second is IPython's own word on a cell without a body
            pass
        except AssertionError:
            raise
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise AssertionError(
                f"%{name} {line!r} {body!r}: {type(error).__name__}: {error} at {where.filename}:{where.lineno}"
            ) from error

    cases(count)(given(line=lines(command))(lambda line: one(line, None)))()
    if command.body:
        cases(count)(given(line=lines(command), body=bodies(command))(one))()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_any_line_gives_a_result_or_one_clear_line(
    name: str, fresh: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    check(name, fresh, CASES)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_two_thousand_lines(name: str, fresh: Callable[[], Path], capsys: pytest.CaptureFixture[str]) -> None:
    check(name, fresh, MANY)
