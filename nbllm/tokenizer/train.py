"""Training a tokenizer and keeping it: byte-pair, Unigram or WordPiece (see `trainers`).

With BPE the same texts give the same tokenizer.json, byte for byte. Texts stream through: memory goes with the number
of different pieces (words, mostly), not with the texts' size. Knows the store, not what a corpus is: texts come as an
iterable, or as a function that gives one.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nbllm.errors import DataError, NbllmError, UsageError, did_you_mean
from nbllm.store import Parent, Store
from nbllm.tokenizer.load import read_folder
from nbllm.tokenizer.patterns import expression
from nbllm.tokenizer.tokenizer import Tokenizer
from nbllm.tokenizer.trainers import UNKNOWN, recipe

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
ALGORITHMS = ("bpe", "unigram", "wordpiece")
"""What `--algorithm` takes."""
_MB = 1_000_000


def default_vocab_size(text_bytes: int) -> int:
    """2,048 tokens up to 10 MB of text, 8,192 up to 100 MB, 32,768 above."""
    if text_bytes <= 10 * _MB:
        return 2048
    return 8192 if text_bytes <= 100 * _MB else 32_768


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """What to train."""

    vocab_size: int
    """Tokens wanted, the special ones and the 256 bytes included."""
    algorithm: str = "bpe"
    """A name in `ALGORITHMS`."""
    special: tuple[str, ...] = ()
    """Special tokens beside `<|endoftext|>` and `<|pad|>`, and `[UNK]` of WordPiece."""
    pattern: str | None = None
    """How text is cut first: a name in `patterns.PATTERNS`, by default `gpt4`. None for WordPiece, which cuts at white
    space and punctuation."""
    digits: str | None = None
    """How numbers are cut: a name in `patterns.DIGITS`, None for the pattern's own way."""

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise UsageError(
                f"--algorithm {self.algorithm} can't be trained", next=did_you_mean(str(self.algorithm), ALGORITHMS)
            )
        if self.algorithm == "wordpiece":
            if self.pattern is not None:
                raise UsageError(
                    "WordPiece cuts at white space and punctuation; --pattern is for bpe and unigram",
                    received=self.pattern,
                    next="Leave --pattern out",
                )
        elif self.pattern is None:
            object.__setattr__(self, "pattern", "gpt4")
        expression(self.pattern or "none", self.digits)
        for token in self.special:
            if not isinstance(token, str) or not token or token.isspace():
                raise UsageError("A special token is a text of at least one visible character", received=token)
        letters = 0 if self.algorithm == "wordpiece" else 256
        smallest = letters + len(self.special_tokens) + (not letters)
        if not isinstance(self.vocab_size, int) or isinstance(self.vocab_size, bool) or self.vocab_size < smallest:
            raise UsageError(
                f"--vocab-size has to be a whole number from {smallest} on "
                f"({'256 bytes and ' if letters else ''}{len(self.special_tokens)} special tokens)",
                received=self.vocab_size,
            )

    @property
    def special_tokens(self) -> list[str]:
        """All special tokens in the order of their ids, which start at 0."""
        unknown = [UNKNOWN] if self.algorithm == "wordpiece" else []
        return list(dict.fromkeys([END_OF_TEXT, PAD, *unknown, *self.special]))


