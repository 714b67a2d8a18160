"""Quantised weights on a CUDA device: their numbers against float64, their bytes, and greedy text, compiled or not.

`pytest -m gpu tests/gpu/test_gpu_quantised.py`, about a minute. Without a device these fail, they never pass.
"""

from __future__ import annotations

import gc

import pytest
import torch

from nbllm.model.quantization import GROUP, Int4Linear, Int8Linear, quantize, quantized_bytes

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def device() -> None:
    if not torch.cuda.is_available():
        pytest.fail("no CUDA device here: nothing was checked")


@pytest.mark.parametrize("inputs", [96, 576, 1024])
@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_products_are_those_of_the_rounded_weights(kind: str, rows: int, inputs: int) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(inputs, 256, dtype=torch.bfloat16, device="cuda")
    layer = (Int8Linear if kind == "int8" else Int4Linear)(linear)
    weight = linear.weight.detach().double()
    groups = weight.reshape(256, -1, inputs if kind == "int8" else GROUP)
    if kind == "int8":
        step = groups.abs().amax(-1, keepdim=True) / 127
        rounded = (groups / step).round() * step
    else:
        least = groups.amin(-1, keepdim=True)
        step = (groups.amax(-1, keepdim=True) - least) / 15
        rounded = ((groups - least) / step).round() * step + least
    states = torch.randn(rows, inputs, dtype=torch.bfloat16, device="cuda")
    wanted = states.double() @ rounded.reshape(256, inputs).T + linear.bias.double()
    plain = (linear(states).double() - (states.double() @ weight.T + linear.bias.double())).abs().max()
    # scales and zeros are kept in bfloat16, which costs as much again as the product's own rounding
    assert (layer(states).double() - wanted).abs().max() <= 4 * plain + 0.02


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_bytes_are_what_was_said_and_greedy_text_is_the_same_compiled(kind: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from nbllm.sample.forward import Forward

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    said = quantized_bytes(model, kind)
    small = quantize(model, kind)
    del model
    gc.collect()
    weights = {one.data_ptr(): one.nbytes for one in (*small.parameters(), *small.buffers())}
    assert sum(weights.values()) == said
    forward = Forward.of(small)
    plain, compiled = _greedy(forward), (forward.compiled.wait(), _greedy(forward))[1]
    assert forward.compiled.ready, forward.compiled.why_not
    assert plain == compiled


def _greedy(forward: object) -> list[int]:
    from nbllm.export.checks import decode

    return decode(forward, [1, 2, 3], 24)  # type: ignore[arg-type]
