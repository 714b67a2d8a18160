"""Virtual tokens: trained embeddings (`prompt`) or trained keys and values (`prefix`) that every text begins with.

Weights, configs and files are peft's. How they are attended to is ours: the attention of every layer sees their keys
and values in front of what it is given, and real tokens' positions are counted after them. So they take no place in a
cache (ours, and what is kept of prompts, count real tokens only), and every document of a packed row sees them, where
transformers' packing would hide a real beginning from all but the first. For `prompt` their keys and values come from
a run of their own: they stand first, so nothing else changes them.
Sources: prompt tuning (Lester et al. 2021, https://arxiv.org/abs/2104.08691, starts from the vocabulary's embeddings),
prefix tuning (Li & Liang 2021, https://arxiv.org/abs/2101.00190, starts from the keys and values of real tokens).

Shapes: B rows, T positions, S keys, n virtual tokens, L layers, H heads, K key/value heads, C head size, D width.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nbllm.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

METHODS = ("prompt", "prefix")
ATTENTION = "nbllm_virtual"
_KEY = "prompt_embeddings"  # in peft's files, of both kinds
_MODULE = "virtual_tokens"
_MARK = "_nbllm_virtual"


def make_config(model: PreTrainedModel, method: str, count: int) -> Any:
    """peft's config for n virtual tokens on this model."""
    from peft import PrefixTuningConfig, PromptTuningConfig

    heads, size = _key_value_shape(model)
    if method == "prefix":
        return PrefixTuningConfig(
            task_type="CAUSAL_LM",
            num_virtual_tokens=count,
            num_layers=model.config.get_text_config().num_hidden_layers,
            num_attention_heads=heads,
            token_dim=heads * size,
            num_transformer_submodules=1,
        )
    text = model.config.get_text_config()
    return PromptTuningConfig(
        task_type="CAUSAL_LM",
        num_virtual_tokens=count,
        num_layers=text.num_hidden_layers,
        num_attention_heads=text.num_attention_heads,
        token_dim=model.get_input_embeddings().weight.shape[1],
        num_transformer_submodules=1,
        prompt_tuning_init="SAMPLE_VOCAB",
    )


