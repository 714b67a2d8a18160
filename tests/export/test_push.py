"""Uploading over a hub that only seems to be one: who is asked, what is sent, and what is said when it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import LocalTokenNotFoundError, OfflineModeIsEnabled

from nbllm.errors import RunError, UsageError
from nbllm.export import push
from nbllm.sessions import Session


class Hub:
    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.sent = error, []

    def whoami(self) -> dict[str, str]:
        if self.error is not None:
            raise self.error
        return {"name": "ada"}

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> None:
        self.sent.append((name, private, exist_ok))

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        self.sent.append((repo_id, sorted(path.name for path in Path(folder_path).iterdir())))


def use(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> Hub:
    hub = Hub(error)
    monkeypatch.setattr(push, "_hub", lambda: hub)
    return hub


def test_an_export_is_uploaded(
    tiny_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = use(monkeypatch)
    session = tiny_session(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    found = session.export(tmp_path / "out", push="fox")
    assert hub.sent[0] == ("ada/fox", True, True)
    assert hub.sent[1][0] == "ada/fox"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(hub.sent[1][1])
    assert found.message.endswith("uploaded to https://huggingface.co/ada/fox.")


def test_nothing_is_written_where_nobody_is_logged_in(
    tiny_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, LocalTokenNotFoundError("no token"))
    with pytest.raises(UsageError, match="Nobody is logged in") as caught:
        tiny_session().export(tmp_path / "out", push="fox")
    assert "hf auth login" in str(caught.value.next)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OfflineModeIsEnabled("offline"), RunError, "can't be reached"),
        (ConnectionError("no route"), RunError, "can't be reached: ConnectionError: no route"),
    ],
)
def test_what_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Any, kind: type[Exception], said: str) -> None:
    use(monkeypatch, error)
    with pytest.raises(kind, match=said):
        push.repository("fox")


def test_a_refusal_names_the_login() -> None:
    error: Any = Exception("no right to write")
    error.response = SimpleNamespace(status_code=403)
    assert isinstance(push._failed(error), UsageError)
    with pytest.raises(UsageError, match="OWNER/NAME"):
        push.repository("a/b/c")
