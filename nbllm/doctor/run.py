"""What is wrong with a run: what its log shows, what was said while it ran, and what its data and tokenizer show.

The rules about the log are those of `nbllm.findings`. Starts nothing, and needs no model in memory.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from nbllm.doctor.diagnosis import Diagnosis
from nbllm.doctor.duplicates import Repeats, named, repeats
from nbllm.errors import NbllmError
from nbllm.findings import Curves, Finding, look
from nbllm.findings.rules import RULES
from nbllm.shards import Shards
from nbllm.tokenizer import Tokenizer, load
from nbllm.train import LIVE, Run

_REPEATED = 0.1
"""Of the tokens; below it copies are usual in text from the web."""
_LEAKED = 0.05
"""Of the held-out documents."""
_PROBE = "The quick brown fox: 1 + 1 = 2, naïve, 안녕.\n    return next(self)"


def diagnose_run(run: Run) -> Diagnosis:
    """Findings about a run, alive or over."""
    curves = curves_of(run)
    found = {finding.name: finding for finding in look(curves)}
    for name, event in curves.said.items():  # what was so while it ran, and isn't any more
        found.setdefault(name, Finding.from_event(event))
    checked = [name for name, _ in RULES]
    more = [*_ended(run, curves)]
    data: tuple[Shards, Tokenizer | None] | None = None
    with contextlib.suppress(NbllmError):  # removed since
        shards = Shards.load(run.store, run.config.shards)
        data = shards, _tokenizer(run, shards)
    if data is not None and data[1] is not None:
        shards, tokenizer = data[0], data[1]
        checked += ["duplicates", "held-out text", "tokenizer and model"]
        told = named(run.store, shards, repeats(shards, tokenizer))
        more += _duplicates(run, curves, told, suspicious="the training loss is too good to be true" in found)
        more += _tokenizers(run, curves, tokenizer)
    return Diagnosis(findings=(*more, *found.values()), checked=tuple(checked))


def curves_of(run: Run) -> Curves:
    """A run's log as curves."""
    call: dict[str, Any] = dict(run.manifest.call or {})
    curves = Curves(run.config.as_json(), call, name=run.name).extend(run.events())
    if curves.end is None and run.status not in LIVE:
        curves.end = {"status": run.status}
    return curves


def _ended(run: Run, curves: Curves) -> list[Finding]:
    error = run.error
    if error is None:
        return []
    said = error.partition(". ")[0]
    return [
        Finding(
            name=f"the run {run.status}",
            severity="serious",
            evidence=f"{said.rstrip('.')}, after {len(curves):,} steps",
            remedy="Mend what is said below, and go on from the last checkpoint" if curves.said else "Go on",
            command=f"%llm_train --resume {run.name}",
            step=int(curves.steps[-1]) if len(curves) else None,
        )
    ]


def _duplicates(run: Run, curves: Curves, found: Repeats, *, suspicious: bool) -> list[Finding]:
    findings = []
    clean = "%%llm_clean SOURCE\ndedup exact\ndedup minhash"
    if found.share >= _REPEATED:
        texts = "; ".join(_one(one) for one in found.most)
        behind = "behind a loss that falls too fast: " if suspicious else ""
        findings.append(
            Finding(
                name="duplicated text",
                severity="serious" if suspicious else "warning",
                evidence=f"{behind}{found.share:.0%} of the training tokens are in copies ({found.documents:,} of "
                f"{found.looked_at:,} documents): {texts}",
                remedy="Clean the copies away, and train again",
                command=clean,
            )
        )
    held_out = max(1, _held_out_documents(run))
    if found.held_out >= max(2, _LEAKED * held_out):
        findings.append(
            Finding(
                name="held-out text is in the training part",
                severity="serious",
                evidence=f"{found.held_out:,} of {held_out:,} held-out documents begin as a training document does: "
                "the held-out loss says too little",
                remedy="Clean near-duplicates away: they then go to one side together",
                command=clean,
            )
        )
    return findings


def _one(one: Any) -> str:
    text = " ".join(one.text.split())
    text = text if len(text) <= 60 else f"{text[:59]}…"
    where = f" ({', '.join(one.documents)})" if one.documents else ""
    return f"{one.count:,} × {text!r}{where}"


def _held_out_documents(run: Run) -> int:
    return Shards.load(run.store, run.config.shards).held_out.documents


def _tokenizer(run: Run, shards: Shards) -> Tokenizer | None:
    parents = shards.manifest.parents if shards.manifest else ()
    name = run.config.tokenizer or next((one.name for one in parents if one.kind == "tokenizer"), None)
    return None if name is None else load(run.store, name)


def _tokenizers(run: Run, curves: Curves, tokenizer: Tokenizer) -> list[Finding]:
    """The run's tokenizer beside the one in the folder of the model that it goes on from."""
    folder = Path(run.config.model).expanduser()
    if not (folder / "tokenizer.json").is_file():
        return []
    try:
        own = Tokenizer.from_folder(folder)
    except NbllmError:
        return []
    wanted, had = own.encode(_PROBE), tokenizer.encode(_PROBE)
    if own.hash == tokenizer.hash or wanted == had:
        return []
    place = next((i for i, (a, b) in enumerate(zip(wanted, had, strict=False)) if a != b), 0)
    return [
        Finding(
            name="the tokenizer isn't the model's",
            severity="serious",
            evidence=f"the run's text was encoded by {tokenizer.name} ({tokenizer.vocab_size:,} entries), the model "
            f"was trained with another ({own.vocab_size:,}): of one sentence the ids differ from token {place + 1} on "
            f"({wanted[place : place + 3]} and {had[place : place + 3]})",
            remedy="Train on text encoded by the model's own tokenizer",
            command=curves.line.again(tokenizer=str(folder)),
            step=1 if len(curves) else None,
        )
    ]
