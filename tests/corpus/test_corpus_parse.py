"""Stage lines: what they mean, and what a mistake says."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbllm.corpus import RECIPES, STAGES, parse_stages
from nbllm.errors import NbllmError, NotFoundError, UsageError


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("dedpu exact", "line 2: no stage is named 'dedpu'. Did you mean dedup?"),
        ("dedup exakt", "line 2: dedup has no kind 'exakt'. Did you mean exact?"),
        ("dedup", "line 2: dedup needs a kind. Type for example dedup exact."),
        ("length mim=3", "line 2: length has no argument 'mim'. Did you mean min?"),
        ("length min=few", "line 2: length: min is a whole number (received 'few')."),
        ("length 100", "line 2: length doesn't take '100'. It is length [min=100] [max=]."),
        ("length min=3 min=4", "line 2: length has min twice. It is length [min=100] [max=]."),
        ("length min=30 max=3", "line 2: max is smaller than min=30 (received 3)."),
        ("language", "line 2: language needs LANGUAGES. It is language LANGUAGES [min=0.65]."),
        ("language xq", "line 2: language knows no code 'xq'."),
        ("language en min=65", "line 2: min is a probability, 0 to 1 (received 65.0)."),
        ("pii hide", "line 2: pii has no mode 'hide'."),
        ("normalize form=nfx", "line 2: normalize has no form 'nfx'. Did you mean NF"),
        ("dedup minhash threshold=80%", "line 2: dedup minhash: threshold is a number (received '80%')."),
        ("dedup minhash threshold=80", "line 2: threshold is a similarity above 0, at most 1 (received 80.0)."),
        ("python cleen", "line 2: there is no function 'cleen'. Did you mean clean?"),
    ],
)
def test_a_mistake_names_its_line_and_the_nearest_name(line: str, wanted: str) -> None:
    with pytest.raises(NbllmError) as caught:
        parse_stages(["normalize", line], {"clean": str.strip})
    assert str(caught.value).startswith(wanted.rstrip("."))


def test_an_unknown_function_says_how_to_define_it() -> None:
    with pytest.raises(NotFoundError, match=r"def shorten\(text\)"):
        parse_stages(["python shorten"])
    with pytest.raises(UsageError, match="no function but a int"):
        parse_stages(["python n"], {"n": 3})  # type: ignore[dict-item]


def test_comments_and_blank_lines() -> None:
    stages = parse_stages(["# first", "", "  length   min=3 max=", "\t", "language en,zh min=.5", "pii drop"])
    assert [stage.line() for stage in stages] == [
        "length min=3",
        "language en,zh min=0.5",
        "pii drop kinds=email,ip,iban,id,card,phone",
    ]


@pytest.mark.parametrize("name", [name for name in STAGES if name != "python"])
def test_a_stage_says_itself_in_full(name: str, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("word", encoding="utf-8")
    given = {"language": "en", "mix": "web:1", "blocklist": tmp_path / "words.txt"}
    line = f"{name} {given.get(name, '')}".strip()
    (stage,) = parse_stages([line])
    assert parse_stages([stage.line()]) == [stage]
    assert parse_stages([stage.line(short=True)]) == [stage]
    assert stage.SUMMARY
    assert all(argument.summary for argument in stage.arguments().values())


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_consist_of_stages(recipe: str) -> None:
    assert len(parse_stages(RECIPES[recipe])) == len(RECIPES[recipe])
