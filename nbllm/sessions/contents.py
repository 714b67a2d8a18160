"""What a session does with artefacts by name: make one current, remove some, all, or what nothing uses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from nbllm.errors import NotFoundError, StoreError, did_you_mean
from nbllm.sessions.models import ModelReference
from nbllm.sessions.pointers import POINTERS
from nbllm.store import KINDS, Manifest

if TYPE_CHECKING:
    from nbllm.sessions.core import Session


def use(session: Session, name: str) -> Manifest:
    """Makes a stored corpus, tokenizer, run or adapter of that name current; of several kinds, each of them."""
    found = [manifest for manifest in session.store.find_kinds(name) if manifest.kind not in ("shards", "export")]
    if not found:
        known = [other for kind in ("corpus", "tokenizer", "run", "adapter") for other in session.store.names(kind)]
        raise NotFoundError(f"Nothing in the store is named {name!r}", next=did_you_mean(name, known))
    with session.lock:
        for manifest in found:
            if manifest.kind in ("corpus", "tokenizer", "run"):
                setattr(session, manifest.kind, name)
            if manifest.kind == "run" and not any(other.kind == "adapter" for other in found):
                session.model = ModelReference(kind="run", source=name)
            if manifest.kind == "adapter":
                session.model = session.models.base_of(name, session.model)
                session.adapter = name
    return found[0]


def remove(session: Session, names: Sequence[str], *, yes: bool = False) -> list[Manifest]:
    """Removes artefacts; refuses, naming them, where others were made from these, unless `yes`.

    Returns:
        What was removed.
    """
    doomed: list[Manifest] = []
    for name in names:
        found = session.store.find_kinds(name)
        if not found:
            raise NotFoundError(f"Nothing in the store is named {name!r}", next="%llm_session lists what there is")
        doomed += found
    from nbllm.train import live_runs

    live = {run.name for run in live_runs(session.store)}
    _refuse_live(doomed, live)
    others = [child for manifest in doomed for child in session.store.dependants(manifest) if child not in doomed]
    if others and not yes:
        shown = ", ".join(f"{child.kind} {child.name}" for child in others[:8])
        raise StoreError(
            f"Made from {', '.join(names)}: {shown}", next="Add --yes to remove what you named and keep those"
        )
    for manifest in doomed:
        _remove(session, manifest)
    return doomed


def remove_all(session: Session, *, yes: bool = False) -> list[Manifest]:
    """Removes every artefact of the store; refuses, naming how many, unless `yes`, and while a run is live.

    Returns:
        What was removed.
    """
    from nbllm.corpus.scratch import remove_unfinished
    from nbllm.train import live_runs

    doomed = [manifest for kind in KINDS for manifest in session.store.manifests(kind)]
    _refuse_live(doomed, {run.name for run in live_runs(session.store)})
    if doomed and not yes:
        counts = {kind: sum(manifest.kind == kind for manifest in doomed) for kind in KINDS}
        shown = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        raise StoreError(f"This would remove everything: {shown}", next="Type %llm_session rm --all --yes")
    for manifest in doomed:
        _remove(session, manifest)
    remove_unfinished(session.store)
    return doomed


def collect(session: Session) -> list[Manifest]:
    """Removes what nothing uses and nbllm makes again by itself: token shards that no artefact was made from, and the
    exports that `--backend` keeps; also what interrupted cleanings left. What a user made is never collected.

    Returns:
        What was removed.
    """
    from nbllm.corpus.scratch import remove_unfinished

    store = session.store
    remove_unfinished(store)
    used = {parent.hash for kind in KINDS for manifest in store.manifests(kind) for parent in manifest.parents}
    doomed = [manifest for manifest in store.manifests("shards") if manifest.hash not in used]
    doomed += store.manifests("export")
    for manifest in doomed:
        _remove(session, manifest)
    return doomed


def _refuse_live(doomed: Sequence[Manifest], live: Collection[str]) -> None:
    for manifest in doomed:
        if manifest.kind == "run" and manifest.name in live:
            raise StoreError(
                f"The run {manifest.name!r} is live", next=f"Stop it first: %llm_train --stop {manifest.name}"
            )


def _remove(session: Session, manifest: Manifest) -> None:
    session.store.remove(manifest)
    with session.lock:
        current = getattr(session, manifest.kind, None) if manifest.kind in POINTERS else None
        if current is not None and getattr(current, "name", current) == manifest.name:
            setattr(session, manifest.kind, None)
        if manifest.kind == "run" and session.model and session.model.source == manifest.name:
            session.model = None
