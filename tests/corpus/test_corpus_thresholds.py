"""A threshold moves over stored scores: the same decisions as a new cleaning takes, with examples of what changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbllm.corpus import Corpus, clean
from nbllm.errors import UsageError
from nbllm.store import Store


def corpus(tmp_path: Path, *stages: str, name: str = "c") -> Corpus:
    texts = [f"The {index} words that have {'x' * index} to be said of it.\nAnd more." for index in range(60)]
    return clean(Store(tmp_path / ".nbllm"), texts=[*texts, ""], stages=list(stages), name=name)


def test_moving_a_threshold_is_cleaning_again(tmp_path: Path) -> None:
    made = corpus(tmp_path, "length min=60", "quality gopher min_words=2", "dedup exact")
    found = made.would_drop("length", min=80, max=100)
    again = corpus(tmp_path, "length min=80 max=100", name="again").report.stages[1]
    assert (found.documents, found.bytes) == (again.dropped.documents, again.dropped.bytes)
    assert found.reasons == {reason: amount.documents for reason, amount in again.reasons.items()}
    before = made.report.stages[1].dropped
    assert (found.documents_before, found.bytes_before) == (before.documents, before.bytes)
    assert found.came_in == 60
    assert found.line == "length min=80 max=100"
    assert len(found.now_dropped) == 3
    assert found.now_dropped[0].reason == "would go: too short"
    assert 60 <= len(found.now_dropped[0].text) < 80
    assert len(found.now_kept) == 0
    looser = made.would_drop("length", min=0, n=100)
    assert looser.documents == 0
    assert len(looser.now_kept) == before.documents
    assert looser.now_kept[0].reason == "would stay: too short"
    assert "would drop 0 of 60 documents" in repr(looser)
    stops = made.would_drop("quality gopher", min_stop_words=9)
    assert stops.documents == stops.came_in
    assert stops.now_dropped[0].scores == {"stop_words": 7}


def test_what_can_not_move(tmp_path: Path) -> None:
    made = corpus(tmp_path, "length min=1", "dedup exact")
    with pytest.raises(UsageError, match="length has no threshold 'mim'. Did you mean min"):
        made.would_drop("length", mim=3)
    with pytest.raises(UsageError, match="dedup exact has no threshold that can move"):
        made.would_drop("dedup exact")
    with pytest.raises(UsageError, match="max is smaller than min"):
        made.would_drop("length", min=30, max=3)
    with pytest.raises(UsageError, match="without a stage 'lenght'"):
        made.would_drop("lenght", min=3)
