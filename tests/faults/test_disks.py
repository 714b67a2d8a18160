"""A disk that is full and a store that is read-only: one line, and all that was there is as it was."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_kit import apart, may_not_write, small_disk, some, sound
from test_killed_writers import WRITES, good, ready, session  # noqa: F401 (ready is a fixture)

from nbllm.store import Store

FULL = [write for write in WRITES if write not in ("start of a run", "checkpoint", "session")]


@pytest.mark.parametrize("limit", [0, 700])
@pytest.mark.parametrize("write", some(FULL, "clean", "export"))
def test_a_full_disk(ready: Path, write: str, limit: int) -> None:  # noqa: F811
    before = good(ready)
    code, said = apart(WRITES[write], small_disk(limit))
    assert code == 0
    assert said.startswith("StoreError: The disk of "), said
    assert "\n" not in said
    assert good(ready) == before
    assert not list((ready / ".nbllm").glob("*/.[0-9a-f]*"))  # no half of anything is left
    assert apart(WRITES[write])[1] == "done"


def test_a_checkpoint_on_a_full_disk_leaves_the_one_before(ready: Path) -> None:  # noqa: F811
    before = good(ready)
    code, said = apart(WRITES["checkpoint"], small_disk(700))
    assert code == 0
    assert "File too large" in said
    assert good(ready) == before
    assert apart(WRITES["checkpoint"])[1] == "done"


@pytest.fixture
def for_nobody(ready: Path) -> Iterator[Path]:  # noqa: F811
    """The same where another user may read it and nobody but its owner write."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    home = folder / "home"
    shutil.copytree(ready, home)
    for path in [folder, home, *home.rglob("*")]:
        if os.geteuid() == 0:
            path.chmod(0o755 if path.is_dir() else 0o644)
        else:
            path.chmod(0o555 if path.is_dir() else 0o444)
    os.chdir(home)
    yield home
    os.chdir("/")
    for path in [folder, home, *home.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("write", some((name for name in FULL if name != "pack" and "export" not in name), "clean"))
def test_a_store_that_is_read_only(for_nobody: Path, write: str) -> None:
    before = good(for_nobody)
    code, said = apart(WRITES[write], may_not_write)
    assert code == 0
    assert said.startswith("StoreError: ")
    assert "can't be written to" in said
    assert "\n" not in said
    assert good(for_nobody) == before


def test_a_store_that_is_read_only_is_read(for_nobody: Path) -> None:
    def read() -> None:
        now = session()
        assert next(iter(now.corpus))["text"].startswith("Document")
        assert now.tokenizer.decode(now.tokenizer.encode("fox")) == "fox"
        assert "docs" in str(now.card())
        assert sound(Store(".nbllm"))

    assert apart(read, may_not_write) == (0, "done")
