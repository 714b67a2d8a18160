"""A small messy set for the cleaning panel: prose in two languages, lists, repeats, near copies, hostile text."""

import random

HOSTILE = '<img src=x onerror="window.harmed=1"><script>window.harmed=2</script> \u202eright to left\u202c \x1b[31m'
_WORDS = ["the model", "and", "its data", "of which we have", "to be sure", "that", "with each step", "it will learn"]
_GERMAN = ["der Wald", "und die Stadt", "haben", "mit dem Fluss", "einen Weg", "gefunden", "den niemand", "will"]


def messy(count: int = 300) -> list[str]:
    rng = random.Random(1)

    def prose(words: list[str], lines: int) -> str:
        return "\n".join(" ".join(rng.choices(words, k=rng.randint(5, 9))).capitalize() + "." for _ in range(lines))

    found = []
    for number in range(count):
        kind = number % 10
        text = prose(_GERMAN if kind in (3, 4) else _WORDS, rng.randint(1, 14))
        if kind == 5:
            text = "\n".join(f"- item {at} of {number}" for at in range(30))
        elif kind == 6:
            text = "\n".join(["Buy now, it is the best of all."] * rng.randint(2, 20) + [text])
        elif kind == 7 and number > 10:
            text = found[number - 7] + f"\nAn added line of {number}."
        elif kind == 8:
            text = f"{HOSTILE} {number}\n" * 4
        found.append(text)
    return found
