"""The text that every Python carries, and the shortest way through cleaning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nbllm.corpus import Corpus, clean
from nbllm.store import Store


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return clean(Store(tmp_path_factory.mktemp("pydocs") / ".nbllm"), ["builtin:pydocs"])


def test_it_is_about_two_megabytes_of_distinct_texts(corpus: Corpus) -> None:
    assert corpus.name == "pydocs"
    came = corpus.report.came_in
    assert 3000 < came.documents < 8000
    assert 1_500_000 < came.bytes < 4_000_000
    texts = list(corpus.texts())
    assert len(texts) == len(set(texts)) == len(corpus) == corpus.report.went_out.documents
    assert min(map(len, texts)) >= 100
    ids = corpus.dataset["id"].to_pylist()
    assert len(set(ids)) == len(ids)
    assert ids[0] == "topics/assert"
    assert any(name == "collections.OrderedDict.move_to_end" or name == "textwrap.dedent" for name in ids)


def test_parts_are_disjoint_and_complete(corpus: Corpus) -> None:
    held, train = set(corpus.texts("held-out")), set(corpus.texts("train"))
    assert not held & train
    assert len(held) + len(train) == len(corpus)
    assert 0.02 < len(held) / len(corpus) < 0.08
    assert (
        corpus.text_bytes("held-out") + corpus.text_bytes("train")
        == corpus.text_bytes()
        == corpus.report.went_out.bytes
    )
    assert corpus.text_bytes("held-out") == sum(len(text.encode()) for text in held)


def test_a_second_cleaning_reuses_the_first(corpus: Corpus) -> None:
    again = clean(corpus.store, ["builtin:pydocs"])
    assert again.reused
    assert not corpus.reused
    assert again.manifest.hash == corpus.manifest.hash


def test_reading_it_runs_no_module_and_keeps_the_order(corpus: Corpus, tmp_path: Path) -> None:
    """The source of `this` prints when imported, `antigravity` opens a browser: neither is imported."""
    code = (
        "import sys, warnings; from nbllm.corpus import pydocs; warnings.simplefilter('error')\n"
        "found = [name for name, text in pydocs.documents()]\n"
        "assert not {'this', 'antigravity', 'torch', 'pandas', 'tkinter', 'turtle'} & set(sys.modules)\n"
        "print('\\n'.join(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == ""
    names = done.stdout.split()
    kept = set(corpus.dataset["id"].to_pylist())
    assert [name for name in names if name in kept] == corpus.dataset["id"].to_pylist()
