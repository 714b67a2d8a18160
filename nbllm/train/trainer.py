"""The training loop of one process: steps, evaluations, checkpoints and orders, in step with all other processes.

The loss of a step is the sum over its targets divided by their number in the whole global batch, over all processes and
micro-steps, so that neither accumulation nor the number of processes changes what is optimised. How the
processes share the work is `nbllm.train.parallel`'s business.
Everything that the next step depends on is in a checkpoint: a resumed run repeats the uninterrupted one.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from nbllm import adapters
from nbllm.errors import DataError, RunError
from nbllm.files import read_json, write_json
from nbllm.model.memory import memory_of, peak_memory_bytes
from nbllm.shards import GlobalBatch, Loader, Shards
from nbllm.train import checkpoint as disk
from nbllm.train import faults, state
from nbllm.train.compiled import uncompiled
from nbllm.train.config import TrainConfig
from nbllm.train.evaluation import Evaluation, evaluate, to_device
from nbllm.train.journal import Journal
from nbllm.train.loss_model import LossModel
from nbllm.train.optimizer import Optimizers
from nbllm.train.orders import PAUSE_POLL_S, OrderDesk, Orders
from nbllm.train.parallel.replicated import Parallel
from nbllm.train.plan import Plan
from nbllm.train.samples import sample
from nbllm.train.schedule import lr_share
from nbllm.train.silence import SilenceWatch

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from nbllm.tokenizer import Tokenizer

_TRAINER = "trainer.json"
_SKIPPED_AT_MOST = 20


@dataclass
class Progress:
    """How far a run is; all of it is in a checkpoint."""

    step: int = 0
    """Optimizer steps taken."""
    tokens: int = 0
    """Input tokens read."""
    seconds: float = 0.0
    """Time since the run's first step, without pauses and without the time between two starts."""
    skipped: int = 0
    """Steps in a row that weren't taken because the gradient wasn't finite."""
    skipped_in_all: int = 0
    """Steps that weren't taken for that reason since the run's first."""
    eval_step: int = -1
    """Step of the newest evaluation."""
    eval_loss: float | None = None
    """Its loss."""
    bits_per_byte: float | None = None
    """Its bits a byte."""
    best_eval_loss: float | None = None
    """The lowest held-out loss so far."""
    evals_without_better: int = 0
    """Evaluations since."""


