"""Coloured tokens: what the steps mean, that letters can be read on them, and that nothing of the data is HTML."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest

from nbllm.sample.coloured import BACKGROUNDS, LETTERS, Coloured, ColouredToken
from nbllm.tokenizer import Tokenizer


def token(text: str, probability: float | None = 0.5, rank: int = 1, entropy: float = 1.0) -> ColouredToken:
    return ColouredToken(
        id=7, text=text, probability=probability, rank=rank, entropy=entropy,
        alternatives=(("␣best", 0.5), ('<b>"&', 0.25)),
    )  # fmt: skip


def coloured(*texts: str, colour: str = "probability") -> Coloured:
    return Coloured(texts=(tuple(map(token, texts)),), colour=colour, heading="<i>heading</i>")


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("background", "letters"), list(zip(BACKGROUNDS, LETTERS, strict=True)))
def test_letters_can_be_read_on_every_colour(background: str, letters: str) -> None:
    def contrast(one: str, other: str) -> float:
        low, high = sorted([luminance(one), luminance(other)])
        return (high + 0.05) / (low + 0.05)

    assert contrast(background, letters) >= 4.5
    assert contrast(background, letters) == max(contrast(background, "#000"), contrast(background, "#fff"))
    assert f"{{background:{background};color:{letters}}}" in coloured("a")._repr_html_()


def test_steps_of_the_scales() -> None:
    chances = [token("a", probability).level("probability") for probability in (0.0, 0.124, 0.125, 0.5, 0.874, 0.9, 1)]
    assert chances == [0, 0, 1, 4, 6, 7, 7]
    ranks = [token("a", rank=rank).level("rank") for rank in (1, 2, 3, 4, 5, 8, 32, 33, 64, 65, 10**6)]
    assert ranks == [7, 6, 5, 5, 4, 4, 2, 1, 1, 0, 0]
    entropies = [token("a", entropy=entropy).level("entropy") for entropy in (0, 0.74, 0.75, 1.5, 5.2, 5.25, 11)]
    assert entropies == [7, 7, 6, 5, 1, 0, 0]
    assert token("a", None).level("probability") is None


class Parsed(HTMLParser):
    """Tags, titles and text of a page."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.titles: list[str] = []
        self.names: set[str] = set()
        self.said = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.titles += [value or "" for name, value in attrs if name == "title"]

    def handle_data(self, data: str) -> None:
        self.said += data


def test_nothing_of_the_data_is_html() -> None:
    hostile = ["<script>alert(1)</script>", '" onmouseover="x', "&lt;", "<F0><9F>", '<99><82>"<b>', "</style>"]
    page = Parsed(coloured(*hostile)._repr_html_())
    assert page.tags == {
        "div", "style", "span", "i", "details", "summary", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert page.names == {"class", "title", "aria-hidden", "scope"}
    for text in ("<script>alert(1)</script>", '" onmouseover="x', "&lt;", '<99><82>"<b>', "</style>", "<i>heading</i>"):
        assert text in page.said
    assert '0.25  <b>"&' in page.titles[0]


def test_a_title_tells_the_numbers_and_the_alternatives() -> None:
    assert token("␣item", 0.00123, 1234, 2.5).title.splitlines() == [
        "␣item · id 7",
        "probability 0.00123 · rank 1,234 · entropy 2.50 nats",
        "0.5  ␣best",
        '0.25  <b>"&',
    ]
    assert token("␣item", None).title.splitlines() == ["␣item · id 7", "given, not predicted"]


def test_characters_over_several_tokens_are_shown_whole(tokenizer: Tokenizer) -> None:
    texts = [tokenizer.token_text(id) for id in tokenizer.encode("a🙂é🚀")]
    assert "<F0><9F>" in texts
    page = coloured(*texts)._repr_html_()
    assert re.findall(r'class="nb-c">([^<]*)<', page) == ["🙂", "🚀"]
    assert "🙂 in 3 tokens" in page
    assert "{🙂: <F0><9F>⁴│<99>⁴│<82>⁴}" in str(coloured(*texts))


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        (["x<F0>", "<9F>", "<99><82>", "y"], ["x🙂"]),
        (["<E2><82>", "<AC><E2>", "<82><AC>z", "<AC>"], ["€€z"]),
        (["<F0><9F>", "x", "<99><82>"], []),
        (["<F0>", "<9F>"], []),
        (["<82>", "<C3>", "<A9>"], ["é"]),
        (["<C3>", "<C3>", "<A9>"], ["é"]),
        (["<F0", "><9F>"], []),
    ],
)
def test_only_whole_characters_join_tokens(texts: list[str], whole: list[str]) -> None:
    page = coloured(*texts)._repr_html_()
    assert re.findall(r'class="nb-c">([^<]*)<', page) == whole
    shown = [html.unescape(text) for text in re.findall(r'class="nb-t[^>]*>([^<]*)</span>', page)]
    assert shown == texts


def test_a_mark_alone_gets_something_to_sit_on() -> None:
    page = Parsed(coloured("e", "\u0301", "↵", "⇥␣")._repr_html_())
    assert "e◌\u0301↵⇥␣" in page.said
    assert "br" in page.tags
    assert "e⁴│◌\u0301⁴│↵⁴│⇥␣⁴" in str(coloured("e", "\u0301", "↵", "⇥␣"))


def test_a_mark_over_several_tokens_gets_it_too() -> None:
    assert re.findall(r'class="nb-c">([^<]*)<', coloured("e", "<CC>", "<81>")._repr_html_()) == ["◌\u0301"]
    assert "{◌\u0301: <CC>⁴│<81>⁴}" in str(coloured("e", "<CC>", "<81>"))


def test_the_least_expected_stand_in_a_table() -> None:
    tokens = tuple(token(f"t{i}", 1 / (i + 2)) for i in range(30))
    found = Coloured(texts=(tokens[:20], tokens[20:]), colour="entropy", heading="two")
    assert [(text, place) for text, place, _ in found.least_expected[:3]] == [(1, 9), (1, 8), (1, 7)]
    lines = str(found).splitlines()
    assert lines[4].split() == ["sample", "place", "token", "probability", "rank", "expected", "instead"]
    assert lines[5].split() == ["2", "9", "t29", "0.0323", "1", "␣best", "0.5"]
    page = Parsed(found._repr_html_())
    assert "least expected tokens" in page.said
    assert "sample 2 of 2" in page.said
    assert "entropy: ⁰ over 5 nats … ⁷ 0" in str(found)


def test_very_many_tokens_stay_small() -> None:
    page = coloured(*(["␣word"] * 5000))._repr_html_()
    assert "… and 4,000 more tokens" in page
    assert len(page) < 300_000


def test_no_tokens() -> None:
    empty = Coloured(texts=((),), colour="rank", heading="nothing")
    assert str(empty).splitlines()[0] == "nothing"
    assert "<table" not in empty._repr_html_()
