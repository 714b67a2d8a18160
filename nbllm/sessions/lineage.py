"""What was made from what: stale marks, and the script that makes the current artefacts again.

An artefact is stale when one that it was made from, directly or through others, is no longer the current one of its
kind. Reads manifests only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbllm.store import Manifest

if TYPE_CHECKING:
    from nbllm.sessions.core import Session


def ancestors(session: Session, manifest: Manifest) -> list[Manifest]:
    """Every stored artefact that this one was made from, oldest first; parents that are gone are left out."""
    found: dict[str, Manifest] = {}

    def visit(child: Manifest) -> None:
        for parent in child.parents:
            if parent.kind == "file" or parent.hash in found:
                continue
            for candidate in session.store.manifests(parent.kind):
                if candidate.hash == parent.hash:
                    visit(candidate)
                    found[candidate.hash] = candidate
                    break

    visit(manifest)
    return list(found.values())


def stale_because(session: Session, manifest: Manifest) -> str | None:
    """Why an artefact no longer follows from what is current, as a phrase; None where it does."""
    current = {
        kind: pointed.manifest
        for kind, pointed in (("corpus", session.corpus), ("tokenizer", session.tokenizer))
        if pointed is not None and pointed.manifest is not None
    }
    lineage = [*manifest.parents, *(parent for item in ancestors(session, manifest) for parent in item.parents)]
    for kind, wanted in current.items():
        if kind == manifest.kind:
            continue
        used = [parent for parent in lineage if parent.kind == kind]
        if used and all(parent.hash != wanted.hash for parent in used):
            same = "an older " if used[0].name == wanted.name else "another "
            return f"made from {same}{kind}, {used[0].name}"
    return None


def script(session: Session) -> str:
    """The Python script that rebuilds the current corpus, tokenizer, model and adapter from their sources."""
    wanted: dict[str, Manifest] = {}
    names = [
        session.corpus.manifest if session.corpus else None,
        session.tokenizer.manifest if session.tokenizer else None,
    ]
    runs = {session.model.source if session.model and session.model.kind == "run" else None, session.adapter}
    if session.run is not None:
        runs.add(session.run.name)
    stored = {manifest.name: manifest for manifest in session.store.manifests("run")}
    names += [stored[name] for name in runs if name in stored]
    for manifest in names:
        if manifest is not None:
            for item in [*ancestors(session, manifest), manifest]:
                wanted[item.hash] = item
    lines = [
        '"""Rebuilds the artefacts of a session from their sources."""',
        "",
        "import nbllm",
        "",
        f"session = nbllm.session({session.name!r})",
    ]
    for manifest in sorted(wanted.values(), key=lambda item: item.created):
        if manifest.call:
            lines += ["", *_call(manifest)]
    return "\n".join(lines) + "\n"


def _call(manifest: Manifest) -> list[str]:
    comments: list[str] = []

    def shown(key: str, value: Any) -> str:
        if isinstance(value, dict) and set(value) == {"object"}:
            comments.append(f"# {key} was a value of the notebook ({value['object']}): put it in the place of ...")
            return "..."
        return repr(value)

    call = manifest.call
    arguments = [shown("source", source) for source in call.get("sources", [])]
    given = dict(call["arguments"])
    if manifest.kind in ("corpus", "tokenizer", "run"):
        given["name"] = manifest.name
    arguments += [f"{key}={shown(key, value)}" for key, value in given.items() if value is not None]
    if manifest.kind == "run":
        arguments.append("wait=True")
    return [*comments, f"session.{call['method']}({', '.join(arguments)})"]
