"""What protects readers and people: personal data by check digits, toxicity, blocklists; and repairs of text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nbllm.corpus import Corpus, clean, parse_stages
from nbllm.corpus.documents import batches
from nbllm.corpus.stages.toxicity import toxicity
from nbllm.errors import DataError, NbllmError, NotFoundError
from nbllm.store import Store


def edited(text: str, line: str) -> str:
    (stage,) = parse_stages([line])
    (batch,) = batches([(text, "id", "s")])
    found = stage.measure(batch).texts
    assert found is not None
    return str(found[0].as_py())


def why(text: str, line: str) -> str | None:
    (stage,) = parse_stages([line])
    (batch,) = batches([(text, "id", "s")])
    return stage.decide(stage.measure(batch).scores)[0].as_py()


def cleaned(tmp_path: Path, texts: list[str], *stages: str, **options: Any) -> Corpus:
    return clean(Store(tmp_path / ".nbllm"), texts=texts, stages=list(stages), **options)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("pay to DE89 3704 0044 0532 0130 00 now", "pay to <iban> now"),
        ("pay to GB82WEST12345698765432.", "pay to <iban>."),
        ("pay to DE89 3704 0044 0532 0130 01 now", None),
        ("call +49 30 901820 today", "call <phone> today"),
        ("call (212) 555-0123 or 212-555-0123.", "call <phone> or <phone>."),
        ("it was +12345678 then, 2024-05-17, 10.1.2345", None),
        ("SSN 078-05-1120, not 000-12-3456 or 666-12-3456", "SSN <id>, not 000-12-3456 or 666-12-3456"),
        ("CPF 111.444.777-35 is, 111.444.777-36 is not", "CPF <id> is, 111.444.777-36 is not"),
        ("DNI 12345678Z, NIE X1234567L, 12345678A", "DNI <id>, NIE <id>, 12345678A"),
        ("证件 11010519491231002X 号", "证件 <id> 号"),
        ("id 110105194912310021 no", None),
        ("NIR 2 55 08 14 168 025 38 ok", "NIR <id> ok"),
        ("NINO QQ123456C no, AB123456C yes", "NINO QQ123456C no, <id> yes"),
        ("part AB123456", None),
    ],
)
def test_numbers_are_found_where_their_check_digits_are_right(text: str, wanted: str | None) -> None:
    assert edited(text, "pii mask") == (wanted or text)
    assert (why(text, "pii drop") is None) == (wanted is None)


def test_only_the_kinds_asked_for() -> None:
    text = "a1@b.org, DE89 3704 0044 0532 0130 00, +49 30 901820"
    assert edited(text, "pii mask kinds=email") == "<email>, DE89 3704 0044 0532 0130 00, +49 30 901820"
    assert why(text, "pii drop kinds=phone") == "phone number"
    with pytest.raises(NbllmError, match=r"pii knows no kind 'fone'"):
        parse_stages(["pii mask kinds=fone"])


@pytest.mark.parametrize(
    "text",
    [
        "Scunthorpe is a town in Lincolnshire, and the Sussex coast is far away.",
        "They eat before the assembly; the sanctity of the class is assessed by the cockpit crew.",
        "The bastard file lies beside the bastard sword.",
        "Shitake mushrooms grow in Penistone. He assigned the title to Dickens.",
        "Der Dummy und die Mistel.",
    ],
)
def test_harmless_words_are_no_insults(text: str) -> None:
    assert toxicity(text, ("en", "de", "fr", "es", "zh")) == (0.0, 0)


def test_toxicity_is_a_density_by_sentence() -> None:
    assert toxicity("You fucking idiot.", ("en",)) == (1.0, 1)
    assert toxicity("You are an idiot.", ("en",)) == (0.5, 1)
    assert toxicity("What an arsehole day. A fine day. A good one. FUCK it. And more.", ("en",))[1] == 1
    long = "This sentence is fine. " * 40 + "He said fuck once. "
    assert toxicity(long, ("en",)) == (0.25, 1)
    assert why(long, "toxicity") is None
    assert why("Fuck you. You bitch. Kill yourself!", "toxicity") == "toxic"
    assert why("你这个傻逼。滚蛋！", "toxicity") == "toxic"
    assert why("Du Arschloch!", "toxicity") == "toxic"
    assert why("Du Arschloch!", "toxicity languages=en") is None
    with pytest.raises(NbllmError, match="no word list for 'xx'"):
        parse_stages(["toxicity languages=xx"])


def test_a_blocklist(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("# ours\nspam\nbuy  now\n禁词\nc++\n\n", encoding="utf-8")
    texts = ["A SPAM text", "spammer", "Buy\nnow!", "buy it now", "这是禁词吗", "we write C++ here"]
    corpus = cleaned(tmp_path, texts, f"blocklist {path}")
    assert list(corpus.texts()) == ["spammer", "buy it now"]
    assert {one.reason for one in corpus.dropped("blocklist")} == {"blocked word"}
    assert edited("A SPAM, buy now", f"blocklist {path} action=mask") == "A <blocked>, <blocked>"
    assert cleaned(tmp_path, texts, f"blocklist {path}").reused
    path.write_text("spammer\n", encoding="utf-8")
    again = cleaned(tmp_path, texts, f"blocklist {path}", overwrite=True)
    assert not again.reused
    assert len(again) == 5
    with pytest.raises(NotFoundError, match="line 1: there is no blocklist"):
        parse_stages([f"blocklist {tmp_path / 'none.txt'}"])
    path.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(DataError, match="holds no word"):
        parse_stages([f"blocklist {path}"])


def test_a_line_in_three_documents(tmp_path: Path) -> None:
    texts = ["Read our newsletter 1!\none\n}\n\nend", "two\nREAD our newsletter 2\n}\n\nend", "Read our newsletter 3"]
    corpus = cleaned(tmp_path, texts, "dedup line")
    assert list(corpus.texts()) == ["Read our newsletter 1!\none\n}\n\nend", "two\n}\n\nend"]
    assert corpus.scores("dedup line")["copies"].to_pylist() == [[], [1], [0]]
    every = cleaned(tmp_path, texts, "dedup line keep=none", name="none")
    assert list(every.texts()) == ["one\n}\n\nend", "two\n}\n\nend"]


def test_mojibake_is_repaired_and_sound_text_stays() -> None:
    assert edited("cafÃ© â€œquotedâ€\x9d", "fix_mojibake") == "café “quoted”"
    sound = "Ça va ? “ﬁn” &amp; l’été, naïve ÃO"
    assert edited(sound, "fix_mojibake") == sound


PAGE = (
    "<!doctype html><html><head><title>A page</title></head><body>"
    "<nav><a href='/'>Home</a><a href='/x'>About</a></nav>"
    "<article><h1>The heading</h1><p>{}</p><p>{}</p></article><footer>© someone</footer></body></html>"
).format(
    "This paragraph is the first of the page, and it says enough to be taken for its main text by any measure.",
    "The second paragraph goes on about the same matter, so that nobody can doubt that it belongs to the article.",
)


def test_html_becomes_its_main_text(tmp_path: Path) -> None:
    text = edited(PAGE, "html")
    assert "first of the page" in text
    assert "second paragraph" in text
    assert "Home" not in text
    assert "<p>" not in text
    assert edited("a < b and b > c, <T> is a type", "html") == "a < b and b > c, <T> is a type"
    (tmp_path / "page.html").write_text(PAGE, encoding="utf-8")
    (read,) = clean(Store(tmp_path / ".nbllm"), [tmp_path / "page.html"], stages=[]).texts()
    assert read == text
