"""`hf:NAME[:CONFIG][:SPLIT]`: a data set of the hub as a source, through `datasets` and its cache on disk, or streamed.

A part behind the name that looks like a split (`train`, `test[:10%]`, …) is one, another is the configuration; the
split is `train` where none is given. No code of a data set runs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from nbllm.errors import NotFoundError, UsageError

PREFIX = "hf:"
_SPLIT = re.compile(r"(?:train|test|validation|valid|dev|all)\w*(?:\[[^\]]*\])?(?:\+.*)?")


def split_name(typed: str) -> tuple[str, str | None, str]:
    """Name, configuration and split of `hf:NAME[:CONFIG][:SPLIT]`."""
    # a colon inside brackets belongs to a slice such as train[:10%]
    name, *parts = re.split(r":(?![^\[]*\])", typed.removeprefix(PREFIX))
    if not name or len(parts) > 2 or not all(parts):
        raise UsageError("A data set is hf:NAME[:CONFIG][:SPLIT]", received=typed)
    if len(parts) == 2:
        return name, parts[0], parts[1]
    if not parts:
        return name, None, "train"
    return (name, None, parts[0]) if _SPLIT.fullmatch(parts[0]) else (name, parts[0], "train")


def load(typed: str) -> tuple[str, Any]:
    """A label and the Dataset.

    Raises:
        NotFoundError: no such data set, configuration or split, or no way to the hub.
    """
    import datasets

    name, config, split = split_name(typed)
    with _told(typed):
        return name.rpartition("/")[2], datasets.load_dataset(name, config, split=split)


def stream(typed: str) -> tuple[str, Any, str]:
    """A label, the data set as an iterable that is read again from its beginning each time, and what tells its content:
    `datasets`' hash of the files' versions, since reading everything twice to hash it would undo the streaming.

    Raises:
        NotFoundError: as `load`; also for a slice of a split, which can't be streamed.
    """
    import datasets

    name, config, split = split_name(typed)
    with _told(typed):
        builder = datasets.load_dataset_builder(name, config)
        return name.rpartition("/")[2], builder.as_streaming_dataset(split=split), f"{builder.config_id} {builder.hash}"


@contextlib.contextmanager
def _told(typed: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)[:300]
        raise NotFoundError(
            f"{typed} can't be loaded: {why}", next="Check the name, configuration and split, and the network"
        ) from error
