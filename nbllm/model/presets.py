"""Presets: small and middling models built from numbers, as ordinary transformers models with fresh weights.

Knows transformers, lazily, so that names and summaries cost no import. Doesn't know the tokenizer: it is told the
vocabulary's size and the special ids. Sources: Llama (Touvron et al. 2023, https://arxiv.org/abs/2302.13971), GPT-2
(Radford et al. 2019), BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805), Mixtral (Jiang et al. 2024,
https://arxiv.org/abs/2401.04088); llama-1b has the shape of Llama 3.2 1B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nbllm.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The shape of a model, apart from its vocabulary and its longest context."""

    family: Literal["llama", "gpt2", "bert", "moe"]
    """Which transformers architecture."""
    width: int
    """D, the width of the residual stream."""
    layers: int
    """Blocks."""
    heads: int
    """H, attention heads of width / heads numbers each."""
    kv_heads: int
    """K, heads of keys and values; heads where every query head has its own."""
    ffn: int
    """Width of the feed-forward layer, of each expert where there are experts."""
    tied: bool
    """Whether the head reuses the embedding matrix."""
    summary: str
    """A line for help and completion."""
    experts: int = 0
    """Feed-forward layers side by side, of which a router chooses; 0: a plain one."""
    experts_a_token: int = 2
    """How many of them a token goes through."""

    @property
    def masked(self) -> bool:
        """Whether it predicts hidden tokens from both sides, rather than the next one."""
        return self.family == "bert"


PRESETS: dict[str, Preset] = {
    "llama-nano": Preset(
        family="llama", width=128, layers=5, heads=4, kv_heads=4, ffn=352, tied=True,
        summary="1 M parameters without embeddings: learns in a minute on a laptop",
    ),
    "llama-micro": Preset(
        family="llama", width=320, layers=8, heads=5, kv_heads=5, ffn=864, tied=True,
        summary="10 M parameters without embeddings: minutes on a GPU",
    ),
    "llama-small": Preset(
        family="llama", width=768, layers=18, heads=12, kv_heads=12, ffn=2048, tied=True,
        summary="127 M parameters without embeddings: hours on a GPU",
    ),
    "llama-1b": Preset(
        family="llama", width=2048, layers=16, heads=32, kv_heads=8, ffn=8192, tied=True,
        summary="973 M parameters without embeddings, the shape of Llama 3.2 1B: several GPUs",
    ),
    "gpt2-nano": Preset(
        family="gpt2", width=128, layers=5, heads=4, kv_heads=4, ffn=512, tied=True,
        summary="1 M parameters without embeddings, GPT-2's architecture",
    ),
    "gpt2-small": Preset(
        family="gpt2", width=768, layers=12, heads=12, kv_heads=12, ffn=3072, tied=True,
        summary="85 M parameters without embeddings, the shape of GPT-2",
    ),
    "bert-nano": Preset(
        family="bert", width=128, layers=5, heads=4, kv_heads=4, ffn=512, tied=True,
        summary="1 M parameters without embeddings, predicts hidden tokens: minutes on a laptop",
    ),
    "bert-base": Preset(
        family="bert", width=768, layers=12, heads=12, kv_heads=12, ffn=3072, tied=True,
        summary="86 M parameters without embeddings, the shape of BERT base: hours on a GPU",
    ),
    "moe-nano": Preset(
        family="moe", width=128, layers=5, heads=4, kv_heads=4, ffn=176, tied=True, experts=4,
        summary="1.7 M parameters without embeddings in four experts, 1 M active: a mixture of experts on a laptop",
    ),
}  # fmt: skip


def find_preset(name: str) -> Preset:
    """The preset of that name; raises UsageError with the nearest one."""
    if name not in PRESETS:
        raise UsageError("No preset has that name", received=name, next=did_you_mean(name, PRESETS))
    return PRESETS[name]


def build(
    preset: str,
    *,
    vocab_size: int,
    max_length: int,
    bos_id: int | None,
    eos_id: int | None,
    pad_id: int | None,
    seed: int,
    attention: str | None = None,
) -> PreTrainedModel:
    """A model with fresh weights, in fp32 on the CPU, so that a seed gives the same weights on every device.

    Args:
        preset: a key of `PRESETS`.
        vocab_size: V, rows of the embedding matrix.
        max_length: T, the longest context in tokens.
        bos_id: id that starts a text, written into the model's config.
        eos_id: id that ends one.
        pad_id: id that fills rows.
        seed: of the weights; the global random state is left as it was.
        attention: attention implementation; None: transformers' choice (sdpa).

    Raises:
        UsageError: no such preset, or a size below 1.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    shape = find_preset(preset)
    if vocab_size < 1 or max_length < 1:
        raise UsageError("A model needs a vocabulary and a context", received=(vocab_size, max_length))
    config = _config(shape, vocab_size, max_length, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        extra = {"attn_implementation": attention} if attention else {}
        kind = AutoModelForMaskedLM if shape.masked else AutoModelForCausalLM
        return kind.from_config(config, dtype=torch.float32, **extra)


def _config(shape: Preset, vocab_size: int, max_length: int, **ids: int | None) -> Any:
    from transformers import BertConfig, GPT2Config, LlamaConfig, MixtralConfig

    named = {f"{name[:3]}_token_id": value for name, value in ids.items()}
    if shape.family == "llama":
        return LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=shape.width,
            intermediate_size=shape.ffn,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=max_length,
            tie_word_embeddings=shape.tied,
            **named,
        )
    if shape.family == "moe":
        return MixtralConfig(
            vocab_size=vocab_size,
            hidden_size=shape.width,
            intermediate_size=shape.ffn,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            num_local_experts=shape.experts,
            num_experts_per_tok=shape.experts_a_token,
            router_aux_loss_coef=0.01,  # Switch Transformer (https://arxiv.org/abs/2101.03961)
            max_position_embeddings=max_length,
            tie_word_embeddings=shape.tied,
            sliding_window=None,
            **named,
        )
    if shape.family == "bert":
        return BertConfig(
            vocab_size=vocab_size,
            hidden_size=shape.width,
            intermediate_size=shape.ffn,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            max_position_embeddings=max_length,
            type_vocab_size=1,  # there are no pairs of sentences
            tie_word_embeddings=shape.tied,
            hidden_dropout_prob=0.0,  # as for GPT-2 below
            attention_probs_dropout_prob=0.0,
            **named,
        )
    return GPT2Config(
        vocab_size=vocab_size,
        n_embd=shape.width,
        n_inner=shape.ffn,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_positions=max_length,
        tie_word_embeddings=shape.tied,
        # one pass over a small corpus doesn't overfit: dropout would only cost accuracy
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **named,
    )
