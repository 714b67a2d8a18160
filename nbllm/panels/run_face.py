"""What a run looks like without a kernel: HTML with inline SVG and the numbers, and one line of plain text."""

from __future__ import annotations

import html
from typing import Any, TypedDict

from nbllm.panels import face, svg, text
from nbllm.panels.history import RunHistory, number

OVER = ("done", "stopped", "failed", "died")
STATUS = {
    # status: icon, class of its colour
    "starting": ("◌", "info"),
    "running": ("●", "ok"),
    "paused": ("❚❚", "warn"),
    "done": ("✓", "ok"),
    "stopped": ("■", "info"),
    "failed": ("✕", "bad"),
    "died": ("✕", "bad"),
}

_FORMS = {"torch": "PyTorch", "triton": "Triton"}


class Head(TypedDict):
    """The numbers of a run's header, as the panel shows them."""

    name: str
    status: str
    icon: str
    colour: str
    step: int
    total: int | None
    left_s: float | None
    """Seconds left at the present pace; None where it isn't known or the run isn't running."""
    seconds: float | None
    """Seconds of training so far."""
    tokens_per_s: float | None
    memory: str | None
    where: str
    """Processes, plan, precision and device, in words."""
    loss: float | None
    eval_loss: float | None
    bits: float | None
    reference_bits: float | None
    """What xz needs for the same held-out text, in bits a byte."""
    lr: float | None
    grad_norm: float | None
    factor: float
    error: str | None
    over: bool


def head(
    run: Any, history: RunHistory, reference_bits_per_byte: float | None = None, *, status: str | None = None
) -> Head:
    """The header of a run now; `status` where it was read already."""
    status = status or str(run.status)
    icon, colour = STATUS.get(status, ("●", "info"))
    step = history.step
    total = history.start.get("total_steps") or run.total_steps
    pace = history.seconds_a_step()
    seconds, tokens_per_s = number(history.last.get("seconds")), number(history.last.get("tokens_per_s"))
    memory = number(history.last.get("memory_bytes"))
    return Head(
        name=str(run.name),
        status=status,
        icon=icon,
        colour=colour,
        step=step,
        total=int(total) if total else None,
        left_s=pace * (total - step) if pace and total and status == "running" else None,
        seconds=seconds if seconds == seconds else None,
        tokens_per_s=tokens_per_s if tokens_per_s == tokens_per_s else None,
        memory=text.size(memory) if memory > 0 else None,
        where=_where(run, history),
        loss=history.latest("smooth"),
        eval_loss=history.latest("eval_loss"),
        bits=history.latest("bits_per_byte"),
        reference_bits=reference_bits_per_byte,
        lr=history.latest("lr"),
        grad_norm=history.latest("grad_norm"),
        factor=float(getattr(run, "lr_factor", 1.0) or 0.0),
        error=trouble(run, history, status),
        over=status in OVER,
    )


def usage(use: Any) -> dict[str, Any]:
    """What the panel shows of one rank: `rank`, `memory` in words, and `busy` in words."""
    words = [f"{text.size(use.memory_bytes)}"]
    if use.gpu_bytes is not None:
        words.insert(0, f"GPU {text.size(use.gpu_bytes)}")
    busy = [] if use.gpu_share is None else [f"GPU {use.gpu_share:.0%} busy"]
    if use.cores is not None:
        busy.append(f"{use.cores:.1f} cores")
    return {"rank": use.rank, "memory": ", ".join(words), "busy": ", ".join(busy) or "–"}


def trouble(run: Any, history: RunHistory, status: str) -> str | None:
    """One line for a run that failed or died, with its last checkpoint and what to type next; else None."""
    if status not in ("failed", "died"):
        return None
    line = " ".join(str(run.error or f"The run {status} at step {text.count(history.step)}").split()).rstrip(".") + "."
    steps = [checkpoint.step for checkpoint in run.checkpoints]
    if steps and f"step {steps[-1]}" not in line:
        line += f" Its last checkpoint is step {steps[-1]}."
    if "--resume" not in line:
        line += f" Go on with %llm_train --resume {text.typed(str(run.name))}."
    return line


def legend(numbers: Head) -> str:
    """The held-out loss beside its bits a byte and what xz needs: `4.79 (2.13 bits a byte; xz −9 needs 2.27)`."""
    if numbers["eval_loss"] is None:
        return "–"
    beside = [f"{text.loss(numbers['bits'])} bits a byte"] if numbers["bits"] is not None else []
    if numbers["reference_bits"] is not None:
        beside.append(f"xz −9 needs {text.loss(numbers['reference_bits'])}")
    return text.loss(numbers["eval_loss"]) + (f" ({'; '.join(beside)})" if beside else "")


def progress(numbers: Head) -> str:
    """`step 420 / 600`, or `step 420` where the end isn't known."""
    total = f" / {text.count(numbers['total'])}" if numbers["total"] else ""
    return f"step {text.count(numbers['step'])}{total}"


def as_text(numbers: Head) -> str:
    """The run in one line of plain text."""
    parts = [f"{numbers['name']}: {numbers['status']}, {progress(numbers)}"]
    if numbers["loss"] is not None:
        parts.append(f"loss {text.loss(numbers['loss'])} nats a token")
    if numbers["eval_loss"] is not None:
        parts.append(f"held-out {legend(numbers)}")
    if numbers["tokens_per_s"] is not None:
        parts.append(f"{text.count(numbers['tokens_per_s'])} tokens/s")
    if numbers["left_s"] is not None:
        parts.append(f"{text.duration(numbers['left_s'])} left")
    elif numbers["seconds"] is not None:
        parts.append(text.duration(numbers["seconds"]))
    line = " · ".join(parts)
    return f"{line}\n{numbers['error']}" if numbers["error"] else line


