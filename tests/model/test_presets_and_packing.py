"""Presets build what they say; documents that share a row don't see each other."""

import subprocess
import sys

import pytest
import torch

from nbllm.errors import UsageError
from nbllm.model import PRESETS, build, check_packing, find_blocks, parameter_count


def small(preset, **changes):
    return build(
        preset, **{"vocab_size": 97, "max_length": 64, "bos_id": 0, "eos_id": 0, "pad_id": 1, "seed": 3, **changes}
    )


@pytest.mark.parametrize(("preset", "millions"), [("llama-nano", 1.0), ("llama-micro", 10), ("gpt2-nano", 1.0)])
def test_sizes_without_embeddings(preset, millions):
    assert parameter_count(small(preset), embeddings=False) == pytest.approx(millions * 1e6, rel=0.02)


def test_a_seed_gives_the_same_weights_and_leaves_the_global_random_state():
    before = torch.get_rng_state()
    first, again, other = small("llama-nano"), small("llama-nano"), small("llama-nano", seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert first.lm_head.weight is first.model.embed_tokens.weight


def test_ids_are_written_into_the_config():
    config = small("gpt2-nano", bos_id=5, eos_id=6, pad_id=7).config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (5, 6, 7)
    assert config.n_positions == 64


def test_an_unknown_preset_is_named():
    with pytest.raises(UsageError, match="Did you mean llama-nano"):
        small("lama-nano")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("preset", ["llama-nano", "gpt2-nano"])
def test_packed_documents_give_the_logits_that_each_gives_alone(preset, attention):
    model = small(preset, attention=attention).eval()
    assert model.config._attn_implementation == attention
    torch.manual_seed(0)
    lengths = [[5, 1, 9, 2], [8, 9]]  # a document of one token too; rows of 17
    ids = torch.randint(0, 97, (2, 17))
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    with torch.no_grad():
        packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        for row, sizes in enumerate(lengths):
            start = 0
            for size in sizes:
                alone = model(input_ids=ids[row : row + 1, start : start + size], use_cache=False).logits[0]
                torch.testing.assert_close(packed[row, start : start + size], alone, rtol=1e-4, atol=1e-5)
                start += size


def test_a_model_that_mixes_documents_is_refused():
    model = small("llama-nano")
    check_packing(model, vocab_size=97)
    forward = model.forward
    model.forward = lambda position_ids=None, **rest: forward(**rest)
    with pytest.raises(UsageError, match="see each other"):
        check_packing(model, vocab_size=97)


def test_blocks_are_found():
    assert find_blocks(small("llama-nano"))[0] == "model.layers"
    assert find_blocks(small("gpt2-nano"))[0] == "transformer.h"
    with pytest.raises(UsageError, match="no blocks"):
        find_blocks(torch.nn.Linear(2, 2))


def test_names_cost_no_import_of_torch():
    code = "import sys, nbllm.model, nbllm.adapters; print('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    assert "llama-1b" in PRESETS
