"""The plan `pp`: each process holds some of the blocks, and micro-batches pass through them one after the other (1F1B).

Every process reads the same rows; the first embeds them, the last takes the loss. A stage keeps the model's modules
and names: what belongs to other stages is replaced by modules that hand their input on, so that transformers' own
forward pass makes masks and positions. A head that is tied to the embedding is held by the first and the last stage,
and its two gradients are added. Not yet measured on a GPU.
Sources: PipeDream-Flush (Narayanan et al. 2021, https://arxiv.org/abs/2006.09503);
https://docs.pytorch.org/docs/stable/distributed.pipelining.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from nbllm.errors import RunError, UsageError
from nbllm.model import find_blocks
from nbllm.ops import IGNORED
from nbllm.train.parallel.clip import clip_gradients
from nbllm.train.parallel.replicated import Batch, Parallel
from nbllm.train.parallel.whole import empty_copy, fill

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from nbllm.train.loss_model import LossModel

_EMBEDDINGS, _PLACES, _NORMS = ("embed_tokens", "wte"), ("wpe",), ("norm", "ln_f")


class Pipeline(Parallel):
    """The plan `pp`."""

    name = "pp"

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(accelerator)
        self.data_rank, self.data_world = 0, 1
        self.first, self.last = self.rank == 0, self.rank == self.world_size - 1
        self._empty: PreTrainedModel | None = None
        self._schedules: dict[tuple[int, int], Schedule1F1B] = {}
        self._share = torch.ones(())
        # a tied matrix is held by both ends
        self._ends = dist.new_group([0, self.world_size - 1])
        self._tied: nn.Parameter | None = None

    def prepare(self, inner: LossModel) -> nn.Module:
        """Keeps this stage's part of the model in place; raises UsageError for a model that can't be split so."""
        model = inner.model
        blocks = find_blocks(model)[1]
        check_splits(inner, self.world_size)
        self._total, self._block_count = sum(weight.numel() for weight in model.parameters()), len(blocks)
        if self.rank == 0:
            self._empty = empty_copy(model)
        self.inner = inner
        self._keep(model, blocks)
        self._names = {name for name, _ in model.named_parameters()}
        self._stage = _Stage(self)
        self.wrapped = inner
        self._evaluated = _Evaluated(self)
        return inner

    def _keep(self, model: PreTrainedModel, blocks: nn.ModuleList) -> None:
        count, parts = len(blocks), self.world_size
        self.blocks = range(self.rank * count // parts, (self.rank + 1) * count // parts)
        """Numbers of the blocks of this stage."""
        for number in range(count):
            if number not in self.blocks:
                blocks[number] = _HandOn()
        decoder, head = model.get_decoder(), model.get_output_embeddings()
        tied = head.weight is model.get_input_embeddings().weight
        if tied and (self.first or self.last):
            self._tied = head.weight
        if not self.first:
            for name in _PLACES:
                if hasattr(decoder, name):
                    setattr(decoder, name, _Nothing(model.get_input_embeddings().weight.shape[1]))
            if not (tied and self.last):
                for name in _EMBEDDINGS:
                    if hasattr(decoder, name):
                        setattr(decoder, name, _HandOn())
        if not self.last:
            for name in _NORMS:
                if hasattr(decoder, name):
                    setattr(decoder, name, _HandOn())
            if not (tied and self.first):
                model.set_output_embeddings(_HandOn())

    @property
    def evaluated(self) -> nn.Module:
        """The loss of a batch, passed from stage to stage without a schedule."""
        return self._evaluated

    def report(self) -> dict[str, Any]:
        """Blocks and parameters of each stage; raises RunError unless each block is held once."""
        mine = torch.tensor(
            [len(self.blocks), sum(weight.numel() for weight in self.inner.parameters())], device=self.device
        )
        found = [torch.zeros_like(mine) for _ in range(self.world_size)]
        dist.all_gather(found, mine)
        blocks, sizes = ([int(each[place]) for each in found] for place in (0, 1))
        if sum(blocks) != self._block_count or min(blocks) < 1 or max(sizes) >= self._total:
            raise RunError(f"pp was asked for, but the stages hold {blocks} blocks and {sizes} parameters")
        return {"wrapper": "PipelineStage", "blocks_by_rank": blocks, "parameters_by_rank": sizes}

    def gradients(self, batches: Sequence[Batch], share: Tensor, backward: Callable[[Tensor], None]) -> Tensor:
        """All micro-batches through all stages, forward and backward; the nats are the same on every process."""
        ids, targets, positions = _padded(
            *(torch.cat(parts) for parts in zip(*batches, strict=True)), rows=self.world_size
        )
        self._share = share
        schedule = self._schedule(len(ids), least=max(len(batches), self.world_size))
        total = torch.zeros((), device=self.device)
        if self.last:
            losses: list[Tensor] = []
            schedule.step(target=targets, losses=losses, return_outputs=False, positions=positions)
            total = torch.stack([loss.detach() for loss in losses]).sum() / share
        else:
            schedule.step(*((ids,) if self.first else ()), return_outputs=False, positions=positions)
        if self._tied is not None and self._tied.grad is not None:
            dist.all_reduce(self._tied.grad, group=self._ends)
        dist.broadcast(total, src=self.world_size - 1)
        return total

    def _schedule(self, rows: int, *, least: int) -> Schedule1F1B:
        """The schedule of a step with that many rows, cut into micro-batches of one size; made once a size."""
        count = next(number for number in range(min(least, rows), rows + 1) if rows % number == 0)
        if (rows, count) not in self._schedules:
            stage = PipelineStage(self._stage, self.rank, self.world_size, self.device)
            self._schedules[rows, count] = Schedule1F1B(
                stage, count, loss_fn=self._loss if self.last else _no_loss, scale_grads=False
            )
        return self._schedules[rows, count]

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        with self.accelerator.autocast():
            return self.inner.from_hidden(hidden, targets, self._share, self.inner.settings)

    def clip(self, parameters: Iterable[nn.Parameter], limit: float | None) -> float:
        """The norm over all stages; a tied matrix counts once."""

        def combine(squares: Tensor) -> Tensor:
            squares = squares.to(self.device)
            dist.all_reduce(squares)
            return squares

        twice = {id(self._tied)} if self._tied is not None and not self.first else set()
        return clip_gradients(list(parameters), limit or math.inf, combine=combine, uncounted=twice)

    def whole_model(self) -> PreTrainedModel | None:
        """On rank 0 a model with all weights; None elsewhere. A collective call."""
        weights = self.collect(dict(self.inner.model.named_parameters(remove_duplicate=False)))
        if self._empty is None or weights is None:
            return None
        here = {name: weight.to(self.device) for name, weight in weights.items()}
        return fill(self._empty, here).train(self.inner.model.training)

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """The tensors of all stages on rank 0, None elsewhere. A collective call."""
        mine = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
        found: list[dict[str, Tensor]] | None = [{}] * self.world_size if self.rank == 0 else None
        dist.gather_object(mine, found)
        if found is None:
            return None
        return {name: tensor for part in reversed(found) for name, tensor in part.items()}

    def owns(self, name: str) -> bool:
        """Whether this stage holds the parameter."""
        return name in self._names


class _HandOn(nn.Module):
    """In place of a module of another stage: its first argument."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


