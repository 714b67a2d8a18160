"""What a masked model makes of held-out text, for people to read: its guesses in the place of the hidden tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nbllm.shards import IGNORED, Masking, TokenStream

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from nbllm.tokenizer import Tokenizer

_TOKENS = 48


def filled_in(
    model: PreTrainedModel, tokenizer: Tokenizer, stream: TokenStream, *, masking: Masking, seq_len: int
) -> tuple[str, str]:
    """The beginning of the held-out part as the model read it, and with its likeliest guesses in brackets.

    Args:
        model: left in the mode it was in.
        tokenizer: the model's.
        stream: the held-out part.
        masking: its fixed masks are taken, so that the text is the same each time.
        seq_len: T.
    """
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
