"""Stored scores held ready; evidence in texts; languages; pairs; an allow-list."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbllm.corpus import Corpus, clean
from nbllm.corpus.evidence import spans
from nbllm.store import Store

ENGLISH = "The committee met in the town hall and it was agreed that the work would begin in spring, number {}."
GERMAN = "Der Ausschuss traf sich im Rathaus und beschloss, dass die Arbeiten im Frühjahr beginnen, Nummer {}."


def shown(reason: str, text: str) -> list[str]:
    return [text[start:end] for start, end in spans(reason, text)]


@pytest.mark.parametrize(
    ("reason", "text", "marked"),
    [
        ("repeated lines", "a b\nc\na b\r\na b", ["a b", "a b"]),
        ("characters in repeated paragraphs", "one\ntwo\n\nthree\n\none\ntwo", ["one\ntwo"]),
        ("one 2-gram again and again", "go on, stop, go on, then go on", ["go on", "go on", "go on"]),
        ("repeated 5-grams", "a b c d e. a b c d e", ["a b c d e"]),
        ("bullet list", "• a\n- b\n-c", ["•", "-"]),
        ("lines end in an ellipsis", "so...\nno\nand…", ["...", "…"]),
        ("short lines", "short\n" + "x" * 40, ["short"]),
        ("lines without end punctuation", "No end\nAn end.", ["No end"]),
        ("curly bracket", "a { b", ["{"]),
        ("too short", "a", []),
    ],
)
def test_evidence(reason: str, text: str, marked: list[str]) -> None:
    assert shown(reason, text) == marked


def test_the_closest_documents_on_either_side(tmp_path: Path) -> None:
    texts = ["x" * size for size in range(1, 101)]
    made = clean(Store(tmp_path / ".nbllm"), texts=texts, stages=["length min=10"], name="c")
    moving = made.moving("length")
    handle = moving.histograms[0].handle
    gone, stay = moving.beside(handle, 50, 3)
    assert [len(document["text"]) for document in made.texts_of(gone)] == [49, 48, 47]
    assert [len(document["text"]) for document in made.texts_of(stay)] == [50, 51, 52]
    assert moving.count({"min": 50}).documents == 49
    assert moving.histograms[0].documents.sum() == 100
    assert moving.histograms[1].limit is None


def test_languages_are_told_apart_in_what_was_dropped(tmp_path: Path) -> None:
    texts = [ENGLISH.format(number) for number in range(40)] + [GERMAN.format(number) for number in range(30)]

    def english_only(text: str) -> str | None:
        return text if "The" in text else None

    made = clean(
        Store(tmp_path / ".nbllm"), texts=texts, stages=["language en,de min=0.3", "python english_only"],
        functions={"english_only": english_only}, name="c",
    )  # fmt: skip
    assert made.by_language == {
        "en": {"in": 40, "out": 40},
        "de": {"in": 30, "python": 30, "out": 0},
    }
    assert made.warnings[-1] == "python dropped 100% of the texts in de"


def test_pairs_show_similarity_and_difference(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(60)]
    longer = " ".join([*words, "extra"])
    made = clean(Store(tmp_path / ".nbllm"), texts=[" ".join(words), longer], stages=["dedup minhash"], name="c")
    (pair,) = made.duplicates()
    assert (pair.dropped_id, pair.kept_id) == ("texts:1", "texts:2")
    assert pair.similarity == pytest.approx(56 / 57)
    assert pair.difference[-1] == ("kept", " extra")
    assert "[+ extra+]" in str(pair)
    assert "<ins class='keep'> extra</ins>" in made.duplicates()._repr_html_()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_on_the_allow_list_stays(tmp_path: Path, workers: int) -> None:
    texts = ["short", "a text that is long enough to stay", "tiny", "tiny"]
    made = clean(
        Store(tmp_path / ".nbllm"), texts=texts, stages=["normalize", "length min=20", "dedup exact"],
        keep=["texts:1", "texts:3", "texts:4"], workers=workers, name="c",
    )  # fmt: skip
    assert [document["id"] for document in made] == ["texts:1", "texts:2", "texts:3", "texts:4"]
    assert made.would_drop("length", min=30).documents == 0
    assert made.moving("length").count({"min": 40}).documents == 1


def test_a_corpus_knows_what_it_was_asked_for(tmp_path: Path) -> None:
    made = clean(Store(tmp_path / ".nbllm"), texts=["a text"], stages=["normalize"], name="c")
    assert Corpus.load(made.store, "c").lines == ["normalize"]


def test_the_threshold_of_near_duplicates_moves(tmp_path: Path) -> None:
    """What a moved threshold would drop is what a new cleaning drops."""
    words = [[f"w{group}x{number}" for number in range(100)] for group in range(12)]
    texts = []
    for group, one in enumerate(words):
        texts += [" ".join(one), " ".join([*one[: 99 - group], f"end{group}"]), f"{' '.join(one[: 94 - group])} x y"]
    made = clean(Store(tmp_path / "a"), texts=texts, stages=["dedup minhash threshold=0.8"], name="c")
    moving = made.moving("dedup minhash")
    (found,) = moving.histograms
    assert (found.handle.argument, found.limit, found.whole) == ("threshold", 0.8, False)
    drops = []
    for threshold in (0.8, 0.85, 0.9, 0.95, 1.0):
        again = clean(
            Store(tmp_path / f"{threshold}"), texts=texts, stages=[f"dedup minhash threshold={threshold}"], name="c"
        )
        count = moving.count({"threshold": threshold})
        assert count.documents == len(texts) - len(again)
        assert count.documents_before == len(texts) - len(made)
        assert made.would_drop("dedup minhash", threshold=threshold).documents == count.documents
        drops.append(count.documents)
    assert drops == sorted(drops, reverse=True)
    assert drops[0] > drops[2] > 0
    gone, stay = moving.beside(found.handle, 0.9, 3)
    values = dict(zip(moving.rows.tolist(), moving.values("similarity").tolist(), strict=True))
    assert all(values[row] > 0.9 for row in gone)
    assert all(values[row] <= 0.9 for row in stay)
    assert moving.overlap({}).reasons == ("near duplicate",)
