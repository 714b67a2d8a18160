"""The texts that were sampled in a panel, as a forest: a prompt's text, and the branches that leave it.

A branch keeps the tokens before its fork itself, so that sampling its parent again changes nothing in it; a text that
something branches from is never overwritten. Bounded: the oldest leaves go. Knows nothing of widgets or models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nbllm.panels.generate_settings import Source
from nbllm.panels.generate_tokens import Token, mean_logprob

KEPT = 50
"""At most so many texts are kept."""
KEPT_TOKENS = 20_000
"""And so many tokens in them."""
_EXCERPT = 80


@dataclass(kw_only=True, eq=False)
class Branch:
    """One text: a prompt, tokens taken over from its parent with the alternative it forks with, then its own."""

    id: int
    parent: Branch | None = None
    prompt: str
    prompt_tokens: tuple[int, ...] | None = None
    """The prompt's ids; None until a sampling has told them."""
    prefix: tuple[Token, ...] = ()
    """The tokens up to the fork, and the alternative; empty for a text that continues a prompt."""
    own: list[Token] = field(default_factory=list)
    sampling: Any = None
    """The settings that its own tokens were sampled with."""
    source: Source | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> list[Token]:
        """All tokens after the prompt."""
        return [*self.prefix, *self.own]

    @property
    def text(self) -> str:
        """All text after the prompt."""
        return "".join(token.text for token in self.tokens)

    @property
    def input_ids(self) -> list[int] | None:
        """The ids that its own tokens continue, where there are more than the prompt."""
        if not self.prefix or self.prompt_tokens is None:
            return None
        return [*self.prompt_tokens, *(token.id for token in self.prefix)]


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A text put aside with its settings, to be compared."""

    id: int
    prompt: str
    tokens: tuple[Token, ...]
    sampling: Any
    source: Source | None

    @classmethod
    def of(cls, branch: Branch, id: int) -> Pin:
        """The branch as it is now."""
        return cls(
            id=id, prompt=branch.prompt, tokens=tuple(branch.tokens), sampling=branch.sampling, source=branch.source
        )


class Tree:
    """Every text kept, and the one that is shown."""

    def __init__(self) -> None:
        self.current: Branch | None = None
        self._branches: list[Branch] = []
        self._made = 0

    def __len__(self) -> int:
        return len(self._branches)

    def get(self, id: int) -> Branch | None:
        """The branch of that number, or None where it has gone."""
        return next((branch for branch in self._branches if branch.id == id), None)

    def from_prompt(self, prompt: str) -> Branch:
        """Makes current, and empties, a text that continues a prompt."""
        before = self.current
        while before is not None and before.parent is not None:
            before = before.parent
        if before is not None and before.prompt == prompt and not self._has_children(before):
            return self._emptied(before)
        return self._add(prompt=prompt)

    def again(self, branch: Branch) -> Branch:
        """Makes current, and empties, the text itself, or a sibling of it where something branches from it."""
        if not self._has_children(branch):
            return self._emptied(branch)
        return self._add(
            parent=branch.parent, prompt=branch.prompt, prompt_tokens=branch.prompt_tokens, prefix=branch.prefix
        )

    def fork(self, branch: Branch, at: int, alternative: Token) -> Branch:
        """Makes current a new branch that says something else in the place of a token.

        Args:
            branch: what it leaves.
            at: the place of the token among the branch's tokens.
            alternative: what stands there instead.
        """
        return self._add(
            parent=branch,
            prompt=branch.prompt,
            prompt_tokens=branch.prompt_tokens,
            prefix=(*branch.tokens[:at], alternative),
        )

    def rows(self) -> list[dict[str, Any]]:
        """A line a text, parents before children: `id`, `depth`, `prompt`, `text` (shortened), `mean` (its own tokens'
        mean log-probability, nats), `current`."""
        return [
            {
                "id": branch.id,
                "depth": depth,
                "prompt": branch.prompt[-_EXCERPT:] if branch.parent is None else "",
                "text": _excerpt(branch),
                "mean": mean_logprob(branch.tokens[max(0, len(branch.prefix) - 1) :]),
                "current": branch is self.current,
            }
            for branch, depth in self._ordered(None, 0)
        ]

    def _ordered(self, parent: Branch | None, depth: int) -> Iterator[tuple[Branch, int]]:
        for branch in self._branches:
            if branch.parent is parent:
                yield branch, depth
                yield from self._ordered(branch, depth + 1)

    def _has_children(self, branch: Branch) -> bool:
        return any(other.parent is branch for other in self._branches)

    def _emptied(self, branch: Branch) -> Branch:
        branch.own, branch.facts = [], {}
        self.current = branch
        return branch

    def _add(self, **fields: Any) -> Branch:
        self._made += 1
        self.current = Branch(id=self._made, **fields)
        self._branches.append(self.current)
        self._trim(self.current)
        return self.current

    def _trim(self, current: Branch) -> None:
        while len(self._branches) > KEPT or sum(len(branch.own) for branch in self._branches) > KEPT_TOKENS:
            leaves = (branch for branch in self._branches if branch is not current and not self._has_children(branch))
            oldest = next(leaves, None)
            if oldest is None:
                return
            self._branches.remove(oldest)


def _excerpt(branch: Branch) -> str:
    """How a branch begins, from its fork on, in one line."""
    text = "".join(token.text or token.name for token in branch.tokens[max(0, len(branch.prefix) - 1) :][:_EXCERPT])
    return " ".join(text.split())[:_EXCERPT]
