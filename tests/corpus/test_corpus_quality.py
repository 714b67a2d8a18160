"""C4's and FineWeb's rules, thresholds by script, and decisions as datatrove takes them."""

from __future__ import annotations

from typing import Any

import pytest

from nbllm.corpus import parse_stages
from nbllm.corpus.documents import batches
from nbllm.corpus.spacy_words import cut


def measured(text: str, line: str) -> tuple[dict[str, Any], str, str | None]:
    """Scores, edited text, and the reason to drop."""
    (stage,) = parse_stages([line])
    (batch,) = batches([("before.", "0", "s"), (text, "id", "s"), ("after\n\nit", "2", "s")])
    outcome = stage.measure(batch)
    texts = outcome.texts if outcome.texts is not None else batch["text"]
    return outcome.scores.to_pylist()[1], texts[1].as_py(), stage.decide(outcome.scores)[1].as_py()


PAGE = "The first line of this page is fine.\nIs the second line one that stays? It is!\n"


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("This line ends as a sentence does.", "This line ends as a sentence does."),
        ("  White space at both ends counts for nothing.  ", "White space at both ends counts for nothing."),
        ("This one ends in an ellipsis, alas...", None),
        ("This one has no mark at its end", None),
        ("Only four words here.", None),
        ("This line mentions JavaScript, as many do.", None),
        ("Please read our Privacy Policy before you go on.", None),
        (f"This line holds {'x' * 1001} which is long.", None),
        ("It was so in 1999.[1][citation needed] [edit]", "It was so in 1999."),
        ('He said: "that is all there is"', 'He said: "that is all there is"'),
        ("这是一个很好的句子。", "这是一个很好的句子。"),
    ],
)
def test_c4_lines(line: str, stays: str | None) -> None:
    scores, text, reason = measured(PAGE + line, "quality c4")
    assert text == PAGE + stays if stays else text == PAGE.rstrip()
    assert reason is None
    assert scores["lines"] == 3
    assert scores["lines_kept"] == 2 + (stays is not None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PAGE, None),
        ("Only one sentence on this whole page.", "too few sentences"),
        (PAGE + "Lorem Ipsum dolor sit amet", "lorem ipsum"),
        (PAGE + "function f() {", "curly bracket"),
        (PAGE * 2600, "too long"),
        (PAGE.replace("\n", "\r\n"), None),
        (PAGE.replace("\n", "\u2028"), None),
    ],
)
def test_c4_pages(text: str, reason: str | None) -> None:
    assert measured(text, "quality c4")[2] == reason


def test_c4_thresholds_move_and_causes_are_counted() -> None:
    text = PAGE + "too short.\nno mark at the end of this line\nthe javascript line stands here."
    scores, _, _ = measured(text, "quality c4")
    assert {name: scores[name] for name in ("no_end_mark", "few_words", "javascript", "policy", "long_words")} == {
        "no_end_mark": 1, "few_words": 1, "javascript": 1, "policy": 0, "long_words": 0,
    }  # fmt: skip
    assert scores["sentences"] == 3
    assert measured(text, "quality c4 min_words=2")[1].endswith("too short.")
    assert measured(text, "quality c4 min_sentences=4")[2] == "too few sentences"
    assert "no mark at the end" in measured(text, "quality c4 end_mark=no")[1]


def test_fineweb_scores() -> None:
    long = "this is a line that has more than thirty characters"
    scores, _, _ = measured(f"{long}.\n\n{long}  \n{long}\nshort!", "quality fineweb")
    assert scores["end_punctuation"] == 0.5
    assert scores["short_lines"] == 0.25
    assert scores["repeated_characters"] == pytest.approx(51 / (52 + 51 + 51 + 6))
    assert scores["list"] == pytest.approx(4 / 31)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A long line that says something and ends well.\n" * 1 + "And another long line that ends well, too.", None),
        ("no line here ends in the way that a sentence would\nand this long line does not do so either",
         "lines without end punctuation"),
        ("Short.\nVery short.\nShorter.", "short lines"),
        ("A long line that says something and ends well.\n" * 3, "characters in repeated lines"),
        ("\n".join(f"a-rather-long-line-{word}-without-spaces-in-it." for word in "abc"), "a list: few words a line"),
    ],
)  # fmt: skip
def test_fineweb_rules(text: str, wanted: str | None) -> None:
    assert measured(text, "quality fineweb")[2] == wanted
    assert measured(text.replace("\n", "  \r\n") + "\n\n", "quality fineweb")[2] == wanted


