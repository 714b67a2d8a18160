"""Which script most of a text is in, and thresholds for Chinese and Japanese.

The papers' thresholds were found on English prose. For Chinese and Japanese those of FineWeb-2 (Penedo et al. 2025) are
taken; it counts words of a segmenter where nbllm counts characters, so they are an approximation here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nbllm.corpus.layout import KANA, LETTER, MARK, UNSPACED_SCRIPT, WORD, Layout, share

SPACED, CHINESE, JAPANESE, UNSPACED_OTHER = "spaced", "zh", "ja", "unspaced"
"""What the score `script` can be: words between spaces; ideographs; ideographs with kana; Thai, Khmer and others."""
_MOSTLY = 0.5
_KANA_SHARE = 0.05
THRESHOLDS: Mapping[str, Mapping[str, float]] = {
    # the script -> the score -> FineWeb-2's threshold
    CHINESE: {"words_with_letter": 0.735, "end_punctuation": 0.106, "top_2": 0.256, "repeated_5": 0.198},
    JAPANESE: {"words_with_letter": 0.759, "end_punctuation": 0.167, "top_2": 0.121, "repeated_5": 0.307},
}


def scripts(layout: Layout) -> pa.Array:
    """[D] strings: the script of most letters and digits of each text."""
    unspaced = layout.has(UNSPACED_SCRIPT)
    if not unspaced.any():
        return pa.array([SPACED] * layout.documents, pa.string())
    alone = layout.count(unspaced)
    spaced = layout.count(layout.has(WORD | MARK))
    kana = layout.count(layout.has(KANA))
    # ideographs are those unspaced characters from U+3000 on that no South-East Asian script holds
    eastern = layout.count(unspaced & (layout.points >= 0x3000) & layout.has(LETTER | MARK | UNSPACED_SCRIPT))
    mostly = share(alone, alone + spaced) >= _MOSTLY
    found = np.where(kana > _KANA_SHARE * alone, JAPANESE, np.where(2 * eastern > alone, CHINESE, UNSPACED_OTHER))
    return pa.array(np.where(mostly & (alone > 0), found, SPACED).tolist(), pa.string())


def threshold(score: str, scores: pa.RecordBatch, usual: float) -> pa.Array:
    """The threshold of each row: the usual one, or that of the row's script."""
    found = pa.array(np.full(len(scores), usual, np.float64))
    for script, known in THRESHOLDS.items():
        if score in known:
            found = pc.if_else(pc.equal(scores["script"], script), known[score], found)
    return found
