"""The reference in the repository is what the commands say now."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbllm.commands import COMMANDS, Call
from nbllm.commands.reference import reference
from nbllm.errors import UsageError

FILE = Path(__file__).parents[2] / "REFERENCE.md"


def test_it_is_up_to_date() -> None:
    said = FILE.read_text(encoding="utf-8")
    assert said == reference(COMMANDS.values()), "Write it anew: %llm_help --reference REFERENCE.md --overwrite"


def test_every_magic_and_every_option_is_in_it() -> None:
    text = FILE.read_text(encoding="utf-8")
    for command in COMMANDS.values():
        part = text[text.index(f"{command.name}\n\n```text") :]
        part = part[: part.index("\n```\n")]
        for option in command.all_options:
            if option.key != "action":
                assert option.usage in part, (command.name, option.name)
        assert command.example.splitlines()[0] in part


def test_the_magic_writes_it(tmp_path: Path) -> None:
    said: list[str] = []
    command = COMMANDS["llm_help"]
    for line in ("--reference all.md", "--reference all.md --overwrite"):
        command.run(Call(session=None, arguments=command.parse(line), say=said.append))  # type: ignore[arg-type]
    assert said == ["Written to all.md."] * 2
    assert Path("all.md").read_text(encoding="utf-8") == reference(COMMANDS.values())
    with pytest.raises(UsageError, match=r"all\.md is there already"):
        command.run(Call(session=None, arguments=command.parse("--reference all.md"), say=said.append))  # type: ignore[arg-type]
