"""The plans that DeepSpeed carries out, on gloo processes. `pytest -m deepspeed`, where it is installed."""

import pytest
from group_kit import check_plan
from worker_kit import Kit, kit, train

from nbllm.errors import UsageError
from nbllm.train import check_device
from nbllm.train.config import TrainConfig

__all__ = ["kit"]  # the fixture


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_zero_trains_what_one_process_trains(kit: Kit, stage):
    start = check_plan(kit, f"zero{stage}")
    assert (start["world_size"], start["wrapper"], start["parallel"]) == (2, "DeepSpeedEngine", f"zero{stage}")
    assert start["fused"] == "torch"  # the head was gathered for its loss
    assert max(start["optimizer_by_rank"]) < 0.51 * start["parameters"]
    assert sum(start["optimizer_by_rank"]) >= start["parameters"]
    if stage == 3:
        assert max(start["parameters_by_rank"]) < 0.51 * start["parameters"]


def test_without_deepspeed_the_package_is_named(kit: Kit, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r'needs DeepSpeed.*pip install "nbllm\[deepspeed\]"'):
        check_device(kit.config(parallel="zero2", processes=2))


def test_offload_is_refused_where_there_is_nothing_to_offload_from(kit: Kit, monkeypatch):
    with pytest.raises(UsageError, match="goes with --parallel zero2 or zero3"):
        TrainConfig(shards="s", store_root="/", offload=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(UsageError, match="this run is on cpu"):
        check_device(kit.config(parallel="zero3", processes=2, offload=True))


@pytest.mark.parametrize("changes", [{"optimizer": "muon"}, {"compile": True}, {"adapter": {}}, {"precision": "fp16"}])
def test_what_is_not_proven_with_zero_is_refused(changes):
    with pytest.raises(UsageError, match="zero2"):
        TrainConfig(shards="s", store_root="/", parallel="zero2", processes=2, **changes)


def test_one_process_has_nothing_to_cut(kit: Kit):
    with pytest.raises(UsageError, match="--processes 2"):
        train(kit.run_folder("alone", parallel="zero3"))
