"""Building shards: texts and examples become two streams of token ids on disk, one to train on and one held out.

Every document is written as prefix, tokens, end-of-text. The prefix is the tokenizer's own (`document_prefix`; for the
ones trained here `<|endoftext|>`), so that a document's first token has something to be predicted from and a model
learns to begin as well as to end. Knows the store, and of a tokenizer only its methods; no corpus, no torch.
"""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nbllm.errors import DataError, StoreError, UsageError
from nbllm.files import hash_value
from nbllm.shards.encoder import Encoder, Ids
from nbllm.shards.stream import TokenStream
from nbllm.store import Manifest, Parent, Store

if TYPE_CHECKING:
    from nbllm.tokenizer import Tokenizer

PARTS = {"train": "train", "held_out": "held-out"}
_FORMAT = 1
_CHUNK_BYTES = 1_000_000
_CHUNK_DOCUMENTS = 4096


@dataclass(frozen=True, kw_only=True)
class Example:
    """A document of which only some tokens are targets; made by the caller where a (prompt, answer) pair won't do."""

    ids: Sequence[int]
    """Token ids, special ones included; nothing is added to them."""
    targets: Sequence[bool]
    """For each id, whether the model is to learn it; the first never counts."""
    text_bytes: int
    """UTF-8 bytes of the text that the targets spell."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.targets):
            raise UsageError(f"An example of {len(self.ids)} ids needs as many targets", received=len(self.targets))


Document = str | tuple[str | Sequence[int] | None, str | Sequence[int]] | Example
"""A text, all of it a target; a (prompt, answer) pair, of which only the answer and the end are; or an `Example`."""


class Shards:
    """The tokens of a corpus under one tokenizer.

    Args:
        folder: its folder in the store.
        manifest: its manifest.
        reused: whether it was found where one was to be built.
    """

    def __init__(self, folder: Path | str, *, manifest: Manifest | None = None, reused: bool = False) -> None:
        self.folder = Path(folder)
        self.manifest = manifest
        self.reused = reused
        self.train = TokenStream(self.folder / PARTS["train"])
        self.held_out = TokenStream(self.folder / PARTS["held_out"])

    @classmethod
    def load(cls, store: Store, name: str) -> Shards:
        """The shards of that name in the store; raises NotFoundError."""
        manifest = store.get("shards", name)
        return cls(store.path("shards", name), manifest=manifest)

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self.folder.name

    def __repr__(self) -> str:
        return f"Shards({self.name!r}, train={len(self.train):,} tokens, held_out={len(self.held_out):,} tokens)"


def build(
    store: Store,
    tokenizer: Tokenizer,
    *,
    train: Iterable[Document],
    held_out: Iterable[Document] = (),
    parents: Sequence[Parent],
    parameters: Mapping[str, Any],
    progress: Callable[[str, int, int], None] | None = None,
    call: Mapping[str, Any] | None = None,
) -> Shards:
    """Encodes the two parts into the store, or finds them there from an earlier time.

    Args:
        store: where they go, under the first 16 hex digits of a hash over parents, parameters and tokenizer.
        tokenizer: what encodes.
        train, held_out: texts, (prompt, answer) pairs or `Example`s; empty texts are left out. The iterables are not
            touched where the shards exist.
        parents: what the texts come from, and the tokenizer.
        parameters: what else decided the texts, such as the held-out fraction.
        progress: called with the part, documents and bytes so far.
        call: what the manifest keeps to make them again.

    Raises:
        DataError: no text to train on, or text that isn't Unicode.
        UsageError: a tokenizer without an end-of-text token.
    """
    if tokenizer.eos_id is None:
        raise UsageError(
            f"The tokenizer {tokenizer.name!r} has no end-of-text token", next='Give it an "eos_token" in its config'
        )
    parameters = {**parameters, "format": _FORMAT, "tokenizer_hash": tokenizer.hash}
    key = {"parents": [[parent.kind, parent.hash] for parent in parents], "parameters": parameters}
    name = hash_value(key)[:16]
    if (store.path("shards", name) / "manifest.json").is_file():
        with contextlib.suppress(StoreError):  # damaged since: made again from the same texts
            store.verify(store.get("shards", name))
            shards = Shards.load(store, name)
            shards.reused = True
            return shards
    with store.create("shards", name, parameters=parameters, parents=parents, call=call, overwrite=True) as draft:
        encoder = Encoder(tokenizer)
        for part, documents in (("train", train), ("held_out", held_out)):
            meta = _write(Path(draft.folder) / PARTS[part], tokenizer, encoder, documents, part, progress)
            draft.summary |= {f"{part}_{key}": meta[key] for key in ("tokens", "documents", "text_bytes")}
        if not draft.summary["train_tokens"]:
            raise DataError("There is no text to train on", next="Add text to the corpus with %%llm_clean SOURCE")
    return Shards(store.path("shards", name), manifest=draft.manifest)


def _write(
    folder: Path,
    tokenizer: Tokenizer,
    encoder: Encoder,
    documents: Iterable[Document],
    part: str,
    progress: Callable[[str, int, int], None] | None,
) -> dict[str, Any]:
    """Writes one part; returns its meta.json. Holds about a megabyte of text in memory at a time."""
    folder.mkdir(parents=True)
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 65_536 else np.uint32)
    boundaries = array("q", [0])
    text_bytes = 0
    any_partial = False
    with (folder / "tokens.bin").open("wb") as tokens_file, (folder / "mask.bin").open("wb") as mask_file:
        for chunk in _chunks(documents):
            examples = _encode(tokenizer, encoder, chunk)
            text_bytes += sum(example.text_bytes for example in examples)
            lengths = np.array([example.length for example in examples], dtype=np.int64)
            ends = np.cumsum(lengths)
            parts = [part for example in examples for part in example.parts]
            np.concatenate(parts, dtype=dtype, casting="unsafe").tofile(tokens_file)
            mask, partial = _mask(examples, ends - lengths, int(ends[-1]))
            mask.tofile(mask_file)
            any_partial = any_partial or partial
            boundaries.frombytes((boundaries[-1] + ends).tobytes())
            if progress is not None:
                progress(part, len(boundaries) - 1, text_bytes)
    if not any_partial:
        (folder / "mask.bin").unlink()
    np.save(folder / "boundaries.npy", np.frombuffer(boundaries, dtype=np.int64))
    meta = {
        "dtype": dtype.name,
        "tokens": boundaries[-1],
        "documents": len(boundaries) - 1,
        "text_bytes": text_bytes,
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "pad_id": tokenizer.eos_id if tokenizer.pad_id is None else tokenizer.pad_id,
        "tokenizer_hash": tokenizer.hash,
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
    return meta


def _chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in groups of a megabyte, so that encoding can use several threads; empty texts are left out."""
    chunk: list[Document] = []
    size_bytes = 0
    for document in documents:
        if isinstance(document, str) and not document:
            continue
        chunk.append(document)
        size_bytes += len(document) if isinstance(document, str) else 0
        if size_bytes >= _CHUNK_BYTES or len(chunk) >= _CHUNK_DOCUMENTS:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk


