"""Masked models: built and loaded as such, and documents that share a row don't see each other in them."""

import pytest
import torch

from nbllm.errors import UsageError
from nbllm.model import build, check_packing, is_masked, load, parameter_count, separate_documents
from nbllm.model.masked import document_mask


def small(preset, **changes):
    return build(
        preset, **{"vocab_size": 97, "max_length": 64, "bos_id": 0, "eos_id": 0, "pad_id": 1, "seed": 3, **changes}
    )


@pytest.mark.parametrize(("preset", "millions"), [("bert-nano", 1.0), ("moe-nano", 1.68)])
def test_sizes_without_embeddings(preset, millions):
    model = small(preset)
    assert parameter_count(model, embeddings=False) == pytest.approx(millions * 1e6, rel=0.03)
    assert is_masked(model) == (preset == "bert-nano")


def test_a_saved_one_comes_back_as_what_it_is(tmp_path):
    model = small("bert-nano").eval()
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert type(again).__name__ == "BertForMaskedLM"
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)


def test_the_mask_has_a_block_for_each_document():
    positions = torch.tensor([[0, 1, 0, 0, 1]])
    block = torch.block_diag(torch.ones(2, 2), torch.ones(1, 1), torch.ones(2, 2)).bool()
    assert torch.equal(document_mask(positions)[0, 0], block)
    added = document_mask(positions, dtype=torch.float32)[0, 0]
    assert torch.equal(added == 0, block)
    assert (added[~block] < -1e30).all()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_documents_give_the_logits_that_each_gives_alone(attention):
    model = small("bert-nano", attention=attention).eval()
    with pytest.raises(UsageError, match="see each other"):
        check_packing(model, vocab_size=97)
    separate_documents(model)
    check_packing(model, vocab_size=97)
    torch.manual_seed(0)
    lengths = [[5, 1, 9, 2], [8, 9]]
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


def test_the_mixture_of_experts_keeps_documents_apart():
    check_packing(small("moe-nano"), vocab_size=97)