def as_html(numbers: Head, history: RunHistory) -> str:
    """The body of the run's static face."""
    facts = [
        text.duration(numbers["left_s"]) + " left" if numbers["left_s"] is not None else None,
        text.duration(numbers["seconds"]) if numbers["over"] and numbers["seconds"] is not None else None,
        f"{text.count(numbers['tokens_per_s'])} tokens/s" if numbers["tokens_per_s"] is not None else None,
        numbers["memory"],
        numbers["where"] or None,
    ]
    known = " · ".join(fact for fact in facts if fact)
    parts = [
        f'<div class="nbllm-head"><strong>{html.escape(numbers["name"])}</strong>',
        face.chip(numbers["status"], numbers["icon"], numbers["colour"]),
        f'<span>{html.escape(progress(numbers))}</span><span class="nbllm-dim">{html.escape(known)}</span></div>',
    ]
    if numbers["error"]:
        parts.append(f'<div class="nbllm-error">{html.escape(numbers["error"])}</div>')
    parts.append(
        f'<div class="nbllm-body"><div class="nbllm-label">loss, nats a token '
        f'<span class="nbllm-s1">━ train {text.loss(numbers["loss"])}</span> '
        f'<span class="nbllm-s2">● held-out {html.escape(legend(numbers))}</span></div>'
    )
    parts.append(_chart(numbers, history))
    parts.append(_table(history))
    if history.sample:
        parts.append(
            f'<div class="nbllm-label nbllm-gap">says, at step {text.count(history.sample[0])}</div>'
            f'<div class="nbllm-mono nbllm-dim">{html.escape(history.sample[1])}</div>'
        )
    if not numbers["over"]:
        command = f"%llm_train --attach {text.typed(numbers['name'])}"
        parts.append(f'<div class="nbllm-label nbllm-gap">live again with <code>{html.escape(command)}</code></div>')
    parts.append("</div>")
    return "".join(parts)


def _where(run: Any, history: RunHistory) -> str:
    start = history.start
    if not start:
        return ""
    processes = int(start.get("world_size") or 1)
    words = [f"{processes} processes" if processes > 1 else "1 process"]
    if processes > 1:
        if "parallel" not in start:  # asked once: a run's config is a file
            start["parallel"] = str(getattr(run.config, "parallel", "") or start.get("wrapper") or "")
        words.append(start["parallel"])
        if start.get("parameters_by_rank"):
            words.append(f"{max(start['parameters_by_rank']):,} parameters a process at most")
        elif start.get("optimizer_by_rank"):
            words.append(f"optimizer state of {max(start['optimizer_by_rank']):,} parameters a process")
    if int(start.get("machines") or 1) > 1:
        words.append(f"{start['machines']} machines")
    words += [str(start.get("precision") or ""), str(start.get("device") or "")]
    if start.get("attention"):
        words.append(f"{start['attention']} attention")
    for key, word in (("compiled", "compiled"), ("checkpointing", "activations checkpointed")):
        if start.get(key):
            words.append(word)
    words += _fused(start)
    return ", ".join(word for word in words if word)


def _fused(start: dict[str, Any]) -> list[str]:
    """Which fused ops are active, and why not where they aren't."""
    form, layers, why = start.get("fused"), start.get("fused_layers"), start.get("kernels_why")
    if form is None:
        return []
    loss = f"all logits ({start.get('fused_why')})" if form == "off" else f"fused loss in {_FORMS.get(form, form)}"
    if layers:
        return [loss, f"fused layers in Triton ({why})"]
    return [loss, f"no fused layers ({why})"] if why else [loss]


def _chart(numbers: Head, history: RunHistory) -> str:
    raw, smooth, held_out = (history.curves[name].points() for name in ("loss", "smooth", "eval_loss"))
    return svg.chart(
        [
            svg.Layer(steps=raw[0], values=raw[1], colour="#0072b2", variable="--nb-s1", width=1, opacity=0.35),
            svg.Layer(steps=smooth[0], values=smooth[1], colour="#0072b2", variable="--nb-s1"),
            svg.Layer(steps=held_out[0], values=held_out[1], colour="#d55e00", variable="--nb-s2", dots=True),
        ],
        last_step=svg.right_end(numbers["step"], numbers["total"]),
        marks=[*history.checkpoints[-40:], *(step for step, _ in history.happened[-20:])],
        label=f"Loss of {numbers['name']}, {progress(numbers)}: train {text.loss(numbers['loss'])}, "
        f"held-out {legend(numbers)}",
    )


def _table(history: RunHistory) -> str:
    steps, losses = history.curves["eval_loss"].points()
    bits = dict(zip(*history.curves["bits_per_byte"].points(), strict=True))
    rows = [
        [text.count(step), text.loss(value), text.loss(bits.get(step))]
        for step, value in list(zip(steps, losses, strict=True))[-50:]
    ]
    return face.table(["step", "held-out loss", "bits a byte"], rows, "evaluations as a table") if rows else ""
