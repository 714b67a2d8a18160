"""Deduplication: which copy stays, what isn't a copy, and what goes to one side of the split."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nbllm.corpus import Corpus, clean, parse_stages
from nbllm.corpus.documents import batches
from nbllm.corpus.engine import run
from nbllm.corpus.shingles import distinct, shingles
from nbllm.corpus.words import words as words_of
from nbllm.store import Store

WORDS = [f"word{index}" for index in range(2000)]


def cleaned(tmp_path: Path, texts: list[str], *stages: str, **options: Any) -> Corpus:
    return clean(Store(tmp_path / ".nbllm"), texts=texts, stages=list(stages), **options)


def prose(seed: int, words: int = 200) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def changed(text: str, count: int, seed: int = 0) -> str:
    """The same text with `count` words replaced at its end."""
    words = text.split()
    return " ".join(words[:-count] + [f"new{seed}x{index}" for index in range(count)])


def jaccard(first: str, second: str, ngram: int = 5) -> float:
    one, two = (
        {tuple(text.lower().split()[i : i + ngram]) for i in range(len(text.split()) - ngram + 1)}
        for text in (first, second)
    )
    return len(one & two) / len(one | two)


def test_of_an_exact_pair_the_first_stays(tmp_path: Path) -> None:
    corpus = cleaned(tmp_path, ["a", "b", "b ", "a\r\n", "c", "a  \n\n"], "dedup exact")
    assert [(row["text"], row["id"]) for row in corpus] == [("a", "texts:1"), ("b", "texts:2"), ("c", "texts:5")]
    example = corpus.dropped("dedup exact")[1]
    assert (example.id, example.reason, example.scores) == ("texts:4", "exact copy", {"like": "texts:1"})


def test_nfc_and_nfd_of_a_text_are_equal_and_marks_count(tmp_path: Path) -> None:
    text = "がぎぐ café"
    nfd = unicodedata.normalize("NFD", text)
    bare = "かきく cafe"
    assert len(cleaned(tmp_path, [text, nfd, bare], "dedup exact")) == 2
    assert len(cleaned(tmp_path, [text, nfd, bare], "dedup minhash", name="m")) == 2


def test_the_longest_near_duplicate_stays_then_the_first(tmp_path: Path) -> None:
    short = prose(1)
    long = f"{short} and one more"
    twin = changed(short, 2)
    other = prose(2)
    corpus = cleaned(tmp_path, [short, other, long, twin], "dedup minhash")
    assert list(corpus.texts()) == [other, long]
    assert {example.scores["like"] for example in corpus.dropped("dedup minhash")} == {"texts:3"}
    same = [prose(3), prose(3).upper()]
    assert list(cleaned(tmp_path, same, "dedup minhash", name="same").texts()) == same[:1]


def test_the_similarity_is_the_true_one(tmp_path: Path) -> None:
    first = prose(1)
    second = changed(first, 10)
    corpus = cleaned(tmp_path, [first, second], "dedup minhash threshold=0.7")
    scores = corpus.scores("dedup minhash")
    expected = jaccard(first, second)
    (measured,) = [value for value in scores["similarity"].to_pylist() if value is not None]
    assert measured == pytest.approx(expected, abs=1e-12)
    assert len(cleaned(tmp_path, [first, second], f"dedup minhash threshold={expected + 1e-6:.8f}", name="strict")) == 2


def test_a_chain_does_not_merge_its_ends(tmp_path: Path) -> None:
    """A~B and B~C, but A and C differ: A and C stay, and all three go to one side of the split."""
    middle = prose(5, 300)
    words = middle.split()
    first = " ".join([f"the_first_{index}" for index in range(25)] + words[25:] + ["tail"] * 2)
    last = " ".join([*words[:-25], *(f"lastly_{index:03d}_of_all" for index in range(25)), "z"])
    assert jaccard(first, middle) > 0.8
    assert jaccard(middle, last) > 0.8
    assert jaccard(first, last) < 0.75
    corpus = cleaned(tmp_path, [middle, last, first], "dedup minhash bands=40 rows=4")
    assert list(corpus.texts()) == [last, first]
    assert len(set(corpus.dataset["split_key"].to_pylist())) == 1


def test_members_of_a_cluster_share_the_smallest_key(tmp_path: Path) -> None:
    text, twin = prose(7), changed(prose(7), 2)
    alone = cleaned(tmp_path, [text, twin])
    keys = alone.dataset["split_key"].to_pylist()
    assert keys[0] != keys[1]
    assert cleaned(tmp_path, [text, twin], "dedup minhash", name="d").dataset["split_key"].to_pylist() == [min(keys)]


@pytest.mark.parametrize("texts", [["a b", "a c", "a", "b", "x y z w", "x y z v"], ["漢字", "漢語", "かな", "がな"]])
def test_texts_shorter_than_an_ngram_do_not_collapse(tmp_path: Path, texts: list[str]) -> None:
    assert list(cleaned(tmp_path, texts, "dedup minhash").texts()) == texts
    assert list(cleaned(tmp_path, [*texts, texts[0]], "dedup minhash", name="d").texts()) == texts


@pytest.mark.parametrize("ngram", [1, 3, 5])
def test_shingles_are_those_of_the_words(ngram: int) -> None:
    """Equal n-grams have equal hashes and others don't, in any script, whatever stands beside them in the batch."""
    rng = random.Random(3)
    alphabet = "ab cD,_1 é\u0301\u0308 Ωσ 漢字 ไทย हिन्दी \n\t가 ẞİ😀"
    texts = ["".join(rng.choices(alphabet, k=rng.randrange(60))) for _ in range(300)] + ["x y"] * 3 + ["A B c"] * 2
    flat, offsets = shingles(pa.array(texts), ngram)
    meaning: dict[int, tuple[str, ...]] = {}
    for index, text in enumerate(texts):
        lowered = "".join(one.lower()[0] for one in unicodedata.normalize("NFC", text))
        found = words_of(lowered)
        grams = [tuple(found[at : at + ngram]) for at in range(max(len(found) - ngram + 1, min(len(found), 1)))]
        hashes = flat[offsets[index] : offsets[index + 1]].tolist()
        assert len(hashes) == len(grams)
        for value, gram in zip(hashes, grams, strict=True):
            assert meaning.setdefault(value, gram) == gram
    assert len(set(meaning.values())) == len(meaning)
    assert distinct(np.array([3, 1, 3], np.uint64)).tolist() == [1, 3]
    assert [len(shingles(pa.array([], pa.string()), ngram)[0]), len(distinct(np.empty(0, np.uint64)))] == [0, 0]


