"""`quality c4`: the line and page rules of C4 (Raffel et al. 2020, section 2.2, and the code in TFDS, `c4_utils.py`).

Keeps the lines that end with . ? ! or a double quote (Chinese and Japanese: 。？！ and closing quotes too), not
with an ellipsis, hold enough words, no word beyond 1,000 characters, not the word `javascript` and no phrase of cookie
or privacy notices. Drops the page with `lorem ipsum`, with a curly bracket, with too few sentences in what is kept, or
when it is too long. Citations such as [1], [edit] and [citation needed] are taken out first. C4's list of bad words
isn't here: see `toxicity`. A sentence ends at its mark before white space; abbreviations are not known.

`variant=datatrove`: 3 words a line and 5 sentences a page; a single quote ends a line; the words of a line are counted
with its citations, a space that a citation leaves at the end makes the line end without a mark; only lines that passed
the rules before are searched for `lorem ipsum` and curly brackets; spaCy's sentences; no limit on the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nbllm.corpus.layout import ENDS_SENTENCE, SPACE, UNSPACED_SCRIPT, Ints, Layout, Spans, running
from nbllm.corpus.spacy_words import spacy_words
from nbllm.corpus.stage import Handle, Outcome, Rules, Stage, argument, scores_of
from nbllm.corpus.stages.variant import DATATROVE, variant_argument

_CITATION = r"\[\d*\]|\[edit\]|\[citation needed\]"
_POLICY = "terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies"
_SUSPECT = rf"(?i)javascript|lorem ipsum|\{{|{_POLICY}"
_MARKS = '.?!"”»」』。？！．'
_MARKS_OF_DATATROVE = ".?!\"'"
_CLOSERS = np.array(list(map(ord, "\"'”’»)]」』）")), np.uint32)
_REMOVED = ("no_end_mark", "few_words", "long_words", "javascript", "policy")
_RULES = (
    # score, reason; dropped where the score is above 0, or as `decide` says
    ("lorem_ipsum", "lorem ipsum"),
    ("curly_brackets", "curly bracket"),
)


@dataclass(frozen=True, kw_only=True)
class QualityC4(Stage):
    """Edits: the lines that stay. Scores: `lines`, those removed by cause, `sentences` in what stays, page rules."""

    NAME: ClassVar = "quality c4"
    SUMMARY: ClassVar = "C4's rules: lines that end as sentences do, pages without notices or code"
    EVIDENCE: ClassVar = {
        "lorem ipsum": "lorem_ipsum", "curly bracket": "curly_brackets", "too few sentences": "sentences",
        "too long": "characters",
    }  # fmt: skip
    HANDLES: ClassVar = (
        Handle("sentences", "min_sentences", least=True),
        Handle("characters", "max_characters", least=False),
    )
    min_words: int | None = argument(None, "fewest words of a line; 5, for datatrove 3", parse=int)
    min_sentences: int | None = argument(None, "fewest sentences of a page; 3, for datatrove 5", parse=int)
    max_word: int = argument(1000, "most characters of a word in a line that stays", parse=int)
    max_characters: int | None = argument(None, "most characters of a page; 190000, for datatrove none", parse=int)
    end_mark: str = argument("yes", "whether lines have to end with a mark", choices=("yes", "no"))
    variant: str = variant_argument()

    def measure(self, batch: pa.RecordBatch) -> Outcome:
        as_datatrove = self.variant == DATATROVE
        texts = batch["text"]
        layout = Layout(texts, "splitlines" if as_datatrove else "usual")
        spans = layout.filled_lines
        lines = layout.strings(spans)
        words = _inside(layout.pieces if as_datatrove else layout.tokens, spans)
        gone = dict.fromkeys(_REMOVED, np.zeros(len(spans), bool))
        gone["long_words"] = _long_words(layout.pieces, spans, self.max_word)
        lines, words, cited = self._without_citations(lines, words)
        gone["few_words"] = words < self._min_words
        if self.end_mark == "yes":
            last = pc.utf8_slice_codeunits(lines, -1)
            ends = pc.is_in(last, pa.array(list(_MARKS_OF_DATATROVE if as_datatrove else _MARKS)))
            dots = pc.ends_with(lines, "...")
            gone["no_end_mark"] = _bools(pc.or_(pc.invert(ends), dots))
        page = self._suspects(texts, spans, lines, gone)
        stays = ~np.logical_or.reduce(list(gone.values()))
        sentences = _sentences_as_spacy(layout, spans, cited) if as_datatrove else _sentences(layout, spans)
        kept = np.diff(running(stays)[spans.offsets])
        edited = pc.binary_join(
            pa.ListArray.from_arrays(pa.array(running(kept), pa.int32()), lines.filter(pa.array(stays))), "\n"
        )
        columns: dict[str, Any] = {"lines": spans.counts, "lines_kept": kept}
        columns |= {name: spans.total(mask) for name, mask in gone.items()}
        columns |= {"sentences": spans.total(np.where(stays, sentences, 0)), **page, "characters": layout.sizes}
        scores = scores_of(len(batch), **{name: pa.array(values, pa.int64()) for name, values in columns.items()})
        return Outcome(scores, edited)

    def rules(self, scores: pa.RecordBatch) -> Rules:
        most = self.limit("max_characters")
        rules: Rules = [(pc.greater(scores[score], 0), reason) for score, reason in _RULES]
        rules.append((pc.less(scores["sentences"], self.limit("min_sentences")), "too few sentences"))
        if most is not None:
            rules.append((pc.greater(scores["characters"], most), "too long"))
        return rules

    def limit(self, argument: str) -> Any:
        found, as_datatrove = getattr(self, argument), self.variant == DATATROVE
        if found is None and argument == "min_sentences":
            return 5 if as_datatrove else 3
        if found is None and argument == "max_characters":
            return None if as_datatrove else 190_000
        return found

    @property
    def _min_words(self) -> int:
        return self.min_words if self.min_words is not None else 3 if self.variant == DATATROVE else 5

    def _without_citations(self, lines: pa.StringArray, words: Ints) -> tuple[pa.StringArray, Ints, Ints]:
        """Lines without citations, their words, and the positions of those that changed."""
        hold = pc.match_substring_regex(lines, _CITATION)
        if not pc.any(hold).as_py():
            return lines, words, np.empty(0, np.int64)
        places = np.flatnonzero(_bools(hold))
        bare = pc.replace_substring_regex(lines.take(pa.array(places)), _CITATION, "")
        if self.variant != DATATROVE:
            bare = pc.utf8_trim_whitespace(bare)
            words = words.copy()
            words[places] = Layout(bare).tokens.counts
        return pc.replace_with_mask(lines, hold, bare), words, places

    def _suspects(
        self, texts: pa.Array, spans: Spans, lines: pa.StringArray, gone: dict[str, NDArray[np.bool_]]
    ) -> dict[str, Ints]:
        """Marks lines to remove, and counts what drops the page; most texts hold none of it."""
        documents = len(texts)
        page = {score: np.zeros(documents, np.int64) for score, _ in _RULES}
        suspect = np.flatnonzero(_bools(pc.match_substring_regex(texts, _SUSPECT)))
        if not len(suspect):
            return page
        among = np.zeros(documents, bool)
        among[suspect] = True
        places = np.flatnonzero(among[spans.document])
        found = lines.take(pa.array(places))
        low = pc.utf8_lower(found)
        for name, pattern in (("javascript", "javascript"), ("policy", _POLICY)):
            gone[name] = gone[name].copy()
            gone[name][places] = _bools(pc.match_substring_regex(low, pattern))
        hits = {
            "lorem_ipsum": _bools(pc.match_substring(low, "lorem ipsum")),
            "curly_brackets": _bools(pc.match_substring(found, "{")),
        }
        if self.variant == DATATROVE:
            # there the rules go line by line, and a line that one of them removed isn't looked at again
            before = (gone["long_words"] | gone["no_end_mark"] | gone["few_words"])[places]
            hits["lorem_ipsum"] &= ~before
            hits["curly_brackets"] &= ~before & ~gone["javascript"][places]
        for score, mask in hits.items():
            page[score] = np.bincount(spans.document[places][mask], minlength=documents)
        return page


def _inside(pieces: Spans, lines: Spans) -> Ints:
    """How many pieces each line holds."""
    return np.searchsorted(pieces.start, lines.end) - np.searchsorted(pieces.start, lines.start)


def _long_words(pieces: Spans, lines: Spans, most: int) -> NDArray[np.bool_]:
    found = np.zeros(len(lines), bool)
    long = pieces.start[pieces.sizes > most]
    if len(long):
        found[np.searchsorted(lines.start, long, side="right") - 1] = True
    return found


def _sentences(layout: Layout, lines: Spans) -> Ints:
    """Sentences of each line: one, and one more for each mark with something after it in the line."""
    ends = layout.has(ENDS_SENTENCE)
    places = np.flatnonzero(ends[:-1] & ~ends[1:])
    after = places + 1
    closed = np.isin(layout.points[np.minimum(after, len(ends) - 1)], _CLOSERS)
    after = np.minimum(after + closed, len(ends) - 1)
    unspaced = layout.points[places] >= 0x3000  # 。and its like need no space after them
    real = after[layout.has(SPACE)[after] | unspaced | layout.has(UNSPACED_SCRIPT)[after]]
    # a mark at the end of a line leaves nothing after it
    return 1 + np.searchsorted(real, lines.end) - np.searchsorted(real, lines.start)


def _sentences_as_spacy(layout: Layout, lines: Spans, cited: Ints) -> Ints:
    """What spaCy's sentencizer gives: a new one at the first word after a mark that isn't punctuation itself."""
    counts = _count_as_spacy(layout, lines)
    if len(cited):
        texts = layout.strings(lines).take(pa.array(cited))
        own = Layout(pc.replace_substring_regex(texts, _CITATION, ""))
        counts[cited] = _count_as_spacy(own, own.spans(own.start[:-1], own.start[1:] - 1))
    return counts


def _count_as_spacy(layout: Layout, lines: Spans) -> Ints:
    found = spacy_words(layout)
    line = np.searchsorted(lines.start, found.starts, side="right") - 1
    marks = running(found.ends[found.ids])
    first = np.searchsorted(found.starts, lines.start)
    plain = np.flatnonzero(~(found.punctuation | found.ends)[found.ids])
    # the marks seen up to the plain word before, or up to the start of the line
    before = np.full(len(plain), -1, np.int64)
    before[1:] = np.where(line[plain[1:]] == line[plain[:-1]], marks[plain[:-1]], -1)
    before = np.where(before < 0, marks[first[line[plain]]], before)
    fresh = marks[plain] > before
    return 1 + np.bincount(line[plain][fresh], minlength=len(lines))


def _bools(mask: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(mask.to_numpy(zero_copy_only=False), bool)
