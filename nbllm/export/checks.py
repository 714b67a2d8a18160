"""Whether an exported model says what its source says: the runtime decodes greedily, and the source judges each token.

The source runs once over prompt and answer, so a check costs one pass of it. A token agrees where the source's logit of
it is the highest but for rounding. Knows the protocols of sampling's runtimes, not the runtimes.

Legend: N tokens decoded, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbllm.errors import RunError
from nbllm.export.exported import Check

if TYPE_CHECKING:
    from torch import Tensor

    from nbllm.sample.runtime import Runtime
    from nbllm.tokenizer import Tokenizer

TOKENS = 32
"""Next tokens that a check compares."""
PROBE = "The first token decides: 1 + 1 = 2, naïve, 안녕.\n    return next(self)"
"""The text that checks begin with."""
ROUNDING: dict[str, float] = {"fp32": 1e-4, "f32": 1e-2, "f16": 1e-2, "bf16": 5e-2, "q8_0": 5e-2}
"""How far below the highest logit a choice may lie, as a part of the largest absolute logit, by weights' type. GGUF's
f32 is no finer than its f16, since llama.cpp keeps keys and values in half precision."""


def probe(tokenizer: Tokenizer, config: Any) -> list[int]:
    """The ids that a check begins with, few enough to leave half of a short context to the answer."""
    context = getattr(config, "max_position_embeddings", None) or 2 * TOKENS
    return tokenizer.encode(PROBE)[: max(1, min(TOKENS, context // 2))]


def decode(runtime: Runtime, prompt: Sequence[int], count: int = TOKENS) -> list[int]:
    """What a runtime says after a prompt, greedily; it goes on past an end of text, and ends at the context."""
    import torch

    if runtime.context is not None:
        count = min(count, runtime.context - len(prompt))
    rows = runtime.rows()
    token = rows.start([prompt], 1).argmax(-1)  # int64 [1]
    tokens = [int(token)]
    while len(tokens) < count:
        token = rows.advance(torch.tensor(tokens[-1:])).argmax(-1)
        tokens.append(int(token))
    return tokens


def agreeing(model: Any, prompt: Sequence[int], tokens: Sequence[int], rounding: float) -> int:
    """How many of the tokens after a prompt a model would choose, each after those before it.

    Args:
        model: a causal language model of transformers.
        prompt: ids.
        tokens: ids [N].
        rounding: see `ROUNDING`.
    """
    import torch

    ids = torch.tensor([[*prompt, *tokens[:-1]]])
    with torch.no_grad():
        wanted: Tensor = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :].float()  # [N, V]
    return count_same(wanted, torch.tensor(list(tokens)), rounding)


def count_same(wanted: Tensor, tokens: Tensor, rounding: float) -> int:
    """How many tokens have the highest logit but for rounding.

    Args:
        wanted: logits, float32 [..., V].
        tokens: int64 [...].
        rounding: see `ROUNDING`.
    """
    chosen = wanted.gather(-1, tokens[..., None])
    return int((chosen >= wanted.amax(-1, keepdim=True) - rounding * wanted.abs().amax()).sum())


def accept(check: Check, *, share: float = 1.0) -> Check:
    """Returns the check where enough of its tokens agree, else raises RunError.

    Args:
        check: the comparison.
        share: of the tokens that have to agree.
    """
    if check.agreed < share * check.tokens:
        raise RunError(
            f"In {check.runtime} the exported model predicts {check.agreed} of {check.tokens} next tokens as the "
            "original does",
            next="Nothing was written",
        )
    return check


def compare(
    name: str, model: Any, runtime: Runtime, tokenizer: Tokenizer, *, rounding: float, share: float = 1.0
) -> Check:
    """Decodes in the runtime and compares with the model, token by token.

    Raises:
        RunError: too few tokens agree.
    """
    prompt = probe(tokenizer, model.config.get_text_config())
    tokens = decode(runtime, prompt)
    agreed = agreeing(model, prompt, tokens, rounding)
    return accept(Check(runtime=name, tokens=len(tokens), agreed=agreed), share=share)