def test_long_batches_are_cut_into_slices_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = pa.array([prose(seed, 40) for seed in range(30)] + ["é " + prose(1), "---"])
    whole = shingles(texts, 5)
    monkeypatch.setattr("nbllm.corpus.shingles._SLICE_BYTES", 500)
    assert [part.tolist() for part in shingles(texts, 5)] == [part.tolist() for part in whole]


def test_the_best_source_keeps_its_copy(tmp_path: Path) -> None:
    text = prose(1)
    for name, content in (("web", f"{text} and more"), ("wiki", text), ("blog", text)):
        (tmp_path / f"{name}.txt").write_text(content)
    sources = [f"{name}={tmp_path / name}.txt" for name in ("web", "wiki", "blog")]
    store = Store(tmp_path / ".nbllm")

    def kept(name: str, *stages: str, workers: int = 1) -> list[str]:
        made = clean(store, sources, stages=stages, name=name, workers=workers)
        return [document["source"] for document in made]

    assert kept("a", "dedup minhash") == ["web"], "the longest"
    assert kept("b", "dedup minhash priority=wiki,web") == ["wiki"]
    assert kept("c", "dedup exact") == ["web", "wiki"], "the first"
    assert kept("d", "dedup exact priority=blog") == ["web", "blog"]
    assert parse_stages(["dedup exact priority=blog,a"])[0].line() == "dedup exact priority=blog,a"


def test_texts_without_words_stay(tmp_path: Path) -> None:
    assert list(cleaned(tmp_path, ["---", "***", "!!!"], "dedup minhash").texts()) == ["---", "***", "!!!"]


def test_chinese_is_compared_by_characters(tmp_path: Path) -> None:
    rng = random.Random(1)
    text = "".join(chr(rng.randrange(0x4E00, 0x9F00)) for _ in range(300))
    assert len(shingles(pa.array([text]), 5)[0]) == 296
    near = text[:-5] + "新的结尾啊"
    other = "".join(chr(rng.randrange(0x4E00, 0x9F00)) for _ in range(300))
    assert list(cleaned(tmp_path, [text, near, other], "dedup minhash").texts()) == [text, other]


def test_what_is_found_is_what_theory_says() -> None:
    """With 14 bands of 8 rows a pair of similarity s is a candidate with 1 - (1 - s**8)**14 (FineWeb's figures)."""
    (stage,) = parse_stages(["dedup minhash"])
    rng = np.random.default_rng(0)
    shared, own = 400, 50
    similarity = shared / (shared + 2 * own)  # 0.8
    sets = []
    for _ in range(300):
        numbers = rng.integers(0, 2**63, shared + 2 * own, dtype=np.uint64)
        sets += [
            np.unique(numbers[: shared + own]),
            np.unique(np.concatenate((numbers[:shared], numbers[shared + own :]))),
        ]
    offsets = np.cumsum([0, *map(len, sets)])
    keys = stage._band_keys(np.concatenate(sets), offsets)  # type: ignore[attr-defined]
    found = (keys[0::2] == keys[1::2]).any(axis=1).mean()
    assert found == pytest.approx(1 - (1 - similarity**8) ** 14, abs=0.06)


def test_a_large_bucket_of_copies(tmp_path: Path) -> None:
    text = prose(9, 60)
    texts = [changed(text, 1, seed) for seed in range(60)] + [prose(10, 60)]
    corpus = cleaned(tmp_path, texts, "dedup minhash")
    assert list(corpus.texts())[-1] == texts[-1]
    assert len(corpus) == 2


