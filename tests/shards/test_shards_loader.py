"""Rows and global batches: the same whatever the split, exact resumption, tails, targets, documents kept apart."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from nbllm.errors import DataError, UsageError
from nbllm.shards import IGNORED, Loader, MicroBatch, TokenStream

Documents = list[list[int]]


def make_stream(folder: Path, documents: Documents, masks: Documents | None = None) -> TokenStream:
    """A stream written by hand, so that every value is known."""
    folder.mkdir(parents=True, exist_ok=True)
    flat = [id for document in documents for id in document]
    np.array(flat, dtype=np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "boundaries.npy", np.cumsum([0, *map(len, documents)], dtype=np.int64))
    if masks is not None:
        np.array([bit for mask in masks for bit in mask], dtype=np.uint8).tofile(folder / "mask.bin")
    (folder / "meta.json").write_text(json.dumps({"dtype": "uint16", "text_bytes": len(flat), "pad_id": 1}))
    return TokenStream(folder)


def numbered(lengths: list[int]) -> Documents:
    """Documents whose ids count on from 10, so that each id says where it stands."""
    ends = np.cumsum([0, *lengths])
    return [list(range(10 + a, 10 + b)) for a, b in itertools.pairwise(ends.tolist())]


@pytest.fixture
def stream(tmp_path: Path) -> TokenStream:
    """37 documents of unequal length, 1 to 19 tokens: 359 in all."""
    lengths = [1 + (i * 7) % 19 for i in range(37)]
    return make_stream(tmp_path / "s", numbered(lengths))


def real_rows(batches: list[MicroBatch]) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """The rows of some micro-batches, those of nothing but padding left out."""
    return [
        (tuple(ids), tuple(targets), tuple(positions))
        for batch in batches
        for ids, targets, positions in zip(
            batch.input_ids.tolist(), batch.targets.tolist(), batch.position_ids.tolist(), strict=True
        )
        if any(id != 1 for id in ids)
    ]


def test_one_row_by_hand(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, [[10, 11, 12], [20, 21], [30, 31, 32, 33]])
    assert stream.rows(5) == 2
    batch = stream.batch([0, 1], 5)
    assert batch.input_ids.tolist() == [[10, 11, 12, 20, 21], [30, 31, 32, 1, 1]]
    assert batch.targets.tolist() == [[11, 12, -100, 21, -100], [31, 32, 33, -100, -100]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 0, 1]]
    assert {array.dtype for array in (batch.input_ids, batch.targets, batch.position_ids)} == {np.dtype(np.int64)}
    assert stream.target_counts(np.array([0, 1]), 5).tolist() == [3, 3]


def test_a_document_longer_than_a_row_runs_on(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, numbered([7]))
    batch = stream.batch([0, 1], 4)
    assert batch.input_ids.tolist() == [[10, 11, 12, 13], [14, 15, 1, 1]]
    assert batch.targets.tolist() == [[11, 12, 13, 14], [15, 16, -100, -100]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3], [0, 1, 0, 1]]


@pytest.mark.parametrize("seq_len", [1, 2, 3, 7, 16, 64, 200, 358])
def test_every_target_once_and_none_across_documents(stream: TokenStream, seq_len: int) -> None:
    rows = stream.rows(seq_len)
    batch = stream.batch(np.arange(rows), seq_len)
    seen = batch.targets != IGNORED
    firsts = stream.boundaries[:-1] + 10
    learned = np.sort(batch.targets[seen])
    assert learned.tolist() == sorted(set(range(10, 10 + len(stream))) - set(firsts.tolist()))
    assert (batch.targets[seen] == batch.input_ids[seen] + 1).all()
    assert stream.target_counts(np.arange(rows), seq_len).tolist() == seen.sum(axis=1).tolist()
    # a position of 0 begins a row, a document or the padding; else it counts on
    starts = set(firsts.tolist())
    for row in range(rows):
        for i in range(seq_len):
            fresh = i == 0 or int(batch.input_ids[row, i]) in starts
            if batch.input_ids[row, i] != 1:
                assert batch.position_ids[row, i] == (0 if fresh else batch.position_ids[row, i - 1] + 1)


def split_rows(stream: TokenStream, batch_size: int, grad_accum: int, world_size: int, steps: int) -> list[object]:
    loaders = [
        Loader(
            stream, seq_len=8, batch_size=batch_size, grad_accum=grad_accum, rank=rank, world_size=world_size, seed=5
        )
        for rank in range(world_size)
    ]
    found: list[object] = []
    for _ in range(steps):
        shares = [loader.next_batch() for loader in loaders]
        assert {len(share.micro_batches) for share in shares} == {grad_accum}
        assert len({(share.target_count, share.tokens) for share in shares}) == 1
        rows = sorted(row for share in shares for row in real_rows(share.micro_batches))
        found.append((rows, shares[0].target_count, shares[0].tokens, sorted(shares[0].rows.tolist())))
    return found


@pytest.mark.parametrize("split", [(2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 1, 4), (1, 2, 2)])
def test_the_split_does_not_change_what_is_in_a_batch(stream: TokenStream, split: tuple[int, int, int]) -> None:
    assert split_rows(stream, *split, steps=30) == split_rows(stream, 4, 1, 1, steps=30)


@pytest.mark.parametrize("split", [(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 1, 3), (5, 4, 3)])
@pytest.mark.parametrize("epochs", [1, 2, 0.5, 1.7])
def test_an_epoch_takes_every_row_once(stream: TokenStream, split: tuple[int, int, int], epochs: float) -> None:
    batch_size, grad_accum, world_size = split
    loaders = [
        Loader(
            stream,
            seq_len=8,
            batch_size=batch_size,
            grad_accum=grad_accum,
            rank=rank,
            world_size=world_size,
            epochs=epochs,
        )
        for rank in range(world_size)
    ]
    shares = [list(loader) for loader in loaders]
    assert len({len(share) for share in shares}) == 1
    assert len(shares[0]) == loaders[0].total_steps
    total_rows = round(epochs * stream.rows(8))
    taken = np.concatenate([step.rows for step in shares[0]])
    assert len(taken) == total_rows
    assert sorted(taken[: stream.rows(8)].tolist()) == sorted(set(taken[: stream.rows(8)].tolist()))
    for step in range(len(shares[0])):
        batches = [share[step].micro_batches for share in shares]
        assert len({len(each) for each in batches}) == 1  # collectives stay in step
        targets = sum(int((batch.targets != IGNORED).sum()) for each in batches for batch in each)
        assert targets == shares[0][step].target_count
        assert len(real_rows([batch for each in batches for batch in each])) == len(shares[0][step].rows)
    with pytest.raises(StopIteration):
        loaders[0].next_batch()


def test_seven_batches_with_accumulation_four(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, numbered([71]))  # 7 rows of 10 inputs
    steps = list(Loader(stream, seq_len=10, batch_size=1, grad_accum=4, epochs=1))
    assert [len(step.micro_batches) for step in steps] == [4, 3]
    assert [step.target_count for step in steps] == [40, 30]
    steps = list(Loader(stream, seq_len=10, batch_size=1, grad_accum=4, epochs=3 / 7))
    assert [(len(step.micro_batches), step.target_count) for step in steps] == [(3, 30)]


def test_ranks_without_rows_get_padding(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, numbered([51]))  # 5 rows of 10 inputs
    last = [
        list(Loader(stream, seq_len=10, batch_size=1, rank=rank, world_size=4, epochs=1))[-1].micro_batches
        for rank in range(4)
    ]
    assert [len(each) for each in last] == [1, 1, 1, 1]
    assert [int((each[0].targets != IGNORED).sum()) for each in last] == [10, 0, 0, 0]
    assert last[3][0].input_ids.tolist() == [[1] * 10]
    assert last[3][0].position_ids.tolist() == [list(range(10))]


@pytest.mark.parametrize("stop_after", [0, 1, 5, 11, 12, 40])
def test_resuming_goes_on_exactly(stream: TokenStream, stop_after: int) -> None:
    straight = Loader(stream, seq_len=8, batch_size=2, grad_accum=2, seed=3)
    for _ in range(stop_after):
        straight.next_batch()
    state = json.loads(json.dumps(straight.state_dict()))
    resumed = Loader(stream, seq_len=8, batch_size=2, grad_accum=2, seed=3)
    resumed.load_state_dict(state)
    other_split = Loader(stream, seq_len=8, batch_size=4, seed=3)
    other_split.load_state_dict(state)
    for _ in range(25):
        a, b, c = straight.next_batch(), resumed.next_batch(), other_split.next_batch()
        assert np.array_equal(a.rows, b.rows)
        assert np.array_equal(a.rows, c.rows)
        for x, y in zip(a.micro_batches, b.micro_batches, strict=True):
            assert np.array_equal(x.input_ids, y.input_ids)
            assert np.array_equal(x.targets, y.targets)


def test_a_position_of_other_data_is_refused(stream: TokenStream) -> None:
    state = Loader(stream, seq_len=8, batch_size=2, seed=3).state_dict()
    with pytest.raises(DataError, match="seed"):
        Loader(stream, seq_len=8, batch_size=2, seed=4).load_state_dict(state)
    with pytest.raises(DataError, match="seq_len"):
        Loader(stream, seq_len=16, batch_size=2, seed=3).load_state_dict(state)


def test_epochs_and_seeds_differ_in_order(stream: TokenStream) -> None:
    rows = stream.rows(8)

    def order(seed: int) -> list[int]:
        return np.concatenate(
            [step.rows for step in Loader(stream, seq_len=8, batch_size=3, seed=seed, epochs=2)]
        ).tolist()

    first, second = order(0)[:rows], order(0)[rows:]
    assert sorted(first) == sorted(second) == list(range(rows))
    assert first != second
    assert first != sorted(first)
    assert order(0) == order(0) != order(1)


def test_too_short_a_corpus_names_both_numbers(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, numbered([60, 60]))
    with pytest.raises(DataError, match=r"120 tokens.* 256 .*Lower --seq-len or add text"):
        Loader(stream, seq_len=256, batch_size=1)
    assert Loader(stream, seq_len=119, batch_size=1, epochs=1).next_batch().target_count == 118
    empty = make_stream(tmp_path / "empty", [])
    assert (len(empty), empty.documents, empty.rows(8), list(empty.batches(8, 2))) == (0, 0, 0, [])
    with pytest.raises(DataError, match="0 tokens"):
        Loader(empty, seq_len=8, batch_size=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "--batch-size"),
        ({"grad_accum": 1.5}, "--grad-accum"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"epochs": 0}, "--epochs"),
        ({"epochs": math.nan}, "--epochs"),
        ({"seq_len": 0}, "--seq-len"),
    ],
)
def test_wrong_numbers_are_named(stream: TokenStream, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Loader(stream, **{"seq_len": 8, "batch_size": 2, **options})  # type: ignore[arg-type]


def test_examples_are_packed_whole(tmp_path: Path) -> None:
    documents = numbered([4, 4, 5, 12, 3])
    masks = [[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0, 1], [0] * 10 + [1, 1], [0, 1, 1]]
    stream = make_stream(tmp_path, documents, masks)
    fit = stream.fit(8)
    # 4 + 3 inputs fit into 8; the 5 begins a row; the 12 is cut to 8 inputs and loses its answer
    assert (fit.starts.tolist(), fit.stops.tolist()) == ([0, 8, 13, 25], [7, 12, 21, 27])
    assert (fit.cut, fit.lost) == ((3,), (3,))
    batch = stream.batch(np.arange(4), 8)
    assert batch.input_ids[0].tolist() == [10, 11, 12, 13, 14, 15, 16, 1]
    assert batch.targets[0].tolist() == [-100, 12, 13, -100, 15, 16, 17, -100]
    assert batch.position_ids[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0]
    assert batch.targets[1].tolist() == [-100, -100, -100, 22, *[-100] * 4]
    assert (batch.targets[2] == IGNORED).all()
    assert stream.target_counts(np.arange(4), 8).tolist() == [5, 1, 0, 2]
    assert Loader(stream, seq_len=8, batch_size=4, epochs=1).next_batch().target_count == 8
    assert stream.fit(100).cut == ()
    assert stream.rows(100) == 1  # few examples are padded, not refused
    assert Loader(stream, seq_len=100, batch_size=1, epochs=1).next_batch().target_count == 10


def test_prompts_that_leave_no_answer_are_refused(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, numbered([12, 12]), [[0] * 10 + [1, 1]] * 2)
    with pytest.raises(DataError, match=r"no answer is left to learn \(rows 0, 1\)\. Raise --seq-len"):
        Loader(stream, seq_len=8, batch_size=1)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_sees_every_row_once(stream: TokenStream, world_size: int) -> None:
    shares = [list(stream.batches(8, 4, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    rows = real_rows([batch for share in shares for batch in share])
    assert sorted(rows) == sorted(real_rows([stream.batch(np.arange(stream.rows(8)), 8)]))
    some = real_rows(
        [
            batch
            for rank in range(world_size)
            for batch in stream.batches(8, 4, rank=rank, world_size=world_size, max_rows=9)
        ]
    )
    assert len(set(some)) == 9
