"""Text whose tokens are coloured by how well a model expected them: static HTML without scripts, and plain text.

Each token is a span with its own background (viridis in eight steps) and black or white letters, whichever reads
better, so that it looks the same in light and dark; its title gives the numbers and what else could have stood there.
Everything from data is escaped. Knows tokens as visible texts with numbers; neither models nor tokenizers.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import pyarrow as pa

from nbllm.errors import UsageError, did_you_mean
from nbllm.tokenizer.visible import visible

COLOURS = ("probability", "rank", "entropy")
"""What a token's colour can say."""
LEVELS = 8
"""From 0, what surprised the model, to 7, what it was sure of."""
BACKGROUNDS = ("#440154", "#472f7d", "#39568c", "#287c8e", "#1fa187", "#4ac16d", "#a5d136", "#fde725")
"""The colour of each level: viridis."""
LETTERS = ("#fff", "#fff", "#fff", "#fff", "#000", "#000", "#000", "#000")
"""The letters' colour on each: the contrast is at least 4.5."""
_ENTROPY_STEP = 0.75
_ENDS = {"probability": ("0", "1"), "rank": ("over 64", "1"), "entropy": ("over 5 nats", "0")}
_SHOWN_TOKENS = 1000
_SHOWN_ALTERNATIVES = 5
_LEAST_EXPECTED = 10
_DIGITS = "⁰¹²³⁴⁵⁶⁷"
_BYTE = re.compile(r"(<[89A-F][0-9A-F]>)")
_STYLE = (
    ".nbllm-coloured{font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);"
    "color:var(--jp-content-font-color1,inherit);font-variant-numeric:tabular-nums}"
    ".nbllm-coloured .nb-dim{opacity:.8}"
    ".nbllm-coloured .nb-tokens{font:13px/1.9 var(--jp-code-font-family,monospace);margin:4px 0}"
    ".nbllm-coloured .nb-t{display:inline-block;max-width:100%;box-sizing:border-box;padding:1px;border-radius:2px;"
    "line-height:1.4;unicode-bidi:isolate;white-space:pre-wrap;overflow-wrap:anywhere;"
    "box-shadow:inset 0 0 0 1px rgba(128,128,128,.35)}"
    ".nbllm-coloured .nb-g{display:inline-block;max-width:100%;border-bottom:1px solid;margin:0 2px;"
    "padding-bottom:1px;line-height:1.4;unicode-bidi:isolate;font-size:10px}"
    ".nbllm-coloured .nb-c{font-size:13px;padding-right:2px}"
    ".nbllm-coloured i{display:inline-block;width:14px;height:9px}"
    ".nbllm-coloured summary{cursor:pointer;width:max-content}"
    ".nbllm-coloured table{border-collapse:collapse;margin:4px 0;font-size:inherit;color:inherit}"
    ".nbllm-coloured th,.nbllm-coloured td{text-align:left;font-weight:normal;padding:1px 14px 1px 0;border:0;"
    "background:none}"
    ".nbllm-coloured td{font-family:var(--jp-code-font-family,monospace)}"
    + "".join(
        f".nbllm-coloured .nb-{level}{{background:{background};color:{letters}}}"
        for level, (background, letters) in enumerate(zip(BACKGROUNDS, LETTERS, strict=True))
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ColouredToken:
    """One token with what the model thought of it."""

    id: int
    """Its id."""
    text: str
    """The token made visible: ␣, ↵, <F0>."""
    probability: float | None
    """The model's own; None for a token that was given, not predicted."""
    rank: int | None
    """1: the model's most probable."""
    entropy: float | None
    """Of the model's distribution, nats."""
    alternatives: tuple[tuple[str, float], ...]
    """What could have stood there, the most probable first: visible text and probability."""

    def level(self, colour: str) -> int | None:
        """Its step of a colour's scale; None for a token that was given.

        Args:
            colour: `probability` (eighths), `rank` (1, 2, to 4, to 8, … beyond 64) or `entropy` (steps of 0.75 nats).
        """
        if self.probability is None or self.rank is None or self.entropy is None:
            return None
        if colour == "probability":
            return min(LEVELS - 1, int(self.probability * LEVELS))
        down = math.ceil(math.log2(self.rank)) if colour == "rank" else int(self.entropy / _ENTROPY_STEP)
        return LEVELS - 1 - min(LEVELS - 1, down)

    @property
    def title(self) -> str:
        """All about it: a line of numbers, then a line an alternative."""
        name = f"{self.text} · id {self.id}"
        if self.probability is None:
            return f"{name}\ngiven, not predicted"
        lines = [name, f"probability {self.probability:.3g} · rank {self.rank:,} · entropy {self.entropy:.2f} nats"]
        return "\n".join(
            [*lines, *(f"{probability:.3g}  {text}" for text, probability in self.alternatives[:_SHOWN_ALTERNATIVES])]
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Coloured:
    """Texts with their tokens coloured; shows itself in a notebook and by `print`.

    Raises:
        UsageError: there is no such colour.
    """

    texts: tuple[tuple[ColouredToken, ...], ...]
    """The tokens of each text."""
    colour: str
    """What the colour says: one of `COLOURS`."""
    heading: str
    """The line above."""

    def __post_init__(self) -> None:
        if self.colour not in COLOURS:
            raise UsageError(f"There is no colour {self.colour!r}", next=did_you_mean(self.colour, COLOURS))

    @property
    def least_expected(self) -> list[tuple[int, int, ColouredToken]]:
        """The ten tokens that surprised the model most: which text, which place in it, and the token."""
        found = [
            (text, place, token)
            for text, tokens in enumerate(self.texts)
            for place, token in enumerate(tokens)
            if token.probability is not None
        ]
        return sorted(found, key=lambda one: one[2].probability or 0.0)[:_LEAST_EXPECTED]

    def __str__(self) -> str:
        """Tokens with the digit of their level behind them, then the least expected."""
        low, high = _ENDS[self.colour]
        lines = [self.heading, f"{self.colour}: {_DIGITS[0]} {low} … {_DIGITS[-1]} {high}"]
        for number, tokens in enumerate(self.texts, 1):
            label = f"sample {number}: " if len(self.texts) > 1 else ""
            pieces = []
            for whole, group in _groups(tokens):
                joined = "│".join(_alone(token.text) + self._digit(token) for token in group)
                pieces.append(f"{{{_alone(whole)}: {joined}}}" if whole is not None else joined)
            lines.append(label + "│".join(pieces))
        rows = [list(row) for row in self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _digit(self, token: ColouredToken) -> str:
        level = token.level(self.colour)
        return "" if level is None else _DIGITS[level]

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """The table of the least expected tokens, its head first; nothing where no token was predicted."""
        several = len(self.texts) > 1
        for number, (text, place, token) in enumerate(self.least_expected):
            if not number:
                yield (*(["sample"] if several else []), "place", "token", "probability", "rank", "expected instead")
            best = next(((name, p) for name, p in token.alternatives if name != token.text), None)
            yield (
                *([str(text + 1)] if several else []),
                f"{place:,}",
                token.text,
                f"{token.probability:.3g}",
                f"{token.rank:,}",
                f"{best[0]} {best[1]:.3g}" if best else "",
            )

    def _repr_html_(self) -> str:
        low, high = _ENDS[self.colour]
        swatches = "".join(f'<i class="nb-{level}"></i>' for level in range(LEVELS))
        blocks, left = [], _SHOWN_TOKENS
        for number, tokens in enumerate(self.texts, 1):
            if len(self.texts) > 1:
                blocks.append(f'<div class="nb-dim">sample {number} of {len(self.texts)}</div>')
            blocks.append(f'<div class="nb-tokens">{self._spans(tokens[:left])}</div>')
            if len(tokens) > left:
                blocks.append(f'<div class="nb-dim">… and {len(tokens) - left:,} more tokens</div>')
            left = max(0, left - len(tokens))
        return (
            f'<div class="nbllm-coloured"><style>{_STYLE}</style><div class="nb-dim">{escape(self.heading)}</div>'
            f'<div><span class="nb-dim">{self.colour}: {low}</span> <span aria-hidden="true">{swatches}</span> '
            f'<span class="nb-dim">{high}</span></div>'
            f"{''.join(blocks)}{self._table()}</div>"
        )

    def _spans(self, tokens: Sequence[ColouredToken]) -> str:
        parts = []
        for whole, group in _groups(tokens):
            spans = "".join(self._span(token) for token in group)
            if whole is not None:
                shown = f'<span class="nb-c">{escape(_alone(whole))}</span>'
                spans = f'<span class="nb-g" title="{escape(whole)} in {len(group)} tokens">{shown}{spans}</span>'
            parts.append(spans)
        return "".join(parts)

    def _span(self, token: ColouredToken) -> str:
        level = token.level(self.colour)
        style = "" if level is None else f" nb-{level}"
        line_end = "<br>" if "↵" in token.text else ""
        text = escape(_alone(token.text)) or "&nbsp;"
        return f'<span class="nb-t{style}" title="{escape(token.title)}">{text}</span>{line_end}'

    def _table(self) -> str:
        rows = list(self._rows())
        if not rows:
            return ""
        head = "".join(f'<th scope="col" class="nb-dim">{cell}</th>' for cell in rows[0])
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
        return (
            f'<details><summary class="nb-dim">least expected tokens</summary><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></details>"
        )


def tokens_of(tokens: pa.Table, alternatives: pa.Table, probability: str) -> tuple[ColouredToken, ...]:
    """The tokens of two tables that are sorted alike.

    Args:
        tokens: one row a token: `token`, `text`, `probability`, `rank`, `entropy`, empty where it wasn't predicted.
        alternatives: equally many rows for each token that was predicted: `text` and a column of probabilities.
        probability: that column's name.
    """
    columns = [tokens[name].to_pylist() for name in ("token", "text", "probability", "rank", "entropy")]
    pairs = list(zip(alternatives["text"].to_pylist(), alternatives[probability].to_pylist(), strict=True))
    predicted = len(tokens) - tokens["probability"].null_count
    each = len(pairs) // max(1, predicted)
    found, done = [], 0
    for id, text, chance, rank, entropy in zip(*columns, strict=True):
        others = () if chance is None else tuple(pairs[done : done + each])
        done += len(others)
        found.append(
            ColouredToken(id=id, text=text, probability=chance, rank=rank, entropy=entropy, alternatives=others)
        )
    return tuple(found)


def _groups(tokens: Sequence[ColouredToken]) -> Iterator[tuple[str | None, Sequence[ColouredToken]]]:
    """Tokens that share a character together, with their text as a whole; any other alone, with None."""
    shares = _shares_with_next(tokens)
    begin = 0
    while begin < len(tokens):
        end = begin
        while end in shares:
            end += 1
        end += 1
        group = tokens[begin:end]
        yield (_whole("".join(token.text for token in group)) if len(group) > 1 else None), group
        begin = end


def _shares_with_next(tokens: Sequence[ColouredToken]) -> set[int]:
    """The places of tokens that a character begins or goes on in, which ends in a later one."""
    found: set[int] = set()
    run: list[tuple[int, int]] = []  # bytes that are no character by themselves, side by side, with their token's place
    for place, token in enumerate(tokens):
        for part in _BYTE.split(token.text):
            if _BYTE.fullmatch(part):
                run.append((int(part[1:3], 16), place))
            elif part:
                found |= _joined(run)
                run = []
    return found | _joined(run)


def _joined(run: Sequence[tuple[int, int]]) -> set[int]:
    found: set[int] = set()
    begin = 0
    while begin < len(run):
        lengths = (length for length in (2, 3, 4) if _is_character(run[begin : begin + length]))
        length = next(lengths, 1)
        found.update(range(run[begin][1], run[min(begin + length, len(run)) - 1][1]))
        begin += length
    return found


def _is_character(run: Sequence[tuple[int, int]]) -> bool:
    try:
        return len(bytes(byte for byte, _ in run).decode()) == 1
    except UnicodeDecodeError:
        return False


def _whole(text: str) -> str:
    """Visible text with its bytes joined to characters, where they make any."""

    def join(found: re.Match[str]) -> str:
        return visible(bytes(int(one[1:3], 16) for one in _BYTE.findall(found[0])))

    return re.sub(f"(?:{_BYTE.pattern})+", join, text)


def _alone(text: str) -> str:
    """A token's text as it can stand alone: a combining mark gets a circle to sit on."""
    return f"◌{text}" if text and unicodedata.category(text[0]).startswith("M") else text
