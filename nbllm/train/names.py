"""Names for runs that were given none: two short words such as `quiet-otter`, or a base name with the next number."""

from __future__ import annotations

import random
from collections.abc import Collection

# fmt: off
_MANNERS = (
    "amber", "brave", "brisk", "calm", "clear", "clever", "cosy", "crisp", "curious", "dapper", "deft", "eager",
    "early", "fair", "fleet", "fond", "frank", "gentle", "glad", "golden", "hardy", "honest", "humble", "jolly",
    "keen", "kind", "lively", "lucid", "lucky", "mellow", "merry", "mild", "modest", "nimble", "noble", "patient",
    "placid", "plucky", "polite", "proud", "quick", "quiet", "rapid", "ready", "royal", "serene", "sharp",
    "silent", "sleek", "smooth", "snowy", "spry", "steady", "still", "sturdy", "sunny", "swift", "tidy",
    "tranquil", "warm", "wise", "witty",
)
# fmt: on
# fmt: off
_ANIMALS = (
    "badger", "beaver", "bison", "bittern", "buzzard", "crane", "curlew", "dipper", "dormouse", "dove", "egret",
    "eider", "elk", "falcon", "ferret", "finch", "gannet", "gecko", "grouse", "hare", "hawk", "hedgehog", "heron",
    "ibex", "ibis", "jackdaw", "jay", "kestrel", "kite", "lapwing", "lark", "linnet", "lynx", "magpie", "marten",
    "merlin", "mole", "moose", "newt", "nuthatch", "oriole", "osprey", "otter", "owl", "panda", "petrel", "pika",
    "plover", "puffin", "quail", "raven", "robin", "rook", "seal", "shrew", "siskin", "snipe", "sparrow", "stoat",
    "stork", "swan", "swift", "tern", "thrush", "vole", "wagtail", "weasel", "wombat", "wren", "yak",
)
# fmt: on


def new_name(taken: Collection[str], base: str | None = None) -> str:
    """A name that isn't taken: `base`, `base-2`, `base-3`, …, or without a base two words."""
    if base is not None:
        candidates = (base if number == 1 else f"{base}-{number}" for number in range(1, len(taken) + 2))
        return next(name for name in candidates if name not in taken)
    generator = random.SystemRandom()
    free = [name for name in (f"{manner}-{animal}" for manner in _MANNERS for animal in _ANIMALS) if name not in taken]
    return generator.choice(free) if free else new_name(taken, "run")
