"""Putting an export on the Hugging Face hub: who is logged in is asked before anything is written.

A repository that isn't there yet is made private; whoever wants it public changes that on its page. Knows the hub
through huggingface_hub only.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from nbllm.errors import RunError, UsageError

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LOGIN = "Type hf auth login in a terminal, or set HF_TOKEN to a token that may write"


def repository(name: str) -> str:
    """The repository that a name means, with its owner: whoever is logged in where none is named.

    Raises:
        UsageError: no name of a repository, or nobody is logged in.
        RunError: the hub can't be reached.
    """
    if not _NAME.fullmatch(name):
        raise UsageError("--push takes NAME or OWNER/NAME", received=name)
    from huggingface_hub.errors import LocalTokenNotFoundError

    try:
        user = str(_hub().whoami()["name"])
    except LocalTokenNotFoundError:
        raise UsageError("Nobody is logged in to the hub here", next=_LOGIN) from None
    except Exception as error:  # of the network, of the hub
        raise _failed(error) from error
    return name if "/" in name else f"{user}/{name}"


def push(folder: Path, to: str) -> str:
    """Uploads a folder, and returns the address of its page.

    Args:
        folder: what `export` wrote.
        to: from `repository`.

    Raises:
        RunError: the hub refuses it or can't be reached; the folder stays as it is.
    """
    try:
        hub = _hub()
        hub.create_repo(to, private=True, exist_ok=True)
        hub.upload_folder(repo_id=to, folder_path=str(folder), commit_message="Exported by nbllm")
    except Exception as error:
        raise _failed(error) from error
    return f"https://huggingface.co/{to}"


def _hub() -> Any:
    from huggingface_hub import HfApi

    return HfApi()


def _failed(error: Exception) -> RunError | UsageError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    said = " ".join(str(error).split())[:200]
    if status in (401, 403):
        return UsageError(f"The hub refuses: {said}", next=_LOGIN)
    if status is not None:
        return RunError(f"The hub answers {status}: {said}")
    return RunError(
        f"The hub can't be reached: {type(error).__name__}: {said}",
        next="Check the network and HF_HUB_OFFLINE; leave --push out to write the folder alone",
    )
