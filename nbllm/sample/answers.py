"""Files of many prompts, and the file of their answers, which grows as they come and is taken up again after a stop.

Prompts: `.jsonl`, one object a line with `prompt` (or `text`, or a conversation as `messages`) and, where one likes, an
`id`; anything else is text with one prompt a line. Answers: one JSON object a line, in the order in which they were
finished, flushed one by one; beside them `NAME.meta.json` says which model and settings they were made with. Knows
neither models nor tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from nbllm.errors import DataError, NotFoundError, StoreError, UsageError

Prompt = str | list[Any]
"""Text, token ids or a conversation."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One prompt of many."""

    index: int
    """Its place among the prompts, from 0."""
    id: str | int
    """What the file calls it; its index where it says nothing."""
    prompt: Prompt
    """Text, token ids, or a conversation as `messages`; the line as it stands where it can't be read."""
    error: str | None = None
    """Why the line can't be read."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of one sample of one prompt: a line of the file of answers."""

    index: int
    """The prompt's place, from 0."""
    id: str | int
    """What the file calls the prompt."""
    sample: int = 0
    """Which of the prompt's samples, from 0."""
    prompt: Prompt
    """As it was given."""
    text: str = ""
    """The new text."""
    tokens: tuple[int, ...] = ()
    """Every token that was chosen, with the one that ended the text."""
    stop_reason: str = ""
    """`eos`, `length`, `stop` or `context`; empty where there is an error."""
    error: str | None = None
    """Why there is no text."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Answers:
    """What `generate_many` made; iterating gives the answers in the order of the prompts."""

    path: Path | None
    """The file that holds them; None where they are kept here."""
    kept: tuple[Answer, ...] = field(default=(), repr=False)
    """The answers, where there is no file."""
    prompts: int
    """Prompts in all."""
    done: int
    """Prompts that have all their answers, or failed."""
    failed: int
    """Those of `done` that failed, each with an error in its answer."""
    found: int
    """Those of `done` that were in the file already."""
    tokens: int
    """New tokens, of this call."""
    tokens_per_s: float
    """New tokens a second, prompts' own runs included; 0 where there were none."""
    interrupted: bool
    """Whether it ended before all were done."""
    note: str | None = None
    """Why paged attention wasn't used, where it wasn't."""

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.kept if self.path is None else read_answers(self.path))

    def __str__(self) -> str:
        parts = [f"{self.done:,} of {self.prompts:,} prompts"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.found:
            parts.append(f"{self.found:,} were there")
        if self.tokens:
            parts.append(
                f"{self.tokens:,} tokens · {self.tokens_per_s:.{0 if self.tokens_per_s >= 10 else 1}f} tokens/s"
            )
        if self.path is not None:
            parts.append(str(self.path))
        return " · ".join(parts) + (f"\n{self.note}" if self.note else "")

    __repr__ = __str__


def questions(prompts: Sequence[Any] | str | Path) -> list[Question]:
    """The prompts of a list or a file; a line that can't be read is one with an error, blank lines are left out.

    Raises:
        NotFoundError: there is no such file.
        DataError: it holds no prompt, or isn't UTF-8.
    """
    if not isinstance(prompts, (str, Path)):
        return [Question(index=index, id=index, prompt=prompt) for index, prompt in enumerate(prompts)]
    path = Path(prompts).expanduser()
    if not path.is_file():
        raise NotFoundError(f"There is no file {path}", next="Name a .jsonl or .txt file of prompts")
    try:
        # only \n and \r\n end a line: JSON may hold the others
        lines = [line.removesuffix("\r") for line in path.read_bytes().decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} isn't UTF-8 text: {error.reason} at byte {error.start}") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise DataError(f"{path} holds no prompts")
    as_json = path.suffix.lower() in (".jsonl", ".ndjson")
    return [
        _question(index, number, line) if as_json else Question(index=index, id=index, prompt=line)
        for index, (number, line) in enumerate(numbered)
    ]


def _question(index: int, number: int, line: str) -> Question:
    def bad(why: str, id: str | int = index) -> Question:
        return Question(index=index, id=id, prompt=line, error=f"line {number}: {why}")

    try:
        found = json.loads(line)
    except ValueError as error:
        return bad(f"not valid JSON ({error})")
    if not isinstance(found, dict):
        return bad("not an object with a prompt")
    id = found.get("id", index)
    if not isinstance(id, (str, int)):
        return bad("id is text or a whole number")
    given = [key for key in ("prompt", "text", "messages") if key in found]
    if len(given) != 1:
        return bad("it needs one of prompt, text and messages", id)
    prompt = found[given[0]]
    if given[0] == "messages":
        good = isinstance(prompt, list) and prompt and all(_is_message(one) for one in prompt)
        return Question(index=index, id=id, prompt=prompt) if good else bad("messages have role and content", id)
    if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(type(one) is int for one in prompt)):
        return bad(f"{given[0]} is text or a list of token ids", id)
    return Question(index=index, id=id, prompt=prompt)


