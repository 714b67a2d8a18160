"""The kernel's half of the cleaning panel, without a browser."""

from __future__ import annotations

import numpy as np
import pytest
from messy_texts import messy

from nbllm.errors import NotFoundError
from nbllm.panels import show_clean
from nbllm.panels.clean import CleanPanel
from nbllm.panels.clean_face import pieces, printable
from nbllm.sessions import Session
from nbllm.store import Store

STAGES = ["length min=80", "repetition gopher", "quality gopher min_words=20", "dedup minhash"]


@pytest.fixture
def session(tmp_path):
    session = Session(Store(tmp_path / ".nbllm"), "test")
    session.clean(texts=messy(), stages=STAGES, name="messy")
    return session


@pytest.fixture
def panel(session, monkeypatch):
    panel = CleanPanel(session)
    panel.messages, panel.faces = [], []
    monkeypatch.setattr(panel, "send", lambda content, buffers=None: panel.messages.append((content, buffers or [])))
    monkeypatch.setattr(panel.face, "_publish", lambda body, text, update: panel.faces.append((body, text)))
    panel.start()
    yield panel
    panel.close()


def ask(panel, **content):
    panel.messages.clear()
    panel._receive(None, content, [])
    return {message["kind"]: (message, buffers) for message, buffers in panel.messages}


def test_a_snapshot_tells_the_report(panel, session):
    found = ask(panel, ask="snapshot", view="v")
    snapshot, _ = found["snapshot"]
    report = session.corpus.report
    assert snapshot["in"][0] == 300
    assert snapshot["out"] == [len(session.corpus), report.went_out.bytes]
    assert [stage["name"] for stage in snapshot["stages"]] == [
        "length", "repetition gopher", "quality gopher", "dedup minhash",
    ]  # fmt: skip
    assert [stage["movable"] for stage in snapshot["stages"]] == [True] * 4
    assert sum(stage["dropped"][0] for stage in snapshot["stages"]) == 300 - len(session.corpus)
    stage, buffers = found["stage"]
    assert stage["number"] == 2, "the one that dropped most begins"
    assert len(stage["handles"]) == 13
    edges, counts = np.frombuffer(buffers[0], "<f8"), np.frombuffer(buffers[1], "<i4")
    assert len(edges) == len(counts) + 1
    assert (np.diff(edges) > 0).all()
    assert counts.sum() == report.stages[2].came_in.documents
    counted, _ = found["counted"]
    assert [counted["documents"], counted["bytes"]] == counted["before"]
    assert counted["documents"] == report.stages[2].dropped.documents


def test_a_moved_threshold_is_what_a_new_cleaning_drops(panel, session):
    found = ask(panel, do="stage", number=1)
    assert [handle["argument"] for handle in found["stage"][0]["handles"]] == ["min", "max"]
    counted, _ = ask(panel, do="move", number=1, handle=0, value=300.2, turn=7)["counted"]
    again = session.clean(texts=messy(), stages=["length min=300"], name="again").report.stages[1].dropped
    session.corpus = type(session.corpus).load(session.store, "messy")
    assert (counted["turn"], counted["documents"], counted["bytes"]) == (7, again.documents, again.bytes)


def test_examples_stand_on_either_side(panel):
    ask(panel, do="stage", number=1)
    found, _ = ask(panel, do="move", number=1, handle=0, value=250, turn=1, rest=True)["examples"]
    assert len(found["dropped"]) == len(found["kept"]) == 3
    assert all(one["value"] < 250 for one in found["dropped"])
    assert all(one["value"] >= 250 for one in found["kept"])
    waiting, _ = ask(panel, do="move", number=1, handle=1, value=400, turn=2, rest=True)["waiting"]
    assert waiting["lines"] == ["length min=250 max=400"]
    waiting, _ = ask(panel, do="move", number=1, handle=1, value=None, turn=3, rest=True)["waiting"]
    assert waiting["lines"] == ["length min=250"]
    assert "smaller than" in ask(panel, do="move", number=1, handle=1, value=3, turn=4)["error"][0]["text"]


