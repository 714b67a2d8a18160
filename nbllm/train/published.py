"""The adapter that a fine-tuning run puts into the store: under which name, made from what, once the run has ended."""

from __future__ import annotations

from pathlib import Path

from nbllm import adapters
from nbllm.errors import StoreError
from nbllm.files import read_json
from nbllm.model import parameter_count
from nbllm.store import Manifest, Parent, Store
from nbllm.train.config import TrainConfig
from nbllm.train.trainer import Trainer


def _record(
    config: TrainConfig, manifest: Manifest | None, folder: Path
) -> tuple[str, dict[str, object], list[Parent]]:
    """Name, parameters and parents of the adapter that the run publishes."""
    assert config.adapter is not None
    parameters: dict[str, object] = {"run": folder.name, "model": config.model, "adapter": config.as_json()["adapter"]}
    parents = [manifest.as_parent(), *manifest.parents] if manifest else []
    return config.adapter_name or folder.name, parameters, parents


def check_name(store: Store, config: TrainConfig, manifest: Manifest | None, folder: Path) -> None:
    """Refuses before the training, not after it, a name that another adapter has."""
    name, parameters, _ = _record(config, manifest, folder)
    path = store.path("adapter", name) / "manifest.json"
    if path.is_file() and read_json(path)["parameters"] != parameters:
        raise StoreError(f"A different adapter is already named {name!r}", next="Choose another --name")


def publish(store: Store, config: TrainConfig, manifest: Manifest | None, folder: Path, trainer: Trainer) -> None:
    """Puts the adapter as it is now into the store; a resumed run replaces what it published before. A collective
    call."""
    whole = trainer.parallel.whole_model()
    if trainer.rank != 0 or whole is None:
        return
    name, parameters, parents = _record(config, manifest, folder)
    with store.create("adapter", name, parameters=parameters, parents=parents, overwrite=True) as draft:
        adapters.save(whole, draft.folder)
        trainer.tokenizer.save(draft.folder)  # it may have got a chat template
        draft.summary = {
            "step": trainer.progress.step,
            "eval_loss": trainer.progress.eval_loss,
            "parameters": parameter_count(whole, trainable=True),
        }
