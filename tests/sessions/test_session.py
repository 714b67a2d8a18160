"""The session: observable pointers, found again by a new process, lineage with stale marks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nbllm
from nbllm.errors import NotFoundError, StoreError, UsageError
from nbllm.sessions import Session
from nbllm.sessions.lineage import stale_because
from nbllm.sessions.starting import plain_corpus
from nbllm.store import Store


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(Store(tmp_path / ".nbllm"), "test")


def texts(count: int = 80, word: str = "fox") -> list[str]:
    return [
        f"Document {number} says that the quick brown {word} jumps over dog number {number}." for number in range(count)
    ]


def test_one_session_a_name() -> None:
    assert nbllm.session() is nbllm.session("default")
    assert nbllm.session("other") is not nbllm.session()


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [("NBLLM_SESSION", "mine", "mine"), ("JPY_SESSION_NAME", "/home/me/01-quick start.ipynb", "01-quick start"),
     ("JPY_SESSION_NAME", "console-1", "default")],
)  # fmt: skip
def test_name_comes_from_the_notebook(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, name: str) -> None:
    monkeypatch.setenv(variable, value)
    assert nbllm.session().name == name


def test_pointers_are_observable_and_assignable_by_name(session: Session) -> None:
    seen = []
    session.observe(lambda change: seen.append(change["new"]), "corpus")
    first = session.clean(texts=texts(), recipe="none", name="first")
    second = session.clean(texts=texts(70), recipe="none", name="second")
    session.corpus = "first"
    assert [corpus.name for corpus in seen] == ["first", "second", "first"]
    assert len(first) == 80
    assert len(second) == 70
    with pytest.raises(NotFoundError, match="Did you mean first"):
        session.corpus = "frist"
    assert session.corpus.name == "first"


def test_found_again_by_another_process(session: Session) -> None:
    session.clean(texts=texts(), recipe="none", name="docs")
    session.train_tokenizer(vocab_size=300)
    session.sampling = {"temperature": 0.3, "stop": ("x",)}
    code = (
        "from nbllm.sessions import Session; from nbllm.store import Store; "
        f"s = Session(Store({str(session.store.root)!r}), 'test'); "
        "print(s.corpus.name, s.tokenizer.name, s.sampling.temperature, s.sampling.stop)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["docs", "docs", "0.3", "('x',)"]


def test_two_sessions_do_not_move_each_other(session: Session) -> None:
    other = Session(session.store, "other")
    session.clean(texts=texts(), recipe="none", name="mine")
    other.clean(texts=texts(60), recipe="none", name="theirs")
    assert Session(session.store, "test").corpus.name == "mine"
    assert Session(session.store, "other").corpus.name == "theirs"


def test_tokenizer_of_an_older_corpus_is_stale(session: Session) -> None:
    session.clean(texts=texts(), recipe="none", name="docs")
    tokenizer = session.train_tokenizer(vocab_size=300)
    assert stale_because(session, tokenizer.manifest) is None
    session.clean(texts=texts(90), recipe="none", name="docs", overwrite=True)
    assert stale_because(session, tokenizer.manifest) == "made from an older corpus, docs"
    assert "stale" in str(session.card())
    session.clean(texts=texts(50), recipe="none", name="others")
    assert stale_because(session, tokenizer.manifest) == "made from another corpus, docs"
    again = session.train_tokenizer(vocab_size=300, name="fresh")
    assert stale_because(session, again.manifest) is None


def test_same_cleaning_and_training_are_reused(session: Session) -> None:
    assert not session.clean(texts=texts(), recipe="none", name="docs").reused
    assert session.clean(texts=texts(), recipe="none", name="docs").reused
    assert not session.train_tokenizer(vocab_size=300).reused
    assert session.train_tokenizer(vocab_size=300).reused


def test_tokenizer_does_not_see_the_held_out_part(session: Session) -> None:
    corpus = session.clean(texts=texts(400), recipe="none", name="docs")
    held_out = set(corpus.texts("held-out", 0.2))
    train = set(corpus.texts("train", 0.2))
    assert held_out
    assert not held_out & train
    assert held_out | train == set(corpus.texts())


def test_removing_names_dependants_first(session: Session) -> None:
    session.clean(texts=texts(), recipe="none", name="docs")
    session.train_tokenizer(vocab_size=300, name="bpe")
    with pytest.raises(StoreError, match="tokenizer bpe"):
        session.rm("docs")
    assert [gone.name for gone in session.rm("docs", yes=True)] == ["docs"]
    assert session.corpus is None
    assert session.tokenizer.name == "bpe"


def test_pointer_to_something_removed_elsewhere_is_none(session: Session) -> None:
    corpus = session.clean(texts=texts(), recipe="none", name="docs")
    session.store.remove(corpus.manifest)
    assert Session(session.store, "test").corpus is None


def test_sampling_settings_are_checked(session: Session) -> None:
    with pytest.raises(UsageError, match="Did you mean temperature"):
        session.generate("x", temprature=0.5)
    assert session.sampling_with({"top_k": 5}).top_k == 5


def test_card_does_not_tell_where_the_folder_lies(session: Session, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    session.model = str(tmp_path / "model")
    assert str(tmp_path) not in str(session.card()) + session.card()._repr_html_()


def test_card_escapes_names(session: Session) -> None:
    session.clean(texts=texts(), recipe="none", name="docs")
    assert "docs" in session.card()._repr_html_()
    hostile = Session(session.store, "a b")
    hostile.name = "<script>alert(1)</script>"
    assert "<script>" not in hostile.card()._repr_html_()


def test_unknown_training_option_names_the_nearest(session: Session) -> None:
    session.clean(texts=texts(), recipe="none", name="docs")
    session.train_tokenizer(vocab_size=300)
    with pytest.raises(UsageError, match="Did you mean batch_size"):
        session.train(batchsize=3)


def test_without_inputs_errors_name_the_command(session: Session) -> None:
    for act, command in (
        (lambda: session.train_tokenizer(), "%llm_clean"),
        (lambda: session.train(), "%llm_clean"),
        (lambda: session.generate("x"), "%llm_train"),
        (lambda: session.merge_adapter(), "%llm_finetune"),
        (lambda: session.export("folder"), "%llm_train"),
    ):
        with pytest.raises(NotFoundError, match=command):
            act()


def test_session_stays_callable_whatever_is_imported() -> None:
    import nbllm.sessions.core  # a module named like the function would take its place

    assert nbllm.session() is nbllm.session("default")


def test_text_read_along_the_way_never_replaces_a_corpus(session: Session, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("\n".join(texts(40)))
    made = session.clean(str(tmp_path / "data.txt"), split="line", stages=["length min=20"], name="data")
    first = plain_corpus(session, str(tmp_path / "data.txt"), "data")
    again = plain_corpus(session, str(tmp_path / "data.txt"), "data")
    other = plain_corpus(session, texts(30), "data")
    assert len({made.name, first.name, other.name}) == 3
    assert again.name == first.name
    assert len(session.store.manifests("corpus")) == 3
    assert session.store.get("corpus", "data") == made.manifest
