"""A session as one file: what was current there is current here, and a file that isn't what it says changes nothing."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nbllm
from nbllm.errors import DataError, NbllmError, NotFoundError, StoreError, UsageError
from nbllm.files import hash_files
from nbllm.sessions import Session
from nbllm.store import Store
from nbllm.train import TrainConfig


@pytest.fixture
def session(tmp_path: Path) -> Session:
    made = Session(Store(tmp_path / "there" / ".nbllm"), "mine")
    made.clean(
        texts=[f"The quick brown fox number {number} jumps." for number in range(60)], recipe="none", name="docs"
    )
    made.train_tokenizer(vocab_size=300, name="bpe")
    made.sampling = {"temperature": 0.25}
    return made


@pytest.fixture
def other(tmp_path: Path) -> Session:
    return Session(Store(tmp_path / "here" / ".nbllm"), "theirs")


def rewritten(file: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> Path:
    """A copy of an archive whose index and members were changed."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    index = json.loads(members.pop("index.json"))
    change(index, members)
    with zipfile.ZipFile(changed := file.with_name("changed.zip"), "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr("index.json", json.dumps(index))
    return changed


def test_what_was_current_there_is_current_here(session: Session, other: Session, tmp_path: Path) -> None:
    packed = session.pack(tmp_path / "session.zip")
    assert [(item.kind, item.name) for item in packed] == [("corpus", "docs"), ("tokenizer", "bpe")]
    result = other.unpack(tmp_path / "session.zip")
    assert [item.name for item in result.added] == ["docs", "bpe"]
    assert (other.corpus.name, other.tokenizer.name, other.sampling.temperature) == ("docs", "bpe", 0.25)
    assert list(other.corpus.texts()) == list(session.corpus.texts())
    for kind, name in (("corpus", "docs"), ("tokenizer", "bpe")):
        folder = other.store.path(kind, name)
        assert hash_files(folder) == other.store.get(kind, name).hash == session.store.get(kind, name).hash
    again = other.unpack(tmp_path / "session.zip")
    assert [item.name for item in again.known] == ["docs", "bpe"]
    assert not again.added
    assert [entry.name for entry in other.store.root.iterdir() if entry.name.startswith(".unpack")] == []


def test_the_script_is_in_it(session: Session, tmp_path: Path) -> None:
    session.pack(tmp_path / "session.zip")
    with zipfile.ZipFile(tmp_path / "session.zip") as archive:
        assert archive.read("rebuild.py").decode() == session.script()


def test_names_in_use_are_refused_and_replaced_on_demand(session: Session, other: Session, tmp_path: Path) -> None:
    session.pack(tmp_path / "session.zip")
    other.clean(texts=["Something else altogether, and long enough."] * 2, recipe="none", name="docs")
    before = other.store.get("corpus", "docs").hash
    with pytest.raises(StoreError, match=r"corpus docs.*--overwrite"):
        other.unpack(tmp_path / "session.zip")
    assert other.store.get("corpus", "docs").hash == before
    assert other.tokenizer is None
    other.unpack(tmp_path / "session.zip", overwrite=True)
    assert other.store.get("corpus", "docs").hash == session.corpus.manifest.hash


def test_nothing_to_pack_and_no_such_file(session: Session, other: Session, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="%llm_clean"):
        other.pack(tmp_path / "empty.zip")
    with pytest.raises(NotFoundError, match="There is no file"):
        other.unpack(tmp_path / "empty.zip")
    session.pack(tmp_path / "session.zip")
    with pytest.raises(UsageError, match="--overwrite"):
        session.pack(tmp_path / "session.zip")


def _traversal(index: dict[str, Any], members: dict[str, bytes]) -> None:
    name = "corpora/docs/../../../escaped"
    index["files"][name], members[name] = {"bytes": 1, "sha256": "x"}, b"x"


def _absolute(index: dict[str, Any], members: dict[str, bytes]) -> None:
    index["files"]["/corpora/docs/x"], members["/corpora/docs/x"] = {"bytes": 1, "sha256": "x"}, b"x"


def _backslash(index: dict[str, Any], members: dict[str, bytes]) -> None:
    index["files"]["corpora/docs/..\\x"], members["corpora/docs/..\\x"] = {"bytes": 1, "sha256": "x"}, b"x"


def _hidden(index: dict[str, Any], members: dict[str, bytes]) -> None:
    index["files"]["corpora/docs/.x"], members["corpora/docs/.x"] = {"bytes": 1, "sha256": "x"}, b"x"


def _unnamed_member(index: dict[str, Any], members: dict[str, bytes]) -> None:
    members["corpora/docs/more"] = b"x"


def _lacking_member(index: dict[str, Any], members: dict[str, bytes]) -> None:
    members.pop(next(name for name in members if name.startswith("corpora/")))


def _flipped(index: dict[str, Any], members: dict[str, bytes]) -> None:
    name = next(name for name in members if name.endswith((".arrow", ".parquet")))
    members[name] = bytes([members[name][0] ^ 1]) + members[name][1:]


def _bomb(index: dict[str, Any], members: dict[str, bytes]) -> None:
    name = next(name for name in members if name.startswith("corpora/"))
    members[name] = b"\0" * 50_000_000


def _greedy(index: dict[str, Any], members: dict[str, bytes]) -> None:
    index["files"][next(name for name in members if name.startswith("corpora/"))]["bytes"] = 10**18


def _other_kind(index: dict[str, Any], members: dict[str, bytes]) -> None:
    index["artefacts"][0]["kind"] = "sessions"


def _not_an_index(index: dict[str, Any], members: dict[str, bytes]) -> None:
    index["files"] = ["corpora/docs/x"]


@pytest.mark.parametrize(
    "change",
    [_traversal, _absolute, _backslash, _hidden, _unnamed_member, _lacking_member, _flipped, _bomb, _greedy,
     _other_kind, _not_an_index],
)  # fmt: skip
def test_a_file_that_is_not_what_it_says_changes_nothing(
    session: Session, other: Session, tmp_path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]
) -> None:
    session.pack(tmp_path / "session.zip")
    with pytest.raises((DataError, StoreError)) as caught:
        other.unpack(rewritten(tmp_path / "session.zip", change))
    assert "\n" not in str(caught.value)
    assert [name for kind in ("corpus", "tokenizer") for name in other.store.names(kind)] == []
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name != "there") == [
        "changed.zip", "here", "session.zip",
    ]  # fmt: skip
    assert not [entry for entry in other.store.root.iterdir() if entry.name.startswith(".unpack")]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", b"\x80\x04N."], ids=["empty", "torn", "pickle"])
