"""Fine-tuning through a session: what is planned, refused and replaced. The runs themselves are the worker's tests."""

import pytest

from nbllm.errors import DataError, StoreError, UsageError
from nbllm.model import build
from nbllm.sessions import Session
from nbllm.store import Store

CHATS = [
    {"messages": [{"role": "user", "content": f"Say {n}"}, {"role": "assistant", "content": f"It is {n}."}]}
    for n in range(30)
]


@pytest.fixture
def session(tmp_path):
    session = Session(Store(tmp_path / ".nbllm"), "test")
    session.clean(
        texts=["Say it is now. User: Assistant: " * 3 + str(n) for n in range(50)], recipe="none", name="docs"
    )
    tokenizer = session.train_tokenizer(vocab_size=300)
    model = build(
        "llama-nano", vocab_size=300, max_length=128, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id, seed=1,
    )  # fmt: skip
    model.save_pretrained(tmp_path / "base")
    tokenizer.save(tmp_path / "base")
    session.model = str(tmp_path / "base")
    return session


def test_a_dry_run_shows_what_would_be_learnt_and_starts_nothing(session):
    plan = session.finetune(data=CHATS, dry_run=True, method="dora", seq_len=128, held_out=0.2)
    text, page = str(plan), plan._repr_html_()
    assert plan.train_examples + plan.held_out_examples == 30
    assert plan.format == "chat"
    assert "no chat template" in text
    assert "⟦It␣is" in text
    assert "dora" in text
    assert "q_proj" in text
    assert "<table>" in page
    assert not session.runs()
    whole = session.finetune(data=CHATS, dry_run=True, method="full", seq_len=128)
    assert whole.outline.trainable == whole.outline.total


def test_rows_leave_room_for_virtual_tokens(session):
    assert "prefix" in str(session.finetune(data=CHATS, dry_run=True, method="prefix", virtual_tokens=7))
    with pytest.raises(UsageError, match="virtual"):
        session.finetune(data=CHATS, method="prompt", virtual_tokens=0)


def test_mistakes_are_one_line(session):
    with pytest.raises(DataError, match="--data"):
        session.finetune()
    with pytest.raises(UsageError, match="Did you mean chat"):
        session.finetune(data=CHATS, format="chatt")
    with pytest.raises(UsageError, match="Did you mean lora"):
        session.finetune(data=CHATS, method="lra")
    with pytest.raises(DataError, match="--drop-long"):
        session.finetune(data=CHATS, seq_len=8)


def test_another_configuration_under_the_same_name_asks_or_replaces(session, monkeypatch):
    started = []

    def start(session_, config, *, name, **rest):
        if name in [other for other, _ in started]:
            raise StoreError("taken")
        started.append((name, config.adapter.r))
        raise KeyboardInterrupt

    monkeypatch.setattr("nbllm.sessions.tuning.start_run", start)
    with pytest.raises(KeyboardInterrupt):
        session.finetune(data=CHATS, name="mine", seq_len=128)
    folder = session.store.path("run", "mine")
    folder.mkdir(parents=True)
    monkeypatch.setattr(Store, "names", lambda self, kind: ["mine"] if kind == "run" else [])
    with pytest.raises(StoreError, match="--overwrite"):
        session.finetune(data=["plain text " * 9] * 40, name="mine", r=4, seq_len=128)
    assert started == [("mine", 8)]
