"""The residual stream after every layer, and what the model's own end would make of each.

Nothing here goes by names: one run notes which modules come after the last block, and later these, then the model's own
forward pass with its body left out, read any layer's states. So final norms, projections, scaled or capped logits and
whole prediction heads are the model's own. A model whose end can't be replayed that way is refused.

Legend: L blocks, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nbllm.errors import UsageError
from nbllm.model import find_blocks


class LayerStates:
    """One text's states at every depth of a model.

    Args:
        model: a model of transformers with a language-model head, in eval mode, on one device.
        ids: the text's tokens.

    Raises:
        UsageError: what follows the last block can't be replayed on other states.
    """

    def __init__(self, model: Any, ids: Sequence[int]) -> None:
        self._model = model
        self._body = getattr(model, "base_model", None)
        if self._body is None or self._body is model or not isinstance(self._body, nn.Module):
            raise _unreadable(model)
        name, blocks = find_blocks(model)
        self._ids = torch.tensor([list(ids)], device=model.get_input_embeddings().weight.device)
        self.states: list[Tensor] = []
        """[T, D] each: what enters the first block, then what leaves each one."""
        self._tail: list[nn.Module] = []
        last: list[Any] = []
        hooks = [
            blocks[0].register_forward_pre_hook(self._entered, with_kwargs=True),
            self._body.register_forward_hook(lambda _module, _taken, output: last.append(output)),
        ]
        hooks += [block.register_forward_hook(lambda _module, _taken, out: self._left(out)) for block in blocks]
        hooks += [
            module.register_forward_hook(lambda module, _taken, _output: self._followed(module))
            for module in _beside(model, self._body, name)
        ]
        try:
            self.logits_of_model: Tensor = model(input_ids=self._ids, use_cache=False).logits[0]
        finally:
            for hook in hooks:
                hook.remove()
        self._output: Any = last[0] if len(last) == 1 else None
        ended = getattr(self._output, "last_hidden_state", None)
        if len(self.states) != len(blocks) + 1 or not isinstance(ended, Tensor) or not self._ends_as(ended):
            raise _unreadable(model)

    def logits(self, row: int, begin: int = 0, end: int | None = None) -> Tensor:
        """What the model would say if row `row` of `states` were its last: [T', V] for positions `begin` to `end`."""
        states = self._end(self.states[row][begin:end][None])
        output = type(self._output)(last_hidden_state=states)
        with _instead(self._body, output):
            found: Tensor = self._model(input_ids=self._ids[:, begin:end], use_cache=False).logits[0]
        return found

    def _entered(self, _module: nn.Module, taken: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.states.append((taken[0] if taken else named["hidden_states"])[0].detach())

    def _left(self, output: Any) -> None:
        self.states.append((output if isinstance(output, Tensor) else output[0])[0].detach())
        self._tail.clear()  # what ran before this block isn't after the last one

    def _followed(self, module: nn.Module) -> None:
        if self.states:
            self._tail.append(module)

    def _end(self, states: Tensor) -> Tensor:
        for module in self._tail:
            states = module(states)
        return states

    def _ends_as(self, expected: Tensor) -> bool:
        try:
            return torch.equal(self._end(self.states[-1][None]), expected)
        except (TypeError, RuntimeError, ValueError):  # a module that takes more than the states
            return False


def _beside(model: nn.Module, body: nn.Module, blocks: str) -> list[nn.Module]:
    """The modules within the body that stand beside the list of blocks, at each level above it."""
    above = [module for name, module in model.named_modules() if not name or blocks.startswith(f"{name}.")]
    inside = set(body.modules())
    skipped = {*above, model.get_submodule(blocks)}
    return [child for module in above if module in inside for child in module.children() if child not in skipped]


@contextlib.contextmanager
def _instead(body: Any, output: Any) -> Iterator[None]:
    """For a while, the body returns this output without running."""
    before = body.__dict__.get("forward")
    body.forward = lambda *_taken, **_named: output
    try:
        yield
    finally:
        if before is None:
            del body.forward
        else:
            body.forward = before


def _unreadable(model: Any) -> UsageError:
    return UsageError(
        "What comes after the last layer of this model can't be put after another layer",
        received=type(model).__name__,
        next="Choose another --model",
    )