def test_no_archive_at_all(other: Session, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(DataError, match="isn't an archive"):
        other.unpack(tmp_path / "x.zip")


def test_a_truncated_archive(session: Session, other: Session, tmp_path: Path) -> None:
    session.pack(tmp_path / "session.zip")
    whole = (tmp_path / "session.zip").read_bytes()
    for share in (0.2, 0.6, 0.99):
        (tmp_path / "cut.zip").write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(NbllmError):
            other.unpack(tmp_path / "cut.zip")
    assert other.store.names("corpus") == []


def test_an_archive_points_to_nothing_outside_the_store(session: Session, other: Session, tmp_path: Path) -> None:
    def point_outside(index: dict[str, Any], members: dict[str, bytes]) -> None:
        index["session"]["model"] = {"kind": "folder", "source": "/etc"}
        index["session"]["adapter"] = "/etc"
        index["session"]["run"] = "../../x"

    session.pack(tmp_path / "session.zip")
    other.unpack(rewritten(tmp_path / "session.zip", point_outside))
    assert (other.model, other.adapter, other.run) == (None, None, None)


def test_a_config_follows_its_store(tmp_path: Path) -> None:
    old, new = tmp_path / "old" / ".nbllm", tmp_path / "new" / ".nbllm"
    inside = TrainConfig(
        shards="s", store_root=str(old), model=str(old / "runs" / "a" / "checkpoints" / "step-00000004")
    )
    moved = inside.moved_to(new)
    assert moved.store_root == str(new)
    assert moved.model == str(new / "runs" / "a" / "checkpoints" / "step-00000004")
    outside = TrainConfig(shards="s", store_root=str(old), model="/models/llama").moved_to(new)
    assert (outside.model, outside.store_root) == ("/models/llama", str(new))
    assert inside.moved_to(old) is inside


def test_unused_shards_are_collected_and_what_was_made_by_hand_stays(session: Session) -> None:
    from nbllm.sessions.starting import new_shards

    new_shards(session, session.corpus, session.tokenizer, 0.05)
    assert [item.kind for item in session.gc()] == ["shards"]
    assert session.gc() == []
    assert session.store.names("corpus") == ["docs"]


def test_everything_is_removed_only_with_yes(session: Session) -> None:
    with pytest.raises(StoreError, match=r"1 corpus, 1 tokenizer.*rm --all --yes"):
        session.rm(all=True)
    assert {item.kind for item in session.rm(all=True, yes=True)} == {"corpus", "tokenizer"}
    assert (session.corpus, session.tokenizer) == (None, None)


def test_a_moved_store_is_found_again(session: Session, tmp_path: Path) -> None:
    shutil.move(session.store.root, tmp_path / "moved")
    found = Session(Store(tmp_path / "moved"), "mine")
    assert (found.corpus.name, len(found.corpus)) == ("docs", 60)


def test_another_session_is_opened_for_the_whole_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nbllm.__main__ import main
    from nbllm.sessions import current

    monkeypatch.setattr(current, "_opened", {})
    nbllm.session().sampling = {"temperature": 0.5}
    assert main(["session", "open", "second"]) == 0
    assert nbllm.session().name == "second"
    nbllm.session().sampling = {"temperature": 0.1}
    assert main(["session", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["second  (open)", "default"]
    assert main(["session", "open", "../x"]) == 1
    assert nbllm.session().name == "second"
