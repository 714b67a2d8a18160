"""tiktoken's and SentencePiece's files, written here byte by byte, give the ids that their own rules give."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

import pytest
from hard_texts import HARD_TEXTS, fuzz_texts
from tokenizers import Regex, pre_tokenizers

from nbllm.errors import DataError, UsageError
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer, load
from nbllm.tokenizer.patterns import expression


def ranks_of(tokenizer: Tokenizer) -> dict[bytes, int]:
    """The same vocabulary as tiktoken would have it: ranks are ids."""
    tokens = [tokenizer.token_bytes(id) for id in range(2, tokenizer.vocab_size)]
    return {token: rank for rank, token in enumerate(tokens)}


def by_tiktokens_rule(ranks: dict[bytes, int], pattern: str, text: str) -> list[int]:
    """tiktoken's own algorithm, written plainly: any neighbours that together are a token, the lowest rank first."""
    ids = []
    for piece, _ in pre_tokenizers.Split(Regex(expression(pattern)), "isolated").pre_tokenize_str(text):
        parts = [bytes([byte]) for byte in piece.encode()]
        while len(parts) > 1:
            pairs = [(ranks.get(parts[i] + parts[i + 1], 10**9), i) for i in range(len(parts) - 1)]
            rank, i = min(pairs)
            if rank == 10**9:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        whole = piece.encode()
        ids += [ranks[whole]] if whole in ranks else [ranks[part] for part in parts]
    return ids


@pytest.mark.parametrize("pattern", ["gpt2", "gpt4", "gpt4o"])
def test_a_tiktoken_file_gives_tiktokens_ids(
    store: Store, trained: Tokenizer, prose: list[str], tmp_path: Path, pattern: str
) -> None:
    ranks = ranks_of(trained)
    ranks |= {b" strange whole": len(ranks), b"zq": len(ranks) + 1}  # one is never merged
    file = tmp_path / "mine.tiktoken"
    file.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    found = load(store, file, pattern=pattern)
    assert (found.name, found.byte_level, found.lossless, found.vocab_size) == ("mine", True, True, len(ranks))
    for text in [*HARD_TEXTS, *fuzz_texts(100, seed=9), prose[0], "zq"]:
        ids = found.encode(text)
        assert ids == by_tiktokens_rule(ranks, pattern, text)
        assert b"".join(map(found.token_bytes, ids)) == text.encode()
        assert found.decode(ids) == text
    with pytest.raises(UsageError, match="Add --pattern gpt2"):
        load(store, file)
    file.write_text("no ranks here")
    with pytest.raises(DataError, match="no file of tiktoken ranks"):
        load(store, file, pattern=pattern)
    file.write_text("YQ== 0\n")
    with pytest.raises(DataError, match="lacks tokens for single bytes"):
        load(store, file, pattern=pattern)


def field(number: int, value: bytes | int | float) -> bytes:
    """One field of a protocol buffer."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """An integer as protocol buffers write it."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def model_file(path: Path, pieces: list[tuple[str, float, int]], kind: int, **options: int) -> Path:
    """A SentencePiece model: kind 1 is Unigram, 2 BPE."""
    content = b"".join(
        field(1, field(1, piece.encode()) + field(2, score) + field(3, type_)) for piece, score, type_ in pieces
    )
    content += field(2, field(3, kind) + field(35, options.get("byte_fallback", 0)))
    content += field(3, field(1, b"identity") + field(3, 1) + field(4, options.get("extra", 0)))
    path.write_bytes(content)
    return path


SPECIAL = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]


def test_a_sentencepiece_bpe_model(store: Store, tmp_path: Path) -> None:
    pieces = [*SPECIAL, *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256))]
    pieces += [(piece, -float(rank), 1) for rank, piece in enumerate(["ab", "abc", "▁ab", "bc", "▁abc"])]
    pieces += [(letter, -100.0 - i, 1) for i, letter in enumerate("▁abc")]
    found = load(store, model_file(tmp_path / "tokenizer.model", pieces, 2, byte_fallback=1))
    assert (found.algorithm, found.bos_id, found.eos_id) == ("bpe", 1, 2)
    assert found.special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}

    def tokens(text: str) -> list[str]:
        return [found.token(id) for id in found.encode(text)]

    assert tokens("abc bc  ab") == ["▁abc", "▁", "bc", "▁", "▁ab"]
    assert tokens("é") == ["▁", "<0xC3>", "<0xA9>"]
    assert tokens("<s>") == ["▁", "<0x3C>", "<0x73>", "<0x3E>"]
    assert found.encode("") == []
    for text in ["abc bc  ab", "é 한국 <s>", *fuzz_texts(40, seed=4)]:
        if "▁" not in text:
            assert found.decode(found.encode(text)) == text


def test_a_sentencepiece_unigram_model(store: Store, tmp_path: Path) -> None:
    pieces = [*SPECIAL, ("<sep>", 0.0, 4)]
    pieces += [("▁ab", -1.0, 1), ("c", -2.0, 1), ("▁a", -3.0, 1), ("bc", -3.5, 1), ("▁", -4.0, 1), ("b", -5.0, 1)]
    found = load(store, model_file(tmp_path / "spiece.model", pieces, 1, extra=1))
    assert found.algorithm == "unigram"
    assert [found.token(id) for id in found.encode("  abc   ab ")] == ["▁ab", "c", "▁ab"]
    assert [found.token(id) for id in found.encode("abcq<sep>")] == ["▁ab", "c", "<unk>", "<sep>"]
    assert found.score(found.encode("ab")[0]) == -1.0
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "spiece.model").rename(folder / "spiece.model")
    assert load(store, folder).encode("abc") == found.encode("abc")


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x0a\xff", b"hello there", b"\x80\x04\x95pickled"])
def test_what_is_no_sentencepiece_model(store: Store, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "some.model"
    file.write_bytes(content)
    with pytest.raises(DataError, match="no SentencePiece model"):
        load(store, file)
    with pytest.raises(DataError, match="words or characters"):
        load(store, model_file(file, SPECIAL, 3))
