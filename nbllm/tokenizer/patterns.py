"""How text is cut before byte-pair merges: no merge crosses a cut. Every pattern keeps every character.

The patterns are those published with the models they are named after: GPT-2's encoder.py; `cl100k_base` in tiktoken
(GPT-4) and `o200k_base` (GPT-4o); Llama 3's tokenizer.py. GPT-4's and Llama 3's cut alike; both names are kept because
people look for both.
"""

from __future__ import annotations

from nbllm.errors import UsageError, did_you_mean

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}|"
    r"DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS: dict[str, tuple[str, str]] = {
    "gpt2": (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?DIGITS| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", "any"),
    "gpt4": (_CL100K, "triple"),
    "gpt4o": (_O200K, "triple"),
    "llama3": (_CL100K, "triple"),
    "none": ("", "any"),
}
PATTERNS: tuple[str, ...] = tuple(_PATTERNS)
"""Names that `--pattern` takes."""
DIGITS: dict[str, str] = {"single": r"\p{N}", "triple": r"\p{N}{1,3}", "any": r"\p{N}+"}
"""What `--digits` takes, with the expression for one piece of a number."""


def expression(pattern: str, digits: str | None = None) -> str | None:
    """The regular expression (Oniguruma) whose matches are the pieces, or None where text isn't cut.

    Args:
        pattern: a name in `PATTERNS`.
        digits: a name in `DIGITS`, or None for the pattern's own: any number for gpt2, groups of up to three digits
            for gpt4, gpt4o and llama3.

    Raises:
        UsageError: an unknown name.
    """
    if pattern not in _PATTERNS:
        raise UsageError(f"No pattern is named {pattern!r}", next=did_you_mean(str(pattern), PATTERNS))
    if digits is not None and digits not in DIGITS:
        raise UsageError(f"--digits doesn't know {digits!r}", next=did_you_mean(str(digits), DIGITS))
    text, own_digits = _PATTERNS[pattern]
    if not text:
        return None if digits in (None, "any") else DIGITS[digits]
    return text.replace("DIGITS", DIGITS[digits or own_digits])