def train(
    store: Store,
    texts: Iterable[str] | Callable[[], Iterable[str]],
    *,
    text_bytes: int | None = None,
    algorithm: str = "bpe",
    vocab_size: int | None = None,
    special: Sequence[str] = (),
    pattern: str | None = None,
    digits: str | None = None,
    name: str | None = None,
    parents: Sequence[Parent] = (),
    parameters_extra: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    call: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tokenizer:
    """Trains a tokenizer and stores it, or finds the one that was trained alike.

    `<|endoftext|>` (id 0) begins and ends documents, `<|pad|>` (id 1) fills batches; both are ordinary text wherever a
    user types them. Pairs seen only once make no token, so small texts may give fewer tokens than asked for: the
    manifest's summary says so in `note`.

    Args:
        store: where it goes.
        texts: the texts, or a function that gives them (it is called once, or twice where `parents` is empty). What can
            be read only once, a generator say, is kept in a temporary file where it is needed twice.
        text_bytes: their size in UTF-8, where it is known; decides the default of `vocab_size`.
        algorithm, vocab_size, special, pattern, digits: see `TokenizerConfig`; `vocab_size` defaults to
            `default_vocab_size(text_bytes)`.
        name: its name; by default made from the first parent's name and the size.
        parents: what the texts come from. Without one, the texts' own hash stands in.
        parameters_extra: what else decided the texts, such as the held-out fraction; kept in the manifest.
        overwrite: replace a different tokenizer of that name.
        call: what the manifest keeps to make it again.
        progress: called with texts and bytes read so far.

    Raises:
        UsageError: an option that doesn't exist or doesn't fit.
        DataError: no text, or text that isn't Unicode.
        StoreError: the name is in use by a different tokenizer.
    """
    source = _again(texts, twice=not parents or text_bytes is None)
    if not parents or text_bytes is None:
        text_hash, counted_bytes = _measure(source())
        text_bytes = counted_bytes if text_bytes is None else text_bytes
        parents = parents or (Parent(kind="file", name="texts", hash=text_hash),)
    config = TokenizerConfig(
        vocab_size=default_vocab_size(text_bytes) if vocab_size is None else vocab_size,
        algorithm=algorithm,
        special=tuple(special),
        pattern=pattern,
        digits=digits,
    )
    parameters = {**asdict(config), "special": list(config.special), **(parameters_extra or {})}
    if not overwrite:
        known = store.reusable("tokenizer", parameters, parents)
        if known is not None and name in (None, known.name):
            found = read_folder(store.path("tokenizer", known.name), name=known.name, manifest=known)
            found.reused = True
            return found
    name = name or f"{parents[0].name}-{config.vocab_size}"
    with store.create(
        "tokenizer", name, parameters=parameters, parents=parents, call=call, overwrite=overwrite
    ) as draft:
        definition, text_count, read_bytes = _train(config, source(), progress)
        trained = Tokenizer(definition, config=_transformers_config(config.algorithm), name=name)
        trained.save(Path(draft.folder))
        draft.summary = {"vocab_size": trained.vocab_size, "texts": text_count, "text_bytes": read_bytes}
        if trained.vocab_size < config.vocab_size:
            draft.summary["note"] = (
                f"The text gives only {trained.vocab_size:,} of the {config.vocab_size:,} tokens asked for"
            )
    trained.manifest = draft.manifest
    return trained


def _train(
    config: TokenizerConfig, texts: Iterable[str], progress: Callable[[int, int], None] | None
) -> tuple[str, int, int]:
    parts = recipe(config.algorithm, config.vocab_size, config.special_tokens, config.pattern, config.digits)
    count = total_bytes = 0
    failure: NbllmError | None = None

    def counted() -> Iterator[str]:
        nonlocal count, total_bytes, failure
        for text in texts:
            try:
                size = _size(text)
            except NbllmError as error:  # kept, since the library hides what is raised inside it
                failure = error
                return
            if size:
                count += 1
                total_bytes += size
                if progress is not None:
                    progress(count, total_bytes)
                yield text

    parts.backend.train_from_iterator(counted(), parts.trainer)
    parts.backend.pre_tokenizer = parts.cut
    if failure is not None:
        raise failure
    if not count:
        raise DataError("There is no text to train a tokenizer on", next="Make a corpus with %%llm_clean SOURCE")
    return parts.backend.to_str(), count, total_bytes


def _transformers_config(algorithm: str) -> dict[str, Any]:
    unknown = {"unk_token": UNKNOWN} if algorithm == "wordpiece" else {}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": PAD,
        **unknown,
        "clean_up_tokenization_spaces": False,
    }


def _again(texts: Iterable[str] | Callable[[], Iterable[str]], *, twice: bool) -> Callable[[], Iterable[str]]:
    if isinstance(texts, str):
        raise UsageError("Texts come as a list of strings, not as one string", received=texts)
    if callable(texts):
        return texts
    if isinstance(texts, Sequence) or not twice:
        return lambda: texts
    spool = tempfile.TemporaryFile("w+", encoding="ascii")  # noqa: SIM115  closed, and gone, with its last reader
    for text in texts:
        _size(text)
        spool.write(json.dumps(text) + "\n")

    def reread() -> Iterator[str]:
        spool.seek(0)
        for line in spool:
            yield json.loads(line)

    return reread


def _measure(texts: Iterable[str]) -> tuple[str, int]:
    """The hash of some texts in their order, and their size in UTF-8 bytes."""
    digest, total_bytes = hashlib.sha256(), 0
    for text in texts:
        size = _size(text)
        total_bytes += size
        digest.update(size.to_bytes(8, "little") + text.encode())
    return digest.hexdigest(), total_bytes


def _size(text: object) -> int:
    if not isinstance(text, str):
        raise UsageError("Only strings can be trained on", received=text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise DataError("A text holds half a surrogate pair, which isn't a character", received=text[:80]) from error