class Trainer:
    """One process's part of a run, ready to `run`.

    Args:
        folder: the run's folder.
        config: what was asked.
        plan: what was settled.
        accelerator: joins the processes.
        parallel: how they share the work; has wrapped the model.
        inner: the model with its loss, without a wrapper.
        optimizers: of the bare model.
        shards: the data.
        loader: this process's share of the training part.
        tokenizer: goes into checkpoints.
        journal: where rank 0 writes; None on the others.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        plan: Plan,
        *,
        accelerator: Accelerator,
        parallel: Parallel,
        inner: LossModel,
        optimizers: Optimizers,
        shards: Shards,
        loader: Loader,
        tokenizer: Tokenizer,
        journal: Journal | None,
        generation: int,
    ) -> None:
        self.folder = folder
        self.config = config
        self.plan = plan
        self.accelerator = accelerator
        self.parallel = parallel
        self.inner = inner
        self.optimizers = optimizers
        self.shards = shards
        self.loader = loader
        self.tokenizer = tokenizer
        self.journal = journal
        self.generation = generation
        self.progress = Progress()
        self.saved_step = -1
        self._examined = 0
        self.rank = accelerator.process_index
        self.world_size = accelerator.num_processes
        self.device = accelerator.device
        self.desk = OrderDesk(folder, rank=self.rank, world_size=self.world_size, device=self.device)
        self._process = psutil.Process()
        # where parts of a model are frozen, a gradient can get lost on its way through them
        self._silence = SilenceWatch(optimizers.names) if config.adapter is not None else None

    def restore(self, checkpoint: disk.Checkpoint) -> None:
        """Takes over optimizer, scaler, random states and position; the weights are in the model already."""
        folder = checkpoint.path / disk.STATE
        saved = read_json(folder / _TRAINER)
        self.progress = Progress(**saved["progress"])
        self.loader.load_state_dict(saved["loader"])
        state.load_optimizers(self.optimizers, folder, self.parallel)
        if self.accelerator.scaler is not None and saved["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(saved["scaler"])
        state.load_random(folder, self.rank)
        self.saved_step = checkpoint.step

    def run(self) -> str:
        """Trains to the end or to a stop; returns `done` or `stopped`."""
        try:
            return self._run()
        finally:
            self.desk.close()

    def _run(self) -> str:
        reason = "all steps taken"
        orders = Orders()
        left = time.perf_counter()  # when the last step, evaluation or checkpoint was over
        while self.progress.step < self.plan.total_steps:
            orders = self._obey()
            if orders.stop:
                reason = orders.reason
                break
            began = time.perf_counter()
            batch = self.loader.next_batch()
            waited = {"data_s": time.perf_counter() - began, "other_s": began - left}
            self._step(batch, lr_factor=orders.lr_factor, waited=waited)
            if self._due(self.plan.eval_every):
                self._evaluate()
            if self._due(self.plan.save_every) and self.progress.step < self.plan.total_steps:
                self.save()
            left = time.perf_counter()
            self.progress.seconds += left - began
            if self.config.early_stop and self.progress.evals_without_better >= self.config.early_stop:
                reason = f"no better held-out loss in {self.config.early_stop} evaluations"
                break
        if not orders.stop and self.progress.eval_step != self.progress.step:
            self._evaluate()
        if self.saved_step != self.progress.step:
            self.save()
        status = "stopped" if orders.stop else "done"
        self.desk.done()
        self._write(
            "end",
            step=self.progress.step,
            status=status,
            reason=reason,
            seconds=self.progress.seconds,
            peak_memory_bytes=peak_memory_bytes(self.device),
        )
        return status

    def _due(self, every: int) -> bool:
        return every > 0 and self.progress.step % every == 0

    def _obey(self) -> Orders:
        """Follows what was asked; comes back when the next step may be taken or the run is to stop."""
        orders = self.desk.next()
        while True:
            if orders.checkpoint and self.saved_step != self.progress.step:
                self.save()
            self.desk.done()
            if orders.stop or not orders.paused:
                return orders
            time.sleep(PAUSE_POLL_S)
            orders = self.desk.next()

    def _step(self, batch: GlobalBatch, *, lr_factor: float, waited: dict[str, float]) -> None:
        progress, plan = self.progress, self.plan
        began = time.perf_counter()
        share = lr_share(
            progress.step,
            total_steps=plan.total_steps,
            warmup=plan.warmup,
            schedule=self.config.schedule,
            min_ratio=self.config.min_lr_ratio,
        )
        lr = plan.lr * share * lr_factor
        loss, norm = self.update(batch, lr=lr)
        if self._silence is not None and batch.target_count:
            self._silence.look(self.optimizers.parameters)
        progress.step += 1
        progress.tokens += batch.tokens
        # fp16's scaler looks for its scale by such steps
        taken = math.isfinite(norm)
        progress.skipped = 0 if taken else progress.skipped + 1
        progress.skipped_in_all += not taken
        seconds = time.perf_counter() - began
        experts = self._experts(batch.target_count)
        loss -= experts.get("balance_loss", 0.0)
        event: dict[str, Any] = {
            "loss": loss,
            "lr": lr,
            "grad_norm": norm,
            "tokens": progress.tokens,
            "tokens_per_s": batch.tokens / seconds,
            "seconds": progress.seconds + seconds,
            "memory_bytes": self._memory_bytes(),
            "memory_free_bytes": memory_of(self.device)[0],
            **waited,
        }
        if lr_factor != 1:
            event["lr_factor"] = lr_factor
        if not taken:
            event["skipped"] = True
        if self.accelerator.scaler is not None:
            event["scale"] = self.accelerator.scaler.get_scale()
            event["skipped_steps"] = progress.skipped_in_all
        event |= experts
        self._write("step", step=progress.step, **event)
        self._track({"train/loss": loss, "train/lr": lr, "train/grad_norm": norm})
        self._examine(batch, taken=taken)
        if progress.skipped > _SKIPPED_AT_MOST:
            raise RunError(
                f"The gradient hasn't been finite for {progress.skipped} steps, since step "
                f"{progress.step - progress.skipped + 1}",
                next=f"Resume with a lower --lr than {plan.lr:g}, or use --precision fp32",
            )

    def _examine(self, batch: GlobalBatch, *, taken: bool) -> None:
        """Notes what only the model can tell: parts that aren't trained, and where numbers stop being finite."""
        if self.journal is None or self.config.parallel != "ddp":  # elsewhere nobody has the whole model
            return
        if self.progress.step == faults.LOOK_AT and taken:
            found = faults.structure(self.inner, whole=self.config.adapter is None)
            if any(found.values()):
                self._write("structure", step=self.progress.step, **found)
        searching = self.accelerator.scaler is not None and self.progress.skipped <= faults.AT_MOST
        if not taken and not searching and self._examined < faults.AT_MOST:
            self._examined += 1
            batches = [to_device(micro_batch, self.device) for micro_batch in batch.micro_batches]
            found = faults.locate(self.inner, batches, autocast=self.accelerator.autocast)
            self._write("nonfinite", step=self.progress.step, **found)

    def update(self, batch: GlobalBatch, *, lr: float) -> tuple[float, float]:
        """One optimizer step; returns the loss (nats a target, over all processes) and the gradient's norm.

        A step whose gradient isn't finite isn't taken.
        """
        self.optimizers.set_lr(lr)
        self.parallel.zero_grad(self.optimizers)
        share = torch.tensor(1 / max(batch.target_count, 1), device=self.device)
        micro_batches = [to_device(micro_batch, self.device) for micro_batch in batch.micro_batches]
        total = self.parallel.gradients(micro_batches, share, self.accelerator.backward)
        self.parallel.sum_over_data(total)
        norm = self.parallel.step(self.optimizers, self.config.clip)
        return float(total) / max(batch.target_count, 1), norm

    def _experts(self, target_count: int) -> dict[str, Any]:
        """For a mixture of experts: its balancing loss, and each expert's share of the tokens. A collective call."""
        total = self.inner.balance.take()
        if total is None:
            return {}
        self.parallel.sum_over_data(total)
        loss, *shares, tokens = total.tolist()
        return {
            "balance_loss": loss / max(target_count, 1),
            "expert_shares": [round(share / max(tokens, 1.0), 4) for share in shares],
        }

    def _evaluate(self) -> None:
        with uncompiled(self.config.compile):
            self._evaluate_uncompiled()

    def _evaluate_uncompiled(self) -> None:
        result: Evaluation | None = evaluate(
            self.parallel.evaluated,
            self.shards.held_out,
            seq_len=self.config.seq_len,
            # no gradients, so more rows; but where all logits exist they are most of a step's memory
            batch_size=self.config.batch_size * (1 if self.inner.fused == "off" else 2),
            max_rows=self.plan.eval_rows,
            rank=self.parallel.data_rank,
            world_size=self.parallel.data_world,
            group=self.parallel.data_group,
            device=self.device,
            autocast=self.accelerator.autocast,
            masking=self.loader.masking,
        )
        progress = self.progress
        progress.eval_step = progress.step
        if result is None:
            return
        progress.eval_loss, progress.bits_per_byte = result.loss, result.bits_per_byte
        if progress.best_eval_loss is None or result.loss < progress.best_eval_loss:
            progress.best_eval_loss, progress.evals_without_better = result.loss, 0
        else:
            progress.evals_without_better += 1
        fields = {"eval_loss": result.loss, "bits_per_byte": result.bits_per_byte}
        self._write("eval", step=progress.step, **fields)
        self._track({f"eval/{name}": value for name, value in fields.items() if value is not None})
        whole = self.parallel.whole_model()
        if self.rank == 0 and whole is not None:
            self._sample(whole)

    def _sample(self, model: PreTrainedModel) -> None:
        try:
            with self.accelerator.autocast():
                prompt, text = sample(
                    model,
                    self.tokenizer,
                    self.shards.held_out,
                    masking=self.loader.masking,
                    seq_len=self.config.seq_len,
                )
        except DataError:  # logits that aren't numbers: the step's own line says so
            return
        self._write("sample", step=self.progress.step, prompt=prompt, text=text)

    def save(self) -> None:
        """Writes a checkpoint; a collective call. Whoever is killed in it leaves the one before as the newest."""
        step = self.progress.step
        if self.rank == 0:
            disk.open_draft(self.folder, step)
        self.accelerator.wait_for_everyone()
        draft = disk.draft_path(self.folder, step)
        state.save_random(draft / disk.STATE, self.rank)
        whole = self.parallel.whole_model()
        if self.rank == 0 and whole is not None:
            if self.config.adapter is None:
                whole.save_pretrained(draft)
            else:
                adapters.save(whole, draft)
        state.save_optimizers(self.optimizers, draft / disk.STATE, self.parallel)
        if self.rank == 0:
            self.tokenizer.save(draft)
            scaler = self.accelerator.scaler
            write_json(
                draft / disk.STATE / _TRAINER,
                {
                    "progress": asdict(self.progress),
                    "loader": self.loader.state_dict(),
                    "scaler": None if scaler is None else scaler.state_dict(),
                },
            )
        self.accelerator.wait_for_everyone()
        if self.rank == 0:
            current = self.progress.eval_step == step
            done = disk.close_draft(
                self.folder,
                step,
                generation=self.generation,
                eval_loss=self.progress.eval_loss if current else None,
                bits_per_byte=self.progress.bits_per_byte if current else None,
            )
            self._write("checkpoint", step=step, path=done.path.name)
            disk.prune(self.folder, keep=self.config.keep)
        self.saved_step = step
        self.accelerator.wait_for_everyone()

    def _write(self, kind: str, **fields: Any) -> None:
        if self.journal is not None:
            self.journal.write(kind, **fields)

    def _track(self, values: dict[str, float]) -> None:
        if self.config.log_with:
            self.accelerator.log(values, step=self.progress.step)

    def _memory_bytes(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return int(self._process.memory_info().rss)
