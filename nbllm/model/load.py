"""Loading a model: from a folder of transformers, a checkpoint of ours, a GGUF file or a name on the hub.

Weights come from safetensors or GGUF only, so that nothing is unpickled; code from a repository runs only when asked
for. Adapters are another room's. Every failure is one line.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import NotFoundError, UsageError, did_you_mean
from nbllm.model.presets import PRESETS

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype behind `fp32`, `fp16` or `bf16`."""
    import torch

    if name not in _DTYPES:
        raise UsageError("dtype is one of fp32, fp16, bf16", received=name, next=did_you_mean(name, _DTYPES))
    dtype: torch.dtype = getattr(torch, _DTYPES[name])
    return dtype


def dtype_name(dtype: torch.dtype | str) -> str:
    """`fp32`, `fp16` or `bf16` for a torch dtype, or for its name as a model's config has it."""
    plain = str(dtype).removeprefix("torch.")
    for name, full in _DTYPES.items():
        if plain == full:
            return name
    raise UsageError("A dtype is one of fp32, fp16, bf16", received=plain)


def is_adapter_folder(path: str | Path) -> bool:
    """Whether the folder holds an adapter (peft's `adapter_config.json`) rather than a whole model."""
    return (Path(path) / "adapter_config.json").is_file()


def adapter_base(folder: str | Path) -> str:
    """The model that an adapter was trained on: a folder or a name on the hub.

    Raises:
        NotFoundError: there is no readable adapter in the folder, or it doesn't name its base.
    """
    path = Path(folder) / "adapter_config.json"
    try:
        base = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError) as error:
        raise NotFoundError(f"No readable adapter in {folder}: {error}") from error
    if not base:
        raise NotFoundError(
            f"The adapter in {folder} doesn't name its base model", next="Load the base, then attach it"
        )
    return str(base)


def load(
    source: str | Path,
    *,
    dtype: str = "fp32",
    device: str = "cpu",
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    attention: str | None = None,
) -> PreTrainedModel:
    """A language model, causal or masked as its config says, in evaluation mode.

    Args:
        source: a folder (transformers model, checkpoint, or one that holds a GGUF file), a GGUF file, or a name on
            the hub.
        dtype: of the weights: `fp32`, `fp16` or `bf16`.
        device: where to put it, such as `cpu` or `cuda:0`.
        gguf_file: which GGUF file of the folder, where there are several.
        trust_remote_code: run code that comes with the model.
        attention: attention implementation; None: transformers' choice.

    Raises:
        NotFoundError: nothing there, or the hub can't be reached.
        UsageError: something there that can't be loaded.
    """
    wanted = torch_dtype(dtype)
    path = Path(source).expanduser()
    if path.is_dir() and is_adapter_folder(path):
        raise UsageError(
            f"{source} holds an adapter, not a model", next=f"Load its base, {adapter_base(path)}, and attach it"
        )
    gguf = _find_gguf(path, gguf_file)
    if gguf is not None:
        model = _load_gguf(gguf, wanted, attention)
    else:
        model = _load_transformers(source, path, wanted, trust_remote_code=trust_remote_code, attention=attention)
    return model.to(device).eval()


def _find_gguf(path: Path, name: str | None) -> Path | None:
    if path.is_file():
        if path.suffix != ".gguf":
            raise UsageError("A model file must be a .gguf file", received=str(path), next="Name its folder instead")
        return path
    if name is not None:
        if not (path / name).is_file():
            raise NotFoundError(f"There is no {name} in {path}")
        return path / name
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise UsageError(
            f"{path} holds several GGUF files: {', '.join(file.name for file in found[:5])}",
            next=f"Name one, for example {found[0]}",
        )
    return found[0] if found else None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' progress bar out of the notebook for a while."""
    from transformers.utils import logging

    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _load_transformers(
    source: str | Path, path: Path, dtype: torch.dtype, *, trust_remote_code: bool, attention: str | None
) -> PreTrainedModel:
    local = path.is_dir()
    if local and not (path / "config.json").is_file():
        raise NotFoundError(f"{path} holds no model: neither config.json nor a .gguf file")
    if not local and (path.is_absolute() or str(source).startswith((".", "~"))):
        raise NotFoundError(f"There is no folder {source}")
    options: dict[str, Any] = {"dtype": dtype, "use_safetensors": True, "trust_remote_code": trust_remote_code}
    if attention is not None:
        options["attn_implementation"] = attention
    try:
        with quiet():
            name = str(path if local else source)
            kind = _kind(name, local_files_only=local, trust_remote_code=trust_remote_code)
            return kind.from_pretrained(name, local_files_only=local, **options)
    except Exception as error:  # transformers, hub and safetensors raise all kinds
        if "trust_remote_code" in str(error):
            raise UsageError(
                f"{source} comes with its own code", next="Add --trust-remote-code if you trust it"
            ) from error
        if local:
            raise UsageError(f"The model in {path} can't be loaded: {_first_line(error)}") from error
        near = did_you_mean(str(source), PRESETS) if "/" not in str(source) else None
        raise NotFoundError(
            f"{source} is neither a preset nor a folder, and the hub doesn't give it: {_first_line(error)}",
            next=near or "Check the name and the network, or name a folder",
        ) from error


def _kind(name: str, **options: bool) -> Any:
    """The class of transformers that loads it: for masked models where its config names one, else for causal ones."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    architectures = AutoConfig.from_pretrained(name, **options).architectures or ()
    masked = any(architecture.endswith("ForMaskedLM") for architecture in architectures)
    return AutoModelForMaskedLM if masked else AutoModelForCausalLM


def _load_gguf(path: Path, dtype: torch.dtype, attention: str | None) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    options = {"attn_implementation": attention} if attention else {}
    try:
        with quiet(), contextlib.redirect_stderr(io.StringIO()):  # a bar of its own, which nothing switches off
            loaded = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=dtype, **options)
    except ImportError as error:
        raise UsageError(f"Reading GGUF needs a package: {_first_line(error)}", next="pip install gguf") from error
    except Exception as error:
        raise UsageError(f"{path} can't be loaded: {_first_line(error)}") from error
    # what comes out of a GGUF file calls itself quantised and can't be saved: move its weights into a plain model
    config = loaded.config
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
    model: PreTrainedModel = type(loaded)(config).to(dtype)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    return model


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
