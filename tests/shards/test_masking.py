"""Dynamic masking: the shares, what is never hidden, the same draws whatever the split, other draws every epoch."""

import json

import numpy as np
import pytest

from nbllm.errors import UsageError
from nbllm.shards import IGNORED, Loader, Masking, TokenStream

MASK, SPECIAL = 2, (0, 1, 2)


def masking(**changes):
    return Masking(**{"mask_id": MASK, "vocab_size": 500, "special_ids": SPECIAL, "seed": 5, **changes})


@pytest.fixture
def stream(tmp_path):
    """Forty documents of 1 to 19 ordinary tokens, each between two special ones."""
    draw = np.random.default_rng(1)
    documents = [[0, *draw.integers(3, 500, size=1 + i * 7 % 19).tolist(), 0] for i in range(40)]
    np.array([id for document in documents for id in document], dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    np.save(tmp_path / "boundaries.npy", np.cumsum([0, *map(len, documents)], dtype=np.int64))
    (tmp_path / "meta.json").write_text(json.dumps({"dtype": "uint16", "text_bytes": 99, "pad_id": 1}))
    return TokenStream(tmp_path)


def test_shares_of_what_is_hidden():
    ids = np.random.default_rng(0).integers(3, 500, size=200_000)
    hidden, chosen = masking().hide(ids, row=7, epoch=2)
    assert chosen.mean() == pytest.approx(0.15, abs=0.004)
    assert np.array_equal(hidden[~chosen], ids[~chosen])
    masked, kept = (hidden == MASK)[chosen], (hidden == ids)[chosen]
    assert masked.mean() == pytest.approx(0.8, abs=0.01)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 497, abs=0.01)
    swapped = hidden[chosen][~masked & ~kept]
    assert not np.isin(swapped, SPECIAL).any()
    assert len(np.unique(swapped)) > 480
    assert np.array_equal(masking().chosen(ids, row=7, epoch=2), chosen)


def test_draws_change_with_seed_epoch_and_row_alone():
    ids = np.arange(3, 300)
    draws = [
        masking(seed=seed).hide(ids, row=row, epoch=epoch)[0].tolist()
        for seed in (5, 6) for row in (0, 1) for epoch in (None, 0, 1)
    ]  # fmt: skip
    assert len({tuple(draw) for draw in draws}) == len(draws)
    assert draws[0] == masking().hide(ids, row=0, epoch=None)[0].tolist()


def test_every_row_has_a_target_where_one_may_be_and_special_tokens_never_are():
    rare = masking(share=1e-6)
    for row in range(50):
        _, chosen = rare.hide(np.array([0, 9, 1, 8, 2]), row=row, epoch=0)
        assert chosen.sum() == 1
        assert chosen[[1, 3]].any()
    hidden, chosen = rare.hide(np.array([0, 1, 2]), row=0, epoch=0)
    assert not chosen.any()
    assert hidden.tolist() == [0, 1, 2]


def test_nothing_to_mask_with_is_an_error():
    with pytest.raises(UsageError, match="nothing but special"):
        Masking(mask_id=2, vocab_size=3, special_ids=(0, 1))
    with pytest.raises(UsageError, match="share"):
        masking(share=0)


def rows_of(batch):
    return [
        (ids.tolist(), targets.tolist())
        for micro in batch.micro_batches
        for ids, targets in zip(micro.input_ids, micro.targets, strict=True)
    ]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_global_batch_doesnt_depend_on_its_split(stream, world_size):
    whole = Loader(stream, seq_len=16, batch_size=8, seed=3, masking=masking())
    parts = [
        Loader(stream, seq_len=16, batch_size=2, grad_accum=4 // world_size, rank=rank, world_size=world_size, seed=3,
               masking=masking())
        for rank in range(world_size)
    ]  # fmt: skip
    for _ in range(12):  # several epochs, one of them ends within a batch
        expected, got = next(whole), [next(part) for part in parts]
        assert sorted(rows_of(expected)) == sorted(row for batch in got for row in rows_of(batch))
        counted = sum(int((micro.targets != IGNORED).sum()) for micro in expected.micro_batches)
        assert {batch.target_count for batch in (expected, *got)} == {counted}
        for micro in expected.micro_batches:
            assert not np.isin(micro.targets, SPECIAL).any()


def test_an_epoch_draws_anew_and_a_resumed_loader_the_same(stream):
    loader = Loader(stream, seq_len=16, batch_size=stream.rows(16), seed=3, masking=masking())
    first = dict(zip(loader.next_batch().rows.tolist(), range(99), strict=False))
    state = loader.state_dict()
    second = loader.next_batch()
    again = Loader(stream, seq_len=16, batch_size=stream.rows(16), seed=3, masking=masking())
    again.load_state_dict(state)
    assert rows_of(again.next_batch()) == rows_of(second)
    begin = Loader(stream, seq_len=16, batch_size=stream.rows(16), seed=3, masking=masking()).next_batch()
    ids = [dict(zip(batch.rows.tolist(), batch.micro_batches[0].input_ids, strict=True)) for batch in (begin, second)]
    different = sum(ids[0][row].tolist() != ids[1][row].tolist() for row in first)
    assert different > 0.8 * len(first)


def test_an_evaluation_has_the_same_masks_each_time(stream):
    looks = [[batch.input_ids.tolist() for batch in stream.batches(16, 4, masking=masking())] for _ in range(2)]
    assert looks[0] == looks[1]
    assert any(MASK in row for batch in looks[0] for row in batch)
