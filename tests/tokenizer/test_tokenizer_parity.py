"""What the same sentences cost in each language: as encoded, read from tables, refused where they don't match."""

from __future__ import annotations

import json

import pytest

from nbllm.errors import DataError, NotFoundError, UsageError
from nbllm.store import Store
from nbllm.tokenizer import parity, read_parallel, train

ENGLISH = ["All human beings are born free and equal in dignity and rights.", "They are endowed with reason."]
GERMAN = ["Alle Menschen sind frei und gleich an Würde und Rechten geboren.", "Sie sind mit Vernunft begabt."]
CHINESE = ["人人生而自由，在尊严和权利上一律平等。", "他们赋有理性。"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    english = train(store, ENGLISH * 50, text_bytes=4800, vocab_size=320, name="english")
    chinese = train(store, CHINESE * 50, text_bytes=4000, vocab_size=320, name="chinese")
    return [english, chinese]


def test_premiums_are_ratios_of_token_counts(tokenizers):
    found = parity(tokenizers, {"de": GERMAN, "en": ENGLISH, "zh": CHINESE})
    assert (found.reference, found.sentences, found.languages) == ("en", 2, ["de", "en", "zh"])
    for tokenizer in tokenizers:
        counts = {
            language: sum(len(tokenizer.encode(one)) for one in sentences)
            for language, sentences in (("de", GERMAN), ("en", ENGLISH), ("zh", CHINESE))
        }
        for language, count in counts.items():
            assert found.tokens[tokenizer.name, language] == count
            assert found.premium(tokenizer.name, language) == pytest.approx(count / counts["en"])
    assert found.premium("english", "zh") > 2 > 1 > found.premium("chinese", "zh")
    assert f"({found.premium('english', 'de'):.2f}×)" in str(found)
    assert parity(tokenizers[:1], {"de": GERMAN, "zh": CHINESE}).reference == "de"


def test_names_from_a_table_are_text(tokenizers):
    page = parity(tokenizers, {"<b>en</b>": ENGLISH, "de": GERMAN})._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;en" in page


def test_tables_are_read(tmp_path):
    pairs = list(zip(ENGLISH, GERMAN, strict=True))
    (tmp_path / "a.tsv").write_text("en\tde\n" + "".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    (tmp_path / "a.csv").write_text("en,de\n" + "".join(f'"{a}","{b}"\n' for a, b in pairs), encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"en": a, "de": b}) + "\n" for a, b in pairs))
    for name in ("a.tsv", "a.csv", "a.jsonl"):
        assert read_parallel(tmp_path / name) == {"en": ENGLISH, "de": GERMAN}
    pandas = pytest.importorskip("pandas")
    assert read_parallel(pandas.DataFrame({"en": ENGLISH, "de": GERMAN})) == {"en": ENGLISH, "de": GERMAN}
    (tmp_path / "b.jsonl").write_text('{"en": "a", "de": "b"}\n{"en": "a"}\n')
    with pytest.raises(DataError, match="Row 2 has no text in the column 'de'"):
        read_parallel(tmp_path / "b.jsonl")
    with pytest.raises(NotFoundError):
        read_parallel(tmp_path / "none.tsv")


def test_what_isnt_parallel_is_refused(tokenizers):
    with pytest.raises(UsageError, match="same sentences"):
        parity(tokenizers, {"en": ENGLISH, "de": GERMAN[:1]})
    with pytest.raises(UsageError, match="no such language"):
        parity(tokenizers, {"en": ENGLISH, "de": GERMAN}, reference="fr")
    with pytest.raises(UsageError, match="no tokens"):
        parity(tokenizers, {"en": ["", ""], "de": GERMAN})
