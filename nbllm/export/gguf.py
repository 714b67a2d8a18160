"""A model as GGUF, the file of llama.cpp: Llama and Qwen 2 and 3, in f32, f16, bf16 or q8_0.

What llama.cpp's own convert_hf_to_gguf.py writes, from the model in memory: names by the gguf package, Llama's query
and key rows reordered (llama.cpp rotates neighbours, transformers halves), a head that is tied to the embedding left
out, vectors in f32. Other kinds of model, and rotations that stretch with the text, are refused.

Legend: V vocabulary, H heads, K key/value heads, C head size.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbllm.errors import RunError, UsageError, did_you_mean
from nbllm.export.checks import PROBE, ROUNDING, accept, compare, count_same, probe
from nbllm.export.exported import Check
from nbllm.export.extras import install_line, installed, need
from nbllm.export.gguf_tokenizer import add_tokenizer, pre_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nbllm.tokenizer import Tokenizer

TYPES = ("f16", "bf16", "q8_0", "f32")
"""What `gguf_type` takes."""
_KINDS = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
_ROTATIONS = ("default", "linear", "llama3")  # those whose frequencies are fixed
_BLOCK = 32  # numbers that share a scale in q8_0
_QUANTISED_SHARE = 0.75  # of the tokens that a q8_0 file has to predict as the original does; rounding costs some


def require() -> None:
    """Raises UsageError where what writes GGUF isn't installed."""
    need("The export to GGUF", "gguf", "gguf")


def check_type(gguf_type: str) -> str:
    """Returns the name if it is one of `TYPES`, else raises UsageError."""
    if gguf_type not in TYPES:
        raise UsageError(f"GGUF isn't written as {gguf_type!r}", next=did_you_mean(gguf_type, TYPES))
    return gguf_type


def write(
    model: Any, tokenizer: Tokenizer, folder: Path, *, gguf_type: str = "f16"
) -> tuple[Path, list[Check], str | None]:
    """Writes `model-TYPE.gguf` into a new folder and checks it, in transformers and where it can in llama.cpp.

    Args:
        model: a causal language model of transformers, fp32, on the CPU, in eval mode.
        tokenizer: the model's.
        folder: made here.
        gguf_type: of the matrices, one of `TYPES`.

    Returns:
        The file, the checks, and why llama.cpp didn't check it, as a clause.

    Raises:
        UsageError: this kind of model, or this tokenizer, can't be written as GGUF.
        RunError: what was written doesn't predict the same next tokens, or encodes text differently.
    """
    config = model.config
    _refuse(model, config)
    pre_tokenizer(tokenizer)
    folder.mkdir(parents=True)
    file = folder / f"model-{gguf_type}.gguf"
    factors = _frequency_factors(model)
    _write(model, tokenizer, file, gguf_type, factors)
    rounding = ROUNDING[gguf_type]
    share = _QUANTISED_SHARE if gguf_type == "q8_0" else 1.0
    checks = []
    # transformers reads no factors, and takes every head of Qwen 3 for one of 128 numbers
    if factors is None and (_KINDS[type(model).__name__] != "qwen3" or _head_size(config) == 128):
        checks.append(_check_in_transformers(model, tokenizer, file, rounding, share))
    if not installed("llama_cpp"):
        return file, checks, f"llama.cpp didn't check it, since it isn't installed: {install_line('llamacpp')}"
    from nbllm.export.runtimes.llama_cpp import LlamaCpp

    runtime = LlamaCpp(file)
    if runtime.encode(PROBE) != tokenizer.encode(PROBE):
        raise RunError("llama.cpp encodes text differently than the model's tokenizer", next="Nothing was written")
    checks.append(compare("llama.cpp", model, runtime, tokenizer, rounding=rounding, share=share))
    return file, checks, None


def _refuse(model: Any, config: Any) -> None:
    kind = type(model).__name__
    if kind not in _KINDS:
        raise UsageError(f"{kind} can't be written as GGUF; {', '.join(_KINDS)} can", next="Export --to hf or onnx")
    if config.hidden_act != "silu":
        raise UsageError(f"llama.cpp's {_KINDS[kind]} has no activation {config.hidden_act!r}")
    if getattr(config, "sliding_window", None) is not None:
        raise UsageError(f"llama.cpp's {_KINDS[kind]} has no layers that see only a window")
    rotation = (config.rope_parameters or {}).get("rope_type", "default")
    if rotation not in _ROTATIONS:
        raise UsageError(f"Positions by {rotation!r} can't be written as GGUF; {', '.join(_ROTATIONS)} can")


def _frequency_factors(model: Any) -> NDArray[np.float32] | None:
    """What llama.cpp divides each rotation's frequency by, float32 [C / 2]; None where all are 1."""
    config = model.config
    found = model.model.rotary_emb.inv_freq.float().cpu().numpy()
    base = float(config.rope_parameters["rope_theta"])
    factors = base ** (-np.arange(len(found), dtype=np.float64) / len(found)) / found
    return None if np.allclose(factors, 1, rtol=1e-4) else factors.astype(np.float32)


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _write(model: Any, tokenizer: Tokenizer, file: Path, gguf_type: str, factors: NDArray[np.float32] | None) -> None:
    import gguf

    config = model.config
    architecture = _KINDS[type(model).__name__]
    code = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(code, config.num_hidden_layers)
    writer = gguf.GGUFWriter(file, architecture, use_temp_file=True)
    head_size = _head_size(config)
    writer.add_name(tokenizer.name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_vocab_size(config.vocab_size)
    file_types = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
    writer.add_file_type(gguf.LlamaFileType[file_types[gguf_type]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_tokenizer(writer, tokenizer, config.vocab_size)
    tied = bool(config.tie_word_embeddings)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    for name, weight in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise UsageError(f"{type(model).__name__} can't be written as GGUF: it has a weight named {name}")
        array = weight.detach().float().cpu().numpy()
        if architecture == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            array = interleave(array, heads)
        kind = _tensor_type(array, gguf_type)
        if kind == "f16" and float(np.abs(array).max(initial=0)) > float(np.finfo(np.float16).max):
            raise UsageError(f"{name} is too large for f16", next="Add --gguf-type bf16")
        stored = gguf.GGMLQuantizationType[kind.upper()]
        writer.add_tensor(known, gguf.quants.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Puts the rows i and i + C/2 of each head side by side, as llama.cpp rotates them.

    Args:
        rows: a weight [heads * C, D] or bias [heads * C].
        heads: how many.
    """
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _tensor_type(array: NDArray[np.float32], gguf_type: str) -> str:
    """Vectors stay exact, and rows that don't divide into blocks stay in half precision, as llama.cpp does it."""
    if array.ndim < 2:
        return "f32"
    return "f16" if gguf_type == "q8_0" and array.shape[-1] % _BLOCK else gguf_type


def _check_in_transformers(model: Any, tokenizer: Tokenizer, file: Path, rounding: float, share: float) -> Check:
    import torch

    from nbllm.model import load

    ids = torch.tensor([probe(tokenizer, model.config)])
    try:
        read: Any = load(file)
    except UsageError as error:
        raise RunError(f"transformers doesn't load what was exported: {error}") from error
    with torch.no_grad():
        wanted = model(input_ids=ids, use_cache=False).logits.float()
        found = read(input_ids=ids, use_cache=False).logits.argmax(-1)
    check = Check(runtime="transformers", tokens=found.numel(), agreed=count_same(wanted, found, rounding))
    return accept(check, share=share)