class _Nothing(nn.Module):
    """In place of position embeddings that the first stage has added: zeros, [..., D]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, positions: Tensor) -> Tensor:
        return torch.zeros(*positions.shape, self.width, device=positions.device)


class _Stage(nn.Module):
    """This stage's part of the decoder: ids [B, T] on the first, hidden states [B, T, D] on the others."""

    def __init__(self, plan: Pipeline) -> None:
        super().__init__()
        self.decoder = plan.inner.model.get_decoder()
        self._autocast = plan.accelerator.autocast
        self._first = plan.first

    def forward(self, given: Tensor, positions: Tensor) -> Tensor:
        with self._autocast():
            what = {"input_ids" if self._first else "inputs_embeds": given}
            hidden: Tensor = self.decoder(**what, position_ids=positions, use_cache=False).last_hidden_state
        return hidden.float()


class _Evaluated(nn.Module):
    """Called as a `LossModel`, by every process with the same rows and without gradients."""

    def __init__(self, plan: Pipeline) -> None:
        super().__init__()
        self.inner = plan.inner
        self.stage = plan._stage
        self._plan = (plan,)  # not a module

    def forward(
        self, input_ids: Tensor, targets: Tensor, positions: Tensor, factor: Tensor | None = None, plain: bool = False
    ) -> Tensor:
        (plan,) = self._plan
        given = input_ids
        if not plan.first:
            width = self.inner.model.config.get_text_config().hidden_size
            given = torch.empty(*input_ids.shape, width, device=plan.device)
            dist.recv(given, src=plan.rank - 1)
        hidden = self.stage(given, positions)
        nats = torch.zeros((), device=plan.device)
        if plan.last:
            with plan.accelerator.autocast():
                nats = self.inner.from_hidden(hidden, targets, factor, {} if plain else self.inner.settings).float()
        else:
            dist.send(hidden.contiguous(), dst=plan.rank + 1)
        dist.broadcast(nats, src=plan.world_size - 1)
        return nats


def check_splits(inner: LossModel, stages: int) -> None:
    """Raises UsageError for a model that can't be split into that many stages."""
    model = inner.model
    blocks = find_blocks(model)[1]
    if len(blocks) < stages:
        raise UsageError(
            f"--parallel pp over {stages} processes needs at least as many blocks",
            received=len(blocks),
            next=f"Use --processes {len(blocks)}",
        )
    decoder = model.get_decoder()
    known = [any(hasattr(decoder, name) for name in names) for names in (_EMBEDDINGS, _NORMS)]
    experts = any(getattr(model.config, name, None) for name in ("num_local_experts", "num_experts"))
    if not all(known) or experts:
        raise UsageError(
            f"--parallel pp doesn't know how to split a {model.config.model_type} model", next="Use --parallel fsdp"
        )
    if inner.fused == "off":
        raise UsageError(
            f"--parallel pp takes the loss without logits, which is off ({inner.why})", next="Use --parallel fsdp"
        )


def _padded(ids: Tensor, targets: Tensor, positions: Tensor, *, rows: int) -> Batch:
    """At least that many rows, each [B, T]: a stage can't be left without; what is added predicts nothing."""
    missing = rows - len(ids)
    if missing <= 0:
        return ids, targets, positions
    return (
        torch.cat([ids, ids[:1].expand(missing, -1)]),
        torch.cat([targets, torch.full_like(targets[:1], IGNORED).expand(missing, -1)]),
        torch.cat([positions, positions[:1].expand(missing, -1)]),
    )


def _no_loss(*_: Any) -> Tensor:
    raise RunError("Only the last stage has a loss")
