"""Stages that look at one text: normalising, length, language, quality, repetition, personal data, own functions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from nbllm.corpus import Corpus, clean, parse_stages
from nbllm.corpus.documents import batches
from nbllm.corpus.stages.language import language_shares
from nbllm.corpus.words import lines, tokens, unspaced_share, words
from nbllm.errors import DataError, UsageError
from nbllm.store import Store

ENGLISH = (
    "The iterator returns the next item of the sequence, and if there are no more items to be returned then it "
    "raises an exception that the caller has to handle with care. This is how most loops in the language end, and "
    "people who write their own iterators have to follow the same rule, or the loops that use them would never stop."
)
GERMAN = (
    "Der Iterator gibt das nächste Element der Folge zurück, und wenn keine Elemente mehr da sind, löst er eine "
    "Ausnahme aus, die der Aufrufer behandeln muss. So enden die meisten Schleifen dieser Sprache, und wer eigene "
    "Iteratoren schreibt, muss sich an dieselbe Regel halten, sonst würden die Schleifen niemals enden."
)
CHINESE = "迭代器返回序列中的下一个元素。如果没有更多的元素可以返回,它就会引发一个异常,调用者必须小心地处理它。" * 4


def why(text: str, line: str) -> str | None:
    """The reason for which a stage drops a text."""
    (stage,) = parse_stages([line])
    (batch,) = batches([(text, "id", "s")])
    return stage.decide(stage.measure(batch).scores)[0].as_py()


def edited(text: str, line: str) -> str:
    (stage,) = parse_stages([line])
    (batch,) = batches([(text, "id", "s")])
    found = stage.measure(batch).texts
    assert found is not None
    return str(found[0].as_py())


def score(text: str, line: str, name: str) -> Any:
    (stage,) = parse_stages([line])
    (batch,) = batches([(text, "id", "s")])
    return stage.measure(batch).scores[name][0].as_py()


def cleaned(tmp_path: Path, texts: list[str], *stages: str, **options: Any) -> Corpus:
    return clean(Store(tmp_path / ".nbllm"), texts=texts, stages=list(stages), **options)


def test_lines_end_at_three_marks_only() -> None:
    assert lines("a\u2028b\u2029c\x85d\x0ce\x1cf\ng\r\nh\ri") == ["a\u2028b\u2029c\x85d\x0ce\x1cf", "g", "h", "i"]


def test_words_of_many_scripts() -> None:
    assert words("naïve cafe\u0301s, x_1!") == ["naïve", "cafe\u0301s", "x_1"]
    assert words("हिन्दी में") == ["हिन्दी", "में"]
    assert words("漢字かな ไทย") == ["漢", "字", "か", "な", "ไ", "ท", "ย"]
    assert tokens("漢字 a-b") == ["漢", "字", "a-b"]
    assert unspaced_share("漢字 ab") == 0.5
    assert unspaced_share("") == unspaced_share("...") == 0


def test_normalize() -> None:
    text = "\n \nCafe\u0301 \t\r\n\x00ba\x1br\ufeff\rtab\there\n\n\nend \n\n"
    assert edited(text, "normalize") == "Café\nbar\ufeff\ntab\there\n\n\nend"
    assert edited("  indented", "normalize") == "  indented"
    assert edited("ﬁ ①", "normalize form=NFKC") == "fi 1"
    assert edited("ﬁ ①", "normalize") == "ﬁ ①"


def test_length_does_not_count_spaces_around() -> None:
    assert why("x" * 99, "length") == why("x" * 99 + " " * 50, "length") == "too short"
    assert why("x" * 100, "length") is None
    assert why("漢" * 100, "length") is None
    assert why("x" * 11, "length min=0 max=10") == "too long"


@pytest.mark.parametrize(
    "text", [ENGLISH, ENGLISH.upper(), ENGLISH.replace(" ", "\n"), f"{ENGLISH} https://ja.example.jp/漢字"]
)
def test_english_is_english(text: str) -> None:
    assert why(text, "language en") is None
    assert why(text, "language de") == "another language"


def test_languages_are_told_apart() -> None:
    assert why(GERMAN, "language en") == "another language"
    assert why(CHINESE, "language en,zh") is None
    assert why(CHINESE, "language en") == "another language"
    assert score(GERMAN, "language en", "language") == "de"


def test_a_mixed_text_scores_by_its_shares() -> None:
    shares = language_shares(f"{ENGLISH}\n\n{GERMAN}")
    assert shares["en"] == pytest.approx(0.5, abs=0.12)
    assert shares["de"] == pytest.approx(0.5, abs=0.12)
    assert why(f"{ENGLISH}\n\n{GERMAN}", "language en") is not None
    assert why(f"{ENGLISH}\n\n{GERMAN}", "language en,de") is None


def test_code_and_addresses_are_no_evidence() -> None:
    code = "```python\ndef f(x): return [y for y in x if y]\n```\n>>> f([1])\n[1]\nhttp://a.example/b?c=d\n"
    assert why(code, "language en") == "no words to tell the language by"
    assert abs(language_shares(code + ENGLISH)["en"] - language_shares(ENGLISH)["en"]) < 0.02
    assert why("12 34 56 --- 78", "language en") == "no words to tell the language by"


def test_long_texts_are_read_to_their_end() -> None:
    """The library cuts texts at 80 characters unless told not to."""
    assert language_shares(f"{ENGLISH}\n\n" + f"{GERMAN}\n\n" * 9)["de"] > 0.7


GOOD = f"{ENGLISH}\n{ENGLISH}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (GOOD, None),
        (CHINESE, None),
        ("the and " * 24, "too few words"),
        ("a I to of " * 20 + "the", "words too short"),
        ("of the " + "incomprehensibilities " * 60, "words too long"),
        (GOOD + " #" * 20, "too many #"),
        (GOOD + " well..." * 20, "too many ellipses"),
        (GOOD + " well…" * 20, "too many ellipses"),
        ("\n".join(f"- the item {word} of that" for word in GOOD.split()[:20]), "bullet list"),
        ("\n".join(f"{part} and more words of that kind ..." for part in GOOD.split(",")), "lines end in an ellipsis"),
        (GOOD + " 12 --- 34 !! 56" * 10, "too few words with a letter"),
        (" ".join(f"palabra{index % 7}" for index in range(60)), "too few stop words"),
        ("Und der Mann geht nach Hause, weil es heute sehr kalt ist. " * 8, "too few stop words"),
        ("-5 degrees of the frost and many more words\n" * 20, None),
    ],
)
def test_gopher_quality(text: str, wanted: str | None) -> None:
    assert why(text, "quality gopher") == wanted
    assert why(text.replace("\n", "   \r\n") + "  ", "quality gopher") == wanted


def test_gopher_quality_scores() -> None:
    text = "# The cat, and\n- a dog...\n\n• of 1 …"
    assert score(text, "quality gopher", "words") == 11
    assert score(text, "quality gopher", "hashes") == pytest.approx(1 / 11)
    assert score(text, "quality gopher", "ellipses") == pytest.approx(2 / 11)
    assert score(text, "quality gopher", "bullet_lines") == pytest.approx(2 / 3)
    assert score(text, "quality gopher", "ellipsis_lines") == pytest.approx(2 / 3)
    assert score(text, "quality gopher", "stop_words") == 3
    assert score(text, "quality gopher", "words_with_letter") == pytest.approx(6 / 11)


def test_gopher_repetition() -> None:
    line = "repetition gopher"
    assert why(ENGLISH, line) is None
    assert why("Only one short sentence.", line) is None
    assert why("a\n\n\n\n\nb\n\n\n\n\nc", line) is None
    assert why("\n".join([ENGLISH] * 3), line) == "repeated lines"
    assert why("\n\n".join(["one line\nmore of it", "two", "one line\nmore of it"]), line) is not None
    assert score("x\nx\ny\nz", line, "repeated_lines") == 0.25
    assert score("ab\nab\nabcd", line, "repeated_line_characters") == 0.25
    # "a b" three times of seven words; the longer of equally frequent n-grams counts
    assert score("a b x a b y a b", line, "top_2") == pytest.approx(6 / 8)
    assert score("aa bb aa bb c d c d", line, "top_2") == pytest.approx(8 / 12)
    assert score("a b c", line, "top_2") == 0
    # words 6 to 10 repeat 1 to 5; overlapping 5-grams count once
    assert score("a b c d e a b c d e", line, "repeated_5") == pytest.approx(0.5)
    assert score("a b c d e f a b c d e f", line, "repeated_5") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Mail John.Doe+x@Example.COM, please.", "Mail <email>, please."),
        ("clone git@github.com:owner/name.git now", None),
        ("x@y and a@b.c and @decorator", None),
        ("server 8.8.8.8 answers", "server <ip> answers"),
        ("at 8.8.8.8:53.", "at <ip>:53."),
        ("version 8.8.8.8 is out, v8.8.4.4 too, pkg==8.8.8.8", None),
        ("local 192.168.0.1, 127.0.0.1, 10.0.0.3, 999.8.8.8, 1.2.3.4.5", None),
        ("dns 2606:4700:4700::1111 there", "dns <ip> there"),
        ("at 12:30:45 or std::vector or a::b", None),
        ("card 4111 1111 1111 1111 ok", "card <card> ok"),
        ("card 4111-1111-1111-1111 ok", "card <card> ok"),
        ("number 4111 1111 1111 1112 no", None),
        ("zeros 4000000000000000000000000", None),
        ("mail a1@b.org from 8.8.4.4 with 5500005555555559", "mail <email> from <ip> with <card>"),
    ],
)
def test_personal_data(text: str, wanted: str | None) -> None:
    assert edited(text, "pii mask") == (wanted or text)
    assert (why(text, "pii drop") is None) == (wanted is None)
    assert edited(edited(text, "pii mask"), "pii mask") == (wanted or text)


def test_long_texts_of_odd_characters_take_no_long_time() -> None:
    odd = ["a" * 200_000, "a@" * 100_000, "1" * 200_000, "1." * 100_000, "a:" * 100_000, "a.b" * 60_000 + "@",
           "a" + " " * 200_000 + "b", "<a" * 100_000, "`\n" * 100_000, "#\t" * 100_000, "```\n" * 50_000]  # fmt: skip
    for text in odd:
        started = time.process_time()
        assert edited(text, "pii mask") == text
        assert edited(text, "normalize").strip() == text.strip().replace("\t\n", "\n")
        for line in ("quality gopher", "repetition gopher", "language en"):
            why(text, line)
        assert time.process_time() - started < 10


def shorten(text: str) -> str | None:
    return None if "bad" in text else text[:4]


def test_a_function_of_the_notebook(tmp_path: Path) -> None:
    texts = ["good one", "bad one", "    then nothing"]
    corpus = cleaned(tmp_path, texts, "python shorten", functions={"shorten": shorten})
    assert list(corpus.texts()) == ["good"]
    assert [(one.text, one.reason) for one in corpus.dropped("python")] == [
        ("bad one", "shorten returned None"),
        ("    then nothing", "empty"),
    ]


def test_a_changed_function_is_another_cleaning(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}

    def define(source: str) -> None:
        exec(source, namespace)

    def run() -> Corpus:
        return cleaned(tmp_path, ["a text"], "python f", functions=namespace, name="c", overwrite=True)

    define("LIMIT = 3\ndef cut(t): return t[:LIMIT]\ndef f(t): return cut(t)")
    assert list(run().texts()) == ["a t"]
    assert run().reused
    define("LIMIT = 4")
    assert list(run().texts()) == ["a te"]
    define("def cut(t): return t[-LIMIT:]")
    assert list(run().texts()) == ["text"]
    define("def f(t, upper=True): return cut(t).upper() if upper else t")
    assert list(run().texts()) == ["TEXT"]
    define("def f(t, upper=False): return cut(t).upper() if upper else t")
    assert list(run().texts()) == ["a text"]


def test_a_function_that_fails_names_the_document(tmp_path: Path) -> None:
    def f(text: str) -> str:
        return text if text != "b" else text[5]

    with pytest.raises(DataError, match="python f failed on document texts:2: IndexError: string index out of range"):
        cleaned(tmp_path, ["a", "b"], "python f", functions={"f": f})
    with pytest.raises(UsageError, match="returned a int for document texts:1"):
        cleaned(tmp_path, ["a"], "python g", functions={"g": len})
    assert not list((tmp_path / ".nbllm").glob("corpora/*"))


@pytest.mark.parametrize(
    "line", ["normalize", "length min=0", "language en", "quality gopher", "repetition gopher", "pii mask", "pii drop",
             "dedup exact", "dedup minhash", "dedup paragraph"]
)  # fmt: skip
def test_an_empty_document_is_dropped_as_empty_by_every_rule(tmp_path: Path, line: str) -> None:
    corpus = cleaned(tmp_path, ["", " \n\t", ENGLISH, "\u3000"], line)
    assert list(corpus.texts()) == [ENGLISH]
    assert [(row.stage, row.reason, row.documents) for row in corpus.report.rows] == [("read", "empty", 3)]
