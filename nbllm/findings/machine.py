"""Rules about the device and the model's parts: memory, waiting, parts that aren't trained."""

from __future__ import annotations

import numpy as np

from nbllm.findings.curves import Curves
from nbllm.findings.finding import Finding

_FREE = 0.06
"""Of all memory; below it a system begins to swap, or a container is killed."""
_OWN = 0.2
"""Of all memory, what the run itself has to take for it to be the reason."""
_RECENT = 50
_WAITING = 0.25
_FEWEST = 20
_NAMED = 4


def memory(curves: Curves) -> list[Finding]:
    """Little memory is left beside what the run takes."""
    free, own = curves.of("memory_free_bytes"), curves.of("memory_bytes")
    total = float(curves.start.get("memory_total_bytes") or 0)
    if not total or len(free) < 3 or not np.isfinite(free[-3:]).all():
        return []
    left = float(np.median(free[-3:]))
    if left > _FREE * total or own[-1] < _OWN * total:
        return []
    rows, accumulation = int(curves.config.get("batch_size") or 1), int(curves.config.get("grad_accum") or 1)
    smaller = rows > 1
    return [
        Finding(
            name="memory is near its limit",
            severity="serious" if left < _FREE / 2 * total else "warning",
            evidence=f"{left / 1e9:.2f} of {total / 1e9:.2f} GB are free; this process takes {own[-1] / 1e9:.2f}",
            remedy="Halve the micro-batch and add up twice as many: the global batch stays"
            if smaller
            else "Compute activations again in the backward pass",
            command=curves.line.again(batch_size=rows // 2, grad_accum=2 * accumulation)
            if smaller
            else curves.line.again(checkpointing=True),
            step=int(curves.steps[-1]),
        )
    ]


def waiting(curves: Curves) -> list[Finding]:
    """The device does nothing while batches are made, or while something is logged or saved."""
    pace, tokens = curves.of("tokens_per_s")[-_RECENT:], np.diff(curves.of("tokens"))[-_RECENT:]
    if len(pace) < _FEWEST or len(tokens) < _FEWEST:
        return []
    busy = float(np.nansum(tokens[-len(pace) :] / pace[-len(tokens) :]))
    found = []
    for field, reason, remedy, command in (
        (
            "data_s",
            "for its data",
            "Keep the store on a local disk, and leave the machine's cores to the run",
            "%llm_session",
        ),
        (
            "other_s",
            "while the run logs and obeys",
            "Log to a local disk, without trackers",
            curves.line.again(log_with=None),
        ),
    ):
        waited = float(np.nansum(curves.of(field)[-_RECENT:]))
        share = waited / (busy + waited) if busy + waited > 0 else 0.0
        if share > _WAITING:
            found.append(
                Finding(
                    name=f"the device waits {reason}",
                    severity="warning",
                    evidence=f"{share:.0%} of the last {len(pace)} steps' time ({waited:.2f} s beside {busy:.2f} s of "
                    "computing)",
                    remedy=remedy,
                    command=command,
                    step=int(curves.steps[-1]),
                )
            )
    return found


def parts(curves: Curves) -> list[Finding]:
    """Parts of the model that aren't trained, though all was to be; a head that should be the embedding and isn't."""
    found = []
    said = curves.structure
    for field, name, why in (
        ("frozen", "a part is frozen", "take no gradient though the whole model is to be trained"),
        ("still", "a part gets no gradient", "are to be trained, and the loss doesn't reach them"),
    ):
        names = [str(one) for one in said.get(field) or ()]
        if names:
            more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            found.append(
                Finding(
                    name=name,
                    severity="serious",
                    evidence=f"{len(names):,} tensors {why}: {', '.join(names[:_NAMED])}{more}",
                    remedy="Build or load the model anew, and look at its parts",
                    command="%llm_model",
                    step=int(said.get("step") or 0),
                )
            )
    if said.get("untied"):
        found.append(
            Finding(
                name="the head is untied",
                severity="warning",
                evidence="the configuration ties the head to the embedding, and they are two tensors: the head that "
                "is trained isn't kept by a folder that ties them",
                remedy="Tie them again (`model.tie_weights()`) before the folder is saved, or say so in its config",
                command="%llm_model",
                step=int(said.get("step") or 0),
            )
        )
    return found
