"""Faults planted for real: a process of its own is killed at a rename, runs out of disk, or may not write."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from nbllm.errors import NbllmError
from nbllm.store import KINDS, Store

NOBODY = 65534
TEXTS = [f"Document {n}: the quick brown fox jumps over the lazy dog {n}." for n in range(60)]


def apart(action: Callable[[], Any], prepare: Callable[[], None] | None = None) -> tuple[int, str]:
    """Runs `action` in a fork of this process.

    Returns:
        The signal that killed it (0: none), and what it said: `done`, one line of an NbllmError, or a traceback.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        said = "done"
        try:
            if prepare is not None:
                prepare()
            action()
        except NbllmError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException:
            said = traceback.format_exc()
        with contextlib.suppress(OSError):
            os.write(writer, said.encode(errors="replace")[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return (os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0), said


def renames(action: Callable[[], Any]) -> int:
    """How many renames an action makes, found by doing it in a fork over a copy that is thrown away."""
    log = Path(f"renames-{os.getpid()}.json")

    def counted() -> None:
        count = 0

        def tick(*_: Any) -> None:
            nonlocal count
            count += 1

        _patch_renames(tick, lambda *_: None)
        action()
        log.write_text(json.dumps(count))

    code, said = apart(counted)
    assert (code, said) == (0, "done"), said
    count = int(json.loads(log.read_text()))
    log.unlink()
    return count


def die_at_rename(number: int, when: str) -> Callable[[], None]:
    """Prepares a fork to be killed before or after its n-th rename."""

    def prepare() -> None:
        seen = 0

        def before() -> None:
            nonlocal seen
            seen += 1
            if when == "before" and seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

        def after() -> None:
            if when == "after" and seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

        _patch_renames(before, after)

    return prepare


def _patch_renames(before: Callable[[], None], after: Callable[[], None]) -> None:
    for name in ("rename", "replace"):
        real = getattr(os, name)

        def patched(*arguments: Any, real: Any = real, **options: Any) -> None:
            before()
            real(*arguments, **options)
            after()

        setattr(os, name, patched)


def small_disk(limit: int) -> Callable[[], None]:
    """Prepares a fork whose files stay below so many bytes: the kernel refuses to write more, as on a full disk."""

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    return prepare


def may_not_write() -> None:
    """Prepares a fork that may read everything and write nothing."""
    import encodings.cp437  # noqa: F401 (a Python below /root is closed to others; zip files ask for it)

    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def sound(store: Store) -> dict[str, str]:
    """Every artefact that is there, by kind and name, with its hash; each is read and must be what was written."""
    found = {}
    for kind in KINDS:
        assert store.damaged(kind) == []
        for manifest in store.manifests(kind):
            store.verify(manifest)
            found[f"{kind} {manifest.name}"] = manifest.hash
    return found


def some(values: Iterable[str], *fast: str) -> list[Any]:
    """Parameters of a test of which the fast tier runs only these."""
    return [pytest.param(value, marks=() if value in fast else pytest.mark.slow) for value in values]


def flip(path: Path, place: float = 0.5) -> None:
    """Flips one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place) % len(content)] ^= 0x10
    path.write_bytes(content)
