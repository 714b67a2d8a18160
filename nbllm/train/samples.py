"""What a model makes of held-out text, for people to read: how it goes on, or what it puts where tokens are hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbllm.shards import IGNORED, Masking, TokenStream
from nbllm.train import attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from nbllm.tokenizer import Tokenizer

_TOKENS = 48
_PROMPT_TOKENS = 8
_NEW_TOKENS = 40


def sample(
    model: PreTrainedModel, tokenizer: Tokenizer, stream: TokenStream, *, masking: Masking | None, seq_len: int
) -> tuple[str, str]:
    """What the model is given, and what it makes of it; the same random numbers each time.

    A causal model goes on from the beginning of the first held-out document; a masked one fills in.

    Args:
        model: left in the mode it was in.
        tokenizer: the model's.
        stream: the held-out part.
        masking: a masked model's; its fixed masks are taken.
        seq_len: T.

    Raises:
        DataError: the logits aren't numbers.
        KeyboardInterrupt: it was interrupted while it sampled.
    """
    if masking is not None:
        return _filled_in(model, tokenizer, stream, masking=masking, seq_len=seq_len)
    from nbllm.sample import SamplingParameters, generate

    length = min(_PROMPT_TOKENS, seq_len // 2)
    prompt = [int(token) for token in stream.tokens[: min(length, int(stream.boundaries[1]) - 1)]]
    parameters = SamplingParameters(max_new_tokens=min(_NEW_TOKENS, seq_len - length))
    with attention.everywhere(model):
        made = generate(model, tokenizer, prompt, parameters, keep=False)
    if made.stop_reason == "interrupted":
        raise KeyboardInterrupt
    return tokenizer.decode(prompt), made.text


def _filled_in(
    model: PreTrainedModel, tokenizer: Tokenizer, stream: TokenStream, *, masking: Masking, seq_len: int
) -> tuple[str, str]:
    """The beginning of the held-out part as the model read it, and with its likeliest guesses in brackets."""
    batch = stream.batch([0], seq_len, masking=masking)
    ids, targets, positions = (
        torch.from_numpy(array[:, :_TOKENS]).to(model.device)
        for array in (batch.input_ids, batch.targets, batch.position_ids)
    )
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            guesses = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0].argmax(-1).tolist()
    finally:
        model.train(training)
    asked, answered = [], []
    for id, guess, target in zip(ids[0].tolist(), guesses, targets[0].tolist(), strict=True):
        hidden = target != IGNORED
        asked.append("[…]" if hidden else tokenizer.decode([id]))
        answered.append(f"[{tokenizer.decode([guess])}]" if hidden else tokenizer.decode([id]))
    return "".join(asked), "".join(answered)
