"""Where things are in a transformers model: its device, its blocks, its parameters, and whether packing is safe in it.

Works from the modules alone, so that any decoder of transformers is understood; knows no tokenizer and no data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbllm.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


def best_device() -> str:
    """`cuda` where a GPU can be used, else `mps` on a Mac, else `cpu`."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def parameter_count(model: nn.Module, *, embeddings: bool = True, trainable: bool = False) -> int:
    """Number of parameters, shared ones counted once.

    Args:
        model: any module.
        embeddings: count the embedding matrices (and a head that isn't tied to one).
        trainable: count only what is being trained.
    """
    skipped: set[int] = set()
    if not embeddings:
        from torch import nn

        blocks = block_parameters(model)
        for module in model.modules():
            if isinstance(module, (nn.Embedding, nn.Linear)):
                skipped |= {id(weight) for weight in module.parameters(recurse=False)} - blocks
    return sum(
        _size(weight)
        for weight in model.parameters()
        if id(weight) not in skipped and (weight.requires_grad or not trainable)
    )


def _size(weight: nn.Parameter) -> int:
    """Numbers that a weight stands for, also where several lie in a byte (bitsandbytes)."""
    packed = getattr(weight, "quant_state", None)
    return int(packed.shape.numel()) if packed is not None else weight.numel()


def find_blocks(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The repeated blocks of a decoder: name and module of the list of layers that holds the most parameters.

    Raises:
        UsageError: the model has no list of layers.
    """
    from torch import nn

    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise UsageError("This model has no blocks to find", received=type(model).__name__)
    return max(lists, key=lambda pair: sum(weight.numel() for weight in pair[1].parameters()))


def block_parameters(model: nn.Module) -> set[int]:
    """Identities (`id`) of the parameters inside the blocks."""
    return {id(weight) for weight in find_blocks(model)[1].parameters()}


def check_packing(model: nn.Module, *, vocab_size: int) -> None:
    """Makes sure that documents in one row don't see each other when position ids restart, as packing needs.

    Two short documents in one row must give the logits that the second gives alone, to 1e-3 of the largest. The model
    is run in the mode, dtype and attention implementation that it has, without dropout.

    Raises:
        UsageError: they see each other (state-space models, or attention that ignores position ids).
    """
    import torch

    device = next(model.parameters()).device
    first, second = 5, 7
    ids = (torch.arange(first + second, device=device) * 7919 + 13)[None] % vocab_size
    positions = torch.cat([torch.arange(first), torch.arange(second)])[None].to(device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits[:, first:].float()
            alone = model(input_ids=ids[:, first:], position_ids=positions[:, first:], use_cache=False).logits.float()
    finally:
        model.train(training)
    if (packed - alone).abs().max() > 1e-3 * alone.abs().max().clamp(min=1.0):
        raise UsageError(
            f"In {type(model).__name__}, documents that share a row see each other",
            next="Choose another --model or --attention sdpa",
        )