class _Encoded(NamedTuple):
    """A document as it is written."""

    parts: Sequence[Ids]
    """Its ids, one after the other."""
    length: int
    """How many they are."""
    targets: int | Sequence[bool]
    """For each id whether it is a target, or from which on all are."""
    text_bytes: int


def _mask(examples: Sequence[_Encoded], starts: NDArray[np.int64], count: int) -> tuple[NDArray[np.uint8], bool]:
    """1 where one of `count` tokens is a target; and whether others than the documents' first ones aren't."""
    mask = np.ones(count, dtype=np.uint8)
    partial = False
    for example, start in zip(examples, starts.tolist(), strict=True):
        if not isinstance(example.targets, int):
            mask[start : start + example.length] = example.targets
            partial = partial or not all(example.targets[1:])
        elif example.targets > 1:
            mask[start : start + example.targets] = 0
            partial = True
    mask[starts[starts < count]] = 0  # nothing stands before a document's first token, so it can't be predicted
    return mask, partial


def _encode(tokenizer: Tokenizer, encoder: Encoder, chunk: Sequence[Document]) -> list[_Encoded]:
    """The documents of a chunk; all their texts are encoded in one call."""
    texts: list[str] = []
    for document in chunk:
        if isinstance(document, str):
            texts.append(document)
        elif isinstance(document, tuple):
            texts.extend(piece for piece in document if isinstance(piece, str))
        elif not isinstance(document, Example):
            raise UsageError("A document is a text, a (prompt, answer) pair or an Example", received=document)
    encoded = iter(encoder.encode_batch(texts))
    assert tokenizer.eos_id is not None
    prefix, nothing, end = map(_as_ids, (tokenizer.document_prefix, (), (tokenizer.eos_id,)))
    examples: list[_Encoded] = []
    for document in chunk:
        if isinstance(document, Example):
            ids = _as_ids(document.ids)
            examples.append(_Encoded((ids,), len(ids), document.targets, document.text_bytes))
            continue
        if isinstance(document, str):
            prompt, answer = nothing, next(encoded)
            answer_bytes = len(document) if document.isascii() else len(document.encode())
        else:
            prompt_piece, answer_piece = document
            prompt = next(encoded) if isinstance(prompt_piece, str) else _as_ids(prompt_piece or ())
            answer = next(encoded) if isinstance(answer_piece, str) else _as_ids(answer_piece)
            text = answer_piece if isinstance(answer_piece, str) else tokenizer.decode(answer.tolist())
            answer_bytes = len(text.encode())
        given = len(prefix) + len(prompt)
        if not given and len(answer):  # its first token is predicted from nothing, so its bytes don't count either
            answer_bytes -= len(tokenizer.token_bytes(int(answer[0])))
        examples.append(_Encoded((prefix, prompt, answer, end), given + len(answer) + 1, given, answer_bytes))
    return examples


def _as_ids(ids: Sequence[int]) -> Ids:
    return np.asarray(ids, dtype=np.uint32)
