"""A tokenizer: text to ids and back, exactly, with special tokens that only the caller can make.

It wraps the `tokenizers` library (encoding) and keeps the tokenizer.json it came from byte for byte, so that a copy in
a checkpoint has the same content hash. Decoding a byte-level or SentencePiece-like vocabulary joins the tokens' bytes;
anything else is left to the file's own decoder. Knows the store's manifest, but neither corpora nor models; imports
transformers only to hand out or to read a transformers tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import DataError, UsageError
from nbllm.store import Manifest, Parent
from nbllm.tokenizer.definition import plain_token, read_definition, step_types, with_special
from nbllm.tokenizer.merges import Merges, MergeTree
from nbllm.tokenizer.pieces import longest_pieces, token_bytes
from nbllm.tokenizer.visible import visible

if TYPE_CHECKING:
    from nbllm.tokenizer.details import TokenDetails
    from nbllm.tokenizer.report import TokenizerReport
    from nbllm.tokenizer.strip import TokenStrip

ROLES = ("bos", "eos", "pad", "unk")
_JOINING = {"ByteLevel", "Sequence", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class Tokenizer:
    """Text to token ids and back.

    Args:
        definition: the content of a tokenizer.json.
        config: the content of a tokenizer_config.json; its `bos_token`, `eos_token`, `pad_token` say which special
            token plays which part.
        chat_template: a Jinja template for conversations, if there is one.
        name: its name in the store, or where it came from.
        manifest: its manifest where it comes from the store.
        reused: whether it was found in the store where one was to be trained.

    Raises:
        DataError: `definition` isn't a tokenizer.json.
    """

    def __init__(
        self,
        definition: str,
        *,
        config: Mapping[str, Any],
        chat_template: str | None = None,
        name: str,
        manifest: Manifest | None = None,
        reused: bool = False,
    ) -> None:
        self._definition = definition
        self._special_backend = read_definition(definition, name)
        self.config: dict[str, Any] = {
            key: plain_token(value) if key.endswith("_token") else value for key, value in config.items()
        }
        self.chat_template = chat_template
        self.name = name
        self.manifest = manifest
        self.reused = reused
        self.hash = hashlib.sha256(definition.encode()).hexdigest()
        """SHA-256 of the tokenizer.json, as hex."""
        self.vocab_size: int = max(self._special_backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        """One more than the largest id, special tokens included: the rows that an embedding needs."""
        roles = {role: self._role(role) for role in ROLES}
        self.bos_id, self.eos_id, self.pad_id = roles["bos"], roles["eos"], roles["pad"]
        added = self._special_backend.get_added_tokens_decoder()
        self.special_tokens: dict[str, int] = {
            token.content: id for id, token in sorted(added.items()) if token.special or id in roles.values()
        }
        """Special tokens with their ids."""
        self._backend = read_definition(with_special(definition, self.special_tokens), name)
        self._backend.encode_special_tokens = True  # special tokens typed in text stay text
        self._special_ids = frozenset(self.special_tokens.values())

    @classmethod
    def from_folder(cls, folder: Path | str, *, name: str | None = None, manifest: Manifest | None = None) -> Tokenizer:
        """Reads a transformers folder, such as a checkpoint; see `nbllm.tokenizer.load` for anything else."""
        from nbllm.tokenizer.load import read_folder

        return read_folder(Path(folder), name=name, manifest=manifest)

    @property
    def definition(self) -> str:
        """The content of its tokenizer.json."""
        return self._definition

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, vocab_size={self.vocab_size})"

    def __len__(self) -> int:
        return self.vocab_size

    # Text to ids

    def encode(self, text: str, *, allow_special: bool = False, add_bos: bool = False) -> list[int]:
        """The ids of one text; nothing is added to it unless asked for.

        Args:
            text: any text; the empty one gives no ids.
            allow_special: read special tokens that are typed in the text as themselves, not as text. Only for text
                that the program wrote, such as a rendered chat template.
            add_bos: put the beginning-of-text token first.

        Raises:
            UsageError: `text` isn't a string, or there is no beginning-of-text token to add.
            DataError: half a surrogate pair in the text, which no encoding can write.
        """
        ids: list[int] = self.encode_batch([text], allow_special=allow_special)[0]
        return [self._bos(), *ids] if add_bos else ids

    def encode_batch(self, texts: Sequence[str], *, allow_special: bool = False) -> list[list[int]]:
        """The ids of many texts, encoded by several threads; see `encode`."""
        texts = list(texts)
        backend = self._special_backend if allow_special else self._backend
        try:
            return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
        except (TypeError, UnicodeEncodeError):
            raise _unwritable(texts) from None

    def encode_with_offsets(self, text: str, *, allow_special: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of one text, and for each the characters [start, end) of the text that it holds a part of."""
        ids = self.encode(text, allow_special=allow_special)
        pieces = [self._token_bytes[id] for id in ids]
        content = text.encode()
        if b"".join(pieces) != content:  # normalised, or a space in front: the library keeps count
            backend = self._special_backend if allow_special else self._backend
            return ids, list(backend.encode(text, add_special_tokens=False).offsets)
        # the character that each byte belongs to; a byte 10xxxxxx goes on with the one before
        owner = [-1]
        for byte in content:
            owner.append(owner[-1] + (byte & 0xC0 != 0x80))
        offsets, place = [], 1
        for piece in pieces:
            offsets.append((owner[place], owner[place + len(piece) - 1] + 1))
            place += len(piece)
        return ids, offsets

    # Ids to text

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of some ids; bytes that aren't UTF-8 become U+FFFD, ids without a token become nothing.

        Args:
            ids: token ids.
            skip_special: leave special tokens out.
        """
        kept = self.kept_ids(ids, skip_special=skip_special)
        if not self.joins_bytes:
            return str(self._backend.decode(kept, skip_special_tokens=False))
        text = b"".join(map(self._token_bytes.__getitem__, kept)).decode("utf-8", errors="replace")
        return text[1:] if self.drops_first_space and text.startswith(" ") else text

    def kept_ids(self, ids: Iterable[int], *, skip_special: bool = True) -> list[int]:
        """Those of the ids that `decode` turns into text: the ones with a token, special or not as asked for."""
        left_out = self._special_ids if skip_special else frozenset[int]()
        return [id for id in map(int, ids) if 0 <= id < self.vocab_size and id not in left_out]

    def token_bytes(self, id: int) -> bytes:
        """The bytes that one token stands for; raises UsageError where no token has that id."""
        self._check_id(id)
        return self._token_bytes[id]

    def token_text(self, id: int) -> str:
        """One token made visible: ␣ for a space, ↵ and ⇥, control characters as pictures, stray bytes as <F0>."""
        return visible(self.token_bytes(id))

    def token(self, id: int) -> str:
        """One token as the vocabulary writes it (`Ġthe`); raises UsageError where no token has that id."""
        self._check_id(id)
        return str(self._backend.id_to_token(id) or "")  # ids may have gaps

    @cached_property
    def byte_level(self) -> bool:
        """Whether the vocabulary is one of bytes, so that any text comes back exactly."""
        return "ByteLevel" in self._decoder_types

    @cached_property
    def joins_bytes(self) -> bool:
        """Whether decoding is joining the tokens' bytes: byte-level vocabularies, and those in SentencePiece's way."""
        return bool(self._decoder_types) and self._decoder_types <= _JOINING

    @cached_property
    def drops_first_space(self) -> bool:
        """Whether a text's first space was put there by the encoding, and goes when decoding (Llama 2, T5)."""
        decoder = json.loads(self._definition).get("decoder") or {}
        steps = [decoder, *decoder.get("decoders", ())]
        return any(
            (step.get("type") == "Strip" and step.get("start") == 1)
            or (step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            for step in steps
        )

    @cached_property
    def document_prefix(self) -> tuple[int, ...]:
        """The ids that a document begins with, for a model that this tokenizer belongs to.

        What the tokenizer.json puts in front of every text by itself; else, where one token both ends and begins
        (`<|endoftext|>`), that one; else nothing, since the model hasn't met a beginning of its own.
        """
        added = self._backend.encode("a", add_special_tokens=True).ids
        plain = self._backend.encode("a", add_special_tokens=False).ids
        if len(added) > len(plain):
            starts = range(len(added) - len(plain) + 1)
            front = next((i for i in starts if added[i : i + len(plain)] == plain), 0)
            if front:
                return tuple(added[:front])
        return (self.bos_id,) if self.bos_id is not None and self.bos_id == self.eos_id else ()

    @cached_property
    def _decoder_types(self) -> set[str]:
        return step_types(json.loads(self._definition).get("decoder"))

    @cached_property
    def lossless(self) -> bool:
        """Whether any text comes back exactly: a byte-level vocabulary, nothing normalised, no space put in front."""
        definition = json.loads(self._definition)
        steps = definition.get("pre_tokenizer") or {}
        prefix = [step.get("add_prefix_space") for step in (steps, *steps.get("pretokenizers", ()))]
        return self.byte_level and definition.get("normalizer") is None and not any(prefix)

    def merge(self, id: int) -> tuple[int, bytes, bytes] | None:
        """The merge that makes a token: its rank (0 was learned first) and the two parts; None where none does."""
        found = None if id in self._added_ids else self.merges.of(self.token(id))
        return found and (found[0], self._as_bytes(found[1]), self._as_bytes(found[2]))

    def merges_of(self, id: int) -> MergeTree | None:
        """The merges that make a token, as a tree; one without parts where no merge makes it (a byte, a letter).

        None for an added token, and outside byte-pair vocabularies; raises UsageError where no token has that id.
        """
        self._check_id(id)
        if self.algorithm != "bpe" or id in self._added_ids:
            return None
        return self._tree(self.token(id))

    def _tree(self, token: str) -> MergeTree:
        made = self.merges.of(token)
        parts = None if made is None else (self._tree(made[1]), self._tree(made[2]))
        return MergeTree(
            id=self._backend.token_to_id(token),
            token=token,
            bytes=self._as_bytes(token),
            rank=made and made[0],
            left=parts and parts[0],
            right=parts and parts[1],
        )

    @cached_property
    def merges(self) -> Merges:
        """Every merge of a byte-pair vocabulary; none in others."""
        return Merges(self._model)

    @cached_property
    def algorithm(self) -> str:
        """The vocabulary's kind: `bpe`, `unigram`, `wordpiece` or `wordlevel`."""
        return type(self._backend.model).__name__.lower()

    def score(self, id: int) -> float | None:
        """In a Unigram vocabulary (Kudo 2018) the logarithm of a token's probability; else None."""
        self._check_id(id)
        scored = self._model.get("vocab") if self.algorithm == "unigram" else None
        return float(scored[id][1]) if scored and id < len(scored) else None

    def pieces(self, id: int) -> tuple[str, ...]:
        """In a WordPiece vocabulary, what a token would be cut into if it weren't there; else, or if nothing, empty."""
        if self.algorithm != "wordpiece" or id in self._added_ids:
            return ()
        return longest_pieces(self.token(id), self._model["vocab"], self._model["continuing_subword_prefix"])

    @cached_property
    def unreachable_ids(self) -> tuple[int, ...]:
        """Ids that no text gives, since the vocabulary makes others of the token's own letters (byte-pair, Unigram)."""
        if self.algorithm not in ("bpe", "unigram"):
            return ()
        found = []
        for token, id in self._backend.get_vocab(with_added_tokens=False).items():
            whole = id in self._added_ids or (len(token) == 6 and token.startswith("<0x"))
            if not whole and [piece.id for piece in self._backend.model.tokenize(token)] != [id]:
                found.append(id)
        return tuple(sorted(found))

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self._backend.get_added_tokens_decoder())

    @cached_property
    def _model(self) -> dict[str, Any]:
        return dict(json.loads(self._definition)["model"])

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        added = self._backend.get_added_tokens_decoder()
        table = [b""] * self.vocab_size
        for token, id in self._backend.get_vocab(with_added_tokens=True).items():
            table[id] = added[id].content.encode() if id in added else self._as_bytes(token)
        return table

    def _as_bytes(self, token: str) -> bytes:
        return token_bytes(token, byte_level=self.byte_level, affixes=self._affixes)

    @cached_property
    def _affixes(self) -> tuple[str, str]:
        """What marks a token that goes on inside a word (`##`), and one that ends a word (`</w>`)."""
        model = self._backend.model
        prefix = getattr(model, "continuing_subword_prefix", None) or ""
        return prefix, getattr(model, "end_of_word_suffix", None) or ""

    # Looking into it

    def inspect(self, text: str, *, allow_special: bool = False) -> TokenStrip:
        """The text as a strip of its tokens, with ids, bytes and merges; see `TokenStrip`."""
        from nbllm.tokenizer.strip import inspect

        return inspect(self, text, allow_special=allow_special)

    def details(self, id: int, counts: Sequence[int] | None = None) -> TokenDetails:
        """All about one token; `counts` says how often each id stands in some texts; see `TokenDetails`."""
        from nbllm.tokenizer.details import details

        return details(self, id, counts)

    def report(self, texts: Iterable[str]) -> TokenizerReport:
        """How this tokenizer fits some texts: use of the vocabulary, compression, round trips; see `report`."""
        from nbllm.tokenizer.report import report

        return report(self, texts)

    # Out of here

    def save(self, folder: Path | str) -> Path:
        """Writes a transformers folder, whose `AutoTokenizer` gives equal ids for texts without special tokens.

        (A transformers tokenizer reads special tokens typed in text as themselves, as `allow_special=True` does.)

        Returns:
            The folder, made where it wasn't there.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_bytes(self._definition.encode())
        # A class that lives in remote code couldn't be loaded without running it.
        config = {key: value for key, value in self.config.items() if key not in ("auto_map", "chat_template")}
        if "auto_map" in self.config or "tokenizer_class" not in config:
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
        text = json.dumps(config, ensure_ascii=False, indent=2)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_bytes(self.chat_template.encode())
        return folder

    def as_transformers(self) -> Any:
        """The same tokenizer as transformers loads it (`PreTrainedTokenizerFast`)."""
        import tempfile

        from transformers import AutoTokenizer

        with tempfile.TemporaryDirectory() as folder:
            return AutoTokenizer.from_pretrained(self.save(folder), local_files_only=True)

    def as_parent(self) -> Parent:
        """The reference that what is made with it keeps: to the store, or to a file outside."""
        if self.manifest is not None:
            return self.manifest.as_parent()
        return Parent(kind="file", name=self.name, hash=self.hash)

    def _role(self, role: str) -> int | None:
        token = self.config.get(f"{role}_token")
        return self._special_backend.token_to_id(token) if isinstance(token, str) else None

    def _bos(self) -> int:
        if self.bos_id is None:
            raise UsageError(f"The tokenizer {self.name!r} has no beginning-of-text token", next="Leave add_bos out")
        return self.bos_id

    def _check_id(self, id: int) -> None:
        if not 0 <= id < self.vocab_size:
            raise UsageError(f"No token has this id; ids run from 0 to {self.vocab_size - 1}", received=id)


def _unwritable(texts: Sequence[object]) -> UsageError | DataError:
    for text in texts:
        if not isinstance(text, str):
            return UsageError("Only strings can be encoded", received=text)
        position = next((i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
        if position is not None:
            return DataError(
                f"The text holds half a surrogate pair (U+{ord(text[position]):04X}) at character {position}, which "
                "isn't a character",
                next='Clean it with text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")',
            )
    return DataError("The text can't be encoded", received=texts[0] if texts else None)
