"""A transformers model as one function: token ids in, float32 logits of the next token out.

Hides what differs between models and versions: the name of the cache's argument, whether position ids are taken,
whether logits of all positions can be spared. Knows transformers' caches; not tokenizers, not sampling.

Legend: B rows, T new ids, S ids so far with the new ones, V tokens of the vocabulary.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nbllm.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CACHE_NAMES = ("cache", "past_key_values")  # transformers renamed the argument in its version 5


class Forward:
    """Runs a causal language model on new ids, with or without keys and values of earlier ones.

    Args:
        model: a causal language model of transformers.

    Raises:
        UsageError: it is an encoder-decoder.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        config = model.config.get_text_config()
        if getattr(config, "is_encoder_decoder", False):
            raise UsageError("Encoder-decoder models can't be sampled from", received=type(model).__name__)
        taken = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in _CACHE_NAMES if name in taken), None)
        self._takes_positions = "position_ids" in taken
        self._takes_keep = "logits_to_keep" in taken
        self.vocab_size: int = config.vocab_size
        """V."""
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        """The most tokens that prompt and text may have together; None: no limit is known."""
        self.device: torch.device = model.get_input_embeddings().weight.device
        """Where ids must be."""

    @property
    def caches(self) -> bool:
        """Whether keys and values can be kept."""
        return self._cache_name is not None

    def new_cache(self) -> Any:
        """An empty cache for `__call__`."""
        from transformers import DynamicCache

        return DynamicCache(config=self._model.config)

    def __call__(self, ids: Tensor, *, positions: Tensor, mask: Tensor | None, cache: Any | None) -> Tensor:
        """Logits of the token after the last id.

        Args:
            ids: int64 [B, T]; all ids without a cache, else those that aren't in it yet.
            positions: int64 [B, T].
            mask: 1 where an id counts and 0 where it is padding, int64 [B, S]; None where all count.
            cache: from `new_cache`, changed in place; None to compute everything.

        Returns:
            float32 [B, V].
        """
        options: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            options[str(self._cache_name)] = cache
        if self._takes_positions:
            options["position_ids"] = positions
        if self._takes_keep:
            options["logits_to_keep"] = 1
        logits: Tensor = self._model(input_ids=ids, attention_mask=mask, return_dict=True, **options).logits
        return logits[:, -1].float()


def can_select(cache: Any) -> bool:
    """Whether rows of the cache can be repeated and dropped; layers with a recurrent state can't."""
    layers = getattr(cache, "layers", None)
    return layers is not None and all(hasattr(layer, "batch_select_indices") for layer in layers)