def test_chinese_has_thresholds_of_its_own() -> None:
    # four of five "words" hold a letter at 0.8; Chinese needs 0.735
    text = "漢字漢" * 20 + "1" * 0 + " 12" * 19
    scores, _, reason = measured(text, "quality gopher")
    assert scores["script"] == "zh"
    assert scores["words_with_letter"] == pytest.approx(60 / 79)
    assert reason is None
    assert measured(text, "quality gopher by_script=no")[2] == "too few words with a letter"
    assert measured("これはにほんごのぶんしょうです漢字。" * 3, "quality gopher")[0]["script"] == "ja"
    assert measured("สวัสดีครับ" * 9, "quality gopher")[0]["script"] == "unspaced"


def test_a_threshold_of_repetition_is_an_argument() -> None:
    text = "one line\nanother\none line\na third of them"
    assert measured(text, "repetition gopher top_2=1 top_3=1 top_4=1")[2] == "characters in repeated lines"
    loose = "repetition gopher top_2=1 top_3=1 top_4=1 repeated_line_characters=0.3"
    assert measured(text, loose)[2] is None


@pytest.mark.parametrize(
    ("piece", "wanted"),
    [
        ("word", ["word"]),
        ("(don't!)", ["(", "do", "n't", "!", ")"]),
        ("John's", ["John", "'s"]),
        ("well-known", ["well", "-", "known"]),
        ("foo(bar)", ["foo(bar", ")"]),
        ("end...", ["end", "..."]),
        ("e.g.", ["e.g."]),
        ("U.S.", ["U.S."]),
        ("http://a.example.org/x?y=z.", ["http://a.example.org/x?y=z", "."]),
        ("10km", ["10", "km"]),
        ("$5.50,", ["$", "5.50", ","]),
        ("a/b", ["a", "/", "b"]),
        ("_name_", ["_", "name", "_"]),
        ("--flag", ["--flag"]),
        ("end.Start", ["end", ".", "Start"]),
        ("它。", ["它", "。"]),
    ],
)
def test_words_as_spacy_cuts_them(piece: str, wanted: list[str]) -> None:
    assert list(cut(piece)) == wanted


def test_where_datatrove_differs() -> None:
    # its most frequent n-gram counts even once
    assert measured("Only one short sentence.", "repetition gopher")[2] is None
    assert (
        measured("Only one short sentence.", "repetition gopher variant=datatrove")[2] == "one 2-gram again and again"
    )
    # its stop words are case-sensitive, its bullets two
    text = "The cat And the dog"
    assert measured(text, "quality gopher")[0]["stop_words"] == 2
    assert measured(text, "quality gopher variant=datatrove")[0]["stop_words"] == 1
    assert measured("* one\n* two", "quality gopher")[0]["bullet_lines"] == 1
    assert measured("* one\n* two", "quality gopher variant=datatrove")[0]["bullet_lines"] == 0
    # a page needs five sentences there, a line three words
    assert measured(PAGE, "quality c4 variant=datatrove")[2] == "too few sentences"
    assert measured(PAGE + "Three words here.", "quality c4 variant=datatrove")[1] == PAGE + "Three words here."
    # FineWeb keeps a share that equals the threshold
    half = "This is a line that ends without any mark\nThis is a line that ends with a mark, as it should."
    assert measured(half, "quality fineweb end_punctuation=0.5")[2] == "lines without end punctuation"
    assert measured(half, "quality fineweb end_punctuation=0.5 variant=datatrove")[2] is None
