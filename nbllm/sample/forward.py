"""A transformers model as one function: token ids in, float32 logits of the next token out.

Hides what differs between models and versions: the name of the cache's argument, whether position ids are taken,
whether logits of all positions can be spared. Holds what is kept between calls: prefixes and the compiled step. Knows
transformers' caches; not tokenizers, not sampling.

Legend: B rows, T new ids, S ids so far with the new ones, V tokens of the vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from nbllm.adapters import attached
from nbllm.errors import UsageError
from nbllm.model import is_masked
from nbllm.sample.compiled import Compiled
from nbllm.sample.prefixes import Prefixes
from nbllm.sample.slots import Slots

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from nbllm.sample.rows import TorchRows

_CACHE_NAMES = ("cache", "past_key_values")  # transformers renamed the argument in its version 5
_SAMPLED = 8
_known: WeakKeyDictionary[Any, Forward] = WeakKeyDictionary()


class Forward:
    """Runs a causal language model on new ids, with or without keys and values of earlier ones: the torch runtime.

    Args:
        model: a causal language model of transformers.

    Raises:
        UsageError: it is an encoder-decoder, or a masked model, which only fills in hidden tokens.
    """

    name = "torch"

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = ref(model)  # `of` keeps this as long as the model lives, and not the other way round
        config = model.config.get_text_config()
        if getattr(config, "is_encoder_decoder", False):
            raise UsageError("Encoder-decoder models can't be sampled from", received=type(model).__name__)
        if is_masked(model):
            raise UsageError(
                f"{type(model).__name__} is a masked model: it fills in hidden tokens and can't continue a text",
                next="Train a causal one, for example %llm_train --model llama-nano",
            )
        taken = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in _CACHE_NAMES if name in taken), None)
        self._takes_positions = "position_ids" in taken
        self._takes_keep = "logits_to_keep" in taken
        self._layers = Slots.layers_of(model.config) if self._cache_name else None
        self.vocab_size: int = config.vocab_size
        """V."""
        self._positions: int | None = getattr(config, "max_position_embeddings", None)
        self.device: torch.device = model.get_input_embeddings().weight.device
        """Where ids must be."""
        self.prefixes = Prefixes()
        """Keys and values kept between calls."""
        self.compiled = Compiled(model)
        """The step that is compiled in the background."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> Forward:
        """The one of this model, with what it kept; it lives as long as the model."""
        if model not in _known or _known[model].device != model.get_input_embeddings().weight.device:
            _known[model] = cls(model)
        return _known[model]

    @property
    def model(self) -> PreTrainedModel:
        """The model, which whoever decodes holds."""
        model = self._model()
        if model is None:
            raise ReferenceError("the model has been freed")
        return model

    @property
    def context(self) -> int | None:
        """The most tokens that prompt and text may have together; None: no limit is known."""
        adapter = attached(self.model)
        taken = 0 if adapter is None else adapter.virtual_tokens
        return None if self._positions is None else self._positions - taken

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a text by the model's own config."""
        named = getattr(self.model.config.get_text_config(), "eos_token_id", None)
        ids = named if isinstance(named, (list, tuple)) else [named]
        return frozenset(int(id) for id in ids if id is not None)

    @property
    def weights(self) -> Hashable:
        """Which weights these are: the adapter's hash and scale, every parameter's place and version, so that weights
        changed in place are others, and a few numbers of each, since what is written through `.data` has no version.

        A change through `.data` that leaves all of these numbers as they were (a row of an embedding, say) isn't seen:
        write in place under `torch.no_grad()` instead, or clear `prefixes`.
        """
        adapter = attached(self.model)
        weights = list(self.model.parameters())
        versions = tuple((weight.data_ptr(), weight._version) for weight in weights)
        on = None if adapter is None else (adapter.hash, adapter.scale)
        return on, hash(versions), _sampled(weights)

    def rows(self, *, use_cache: bool = True, sliding: bool = False, keep: bool = True) -> TorchRows:
        """An empty batch."""
        from nbllm.sample.rows import TorchRows

        return TorchRows(self, use_cache=use_cache, sliding=sliding, keep=keep)

    def new_cache(self) -> Any | None:
        """An empty cache for `__call__`: `Slots` where keys and values are all there is to keep, else transformers'
        own; None where the model keeps nothing."""
        if self._layers is not None:
            return Slots(self._layers)
        if self._cache_name is None:
            return None
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def __call__(
        self, ids: Tensor, *, positions: Tensor, mask: Tensor | None, cache: Any | None, last: int = 1
    ) -> Tensor:
        """Logits of the token after each of the last ids.

        Args:
            ids: int64 [B, T]; all ids without a cache, else those that aren't in it yet.
            positions: int64 [B, T].
            mask: 1 where an id counts and 0 where it is padding, int64 [B, S]; None where all count.
            cache: from `new_cache`, changed in place; None to compute everything.
            last: after how many of the last ids.

        Returns:
            float32 [B, last, V].
        """
        options: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            options[str(self._cache_name)] = cache
        if self._takes_positions:
            options["position_ids"] = positions
        if self._takes_keep:
            options["logits_to_keep"] = last
        logits: Tensor = self.model(input_ids=ids, attention_mask=mask, return_dict=True, **options).logits
        if isinstance(cache, Slots):
            cache.length += ids.shape[1]
        return logits[:, -last:].float()


def _sampled(weights: Sequence[Tensor]) -> int:
    """A hash of a few numbers of each weight, read where they lie: 1 ms for the 272 weights of a model of 135
    million parameters on a CPU of two cores, where a sum over all of them takes 12."""
    by_kind: dict[Any, list[Tensor]] = {}
    for weight in weights:
        plain = weight.detach()
        if type(plain) is Tensor and plain.is_contiguous() and plain.numel():  # not those of other packages' making
            step = max(1, plain.numel() // _SAMPLED)
            view = plain.as_strided((min(_SAMPLED, plain.numel()),), (step,))
            by_kind.setdefault((plain.dtype, plain.device), []).append(view)
    return hash(tuple(torch.cat(views).double().cpu().numpy().tobytes() for views in by_kind.values()))


def can_select(cache: Any) -> bool:
    """Whether rows of the cache can be repeated and dropped; layers with a recurrent state can't."""
    if isinstance(cache, Slots):
        return True
    layers = getattr(cache, "layers", None)
    return layers is not None and all(hasattr(layer, "batch_select_indices") for layer in layers)
