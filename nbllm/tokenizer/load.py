"""Finding a tokenizer by what the user typed: a name in the store, a transformers folder, a file, a hub name.

Files are only read; code that comes with a tokenizer isn't run. Knows the store and transformers (for what has no
tokenizer.json: older vocabularies, GGUF files, hub names).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nbllm.errors import DataError, NotFoundError, UsageError, did_you_mean
from nbllm.store import Manifest, Store
from nbllm.tokenizer import sentencepiece_files, tiktoken_files
from nbllm.tokenizer.tokenizer import ROLES, Tokenizer

_PIECES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_GUESSES = {
    "bos": ("<|endoftext|>", "<|begin_of_text|>", "<s>", "<bos>", "[CLS]"),
    "eos": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]"),
    "pad": ("<|pad|>", "<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
}


def load(store: Store, what: str | Path, *, pattern: str | None = None) -> Tokenizer:
    """The tokenizer that `what` names.

    Args:
        store: where names are looked up first.
        what: the name of a stored tokenizer; a transformers folder; a tokenizer.json, .tiktoken, SentencePiece .model
            or GGUF file; `tiktoken:NAME` from tiktoken's cache; the hub name of a model (`HuggingFaceTB/SmolLM2-135M`).
        pattern: how a .tiktoken file's model cuts text, where the file isn't a published one.

    Raises:
        NotFoundError: nothing of that name; the nearest name is in the message.
        DataError: a file or folder that holds no tokenizer.
    """
    text = str(what)
    if not text.strip():
        raise UsageError("A tokenizer needs a name, a folder or a file", received=text)
    if text.startswith("tiktoken:"):
        return tiktoken_files.by_name(text.removeprefix("tiktoken:"))
    if text in (*store.names("tokenizer"), *store.damaged("tokenizer")):
        manifest = store.get("tokenizer", text)
        store.verify(manifest)
        return read_folder(store.path("tokenizer", text), name=text, manifest=manifest)
    path = Path(text).expanduser()
    if path.is_dir():
        return read_folder(path)
    if path.is_file():
        return _read_file(path, pattern)
    if text.count("/") == 1 and not text.startswith(("/", ".", "~")):
        return _from_transformers(text, name=text, local=False)
    hint = did_you_mean(text, store.names("tokenizer")) or "Make one with %llm_tokenizer train"
    raise NotFoundError(f"No tokenizer, folder or file is named {text!r}", next=hint)


def read_folder(folder: Path, *, name: str | None = None, manifest: Manifest | None = None) -> Tokenizer:
    """The tokenizer of a transformers folder; `load` finds folders, this reads one.

    Raises:
        NotFoundError: there is no such folder.
        DataError: it holds no tokenizer, or a damaged one.
    """
    name = name or folder.resolve().name
    if not folder.is_dir():
        raise NotFoundError(f"There is no folder {str(folder)!r}")
    if not (folder / "tokenizer.json").is_file():
        model = next((folder / file for file in _PIECES if (folder / file).is_file()), None)
        if model is not None and not _json(folder / "tokenizer_config.json"):
            return sentencepiece_files.read_file(model)  # no config that says more than the file
        return _from_transformers(str(folder), name=name, local=True)
    config = _json(folder / "tokenizer_config.json")
    for role, token in _json(folder / "special_tokens_map.json").items():
        config.setdefault(role, token)
    template = folder / "chat_template.jinja"
    chat_template = _text(template) if template.is_file() else config.get("chat_template")
    if isinstance(chat_template, list):  # older folders: several templates by name
        named = {entry["name"]: entry["template"] for entry in chat_template}
        chat_template = named.get("default")
    return Tokenizer(
        _text(folder / "tokenizer.json"),
        config=config,
        chat_template=chat_template,
        name=name,
        manifest=manifest,
    )


def _read_file(path: Path, pattern: str | None) -> Tokenizer:
    if path.suffix == ".tiktoken":
        return tiktoken_files.read_file(path, pattern=pattern)
    if path.suffix == ".model":
        return sentencepiece_files.read_file(path)
    if path.suffix == ".gguf":
        return _from_transformers(str(path.parent), name=path.stem, local=True, gguf_file=path.name)
    if path.name in ("tokenizer.json", "tokenizer_config.json"):
        return read_folder(path.parent)
    try:
        definition = _text(path)
        added = json.loads(definition).get("added_tokens", ())
        contents = {token["content"] for token in added}
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no tokenizer.json: {error}") from error
    config = {}
    for role in ROLES:  # a lone tokenizer.json doesn't say which token plays which part
        found = next((token for token in _GUESSES[role] if token in contents), None)
        if found is not None:
            config[f"{role}_token"] = found
    return Tokenizer(definition, config=config, name=path.stem)


def _from_transformers(source: str, *, name: str, local: bool, gguf_file: str | None = None) -> Tokenizer:
    from transformers import AutoTokenizer

    if gguf_file is None and local:
        candidates = sorted(Path(source).glob("*.gguf"))
        gguf_file = candidates[0].name if candidates else None
    extra = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        found = AutoTokenizer.from_pretrained(source, local_files_only=local, trust_remote_code=False, **extra)
        definition = found.backend_tokenizer.to_str()
    except Exception as error:  # transformers raises many kinds
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        if local:
            raise DataError(f"The folder {source!r} holds no tokenizer that can be read: {reason}") from error
        raise NotFoundError(f"No tokenizer is named {name!r} here or on the hub: {reason}") from error
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for role in ROLES:
        token = getattr(found, f"{role}_token", None)
        if token is not None:
            config[f"{role}_token"] = str(token)
    template = found.chat_template if isinstance(found.chat_template, str) else None
    return Tokenizer(definition, config=config, chat_template=template, name=name)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is damaged: {error}") from error
    return value if isinstance(value, dict) else {}


def _text(path: Path) -> str:
    """A file's text as it is: line ends are kept, so that a copy has the same hash."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} isn't UTF-8 text: {error}") from error
