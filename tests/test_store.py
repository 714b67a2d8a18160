"""The store: whole or nothing, names, reuse, dependants, locks between processes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from nbllm.errors import NotFoundError, StoreError, UsageError
from nbllm.files import check_name, hash_files, read_json, write_json
from nbllm.store import Manifest, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / ".nbllm")


def make(
    store: Store, kind: str, name: str, content: str, parents: tuple[Manifest, ...] = (), **options: object
) -> Manifest:
    overwrite = bool(options.pop("overwrite", False))
    with store.create(
        kind, name, parameters=options, parents=[parent.as_parent() for parent in parents], overwrite=overwrite
    ) as draft:
        (draft.folder / "content").write_text(content)
    assert draft.manifest is not None
    return draft.manifest


def test_artefact_is_there_with_its_hash_and_parents(store: Store) -> None:
    corpus = make(store, "corpus", "docs", "text", a=1)
    tokenizer = make(store, "tokenizer", "docs", "merges", (corpus,))
    assert store.get("tokenizer", "docs") == tokenizer
    assert tokenizer.parents[0].hash == corpus.hash == hash_files(store.path("corpus", "docs"))
    assert [found.kind for found in store.find_kinds("docs")] == ["corpus", "tokenizer"]
    assert (store.root / ".gitignore").read_text() == "*\n"


def test_exception_while_making_leaves_nothing(store: Store) -> None:
    def interrupted() -> None:
        with store.create("corpus", "docs", parameters={}) as draft:
            (draft.folder / "half").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((store.root / "corpora").iterdir()) == []


def test_name_in_use_by_other_content_is_refused_and_overwrite_replaces(store: Store) -> None:
    make(store, "corpus", "docs", "old", a=1)
    with pytest.raises(StoreError, match="--overwrite"):
        make(store, "corpus", "docs", "new", a=2)
    assert (store.path("corpus", "docs") / "content").read_text() == "old"
    make(store, "corpus", "docs", "new", a=2, overwrite=True)
    assert (store.path("corpus", "docs") / "content").read_text() == "new"
    assert [path.name for path in (store.root / "corpora").iterdir()] == ["docs"]


def test_reuse_needs_same_parameters_and_same_parent_content(store: Store) -> None:
    corpus = make(store, "corpus", "docs", "text")
    tokenizer = make(store, "tokenizer", "t", "merges", (corpus,), vocab_size=10)
    assert store.reusable("tokenizer", {"vocab_size": 10}, [corpus.as_parent()]) == tokenizer
    assert store.reusable("tokenizer", {"vocab_size": 11}, [corpus.as_parent()]) is None
    other = make(store, "corpus", "docs2", "other text")
    assert store.reusable("tokenizer", {"vocab_size": 10}, [other.as_parent()]) is None


def test_dependants_through_others(store: Store) -> None:
    corpus = make(store, "corpus", "c", "1")
    tokenizer = make(store, "tokenizer", "t", "2", (corpus,))
    shards = make(store, "shards", "s", "3", (tokenizer,))
    make(store, "corpus", "unrelated", "4")
    assert {found.name for found in store.dependants(corpus)} == {"t", "s"}
    assert store.dependants(shards) == []


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a..b", "x" * 101, "dot.", "a\nb", "-x"])
def test_names_that_would_leave_the_store_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize("name", ["my run", "Größe-2", "v1.2+x", "日本語"])
def test_names_that_work(name: str, store: Store) -> None:
    make(store, "corpus", name, "text")
    assert store.names("corpus") == [name]


def test_missing_artefact_names_the_nearest(store: Store) -> None:
    make(store, "corpus", "pydocs", "text")
    with pytest.raises(NotFoundError, match="Did you mean pydocs"):
        store.get("corpus", "pydoc")


def test_missing_artefact_names_the_command_where_there_is_none(store: Store) -> None:
    with pytest.raises(NotFoundError, match="%llm_tokenizer train"):
        store.get("tokenizer", "x")


def test_json_of_numbers_that_are_not_finite_is_read_by_any_parser(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": math.nan, "b": [math.inf, 1.0]})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": None, "b": [None, 1.0]}


def test_damaged_json_says_which_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": ')
    with pytest.raises(StoreError, match=r"x\.json is damaged"):
        read_json(tmp_path / "x.json")


def test_second_kernel_waits_and_then_gets_one_clear_line(store: Store) -> None:
    other = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                "import sys; from nbllm.store import Store\n"
                f"with Store({str(store.root)!r}).lock('corpus-docs'): print('held', flush=True); sys.stdin.read()"
            ),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(StoreError, match="Another kernel"), store.lock("corpus-docs", wait_s=0.2):
        pass
    other.stdin.close()
    other.wait()
    with store.lock("corpus-docs", wait_s=5):
        pass


def test_killed_writer_leaves_no_artefact_and_its_lock_is_free(store: Store) -> None:
    code = (
        "import os, signal; from nbllm.store import Store\n"
        f"with Store({str(store.root)!r}).create('corpus', 'docs', parameters={{}}) as draft:\n"
        "    (draft.folder / 'half').write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert store.manifests("corpus") == []
    make(store, "corpus", "docs", "whole")
    assert store.names("corpus") == ["docs"]