class Tuner:
    """The virtual tokens of one model.

    Args:
        model: gets them as a module of its own, and attends through this; only they require gradients afterwards.
        config: peft's.
        fresh: start from the model's own tokens; False where weights are loaded afterwards.

    Raises:
        UsageError: the model's attention can't be given keys and values from outside.
        ValueError: the config is of another model.
    """

    unmergeable = "Virtual tokens can't be merged: they are read with the text, and aren't part of any layer's weights"

    def __init__(self, model: PreTrainedModel, config: Any, *, fresh: bool) -> None:
        from peft import PrefixEncoder, PromptEmbedding

        self.count: int = config.num_virtual_tokens
        """n."""
        self.scale = 1.0
        """How much they are heeded: their attention weights are multiplied by it before they are normalised."""
        self._prefix = str(config.peft_type.value) == "PREFIX_TUNING"
        self._model = model
        self._decoder: Any = model.get_decoder()
        self._shape = _key_value_shape(model)
        self._collecting: dict[int, tuple[Tensor, Tensor]] | None = None
        self._states: dict[int, tuple[Tensor, Tensor]] = {}
        self._made_of: Any = None
        embedding = model.get_input_embeddings()
        if self._prefix and config.prefix_projection:
            raise UsageError("A prefix that is made by a network can't be attached here", next="Train one without it")
        wanted = make_config(model, "prefix" if self._prefix else "prompt", self.count)
        if any(getattr(config, name) != getattr(wanted, name) for name in ("token_dim", "num_layers")):
            sizes = f"{wanted.num_layers} of {wanted.token_dim}"
            raise ValueError(f"it has {config.num_layers} layers of width {config.token_dim}, the model {sizes}")
        self._attention = _check(model)
        model.requires_grad_(False)
        # on the embedding's device, in fp32 beside a base of fewer bits, as peft's are
        self._encoder: Any = PrefixEncoder(config) if self._prefix else PromptEmbedding(config, embedding)
        self._encoder.to(device=embedding.weight.device, dtype=_float32())
        model.add_module(_MODULE, self._encoder)
        for module in self._decoder.modules():
            if hasattr(module, "layer_idx"):
                setattr(module, _MARK, self)
        self._hook = self._decoder.register_forward_pre_hook(self._before, with_kwargs=True)
        _register()
        _attend_by(model, ATTENTION)
        if fresh and self._prefix and embedding.weight.device.type != "meta":
            self._begin_from_tokens(embedding)

    @property
    def layers(self) -> tuple[tuple[str, tuple[int, ...], int], ...]:
        """What is trained: its name, shape and how many of it."""
        heads, size = self._shape
        if self._prefix:
            return (("virtual keys, values", (2 * self.count, heads * size), len(self._by_layer())),)
        return (("virtual tokens", tuple(self._encoder.embedding.weight.shape), 1),)

    def parts(self) -> list[tuple[int | None, str, Tensor]]:
        """Layer, name and weights of what is trained; a prompt's embeddings belong to no layer."""
        if not self._prefix:
            return [(None, "embeddings", self._encoder.embedding.weight)]
        found: list[tuple[int | None, str, Tensor]] = []
        for number, (keys, values) in enumerate(self._by_layer()):
            found += [(number, "keys", keys), (number, "values", values)]
        return found

    def unload(self) -> None:
        """Takes them off the model."""
        self._hook.remove()
        for module in self._decoder.modules():
            if _MARK in vars(module):
                delattr(module, _MARK)
        delattr(self._model, _MODULE)
        _attend_by(self._model, self._attention)

    def weights(self) -> dict[str, Tensor]:
        """Their weights under the name that peft's files have."""
        return {_KEY: self._encoder.embedding.weight.detach().cpu().contiguous()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Takes over weights that `weights` gave; raises ValueError where they don't fit."""
        import torch

        own = self._encoder.embedding.weight
        if state.keys() != {_KEY} or state[_KEY].shape != own.shape:
            found = [tuple(value.shape) for value in state.values()]
            raise ValueError(f"weights of shape {found}, where this model takes {tuple(own.shape)}")
        with torch.no_grad():
            own.copy_(state[_KEY])

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> Any:
        """Attention of a layer over its own keys and values and the virtual ones in front.

        Args:
            module: the layer's attention.
            query: [B, H, T, C].
            key, value: [B, K, S, C].
            mask: bool or float [B or 1, 1, T, S]; None: T is 1, or S and everything is causal.
            options: further arguments of transformers' attention functions.
        """
        import torch
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        if self._collecting is not None:
            self._collecting[module.layer_idx] = key, value
        elif self.scale:
            before = [states.expand(len(key), -1, -1, -1).to(key.dtype) for states in self._of_layer(module.layer_idx)]
            mask = self._widened(mask, query, key)
            key, value = torch.cat([before[0], key], 2), torch.cat([before[1], value], 2)
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    def _before(self, decoder: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Counts positions after the virtual tokens; of `prompt`, runs them first."""
        import torch

        if self._collecting is not None or not self.scale:
            return None
        positions = options.get("position_ids")
        if positions is None:
            given = options.get("input_ids", args[0] if args else None)
            given = options["inputs_embeds"] if given is None else given
            cache = options.get("cache", options.get("past_key_values"))
            first = 0 if cache is None else cache.get_seq_length()
            positions = torch.arange(first, first + given.shape[1], device=given.device)[None]
        if not self._prefix:
            self._run_prompt()
        return args, {**options, "position_ids": positions + self.count}

    def _run_prompt(self) -> None:
        import torch

        weight = self._encoder.embedding.weight
        base = self._model.get_input_embeddings().weight
        learning = torch.is_grad_enabled() and weight.requires_grad
        autocast = torch.is_autocast_enabled(weight.device.type)
        key = None if learning else (weight.data_ptr(), weight._version, base.dtype, base.device, autocast)
        if key is None or key != self._made_of:
            self._states, self._made_of = self._run(weight[None].to(base.dtype)), key

    def _run(self, embeddings: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values [1, K, n, C] of every layer for embeddings [1, n, D]."""
        import torch

        recomputing = [module for module in self._decoder.modules() if getattr(module, "gradient_checkpointing", False)]
        found: dict[int, tuple[Tensor, Tensor]] = {}
        self._collecting = found
        try:
            for module in recomputing:  # the layers would be run again as parts of the main pass
                module.gradient_checkpointing = False
            positions = torch.arange(embeddings.shape[1], device=embeddings.device)[None]
            self._decoder(inputs_embeds=embeddings, position_ids=positions, use_cache=False)
        finally:
            self._collecting = None
            for module in recomputing:
                module.gradient_checkpointing = True
        return found

    def _of_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [1, K, n, C]."""
        if not self._prefix:
            return self._states[layer]
        keys, values = self._by_layer()[layer]
        return keys[None], values[None]

    def _by_layer(self) -> Tensor:
        """A prefix's weights as [L, 2, K, n, C]."""
        heads, size = self._shape
        weight = self._encoder.embedding.weight
        return weight.view(self.count, -1, 2, heads, size).permute(1, 2, 3, 0, 4)

    def _begin_from_tokens(self, embedding: Any) -> None:
        """Starts a prefix as the keys and values of tokens drawn from the vocabulary."""
        import torch

        with torch.no_grad():
            ids = torch.randint(embedding.weight.shape[0], (1, self.count)).to(embedding.weight.device)
            own = self._by_layer()
            for layer, states in self._run(embedding(ids)).items():
                own[layer] = torch.stack(states)[:, 0].to(own.dtype)

    def _widened(self, mask: Any, query: Tensor, key: Tensor) -> Any:
        """The mask with n columns in front that everybody sees; None where nothing has to be masked."""
        import torch

        positions, keys = query.shape[2], key.shape[2]
        if mask is None:
            if positions == 1 and self.scale == 1:
                return None
            mask = torch.ones(1, 1, positions, keys, dtype=torch.bool, device=query.device).tril(keys - positions)
        if mask.dtype == torch.bool and self.scale == 1:
            return torch.nn.functional.pad(mask, (self.count, 0), value=True)
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(~mask, -math.inf)
        return torch.nn.functional.pad(mask, (self.count, 0), value=math.log(self.scale))


def tuner_of(model: Any) -> Tuner | None:
    """The virtual tokens that a model carries, if any."""
    return next((found for module in model.modules() if (found := vars(module).get(_MARK)) is not None), None)


def _key_value_shape(model: Any) -> tuple[int, int]:
    """K and C, from the config."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return getattr(config, "num_key_value_heads", None) or heads, size


def _check(model: Any) -> str:
    """The model's attention implementation; raises UsageError where it can't be replaced by ours."""
    name = str(model.config._attn_implementation)
    numbered = sum(hasattr(module, "layer_idx") for module in model.get_decoder().modules())
    if name not in ("sdpa", "flash_attention_2", "flash_attention_3") or not numbered:
        raise UsageError(
            f"Virtual tokens need attention by sdpa, and this {type(model).__name__} attends by {name}",
            next="Use --attention sdpa, or --method lora",
        )
    return name


def _attend_by(model: nn.Module, name: str) -> None:
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    for config in configs.values():
        if hasattr(config, "_attn_implementation"):
            config._attn_implementation = name


def _register() -> None:
    """Makes our attention known to transformers, with the masks that sdpa takes."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
        tuner = vars(module).get(_MARK)
        if tuner is None:
            return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return tuner.attend(module, query, key, value, attention_mask, options)

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def _float32() -> Any:
    import torch

    return torch.float32
