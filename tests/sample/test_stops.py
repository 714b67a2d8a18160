"""A stop text ends a text wherever the pieces are cut, and no part of it comes out."""

from __future__ import annotations

import itertools

import pytest

from nbllm.sample.stops import StopTexts


def cuts(text: str) -> list[list[str]]:
    """Every way to cut a text into pieces."""
    places = range(1, len(text))
    found = []
    for count in range(len(text)):
        for chosen in itertools.combinations(places, count):
            borders = [0, *chosen, len(text)]
            found.append([text[a:b] for a, b in itertools.pairwise(borders)])
    return found


@pytest.mark.parametrize(
    ("text", "stops", "wanted", "found"),
    [
        ("one\n\ntwo", ["\n\n"], "one", "\n\n"),
        ("abcabd", ["abd"], "abc", "abd"),
        ("aaab", ["aab"], "a", "aab"),
        ("xabcx", ["abc", "b"], "xa", "b"),  # complete first
        ("xabcx", ["abc", "bc"], "x", "abc"),  # complete together: the longest
        ("almost EN", ["END"], "almost EN", None),
        ("END", ["END"], "", "END"),
        ("é👩‍🚀!", ["🚀"], "é👩\u200d", "🚀"),
        ("plain", [], "plain", None),
    ],
)
def test_cut_anywhere(text: str, stops: list[str], wanted: str, found: str | None) -> None:
    for pieces in cuts(text):
        filter_ = StopTexts(stops)
        out = ""
        for piece in pieces:
            out += filter_.push(piece)
            assert wanted.startswith(out)
        out += filter_.flush()
        assert (out, filter_.found) == (wanted, found)


def test_without_stops_nothing_is_held() -> None:
    assert StopTexts([]).push("a") == "a"


def test_only_what_may_become_a_stop_text_is_held() -> None:
    stops = StopTexts(["END"])
    assert [stops.push(piece) for piece in ("E", "EN", "X", "E")] == ["", "E", "ENX", ""]
    assert stops.flush() == "E"
