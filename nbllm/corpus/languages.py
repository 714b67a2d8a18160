"""Which language's documents the stages dropped, from the scores of a `language` stage.

Knows nothing of files; without such a stage there is nothing to tell languages by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nbllm.corpus.report import WARN_DOCUMENTS, WARN_SHARE

Rows = NDArray[np.int64]


def by_language(
    told: Rows, languages: pa.ChunkedArray, gone: Mapping[str, Rows], stayed: Rows
) -> dict[str, dict[str, int]]:
    """Documents of each language, the most frequent first: `in`, those that each stage dropped, `out`.

    Args:
        told: rows of the documents whose language is known.
        languages: their languages.
        gone: by stage, the rows that it dropped.
        stayed: the rows of the corpus.
    """
    if not len(told):
        return {}
    coded: Any = languages.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    names = coded.dictionary.to_pylist()
    of_row = np.full(int(told.max()) + 1, -1, np.int64)
    of_row[told] = coded.indices.to_numpy()

    def counted(rows: Rows) -> list[int]:
        codes = of_row[rows[rows < len(of_row)]]
        return [int(count) for count in np.bincount(codes[codes >= 0], minlength=len(names))]

    columns = {"in": counted(told), **{stage: counted(rows) for stage, rows in gone.items()}, "out": counted(stayed)}
    found = {
        name: {column: counts[index] for column, counts in columns.items() if counts[index] or column in ("in", "out")}
        for index, name in enumerate(names)
    }
    return dict(sorted(found.items(), key=lambda item: (-item[1]["in"], item[0])))


def language_warnings(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A sentence for each stage after `language` that dropped most of what was left of a language."""
    found = []
    for language, stages in counts.items():
        left = stages["in"]
        for stage, gone in stages.items():
            if stage in ("in", "out"):
                continue
            if stage not in ("language", "mix") and left >= WARN_DOCUMENTS and gone > WARN_SHARE * left:
                found.append(f"{stage} dropped {gone / left:.0%} of the texts in {language}")
            left -= gone
    return found