def _is_message(one: object) -> bool:
    return isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)


class AnswerFile:
    """The file of answers: opened for more of them, as a context manager.

    Args:
        path: the file; made if it isn't there.
        made_with: model and settings, as JSON.
        overwrite: start anew, whatever is there.

    Raises:
        UsageError: the file is there with other settings, or isn't a file of answers.
        StoreError: another process is writing it.
    """

    def __init__(self, path: str | Path, made_with: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path = Path(path).expanduser()
        self._meta = self.path.with_name(self.path.name + ".meta.json")
        self._made_with: dict[str, Any] = json.loads(json.dumps(made_with))
        self._overwrite = overwrite
        self._file: IO[bytes] | None = None
        self.found: dict[tuple[int, int], Answer] = {}
        """What was there already, by prompt and sample; of two lines for the same the later one."""

    def __enter__(self) -> AnswerFile:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab+")
        try:
            _lock(file, self.path)
            if self._overwrite:
                file.truncate(0)
            if file.seek(0, 2) == 0:
                self._meta.write_text(json.dumps(self._made_with, indent=1, ensure_ascii=False), encoding="utf-8")
            else:
                self._compare()
                _repair(file)
                file.seek(0)
                self.found = {(one.index, one.sample): one for one in _read(file, self.path)}
                file.seek(0, 2)
        except BaseException:
            file.close()
            raise
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, answer: Answer) -> None:
        """Appends a line, and hands it to the system at once."""
        assert self._file is not None
        values = asdict(answer)
        try:
            line = json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # half a surrogate pair in a prompt
            line = json.dumps(values).encode()
        self._file.write(line + b"\n")
        self._file.flush()

    def _compare(self) -> None:
        try:
            before = json.loads(self._meta.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = None
        if not isinstance(before, dict):
            raise UsageError(
                f"{self.path} is there, and {self._meta.name} doesn't say what it was made with",
                next="Name another file, or add --overwrite",
            )
        changed = [key for key in {**before, **self._made_with} if before.get(key) != self._made_with.get(key)]
        if changed:
            first = changed[0]
            was, now = (_shown(settings.get(first)) for settings in (before, self._made_with))
            raise UsageError(
                f"{self.path} was made with another {first} ({was}, not {now})",
                next="Name another file, or add --overwrite",
            )


def read_answers(path: str | Path) -> list[Answer]:
    """The answers of a file in the order of their prompts; a torn last line is left out.

    Raises:
        DataError: a line that isn't an answer.
    """
    path = Path(path).expanduser()
    with path.open("rb") as file:
        found = {(one.index, one.sample): one for one in _read(file, path)}
    return [found[key] for key in sorted(found)]


def _read(file: IO[bytes], path: Path) -> Iterator[Answer]:
    names = {one.name for one in fields(Answer)}
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            return
        try:
            values = json.loads(line)
            values["tokens"] = tuple(values["tokens"])
            yield Answer(**{name: values[name] for name in names})
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"Line {number} of {path} isn't an answer", next="Name another file, or add --overwrite"
            ) from error


def _repair(file: IO[bytes]) -> None:
    """Cuts off a last line that has no end: the process died while it wrote."""
    file.seek(0)
    end = 0
    for line in file:
        end += len(line) if line.endswith(b"\n") else 0
    file.truncate(end)


def _lock(file: IO[bytes], path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise StoreError(f"Another process is writing {path}", next="Wait for it, or name another file") from error


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"
