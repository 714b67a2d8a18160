"""What a run's processes printed: the last lines of `worker.log`, and the one line that says why a run failed.

Several workers and their launcher write into one log. When one worker raises, the others fail because it is gone, and
the launcher then reports on all of them: the line to show is the first worker's own. Knows nothing of processes.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

LOG = "worker.log"
_LARGEST_BYTES = 1 << 20
_LARGEST_LINE = 300
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK = re.compile(r"^\[(?:rank|default)?\d+\]:\s?")
_TRACEBACK = "Traceback (most recent call last):"
_LAST_OF_TRACEBACK = re.compile(r"^[A-Za-z_][\w.]*(?::\s|$)")
_ERROR_LINE = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception): \S")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_LAUNCHERS = ("subprocess.CalledProcessError", "torch.distributed.elastic.", "ChildFailedError")
_BEREFT = re.compile(
    r"closed by peer|reset by peer|broken pipe|connection refused|connection closed|timed out waiting"
    r"|DistBackendError|DistNetworkError|communicator was aborted",
    re.IGNORECASE,
)
_PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
_LAUNCHER_SIGNAL = re.compile(r"died with <Signals\.(SIG\w+)")
_ROOT_SIGNAL = re.compile(r"Root Cause.*?exitcode\s*:\s*-(\d+)", re.DOTALL)
_SUDDEN = ("SIGKILL", "SIGSEGV", "SIGBUS")
_OURS = ("UsageError", "NotFoundError", "DataError", "StoreError", "RunError", "NbllmError")


def tail(path: Path, lines: int, *, start: int = 0) -> str:
    """The last lines of a log, without colours and with only the last state of a progress bar.

    Args:
        path: the log; a missing one is empty.
        lines: how many at most.
        start: byte to begin at, to leave out what an earlier generation printed.
    """
    return "\n".join(_read(path, start)[-lines:])


def last_error(path: Path, *, start: int = 0) -> str | None:
    """The line of a log that says best why the run failed; None where the log says nothing."""
    lines = _read(path, start)
    text = "\n".join(lines)
    sudden = _signal(text)
    if sudden in _SUDDEN:
        return describe_signal(sudden)
    errors = _errors([_RANK.sub("", line) for line in lines])
    own = [line for line in errors if not _BEREFT.search(line)]
    if own or errors:
        return _short((own or errors)[-1])
    if sudden:
        return describe_signal(sudden)
    spoken = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "=", "-"))]
    return _short(spoken[-1]) if spoken else None


def says_killed(path: Path, code: int, *, start: int = 0) -> bool:
    """Whether launcher or worker was ended from outside, by a signal that leaves no last word, rather than failed."""
    return code < 0 or _signal("\n".join(_read(path, start))) in _SUDDEN


def says_port_taken(path: Path, *, start: int = 0) -> bool:
    """Whether a process complains that its port is in use."""
    return _PORT_TAKEN.search("\n".join(_read(path, start))) is not None


def describe_signal(name: str) -> str:
    """A sentence for a worker that a signal ended."""
    if name == "SIGKILL":
        return "A worker was killed (SIGKILL), most often because the memory ran out"
    return f"A worker was ended by {name}"


def describe_exit(code: int) -> str:
    """A sentence for a launcher's exit code, negative for a signal."""
    if code >= 0:
        return f"The launcher ended with exit code {code} and said nothing"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"The launcher was ended by {name}"


def _read(path: Path, start: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(start, file.seek(0, 2) - _LARGEST_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in _ANSI.sub("", text).split("\n")]
    return lines[:-1] if lines and not lines[-1] else lines


def _errors(lines: list[str]) -> list[str]:
    """Last lines of the tracebacks and lone error lines, without the launcher's; of a chain only its end."""
    found: list[str] = []
    inside = chained = False
    for line in lines:
        if line.startswith(_CHAINED):
            chained = True
        elif line.startswith(_TRACEBACK):
            inside = True
        elif (inside and _LAST_OF_TRACEBACK.match(line)) or _ERROR_LINE.match(line):
            if not line.startswith(_LAUNCHERS):
                found[-1 if chained and found else len(found) :] = [line]
            inside = chained = False
    return found


def _signal(text: str) -> str | None:
    if match := _LAUNCHER_SIGNAL.search(text):
        return match[1]
    if match := _ROOT_SIGNAL.search(text):
        return signal.Signals(int(match[1])).name
    return None


def _short(line: str) -> str:
    """The line without the module of its class, and without the class where the error is one of nbllm's."""
    kind, separator, message = line.strip().partition(": ")
    if separator and re.fullmatch(r"[\w.]+", kind):
        module, _, name = kind.rpartition(".")
        line = message if module == "nbllm.errors" or name in _OURS else f"{name}: {message}"
    return line if len(line) <= _LARGEST_LINE else line[: _LARGEST_LINE - 1] + "…"
