"""A conversation as token ids, in a model's own chat template, with the answers as the only targets.

Where a template marks its answers (`{% generation %}`), they are taken from there. Elsewhere they are found by
rendering with and without each answer: what stands between the prompt for an answer and the end of that turn. The
token that ends a turn belongs to its answer, white space after it doesn't. A template that renders earlier answers
differently once more follows gives one example an answer, each in the context that the model will meet.
Every piece is encoded apart, so that a prompt has the ids that sampling gives it; special tokens typed in a message
stay text. Knows a Tokenizer; not where conversations come from.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any

from nbllm.chat.conversations import Message
from nbllm.errors import DataError, UsageError
from nbllm.shards import Example
from nbllm.tokenizer import Tokenizer

DEFAULT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '### ' + message['role'] | capitalize + ':\n' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Assistant:\n' }}{% endif %}"
)
"""For a model without a template: headings in plain text, and the end-of-text token after each answer."""
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
Span = tuple[int, int]
"""Characters [start, end) of a rendered text."""


class ChatTemplate:
    """Renders and encodes conversations.

    Args:
        tokenizer: with a chat template.

    Raises:
        UsageError: it has none.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not tokenizer.chat_template:
            raise UsageError(f"The tokenizer {tokenizer.name!r} has no chat template")
        self._tokenizer = tokenizer
        self._source = tokenizer.chat_template
        self._marks_answers = _GENERATION.search(self._source) is not None
        specials = sorted(tokenizer.special_tokens, key=len, reverse=True)
        self._ending = re.compile(r"\s*(?:" + "|".join(map(re.escape, specials)) + ")") if specials else None
        roles = ("bos_token", "eos_token", "pad_token", "unk_token")
        self._tokens = {role: tokenizer.config.get(role) or "" for role in roles}

    def render(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        """The conversation as text; with `prompt`, up to where the model's next answer begins."""
        return self._render(messages, prompt=prompt)[0]

    def examples(self, messages: Sequence[Message], where: str = "the conversation") -> list[Example]:
        """The conversation as one example, or as one an answer where the template asks for it.

        Args:
            messages: from the first one to the last answer; what follows it is left out.
            where: how to name it in an error.

        Raises:
            DataError: no answer in it, or the template refuses it.
        """
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        if not answers:
            raise DataError(f"There is no assistant's answer in {where}", next="Leave that row out")
        shown, marks = self._hide(messages[: answers[-1] + 1])
        try:
            if self._marks_answers:
                text, spans = self._render(shown, prompt=False)
                return [self._example(text, [self._with_end(text, span) for span in spans], marks, messages, answers)]
            text = self.render(shown)
            found = [(number, *self._answer(shown[: number + 1])) for number in answers]
            if all(text.startswith(through[: span[1]]) for _, through, span in found):
                return [self._example(text, [span for *_, span in found], marks, messages, answers)]
            return [self._example(through, [span], marks, messages, [number]) for number, through, span in found]
        except DataError:
            raise
        except Exception as error:  # whatever a template raises
            raise DataError(f"The chat template refuses {where}: {error}") from error

    def _render(self, messages: Sequence[Message], *, prompt: bool) -> tuple[str, list[Span]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        texts, spans = render_jinja_template(
            conversations=[list(messages)],
            chat_template=self._source,
            return_assistant_tokens_mask=self._marks_answers,
            add_generation_prompt=prompt,
            **self._tokens,
        )
        return str(texts[0]), [tuple(span) for span in spans[0]] if self._marks_answers else []

    def _hide(self, messages: Sequence[Message]) -> tuple[list[Message], dict[str, str]]:
        """The messages with a mark in place of each content that spells a special token, and what each mark is for."""
        marks: dict[str, str] = {}
        shown = []
        for message in messages:
            content = message["content"]
            if any(token in content for token in self._tokenizer.special_tokens):
                mark = uuid.uuid4().hex
                marks[mark] = content
                message = {**message, "content": mark}
            shown.append(message)
        return shown, marks

    def _answer(self, messages: Sequence[Message]) -> tuple[str, Span]:
        """The text through the last message, an answer, and where in it what the model has to say stands."""
        through = self.render(messages)
        content = messages[-1]["content"].strip()
        try:
            start = _common(self.render(messages[:-1], prompt=True), through)
        except Exception:  # a template may need a message before the answer
            start = through.rfind(content)
        return through, self._with_end(through, (start, through.find(content, start) + len(content)))

    def _with_end(self, text: str, span: Span) -> Span:
        """The span with the token that ends the turn; where none follows, with all that the template puts there."""
        start, end = span
        if self._ending is None:
            return start, len(text)
        inside = text[start:end].rstrip()
        if any(inside.endswith(token) for token in self._tokenizer.special_tokens):
            return start, start + len(inside)
        match = self._ending.match(text, end)
        if match is not None:
            return start, match.end()
        return (start, end) if self._marks_answers else (start, len(text))

    def _example(
        self, text: str, spans: Sequence[Span], marks: dict[str, str], messages: Sequence[Message], answers: list[int]
    ) -> Example:
        if not spans:
            raise DataError("The chat template marks no answer in a conversation that has one")
        ids: list[int] = []
        targets: list[bool] = []
        if self._tokenizer.byte_level or marks:
            place = 0
            for start, end in [*spans, (len(text), len(text))]:
                for piece, wanted in ((text[place:start], False), (text[start:end], True)):
                    new = self._encode(piece, marks)
                    ids += new
                    targets += [wanted] * len(new)
                place = end
        else:  # a space that such a vocabulary puts before each piece would change the ids
            ids, offsets = self._tokenizer.encode_with_offsets(text, allow_special=True)
            targets = [any(start <= at < end for start, end in spans) for at, _ in offsets]
        eos = self._tokenizer.eos_id
        last = text[spans[-1][0] : spans[-1][1]].rstrip()
        if eos is not None and not any(last.endswith(token) for token in self._tokenizer.special_tokens):
            kept = len(ids) - next(i for i, wanted in enumerate(reversed(targets)) if wanted) if any(targets) else 0
            ids, targets = [*ids[: kept or len(ids)], eos], [*targets[: kept or len(ids)], True]
        size_bytes = sum(len(messages[number]["content"].encode()) for number in answers)
        return Example(ids=ids, targets=targets, text_bytes=size_bytes)

    def _encode(self, text: str, marks: dict[str, str]) -> list[int]:
        if not marks:
            return self._tokenizer.encode(text, allow_special=True)
        ids: list[int] = []
        for piece in re.split("(" + "|".join(marks) + ")", text):
            content = marks.get(piece)
            ids += self._tokenizer.encode(content if content is not None else piece, allow_special=content is None)
        return ids


def _common(one: str, other: str) -> int:
    """Length of their common beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def with_template(tokenizer: Tokenizer, template: str = DEFAULT_TEMPLATE) -> Tokenizer:
    """The same tokenizer with a chat template; not in the store yet."""
    config: dict[str, Any] = {key: value for key, value in tokenizer.config.items() if key != "chat_template"}
    return Tokenizer(tokenizer.definition, config=config, chat_template=template, name=f"{tokenizer.name}-chat")
