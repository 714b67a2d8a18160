"""Lines and cell bodies as a hurried, mistaken or hostile person would type them, made from a command's own options."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from nbllm.commands import Command
from nbllm.commands.options import Option
from nbllm.model import PRESETS

ANY = st.one_of(st.text(max_size=20), st.text(alphabet=st.characters(), max_size=6))
"""Any characters at all; now and then half a surrogate pair, as JSON may carry it."""
HOSTILE = st.sampled_from(
    ["<script>alert(1)</script>", "\x1b[31mred", "\u202eabc", "../..", "", " ", "\0", "'", '"', "{", "}", "{}",
     "{1/0}", "$", "$missing", "--", "-", "--=", "=", "a=b", "{'a': 1}", "nan", "-inf", "None", "[]", "\\", "%s", "{0}",
     "💣" * 3, "con", "a" * 300, "x.safetensors", "hf:", "hf:no/such", "builtin:", "builtin:none", "tiktoken:",
     "tiktoken:none",
     "s3://x/y", "file:///etc/passwd", "~nobody/x", "a/b", "./a", "*", "[", "**/*.txt", "label=", "=path"]
)  # fmt: skip
NAMES = st.sampled_from(
    ["docs", "small", "model", "a.txt", "b.jsonl", "c.csv", "doc", "off", "none", "default", "new", "$texts", "$number",
     "$table", "$function", "{1 + 1}", "{texts}", "held-out", "fox", "gpt2-nano"]
)  # fmt: skip
INTEGERS = st.one_of(
    st.integers(-3, 40), st.sampled_from([100, 2**31, 2**63, 10**30, -(10**30), 1_000_000]), st.integers()
).map(str)
NUMBERS = st.one_of(
    st.floats(0, 2).map(str), st.floats(allow_nan=True, allow_infinity=True).map(str), INTEGERS, st.just("1e400")
)
STAGES = st.sampled_from(
    ["normalize", "normalize form=NFC", "normalize form=X", "fix_mojibake", "html", "language en", "language",
     "length min=1", "length min=9 max=3", "length min=x", "quality gopher", "quality c4", "quality",
     "repetition gopher", "dedup exact",
     "dedup minhash threshold=0.8", "dedup minhash ngram=0", "dedup minhash bands=1000000000", "dedup paragraph",
     "dedup line", "dedup", "toxicity max=0.5", "pii mask", "pii drop", "pii", "blocklist a.txt", "blocklist no.txt",
     "blocklist", "python function", "python missing", "python number", "python", "# a remark", "dedupe exact"]
)  # fmt: skip


@st.composite
def _value(draw: st.DrawFn, option: Option) -> str:
    """A value as typed: mostly one of the right kind."""
    if draw(st.integers(0, 9)) == 0:
        value = draw(st.one_of(ANY, HOSTILE, NAMES))
    elif option.choices:
        value = draw(st.sampled_from([*option.choices, *option.also]))
    elif option.kind == "integer":
        value = draw(INTEGERS)
    elif option.kind == "number":
        value = draw(NUMBERS)
    elif option.completes == "preset":
        value = draw(st.one_of(st.sampled_from(sorted(PRESETS)), NAMES))
    elif option.completes == "magic":
        value = draw(st.sampled_from(["llm_train", "%%llm_clean", "generate", "llm_trian"]))
    else:
        value = draw(st.one_of(NAMES, NAMES, HOSTILE, ANY))
    return draw(_quoted(value))


@st.composite
def _quoted(draw: st.DrawFn, value: str) -> str:
    marks = draw(st.sampled_from(["", "", '"', "'"]))
    return f"{marks}{value}{marks}"


@st.composite
def lines(draw: st.DrawFn, command: Command) -> str:
    """A line for a command: an action where it has some, options with values, and now and then anything at all."""
    if draw(st.integers(0, 19)) == 0:
        return draw(ANY)
    words = []
    if command.actions and draw(st.integers(0, 9)):
        words.append(draw(st.sampled_from(sorted(command.actions))))
    options = command.all_options
    for option in draw(st.lists(st.sampled_from(options), max_size=4)):
        if option.positional:
            if option.key != "action":
                words += draw(st.lists(_value(option), max_size=3 if option.many else 1))
        elif option.kind == "flag":
            words.append(option.name)
        else:
            joint = draw(st.sampled_from([" ", " ", "=", ""]))
            words.append(option.name + joint + draw(_value(option)))
    if draw(st.integers(0, 5)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(st.one_of(HOSTILE, ANY, st.just("--no-such 1"))))
    return draw(st.sampled_from([" ", " ", "  ", "\t"])).join(words)


@st.composite
def bodies(draw: st.DrawFn, command: Command) -> str:
    """A cell body: stages for cleaning, any text for the rest."""
    if command.name != "llm_clean":
        return draw(st.one_of(ANY, HOSTILE, st.text(max_size=300)))
    rows = draw(st.lists(st.one_of(STAGES, STAGES, STAGES, HOSTILE, ANY), max_size=4))
    return "\n".join(rows)


def namespace() -> dict[str, Any]:
    """What the notebook holds."""
    import pandas

    return {
        "texts": ["one <b>text</b>", "another", "", "\u202e bidi \x1b[0m"],
        "number": 7,
        "table": pandas.DataFrame({"text": ["one", "two"], "n": [1, 2]}),
        "function": lambda text: text.upper(),
    }
