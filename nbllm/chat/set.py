"""Rows as examples: encoded, split into what is trained on and what is held out, the ones without an answer refused.

A row is held out by a hash of what it says, so that it stays held out whatever its place; equal rows go to one side.
Knows tokenizers and shards' examples; no store and no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from nbllm.chat.conversations import FORMATS, Message, Pair, meaning
from nbllm.chat.preview import Preview
from nbllm.chat.records import Record
from nbllm.chat.template import DEFAULT_TEMPLATE, ChatTemplate, with_template
from nbllm.errors import DataError, UsageError, did_you_mean
from nbllm.shards import Example
from nbllm.tokenizer import Tokenizer

_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class ExampleSet:
    """What a fine-tuning reads."""

    train: list[Example]
    """What is trained on."""
    held_out: list[Example]
    """What is never trained on."""
    answers_held_out: list[str]
    """The texts of the held-out answers, for compressors."""
    tokenizer: Tokenizer
    """What encoded them: the model's own, with the default chat template where it had none."""
    format: str
    """One of `FORMATS`."""
    hash: str
    """SHA-256 of the rows' content and of the template, as hex."""
    template: str
    """The chat template that was used; empty where none was."""
    notes: list[str] = field(default_factory=list)
    """What should be known: a template of ours, cut rows, rows left out."""

    @property
    def tokens(self) -> int:
        """Ids of the training part."""
        return sum(len(example.ids) for example in self.train)

    @property
    def trained_tokens(self) -> int:
        """Targets of the training part, before anything is cut."""
        return sum(sum(example.targets[1:]) for example in self.train)

    def preview(self, number: int = 0) -> Preview:
        """One training example with what is trained on marked, read back from the ids themselves."""
        example = self.train[number]
        return Preview.of(self.tokenizer, example.ids, example.targets)


def make_examples(
    records: Sequence[Record],
    tokenizer: Tokenizer,
    *,
    format: str,
    held_out: float = 0.05,
    seq_len: int = 256,
    drop_long: bool = False,
) -> ExampleSet:
    """Encodes rows.

    Args:
        records: the rows.
        tokenizer: the model's own.
        format: `chat`, `instruction` or `completion`.
        held_out: fraction of rows that is left out of training.
        seq_len: inputs a row of the training has; a longer example is cut there.
        drop_long: leave out rows of whose answers nothing is left, in place of refusing them.

    Raises:
        DataError: rows of whose answers nothing is left, by name; a row that doesn't fit the format; nothing left.
        UsageError: a tokenizer without an end-of-text token where a template is needed.
    """
    if format not in FORMATS[1:]:
        raise UsageError(f"--format can't be {format!r}", next=did_you_mean(format, FORMATS[1:]))
    said = [meaning(record, format) for record in records]
    notes: list[str] = []
    template: ChatTemplate | None = None
    if any(not isinstance(one, Pair) for one in said):
        if not tokenizer.chat_template:
            if tokenizer.eos_id is None:
                raise UsageError(f"The tokenizer {tokenizer.name!r} has no chat template and no end-of-text token")
            tokenizer = with_template(tokenizer, DEFAULT_TEMPLATE)
            notes.append("This model has no chat template: nbllm's plain one is used (### User: … ### Assistant: …).")
        template = ChatTemplate(tokenizer)
    digest = hashlib.sha256((tokenizer.chat_template or "" if template else "").encode())
    parts: dict[bool, list[Example]] = {False: [], True: []}
    answers: list[str] = []
    cut: list[str] = []
    lost: list[tuple[str, int]] = []
    for record, one in zip(records, said, strict=True):
        content = json.dumps(_plain(one), sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
        digest.update(content + b"\n")
        out = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64 < held_out
        made = (
            template.examples(one, record.where) if template and not isinstance(one, Pair) else [_pair(one, tokenizer)]
        )
        for example in made:
            if not any(example.targets[1 : seq_len + 1]):
                lost.append((record.where, len(example.ids)))
                continue
            if len(example.ids) > seq_len + 1:
                cut.append(record.where)
            parts[out].append(example)
        if out:
            answers += (
                [one.completion] if isinstance(one, Pair) else [m["content"] for m in one if m["role"] == "assistant"]
            )
    if lost and not drop_long:
        raise DataError(
            f"{_rows(lost)} {'is' if len(lost) == 1 else 'are'} cut at --seq-len {seq_len} before the answer: "
            f"{_named([where for where, _ in lost])}",
            next=f"Use --seq-len {max(size for _, size in lost)}, or --drop-long to leave them out",
        )
    if lost:
        notes.append(
            f"{_rows(lost)} left out, since nothing of the answer is left: {_named([row for row, _ in lost])}."
        )
    if cut:
        notes.append(f"{_rows(cut)} cut at --seq-len {seq_len}, in the answer: {_named(cut)}.")
    if not parts[False]:
        raise DataError(
            "No row is left to train on", next="Use a smaller --held-out" if parts[True] else "Check the data"
        )
    return ExampleSet(
        train=parts[False],
        held_out=parts[True],
        answers_held_out=answers,
        tokenizer=tokenizer,
        format=format,
        hash=digest.hexdigest(),
        template=tokenizer.chat_template or "" if template else "",
        notes=notes,
    )


def _pair(pair: list[Message] | Pair, tokenizer: Tokenizer) -> Example:
    """Prompt, completion and the end-of-text token; the prompt begins as a document does."""
    assert isinstance(pair, Pair)
    if tokenizer.eos_id is None:
        raise UsageError(f"The tokenizer {tokenizer.name!r} has no end-of-text token")
    given = [*tokenizer.document_prefix, *tokenizer.encode(pair.prompt)]
    answer = [*tokenizer.encode(pair.completion), tokenizer.eos_id]
    return Example(
        ids=given + answer,
        targets=[False] * len(given) + [True] * len(answer),
        text_bytes=len(pair.completion.encode()),
    )


def _plain(one: list[Message] | Pair) -> object:
    return [one.prompt, one.completion] if isinstance(one, Pair) else [[m["role"], m["content"]] for m in one]


def _rows(rows: Sequence[object]) -> str:
    return "1 example" if len(rows) == 1 else f"{len(rows):,} examples"


def _named(rows: Sequence[str]) -> str:
    names = list(dict.fromkeys(rows))
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
