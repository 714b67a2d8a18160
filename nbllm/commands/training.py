"""The options that training and fine-tuning share, and how they wait for a run. No verb of its own."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call
from nbllm.commands.options import Option
from nbllm.errors import Interrupted
from nbllm.train.attention import KINDS
from nbllm.train.parallel.names import PLANS

SHARED_OPTIONS = (
    Option(name="--loss", help="cross-entropy, or focal", default="ce", choices=("ce", "focal")),
    Option(name="--label-smoothing", help="share of the target spread over all tokens", kind="number", default=0.0),
    Option(name="--focal-gamma", help="exponent of the focal loss", kind="number", default=2.0),
    Option(name="--z-loss", help="weight of the squared log-partition", kind="number", default=0.0),
    Option(name="--steps", help="optimizer steps", kind="integer"),
    Option(name="--epochs", help="passes over the training part", kind="number"),
    Option(name="--tokens", help="training tokens", kind="integer"),
    Option(name="--seq-len", help="tokens a row", kind="integer", default=256),
    Option(name="--batch-size", help="rows a process and micro-step", kind="integer", default=8),
    Option(name="--grad-accum", help="micro-steps an optimizer step", kind="integer", default=1),
    Option(name="--optimizer", help="how", default="auto", choices=("auto", "adamw", "muon")),
    Option(name="--lr", help="peak learning rate; by optimizer where it isn't given", kind="number"),
    Option(name="--warmup", help="steps of linear warm-up", kind="integer"),
    Option(name="--schedule", help="how", default="cosine", choices=("cosine", "wsd", "linear", "constant")),
    Option(name="--precision", help="of the arithmetic", default="auto", choices=("auto", "fp32", "fp16", "bf16")),
    Option(name="--processes", help="one a device", kind="integer", default="auto", also=("auto",)),
    Option(name="--parallel", help="how processes share the work", default="ddp", choices=tuple(PLANS)),
    Option(name="--offload", help="zero2 and zero3: optimizer state in the host's memory", kind="flag"),
    Option(name="--max-restarts", help="times that a killed process brings all back", kind="integer", default=0),
    Option(name="--machines", help="that train one model over a shared store", kind="integer", default=1),
    Option(name="--rank", help="which of the machines this is, from 0", kind="integer", default=0),
    Option(name="--main", help="HOST:PORT of the first machine"),
    Option(name="--checkpointing", help="compute activations again in the backward pass, to save memory", kind="flag"),
    Option(name="--compile", help="compile the model: a slow first step, then faster ones", kind="flag"),
    Option(name="--attention", help="implementation", default="auto", choices=KINDS),
    Option(
        name="--fused",
        help="loss without logits in chunks of PyTorch, or with the layers' kernels in Triton",
        default="auto",
        choices=("auto", "triton", "torch", "off"),
    ),
    Option(name="--clip", help="largest gradient norm; 0 doesn't clip", kind="number", default=1.0),
    Option(name="--held-out", help="fraction of documents never trained on", kind="number", default=0.05),
    Option(name="--eval-every", help="steps between held-out evaluations; 0 only at the end", kind="integer"),
    Option(name="--save-every", help="steps between checkpoints; 0 only at the end", kind="integer"),
    Option(name="--early-stop", help="stop after that many evaluations without a better loss", kind="integer"),
    Option(name="--log-with", help="tensorboard, wandb (offline), or both with a comma"),
    Option(name="--seed", help="of weights, order and dropout", kind="integer", default=0),
    Option(name="--name", help="the run's name; made up if it isn't given"),
    Option(name="--wait", help="block until it has ended, with calm progress", kind="flag"),
)
SHARED_KEYS = tuple(option.key for option in SHARED_OPTIONS if option.key != "wait")


def wait(call: Call, run: Any) -> None:
    """Blocks until a run has ended, saying how it goes about every ten steps of a hundred.

    Raises:
        Interrupted: an interrupt ends the waiting, not the run.
    """
    said = -1

    latest: dict[str, Any] = {}

    def progress(run: Any, events: list[dict[str, Any]]) -> None:
        nonlocal said
        for event in events:
            if event.get("kind") != "finding":  # which names a step that lies behind
                latest.update(event)
        step, total = latest.get("step"), latest.get("total_steps")
        if not step or not total or 10 * step // total == said:
            return
        said = 10 * step // total
        parts = [f"step {step:,} of {total:,}"]
        for key, shape in (
            ("loss", "loss {:.3f}"),
            ("bits_per_byte", "held-out {:.3f} bits a byte"),
            ("tokens_per_s", "{:,.0f} tokens/s"),
        ):
            if latest.get(key) is not None:
                parts.append(shape.format(latest[key]))
        call.say(" · ".join(parts))

    try:
        run.wait(progress=progress)
    except KeyboardInterrupt:
        raise Interrupted(f"the run {run.name} goes on. Stop it with %llm_train --stop {run.name}", run) from None
