"""Texts that are hard to bring back."""

from __future__ import annotations

import random

HARD_TEXTS = [
    "",
    " ",
    "  Hello World.",
    "hello !",
    "I don ' t know . What ' s that ?",
    "ends in spaces   ",
    "\n\n  \n\t tabs\tand\r\nlines\r\r\n\n ",
    "\x00\x01\x1b[31mred\x1b[0m\x7f\x85\u2028\u2029",
    "\ufeffa mark in front, and \ufeff inside",
    "😀👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 emoji 👍🏽",
    "안녕하세요 세계. 한국어 텍스트",
    "中文和日本語、ひらがなカタカナ。",
    "שלום عليكم हिन्दी ภาษาไทย",
    "cafe\u0301 versus café, n\u0303",
    "zero\u200bwidth\u200d\u2060 and \u202ebidi\u202c",
    "１２３ ① Ⅷ ½ 1234567.89e-10",
    "<|endoftext|><|pad|> < |endoftext| >",
    "a<b<c & \"quoted\" 'single' <script>alert(1)</script>",
    "x" * 1000,
    " " * 300 + "\n" * 300,
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0010ffff\ue000\ufffd",
    "İıſK don'T WE'LL ŉ",
]


def fuzz_texts(count: int, seed: int = 0) -> list[str]:
    """Random texts over all planes of Unicode, without surrogates."""
    generator = random.Random(seed)
    ranges = [
        (0, 0x7F),
        (0, 0x24F),
        (0x300, 0x36F),
        (0x400, 0xD7FF),
        (0xE000, 0xFFFF),
        (0x1F300, 0x1FAFF),
        (0, 0x10FFFF),
    ]
    texts = []
    for _ in range(count):
        characters = []
        for _ in range(generator.randrange(1, 60)):
            low, high = generator.choice(ranges)
            code = generator.randint(low, high)
            characters.append(" " if 0xD800 <= code <= 0xDFFF else chr(code))
        texts.append("".join(characters))
    return texts
