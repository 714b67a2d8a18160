"""Files that were cut or changed since, clocks that jump, stores that moved or are of another version."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_kit import TEXTS, apart, flip, some, sound
from test_killed_writers import good, ready, session, shards  # noqa: F401 (ready is a fixture)

from nbllm.errors import NotFoundError, RunError, StoreError
from nbllm.sessions import Session
from nbllm.store import Store
from nbllm.train.checkpoint import list_checkpoints, newest

DAMAGE: dict[str, Callable[[Path], None]] = {
    "flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", some(DAMAGE, "flipped"))
def test_a_damaged_corpus_is_found_before_it_is_used(home: Path, damage: str) -> None:
    session().clean(texts=TEXTS[:9], recipe="none", name="spare")
    session().use("docs")
    DAMAGE[damage](max((home / ".nbllm/corpora/docs").rglob("*.arrow"), key=lambda path: path.stat().st_size))
    for use in (lambda: session().train_tokenizer(vocab_size=270, name="t"), shards):
        with pytest.raises(StoreError, match=r"corpus 'docs' isn't what was written.*or use spare"):
            use()
    session().clean(texts=TEXTS, recipe="none", name="docs")
    assert session().train_tokenizer(vocab_size=270, name="t").decode([0]) is not None


@pytest.mark.parametrize("damage", some(DAMAGE, "flipped"))
def test_a_damaged_tokenizer_is_named_when_it_is_loaded(home: Path, damage: str) -> None:
    session().train_tokenizer(vocab_size=270, name="spare")
    session().use("docs")
    DAMAGE[damage](home / ".nbllm/tokenizers/docs/tokenizer.json")
    with pytest.raises(StoreError, match=r"tokenizer 'docs' isn't what was written.*or use spare"):
        session().load_tokenizer("docs")
    assert session().load_tokenizer("spare").name == "spare"


@pytest.mark.parametrize("damage", some(DAMAGE, "flipped"))
def test_damaged_shards_are_made_again(home: Path, damage: str) -> None:
    now = session()
    from nbllm.sessions.starting import new_shards

    made = new_shards(now, now.corpus, now.tokenizer, 0.05)
    assert made.reused
    whole = (made.folder / "train/tokens.bin").read_bytes()
    DAMAGE[damage](made.folder / "train/tokens.bin")
    again = new_shards(session(), now.corpus, now.tokenizer, 0.05)
    assert not again.reused
    assert (again.folder / "train/tokens.bin").read_bytes() == whole


@pytest.mark.parametrize("damage", some(DAMAGE, "flipped"))
def test_of_a_damaged_checkpoint_the_one_before_is_taken(ready: Path, damage: str) -> None:  # noqa: F811
    from test_killed_writers import checkpoint

    checkpoint()
    folder = ready / ".nbllm/runs/old"
    assert newest(folder).step == 20
    DAMAGE[damage](folder / "checkpoints/step-00000020/model.safetensors")
    assert newest(folder).step == 10
    if damage == "flipped":  # the others are seen by their size
        with pytest.raises(StoreError, match=r"step-00000020/model\.safetensors isn't what the run wrote"):
            list_checkpoints(folder)[-1].verify()


@pytest.mark.parametrize("damage", some(["flipped", "cut", "empty"], "flipped"))
@pytest.mark.parametrize("kind", ["corpora", "tokenizers"])
def test_a_damaged_manifest_is_named_and_keeps_nothing_else_back(home: Path, kind: str, damage: str) -> None:
    session().clean(texts=TEXTS[:9], recipe="none", name="spare")
    session().train_tokenizer(vocab_size=270, name="spare", corpus="spare")
    file = home / ".nbllm" / kind / "docs/manifest.json"
    if damage == "flipped":
        file.write_bytes(file.read_bytes().replace(b'"kind"', b'"kinf"'))
    else:
        DAMAGE[damage](file)
    one = {"corpora": "corpus", "tokenizers": "tokenizer"}[kind]
    store = Store(home / ".nbllm")
    assert store.names(one) == ["spare"]
    assert store.damaged(one) == ["docs"]
    with pytest.raises(StoreError, match=r"manifest\.json (is damaged|isn't a manifest of this version)"):
        store.get(one, "docs")
    assert "spare" in str(session().card())
    assert list(session().clean(texts=TEXTS[:3], recipe="none", name="third").texts()) == TEXTS[:3]


@pytest.mark.parametrize("content", [b"", b'{"corpus": "do', b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_session_is_moved_aside(home: Path, content: bytes) -> None:
    file = home / ".nbllm/sessions/default.json"
    file.write_bytes(content)
    with pytest.warns(
        UserWarning, match=r"default\.json was damaged and is now default\.damaged.*%llm_session use NAME"
    ):
        now = session()
    assert now.corpus is None
    now.use("docs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert session().corpus.name == "docs"
    assert (home / ".nbllm/sessions/default.damaged").read_bytes() == content


@pytest.mark.parametrize("jump_s", [-400 * 86_400, 400 * 86_400])
def test_a_clock_that_jumps_takes_no_draft_of_a_living_writer(home: Path, jump_s: float, monkeypatch) -> None:
    store = Store(home / ".nbllm")
    real = time.time
    with store.create("corpus", "slow", parameters={"n": 1}) as draft:
        (draft.folder / "a.txt").write_text("a")
        monkeypatch.setattr(time, "time", lambda: real() + jump_s)
        code, said = apart(lambda: session().clean(texts=TEXTS[:5], recipe="none", name="other"))
        assert (code, said) == (0, "done")
        assert (draft.folder / "a.txt").exists()
    assert {"corpus slow", "corpus other", "corpus docs"} <= set(sound(store))


def test_what_a_killed_writer_left_goes_after_a_day(home: Path) -> None:
    left = home / ".nbllm/corpora" / ("." + "a" * 32)
    left.mkdir()
    session().clean(texts=TEXTS[:5], recipe="none", name="one")
    assert left.exists()
    os.utime(left, (time.time() - 90_000,) * 2)
    session().clean(texts=TEXTS[:6], recipe="none", name="two")
    assert not left.exists()


@pytest.mark.parametrize("shift_s", [-86_400 * 400, 86_400 * 400])
def test_a_heartbeat_of_another_time_kills_no_run(home: Path, shift_s: float) -> None:
    """A run lives as long as its lock is held, whatever the clock says."""
    from nbllm.train import Run, start
    from nbllm.train.config import TrainConfig

    config = TrainConfig(shards="none", store_root=str(home / ".nbllm"), steps=1)
    run = start(Store(home / ".nbllm"), config, name="run", worker=["sh", "-c", "sleep 30"])
    try:
        state = json.loads((run.folder / "state.json").read_text())
        for key in [key for key, value in state.items() if isinstance(value, float)]:
            state[key] += shift_s
        (run.folder / "state.json").write_text(json.dumps(state))
        assert Run(run.store, "run").alive
        assert run.status in ("starting", "running")
    finally:
        with contextlib.suppress(RunError):
            run.stop()
            run.wait()
    assert not run.alive


def test_two_kernels_make_the_same_at_once(home: Path) -> None:
    pids = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                session().clean(texts=TEXTS[:20], recipe="none", name="both")
                session().train_tokenizer(vocab_size=270, name="both")
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    assert {"corpus both", "tokenizer both"} <= set(sound(Store(home / ".nbllm")))
    assert len(Session(Store(home / ".nbllm"), "default").corpus) in (20, 60)


def test_two_kernels_make_two_things_of_one_name(home: Path) -> None:
    store = Store(home / ".nbllm")

    def mine() -> None:
        with store.create("corpus", "one", parameters={"n": 1}) as draft:
            (draft.folder / "a.txt").write_text("mine")
            assert apart(lambda: session().clean(texts=TEXTS[:4], recipe="none", name="one"))[1] == "done"

    with pytest.raises(StoreError, match="A different corpus is already named 'one'"):
        mine()
    assert list(session().clean(texts=TEXTS[:4], recipe="none", name="one").texts()) == TEXTS[:4]


def test_a_store_that_was_moved(home: Path) -> None:
    before = good(home)
    shutil.move(home / ".nbllm", home / "elsewhere")
    moved = Session(Store(home / "elsewhere"), "default")
    assert good_at(home / "elsewhere") == {name: hash for name, hash in before.items() if "checkpoint" not in name}
    assert moved.corpus.name == "docs"
    assert moved.train_tokenizer(vocab_size=270, name="new").manifest.parents[0].name == "docs"


def good_at(root: Path) -> dict[str, str]:
    return sound(Store(root))


@pytest.mark.parametrize("change", ["older", "newer"])
def test_a_manifest_of_another_version(home: Path, change: str) -> None:
    file = home / ".nbllm/corpora/docs/manifest.json"
    fields = json.loads(file.read_text())
    if change == "older":  # what came later has a default
        for key in ("call", "summary", "versions"):
            del fields[key]
        file.write_text(json.dumps(fields))
        assert Store(home / ".nbllm").get("corpus", "docs").summary == {}
        assert list(session().corpus.texts()) == TEXTS
    else:
        file.write_text(json.dumps({**fields, "colour": "blue", "versions": {"nbllm": "9.0"}}))
        with pytest.raises(StoreError, match=r"made by nbllm 9\.0: use that version, or make it again"):
            Store(home / ".nbllm").get("corpus", "docs")
        assert file.exists()


def test_a_session_of_an_older_version_keeps_its_pointers(home: Path) -> None:
    file = home / ".nbllm/sessions/default.json"
    saved = json.loads(file.read_text())
    file.write_text(
        json.dumps({**saved, "sampling": {"temperature": 0.3, "repetition_penalty": 1e9, "old": 1}, "gone": 7})
    )
    now = session()
    assert now.corpus.name == "docs"
    assert now.sampling.temperature == 0.8  # settings that this version refuses are its own defaults again


def test_a_removed_parent_is_named(home: Path) -> None:
    shutil.rmtree(home / ".nbllm/corpora/docs")
    with pytest.raises(NotFoundError, match="There is no corpus yet. Make one with %llm_clean"):
        session().train_tokenizer()