def test_nothing_depends_on_batches(tmp_path: Path) -> None:
    rng = random.Random(3)
    texts = [prose(rng.randrange(40), 80) for _ in range(60)] + [changed(prose(seed, 80), 3) for seed in range(40)]
    documents = [(f"{text}\n\nshared paragraph {index % 7}", f"d{index}", "s") for index, text in enumerate(texts)]
    stages = parse_stages(["normalize", "dedup exact", "dedup minhash", "dedup paragraph", "length min=300"])
    results = []
    for size in (1, 7, 1000):
        folder = tmp_path / str(size)
        folder.mkdir()
        tally = run(lambda skip, size=size: batches(documents, batch_documents=size, skip=skip), stages, folder)
        import pyarrow as pa

        tables = {
            path.relative_to(folder): pa.ipc.open_file(path).read_all().to_pylist() for path in folder.rglob("*.arrow")
        }
        results.append((tables, tally.counts()))
    assert results[0] == results[1] == results[2]


def test_nothing_depends_on_how_many_keys_are_looked_at_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbllm.corpus import keyed
    from nbllm.corpus.stages import minhash

    rng = random.Random(5)
    texts = [prose(rng.randrange(30), 70) for _ in range(80)] + [changed(prose(seed, 70), 3) for seed in range(30)]
    texts = [f"{text}\n\nshared paragraph {index % 9}\n---" for index, text in enumerate(texts)]
    stages = ["dedup exact", "dedup minhash", "dedup paragraph", "dedup line"]
    whole = cleaned(tmp_path, texts, *stages, name="docs")
    monkeypatch.setattr(keyed, "AT_ONCE", 7)
    monkeypatch.setattr(minhash, "_CACHE_SHINGLES", 100)
    monkeypatch.setattr(minhash, "_NEW_PAIRS", 3)
    other = clean(Store(tmp_path / "other"), texts=texts, stages=stages, name="docs")
    assert other.manifest.hash == whole.manifest.hash
    assert 20 < len(whole) < 60
    assert {stage.name for stage in whole.report.stages if stage.dropped.documents} == {"dedup exact", "dedup minhash"}


def test_who_stays_is_decided_as_one_by_one() -> None:
    """Against the plain definition, over random pairs."""
    from nbllm.corpus.stages.minhash import resolve

    rng = np.random.default_rng(0)
    for _ in range(20):
        pairs = sorted({(min(a, b), max(a, b)) for a, b in rng.integers(0, 40, (30, 2)).tolist() if a != b})
        similarity = rng.choice([0.7, 0.8, 0.9, 1.0], len(pairs))
        priority, rows = rng.permutation(40), np.arange(40) * 3
        first, second = zip(*pairs, strict=True)
        table = pa.table({"first": first, "second": second, "similarity": similarity})
        scores, groups = resolve(table, priority, rows, 0.8)
        near: dict[int, dict[int, float]] = {}
        for (a, b), value in zip(pairs, similarity.tolist(), strict=True):
            if value >= 0.8:
                near.setdefault(a, {})[b] = near.setdefault(b, {})[a] = value
        stays: set[int] = set()
        for position in np.argsort(priority).tolist():
            kept = [(value, -priority[other], other) for other, value in near.get(position, {}).items()
                    if other in stays]  # fmt: skip
            if not kept:
                stays.add(position)
            best = max(kept, default=None)
            assert scores["similarity"][position].as_py() == (best and best[0])
            assert scores["copy_of"][position].as_py() == (best and best[2] * 3)
        for position in range(40):
            reached, edge = {position}, [position]
            while edge:
                edge = [other for one in edge for other in near.get(one, {}) if other not in reached]
                reached.update(edge)
            assert groups[position].as_py() == (min(reached) if position in near else None)


@pytest.mark.parametrize(
    ("keep", "wanted"),
    [
        ("", ["one\n\nThe shared 1 text.", "two", "three\n\nend"]),
        (" keep=none", ["one", "two", "three\n\nend"]),
    ],
)
def test_a_paragraph_in_three_documents(tmp_path: Path, keep: str, wanted: list[str]) -> None:
    texts = [
        "one\n\nThe shared 1 text.",
        "the SHARED 2 text\n\ntwo",
        "three\r\n\r\nthe shared 3, text!\r\n \r\nend",
        "The shared 4 text",
        "---\n\none only",
        "---\n\nstays",
    ]
    corpus = cleaned(tmp_path, texts, f"dedup paragraph{keep}")
    assert list(corpus.texts()) == [*wanted, "---\n\none only", "---\n\nstays"]
    (gone,) = corpus.dropped("dedup paragraph")
    assert (gone.text, gone.reason) == ("The shared 4 text", "empty")


def test_tables_are_not_kept_between_two_cleanings(tmp_path: Path) -> None:
    for name in ("first", "second"):
        corpus = cleaned(tmp_path, ["a b c", name], "dedup exact", "dedup minhash", "dedup paragraph", name=name)
        assert len(corpus) == 2