def test_overlap_counts_what_rules_share(panel, session):
    found, buffers = ask(panel, do="stage", number=3)["stage"]
    size = len(found["overlap"])
    matrix = np.frombuffer(buffers[-1], "<i4").reshape(size, size + 1)
    scores = session.corpus.scores(3).to_pylist()
    bullets, words = found["overlap"].index("bullet list"), found["overlap"].index("too few words")
    assert matrix[bullets, bullets] == sum(row["bullet_lines"] > 0.9 for row in scores)
    assert matrix[words, bullets] == sum(row["bullet_lines"] > 0.9 and row["words"] < 20 for row in scores)
    assert (matrix[:, :size] == matrix[:, :size].T).all()


def test_dropped_documents_one_by_one_and_kept_by_hand(panel, session):
    ask(panel, do="stage", number=2)
    first, _ = ask(panel, do="document", reason="repeated lines", at=0)["document"]
    total = session.corpus.report.stages[2].reasons["repeated lines"].documents
    assert (first["at"], first["of"], first["keep"]) == (0, total, False)
    assert ["mark", "Buy now, it is the best of all."] in first["pieces"]
    last, _ = ask(panel, do="document", reason="repeated lines", at=10_000)["document"]
    assert last["at"] == total - 1
    waiting, _ = ask(panel, do="keep", id=first["id"], on=True)["waiting"]
    assert (waiting["keep"], waiting["changed"]) == (1, True)
    assert first["id"] not in {document["id"] for document in session.corpus}
    panel.messages.clear()
    panel._receive(None, {"do": "apply"}, [])
    panel.worker.join()
    assert "applied" in [message["kind"] for message, _ in panel.messages]
    assert first["id"] in {document["id"] for document in session.corpus}
    assert session.corpus.manifest.parameters["keep"] == [first["id"]]
    assert list(panel.keep) == [first["id"]], "marks stay"
    assert "nbllm-corpus" in panel.faces[-1][0]
    counted, _ = ask(panel, do="stage", number=2)["counted"]
    assert [counted["documents"], counted["bytes"]] == counted["before"], "moving knows the allow-list"


def test_near_duplicates_show_their_difference(panel, session):
    words = " ".join(f"w{number}" for number in range(60))
    session.clean(texts=[words, f"{words} extra"], stages=["dedup minhash"], name="pairs")
    found, _ = ask(panel, do="stage", number=1)["document"]
    assert found["of"] > 0
    kinds = {kind for kind, _ in found["pieces"]}
    assert kinds & {"kept", "dropped"}
    assert found["like"]


def test_applying_moved_thresholds_makes_the_corpus_again(panel, session):
    ask(panel, do="move", number=1, handle=0, value=200, turn=1, rest=True)
    panel._receive(None, {"do": "apply"}, [])
    panel.worker.join()
    assert session.corpus.lines == ["length min=200", *STAGES[1:]]
    assert session.corpus.name == "messy"
    assert panel.moved == {}


def test_text_from_data_is_never_html(panel, session):
    body, text = panel.faces[0]
    hostile = session.corpus.dropped("repetition gopher", 300)
    assert any("onerror" in example.text for example in hostile)
    assert "<script" not in body
    assert "<img" not in body
    assert "messy" in text
    assert printable("a\u202eb\x1b") == "a<U+202E>b<U+001B>"
    assert pieces("too short", "<b>x</b>") == [["same", "<b>x</b>"]]


def test_without_a_corpus_it_says_what_to_type(tmp_path):
    with pytest.raises(NotFoundError, match="no corpus yet"):
        show_clean(Session(Store(tmp_path / ".nbllm"), "empty"))


def test_a_mix_is_applied_once(tmp_path, monkeypatch):
    session = Session(Store(tmp_path / ".nbllm"), "test")
    session.clean(texts=messy(), stages=["length min=80"], name="messy", mix={"texts": 1}, tokens=10_000)
    panel = CleanPanel(session)
    monkeypatch.setattr(panel, "send", lambda content, buffers=None: None)
    monkeypatch.setattr(panel.face, "_publish", lambda body, text, update: None)
    panel.start()
    panel._receive(None, {"do": "stage", "number": 1}, [])
    panel._receive(None, {"do": "move", "number": 1, "handle": 0, "value": 120, "turn": 1, "rest": True}, [])
    panel._apply()
    panel.worker.join(30)
    assert session.corpus.lines == ["length min=120", "mix texts:1 tokens=10000"]
    panel.close()


def test_outside_jupyter_it_is_text(session, capsys):
    show_clean(session)
    assert "repetition gopher" in capsys.readouterr().out
