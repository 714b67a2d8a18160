"""Tokenizers side by side."""

from __future__ import annotations

import pytest

from nbllm.errors import UsageError
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, compare, train


def test_compare(trained: Tokenizer, store: Store, prose: list[str]) -> None:
    small = train(store, prose, vocab_size=300, name="small")
    small.name = "small <b>"  # no name in the store, but a folder's may be
    texts = {"english": prose[:5], "한국어": ["안녕하세요"]}
    found = compare([small, trained, trained], texts)
    assert found.tokenizers == ["small <b>", "prose", "prose (2)"]
    assert found.parts == ["english", "한국어"]
    rows = {(row[1], row[0]): row for row in found.rows()}
    assert rows["prose", "english"][4] == "fewest"
    few, many = found.reports["prose", "english"].tokens, found.reports["small <b>", "english"].tokens
    assert rows["small <b>", "english"][4] == f"+{many / few - 1:.0%}"
    assert rows["prose", "한국어"][3] == str(len(trained.encode("안녕하세요")))
    assert "<b>" not in found._repr_html_()
    assert len(str(found).splitlines()) == 7 + 3 + 3
    same = trained.vocab_size - 2
    assert found.shared["prose", "prose (2)"] == (same, same)
    assert found.shared["small <b>", "prose"][0] == 298
    assert f"prose and prose (2) share {same:,} tokens, 100% of all that either has" in found.notes()
    assert any(note.startswith("prose, tokens a character against english: 한국어 ") for note in found.notes())
    assert compare([small], "one text").reports["small <b>", "all"].texts == 1
    assert compare([small, trained], []).rows()[0][4] == "fewest"
    with pytest.raises(UsageError, match="no tokenizer to compare"):
        compare([], "text")
