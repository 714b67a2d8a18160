"""Bottleneck adapters: after each feed-forward, a narrow detour whose output is added to it.

peft has none. x + up(gelu(down(x))), with up starting as zero, so that the model starts as its base (Houlsby et al.
2019, https://arxiv.org/abs/1902.00751, in the place that Pfeiffer et al. 2020, https://arxiv.org/abs/2005.00247, keep).
The detour isn't linear, so it can't be merged. Knows the model's blocks; folders and hashes are the other file's.

Shapes: B rows, T positions, D width of the model, W width of the detour.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import UsageError
from nbllm.model.structure import find_blocks

if TYPE_CHECKING:
    from torch import Tensor, nn

KIND = "NBLLM_BOTTLENECK"
_FEED_FORWARDS = ("mlp", "feed_forward", "ffn", "block_sparse_moe")


@dataclass(kw_only=True)
class Config:
    """What stands in an adapter's `adapter_config.json`."""

    width: int
    """W."""
    dropout: float = 0.0
    """Share of the detour's inputs dropped in training."""
    base_model_name_or_path: str | None = None
    """The model that it was trained on."""

    @classmethod
    def read(cls, path: Path) -> Config | None:
        """The config in a file; None where it is of another kind of adapter."""
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("peft_type", None) != KIND:
            return None
        return cls(**found)

    def save_pretrained(self, folder: str) -> None:
        """Writes the file, as peft's configs do."""
        content = {"peft_type": KIND, **asdict(self)}
        (Path(folder) / "adapter_config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


class Tuner:
    """The detours of one model.

    Args:
        model: its feed-forwards are wrapped in place; only the detours require gradients afterwards.
        config: their width.

    Raises:
        UsageError: a block without a feed-forward of a known name.
    """

    unmergeable = "A bottleneck adapter can't be merged: its detour isn't linear"

    def __init__(self, model: Any, config: Config) -> None:
        self._owners: list[tuple[Any, str]] = []
        prefix, blocks = find_blocks(model)
        model.requires_grad_(False)
        self.names: list[str] = []
        weight = model.get_input_embeddings().weight
        for number, block in enumerate(blocks):
            name = next((name for name in _FEED_FORWARDS if hasattr(block, name)), None)
            if name is None:
                raise UsageError("The feed-forward of this model's blocks can't be told", received=type(block).__name__)
            detour = _with_detour(getattr(block, name), weight.shape[1], config, like=weight)
            setattr(block, name, detour)
            self._owners.append((block, name))
            self.names.append(f"{prefix}.{number}.{name}")

    @property
    def detours(self) -> list[Any]:
        """The wrapped feed-forwards, first block first."""
        return [getattr(block, name) for block, name in self._owners]

    def unload(self) -> None:
        """Takes the detours out again."""
        for block, name in self._owners:
            setattr(block, name, getattr(block, name).base_layer)

    def weights(self) -> dict[str, Tensor]:
        """The detours' weights by the module that they follow."""
        found = {}
        for name, detour in zip(self.names, self.detours, strict=True):
            for part in ("down", "up"):
                for key, value in getattr(detour, part).state_dict().items():
                    found[f"{name}.{part}.{key}"] = value.detach().cpu().contiguous()
        return found

    def load(self, state: dict[str, Tensor]) -> None:
        """Takes over weights that `weights` gave; raises ValueError where they don't fit."""
        import torch

        own = {
            f"{name}.{part}.{key}": value
            for name, detour in zip(self.names, self.detours, strict=True)
            for part in ("down", "up")
            for key, value in getattr(detour, part).named_parameters()
        }
        if own.keys() != state.keys() or any(own[key].shape != state[key].shape for key in own):
            raise ValueError(f"{len(state)} weights, where this model takes {len(own)} of other names or shapes")
        with torch.no_grad():
            for key, value in state.items():
                own[key].copy_(value)


def _with_detour(base: nn.Module, width: int, config: Config, *, like: Tensor) -> nn.Module:
    import torch
    from torch import nn

    class Detour(nn.Module):
        """A feed-forward [B, T, D] -> [B, T, D] with its detour added."""

        def __init__(self) -> None:
            super().__init__()
            self.base_layer = base
            self.dropout = nn.Dropout(config.dropout)
            # in fp32 beside a base of fewer bits, as peft's weights are
            self.down = nn.Linear(width, config.width, device=like.device)
            self.up = nn.Linear(config.width, width, device=like.device)
            self.scale = 1.0
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

        def forward(self, hidden: Tensor, *args: Any, **options: Any) -> Any:
            out = self.base_layer(hidden, *args, **options)
            main = out[0] if isinstance(out, tuple) else out
            detour = self.up(torch.nn.functional.gelu(self.down(self.dropout(main.to(self.down.weight.dtype)))))
            main = main + self.scale * detour.to(main.dtype)
            return (main, *out[1:]) if isinstance(out, tuple) else main

    return Detour()
