"""The held-out loss during a run, by all its processes together, in nats a token and bits a byte.

Plain cross-entropy whatever loss is trained. Bits a byte is the sum of nats over the bytes of the held-out text, so
that models with different tokenizers compare. Where only some rows are taken, so is the same share of the bytes.
A masked model is asked for the hidden tokens, the same ones each time; bits a byte aren't defined there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from nbllm.shards import Masking, MicroBatch, TokenStream
from nbllm.train.losses import target_count


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a model thinks of text that it wasn't trained on."""

    loss: float
    """Cross-entropy, nats a target token."""
    bits_per_byte: float | None
    """Bits a byte of text; None where the text has no bytes, and for a masked model."""
    targets: int
    """Tokens predicted."""


def evaluate(
    model: nn.Module,
    stream: TokenStream,
    *,
    seq_len: int,
    batch_size: int,
    max_rows: int | None,
    rank: int,
    world_size: int,
    group: dist.ProcessGroup | None = None,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[None]],
    masking: Masking | None = None,
) -> Evaluation | None:
    """A collective call; the same result on every process, None where the stream has nothing to predict.

    Args:
        model: the model with its loss; left in the mode it was in.
        stream: the held-out part.
        seq_len: T.
        batch_size: B, rows a process at once.
        max_rows: take that many rows, evenly spread, where there are more.
        rank, world_size: this process's share of the rows.
        group: the processes with different shares; None: all.
        device: where the model is.
        autocast: the run's precision.
        masking: of a masked model.
    """
    total = torch.zeros(2, dtype=torch.float64)  # nats, targets
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            batches = stream.batches(
                seq_len, batch_size, rank=rank, world_size=world_size, max_rows=max_rows, masking=masking
            )
            for batch in batches:
                ids, targets, positions = to_device(batch, device)
                with autocast():
                    nats = model(ids, targets, positions, plain=True)
                total += torch.tensor([float(nats), target_count(targets)], dtype=torch.float64)
    finally:
        model.train(training)
    nats, count = _sum_over_processes(total, device, world_size, group)
    if count == 0:
        return None
    text_bytes = 0.0 if masking is not None else stream.text_bytes * count / stream_targets(stream, seq_len)
    return Evaluation(
        loss=nats / count, bits_per_byte=nats / math.log(2) / text_bytes if text_bytes else None, targets=int(count)
    )


def stream_targets(stream: TokenStream, seq_len: int) -> int:
    """Targets of the whole stream."""
    return int(stream.target_counts(torch.arange(stream.rows(seq_len)).numpy(), seq_len).sum())


def to_device(batch: MicroBatch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input ids, targets and position ids, each int64 [B, T], on the device."""
    arrays = (batch.input_ids, batch.targets, batch.position_ids)
    ids, targets, positions = (torch.from_numpy(array).to(device, non_blocking=True) for array in arrays)
    return ids, targets, positions


def _sum_over_processes(
    total: torch.Tensor, device: torch.device, world_size: int, group: dist.ProcessGroup | None
) -> tuple[float, float]:
    if world_size > 1:
        # doubles, which only MPS lacks, and MPS has one device
        total = total.to(device)
        dist.all_reduce(total, group=group)
    nats, count = total.tolist()
    return nats, count
