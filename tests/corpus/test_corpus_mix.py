"""Sources mixed by tokens: shares, epochs, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbllm.corpus import Corpus, clean
from nbllm.corpus.stages.mix import mix_line, token_count
from nbllm.errors import DataError, NotFoundError, UsageError
from nbllm.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, count in (("web", 200), ("code", 20), ("books", 50)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number:03d}.txt").write_text(f"{name} {number:04d} ".ljust(400, "x"))
    return tmp_path


def mixed(folder: Path, **options: object) -> Corpus:
    sources = [f"{name}={folder / name}" for name in ("web", "code", "books")]
    return clean(Store(folder / ".nbllm"), sources, **{"stages": ["normalize"], "name": "c", **options})  # type: ignore[arg-type]


def test_shares_are_of_tokens_and_epochs_are_told(folder: Path) -> None:
    made = mixed(folder, mix="web=0.6,code=0.4,books=0", tokens="10k")
    # 100 tokens a document: 60 of web, and 40 of the 20 of code
    assert {share.source: (share.tokens, share.epochs) for share in made.report.mix} == {
        "web": (6000, 0.3), "code": (4000, 2.0), "books": (0, 0.0),
    }  # fmt: skip
    assert len(made) == 100
    ids = [document["id"] for document in made]
    code = [one for one in ids if one.startswith("code/")]
    assert code[:20] == sorted(set(code))
    assert code[20:] == code[:20]
    assert ids.index("code/000.txt", ids.index("code/000.txt") + 1) >= 80, "copies come after the whole"
    assert made.by_source["books"]["out"].documents == 0
    assert made.by_source["code"]["out"].documents == 40
    assert [reason.reason for reason in made.report.rows] == ["beyond its source's share"]
    assert ["code", "40.0%", "40.0%", "≈4,000", "2.00"] in [line.split() for line in str(made.report).splitlines()]
    assert made.report.notes == [], "what a mix leaves out is no surprise"
    assert "<td>≈4,000</td><td>2.00</td>" in made.report._repr_html_()
    assert Corpus.load(made.store, "c").report.mix == made.report.mix


def test_without_a_budget_nothing_is_taken_twice(folder: Path) -> None:
    made = mixed(folder, mix={"web": 3, "code": 1, "books": 1})
    assert {share.source: share.tokens for share in made.report.mix} == {"web": 6000, "code": 2000, "books": 2000}
    assert len({document["id"] for document in made}) == len(made)


def test_a_larger_budget_holds_the_smaller(folder: Path) -> None:
    small = {document["id"] for document in mixed(folder, mix="web=1,code=0,books=0", tokens=1000)}
    large = {document["id"] for document in mixed(folder, mix="web=1,code=0,books=0", tokens=5000, name="d")}
    assert len(small) == 10
    assert small < large


def test_many_epochs_are_warned_of(folder: Path) -> None:
    made = mixed(folder, mix="web=0,code=1,books=0", tokens=12_000)
    assert made.report.notes[-1] == "code is in the corpus 6.0 times; more than 4 teach little"


def test_workers_change_nothing(folder: Path) -> None:
    one = mixed(folder, mix="web=0.6,code=0.4,books=0", tokens=10_000)
    two = mixed(folder, mix="web=0.6,code=0.4,books=0", tokens=10_000, workers=2, overwrite=True)
    assert list(one) == list(two)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"mix": "web=0.6,cod=0.4,books=0"}, NotFoundError, "'cod', which is no source"),
        ({"mix": "web=0.6,code=0.4"}, UsageError, "no weight for books"),
        ({"mix": "web"}, UsageError, "NAME=WEIGHT"),
        ({"mix": "web=0,code=0,books=0"}, UsageError, "above 0"),
        ({"mix": "web=x,code=0,books=0"}, UsageError, "SOURCE:NUMBER"),
        ({"mix": "web=1,code=0,books=0", "tokens": "many"}, UsageError, "tokens"),
        ({"tokens": "1B"}, UsageError, "belongs to a mix"),
        (
            {"mix": "web=0.5,code=0.5,books=0", "stages": ["python no_code"],
             "functions": {"no_code": lambda text: None if text.startswith("code") else text}},
            DataError,
            "50.0% of code, of which no document is left",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(folder: Path, options: dict[str, object], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        mixed(folder, **options)


def test_numbers_as_they_are_typed() -> None:
    assert [token_count(typed) for typed in ("1B", "1.5M", "20k", "1_000")] == [10**9, 1_500_000, 20_000, 1000]
    assert mix_line("web=0.67,a:b=1", "1B") == "mix web:0.67,a:b:1 tokens=1B"
