"""`%llm_doctor` as it is typed, over a session with a tiny model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nbllm.commands import Call, find
from nbllm.doctor import Diagnosis
from nbllm.errors import NotFoundError, UsageError
from nbllm.sessions import Session


@pytest.fixture
def session(tiny_session: Callable[..., Session]) -> Session:
    """With a tiny random model as the current one."""
    return tiny_session(max_position_embeddings=16, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def run(session: Session, line: str) -> Diagnosis:
    command = find("llm_doctor")
    found = command.run(Call(session=session, arguments=command.parse(line)))
    assert isinstance(found, Diagnosis)
    return found


def test_the_last_text_or_one_that_is_made_now(session: Session) -> None:
    with pytest.raises(NotFoundError, match="There is no text and no run yet"):
        run(session, "")
    made = session.generate("the fox", max_new_tokens=3)
    assert session.last_generation is made
    assert "ranks and entropy" not in run(session, "").checked
    found = run(session, '"the fox"')
    assert "ranks and entropy" in found.checked
    assert [one.name for one in found if "context" in one.name] == ["the context is full"]
    with pytest.raises(UsageError, match="more than one word"):
        run(session, "the fox")
