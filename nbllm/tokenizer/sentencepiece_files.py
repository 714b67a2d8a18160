"""SentencePiece's `.model` files as tokenizer.json, without sentencepiece and without running anything from the file.

The file is a protocol buffer (sentencepiece_model.proto): pieces with scores and kinds, how it was trained, how text is
normalised. Only the few fields that decide the ids are read. Unigram (Kudo 2018) and BPE; word and character models are
refused. The ids are SentencePiece's own but for two things: where two ways to cut a run of equal characters are equally
likely, a Unigram model may take the other one, and joined normalisation maps go by whole letters with their marks.
Knows nothing of stores.
"""

from __future__ import annotations

import base64
import itertools
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nbllm.errors import DataError
from nbllm.tokenizer.tokenizer import Tokenizer

_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SPACE = "▁"


def read_file(path: Path) -> Tokenizer:
    """The tokenizer of a SentencePiece model file.

    Raises:
        DataError: no such file, or a kind that isn't Unigram or BPE.
    """
    try:
        fields = _fields(path.read_bytes())
        pieces = [_piece(content) for content in fields[1]]
        training = _fields(fields[2][-1]) if 2 in fields else {}
        normalizing = _fields(fields[3][-1]) if 3 in fields else {}
        definition = _definition(pieces, training, normalizing, path)
    except (KeyError, IndexError, ValueError, TypeError, struct.error) as error:
        raise DataError(f"{path} is no SentencePiece model: {error}") from error
    controls = [piece for piece, _, kind in pieces if kind == _CONTROL]
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for role, number, usual in (("bos", 46, "<s>"), ("eos", 47, "</s>"), ("pad", 48, "<pad>")):
        named = training.get(number, [usual.encode()])[-1].decode()
        if named in controls:
            config[f"{role}_token"] = named
    config["unk_token"] = next(piece for piece, _, kind in pieces if kind == _UNKNOWN)
    return Tokenizer(json.dumps(definition, ensure_ascii=False), config=config, name=path.stem)


def _definition(
    pieces: list[tuple[str, float, int]], training: Mapping[int, Any], normalizing: Mapping[int, Any], path: Path
) -> dict[str, Any]:
    kind = _number(training, 3, _UNIGRAM)
    if not pieces or kind not in (_UNIGRAM, _BPE):
        raise DataError(f"{path} is a SentencePiece model of words or characters; only Unigram and BPE can be read")
    byte_fallback = bool(_number(training, 35, 0))
    unknown = next(id for id, piece in enumerate(pieces) if piece[2] == _UNKNOWN)
    before = bool(_number(normalizing, 3, 1)) and not bool(_number(training, 24, 0))
    if kind == _BPE:
        vocabulary = {piece: id for id, (piece, _, _) in enumerate(pieces)}
        model: dict[str, Any] = {
            "type": "BPE",
            "unk_token": pieces[unknown][0],
            "fuse_unk": True,
            "byte_fallback": byte_fallback,
            "vocab": vocabulary,
            "merges": _merges(pieces),
        }
    else:
        model = {
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": byte_fallback,
            "vocab": [[piece, score] for piece, score, _ in pieces],
        }
    added = [
        {
            "id": id,
            "content": piece,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind_ != _USER,
        }
        for id, (piece, _, kind_) in enumerate(pieces)
        if kind_ in (_UNKNOWN, _CONTROL, _USER)
    ]
    steps = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if before else []),
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(normalizing, before=before)},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": model,
    }


def _normalizers(normalizing: Mapping[int, Any], *, before: bool) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    charsmap = normalizing.get(2, [b""])[-1]
    if charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()})
    if _number(normalizing, 4, 1):
        steps.append({"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if before:
        steps.append({"type": "Prepend", "prepend": _SPACE})
    return [*steps, {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]


def _merges(pieces: list[tuple[str, float, int]]) -> list[list[str]]:
    """For each piece the pair that its own characters end in by better scores alone, the best score first."""
    scores = {piece: score for piece, score, kind in pieces if kind in (_NORMAL, _UNUSED)}
    merges = []
    for piece, score in sorted(scores.items(), key=lambda item: -item[1]):
        parts = list(piece)
        while len(parts) > 1:
            found = [scores.get(left + right, score) for left, right in itertools.pairwise(parts)]
            best = max(found)
            if best <= score:
                break
            i = found.index(best)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            merges.append(parts)
    return merges


def _piece(content: bytes) -> tuple[str, float, int]:
    fields = _fields(content)
    score = struct.unpack("<f", fields[2][-1])[0] if 2 in fields else 0.0
    return fields[1][-1].decode(), score, _number(fields, 3, _NORMAL)


def _number(fields: Mapping[int, Any], number: int, default: int) -> int:
    return int(fields[number][-1]) if number in fields else default


def _fields(content: bytes) -> dict[int, list[Any]]:
    """A message's fields by number: integers, or bytes of what has a length or a fixed size."""
    found: dict[int, list[Any]] = {}
    for number, value in _read(content):
        found.setdefault(number, []).append(value)
    return found


def _read(content: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(content, at)
            yield key >> 3, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError("a field of an unknown kind")
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, at = _varint(content, at)
        if at + size > len(content):
            raise ValueError("it ends too early")
        yield key >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number too long")
