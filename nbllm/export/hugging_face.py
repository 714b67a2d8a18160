"""An ordinary transformers folder: weights as safetensors, config, tokenizer; checked by loading it with transformers.

A folder that is one already is copied, so that its weights keep their dtype and bits; what only serves a resume (the
optimizer's state, our record of the checkpoint) stays behind. Anything else is loaded and saved.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import RunError
from nbllm.export.checks import PROBE, ROUNDING, accept, count_same, probe
from nbllm.export.exported import Check
from nbllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

_COPIED = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "LICENSE*",
)


def write(source: str | Path, folder: Path, *, adapter: str | Path | None = None) -> Check:
    """Writes the model of `source`, merged with an adapter, into a new folder; returns how it was checked.

    Raises:
        RunError: transformers doesn't load it, or it doesn't predict the same next tokens.
    """
    import torch

    from nbllm.model import adapter_base, is_adapter_folder, load
    from nbllm.model.load import quiet

    path = Path(source).expanduser()
    if adapter is None and is_adapter_folder(path):
        source, adapter = adapter_base(path), path
        path = Path(source).expanduser()
    tokenizer = tokenizer_of(source, adapter)
    model = load(source)
    if adapter is not None:
        from nbllm.adapters import attach, prepare_base

        prepare_base(model, adapter, dense=True)
        attach(model, adapter)
    ids = torch.tensor([probe(tokenizer, model.config.get_text_config())])  # int64 [1, T]
    wanted = _logits(model, ids)
    if adapter is not None:
        from nbllm.adapters import merge

        del model
        merge(source, adapter, folder)
    elif (path / "config.json").is_file() and any(path.glob("model*.safetensors")):
        del model
        folder.mkdir(parents=True)
        for pattern in _COPIED:
            for file in path.glob(pattern):
                shutil.copyfile(file, folder / file.name)
    else:
        with quiet():
            model.save_pretrained(folder)
        del model
    tokenizer.save(folder)
    return _check(folder, tokenizer, ids, wanted)


def tokenizer_of(source: str | Path, adapter: str | Path | None = None) -> Tokenizer:
    """The adapter's own tokenizer where it has one, else the model's."""
    from nbllm.store import Store
    from nbllm.tokenizer import load

    if adapter is not None and (Path(adapter) / "tokenizer.json").is_file():
        return Tokenizer.from_folder(adapter)
    path = Path(source).expanduser()
    return Tokenizer.from_folder(path) if path.is_dir() else load(Store.find(), str(source))


def _logits(model: Any, ids: Tensor) -> Tensor:
    """Logits of the next token at each place. float32 [1, T, V]."""
    import torch

    with torch.no_grad():
        found: Tensor = model(input_ids=ids, use_cache=False).logits.float()
    return found


def _check(folder: Path, tokenizer: Tokenizer, ids: Tensor, wanted: Tensor) -> Check:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from nbllm.model.load import quiet

    try:
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
        theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        encoded = theirs(PROBE, add_special_tokens=False).input_ids
    except Exception as error:  # whatever transformers raises
        raise RunError(f"transformers doesn't load what was exported: {error}") from error
    if encoded != tokenizer.encode(PROBE):
        raise RunError("transformers doesn't encode text as the exported model's tokenizer does")
    found = _logits(model, ids).argmax(-1)
    agreed = count_same(wanted, found, ROUNDING["fp32"])
    return accept(Check(runtime="transformers", tokens=found.numel(), agreed=agreed))
