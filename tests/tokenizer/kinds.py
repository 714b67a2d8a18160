"""Small tokenizers of the kinds that people use, made by the tokenizers library alone."""

from __future__ import annotations

import json

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from nbllm.tokenizer import Tokenizer

SOME = [
    "The tokenizer makes tokens of a text, and tokenization is what it does with the text's words and letters.",
    "Zwei Tokenizer vergleichen: überall Wörter, größere Stücke, naïve Café-Besucher und 12345 Zahlen.",
    "Все люди рождаются свободными и равными в своем достоинстве и правах. Слова, слова, слова.",
    "人人生而自由,在尊严和权利上一律平等。中文没有空格。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "tokens tokenizer tokenized token the their there then these those text texts   spaces\n\nand lines",
] * 3


def gpt2_like() -> Tokenizer:
    """Byte-level BPE with GPT-2's own cut."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SOME, trainer)
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    return Tokenizer(backend.to_str(), config=config, name="gpt2-like")


def llama_like() -> Tokenizer:
    """SentencePiece's way in Llama 2's tokenizer.json: ▁ for spaces, unknown characters as bytes, no cut before."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=specials, show_progress=False, limit_alphabet=60)
    backend.train_from_iterator(SOME, trainer)
    trained = json.loads(backend.to_str())["model"]
    merges = [tuple(pair) for pair in trained["merges"]]
    # as conversions do: every way to make a token is a merge, in the order of the tokens
    order = {left + right: rank for rank, (left, right) in enumerate(merges)}
    every = [
        (token[:i], token[i:])
        for token in sorted(order, key=order.__getitem__)
        for i in range(1, len(token))
        if token[:i] in trained["vocab"] and token[i:] in trained["vocab"]
    ]
    backend = tokenizers.Tokenizer(
        models.BPE(trained["vocab"], every, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend.to_str(), config={"bos_token": "<s>", "eos_token": "</s>"}, name="llama-like")


def bert_like() -> Tokenizer:
    """WordPiece as in BERT's uncased vocabulary."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False
    )
    backend.train_from_iterator(SOME, trainer)
    backend.post_processor = processors.BertProcessing(
        ("[SEP]", backend.token_to_id("[SEP]")), ("[CLS]", backend.token_to_id("[CLS]"))
    )
    return Tokenizer(backend.to_str(), config={"unk_token": "[UNK]", "pad_token": "[PAD]"}, name="bert-like")


def unigram_like() -> Tokenizer:
    """Unigram in SentencePiece's way, as T5's."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(SOME, trainer)
    return Tokenizer(backend.to_str(), config={"unk_token": "<unk>", "eos_token": "</s>"}, name="unigram-like")
