"""What a fine-tuning would do, before it starts: rows, trained tokens, one example, the layers that get weights.

Shown by `--dry-run` as text and HTML, and in one or two lines before every run. Everything from the data is escaped.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbllm.adapters.outline import Outline
    from nbllm.chat import ExampleSet, Preview
    from nbllm.shards import Shards
    from nbllm.train import TrainConfig


@dataclass(frozen=True, kw_only=True)
class TuningPlan:
    """What a fine-tuning would train, and on what."""

    format: str
    """Of the data."""
    train_examples: int
    """Rows trained on."""
    held_out_examples: int
    """Rows held out."""
    tokens: int
    """Tokens of one pass."""
    trained_tokens: int
    """Those among them that are learnt."""
    outline: Outline
    """Which layers get weights, with shapes, and how many."""
    preview: Preview | None
    """One example with what is learnt marked; None for plain text, which is learnt whole."""
    notes: tuple[str, ...]
    """What should be known of the data."""

    @classmethod
    def of(cls, config: TrainConfig, shards: Shards, examples: ExampleSet | None, format: str) -> TuningPlan:
        """From a run's config, its shards and the examples in them."""
        from nbllm.adapters.outline import outline

        adapter = config.adapter
        return cls(
            format=format,
            train_examples=shards.train.documents,
            held_out_examples=shards.held_out.documents,
            tokens=len(shards.train),
            trained_tokens=examples.trained_tokens if examples else len(shards.train) - shards.train.documents,
            outline=outline(config.model, None if adapter is None else asdict(adapter)),
            preview=examples.preview() if examples else None,
            notes=tuple(examples.notes) if examples else (),
        )

    @property
    def lines(self) -> list[str]:
        """What is said before a run starts."""
        return [*self.notes, self.data_line, self.outline.summary]

    @property
    def data_line(self) -> str:
        """The data in one line."""
        share = self.trained_tokens / max(self.tokens, 1)
        return (
            f"{self.format}: {self.train_examples:,} examples to train on, {self.held_out_examples:,} held out; "
            f"{self.trained_tokens:,} of {self.tokens:,} tokens ({share:.0%}) are learnt"
        )

    def __str__(self) -> str:
        parts = [*self.notes, self.data_line, str(self.outline), *([str(self.preview)] if self.preview else [])]
        return "\n".join([*parts, "Nothing was started."])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(line)}</p>" for line in (*self.notes, self.data_line))
        preview = self.preview._repr_html_() if self.preview else ""
        return f"<div>{notes}{self.outline._repr_html_()}{preview}<p>Nothing was started.</p></div>"
