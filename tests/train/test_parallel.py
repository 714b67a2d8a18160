"""The parallel plans on gloo processes: the same losses as one process, exact resumes, checkpoints for any plan."""

import pytest
from group_kit import check_plan
from worker_kit import Kit, kit

from nbllm.errors import UsageError
from nbllm.train.config import TrainConfig

__all__ = ["kit"]  # the fixture


def test_fsdp_trains_what_one_process_trains(kit: Kit):
    start = check_plan(kit, "fsdp")
    assert (start["world_size"], start["wrapper"], start["parallel"]) == (2, "FSDPLossModel", "fsdp")
    assert start["blocks_cut"] == 5
    assert sum(start["parameters_by_rank"]) == start["parameters"]
    assert max(start["parameters_by_rank"]) < 0.6 * start["parameters"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallel": "fspd"}, "Did you mean fsdp?"),
        ({"parallel": "ddp,fsdp"}, "don't go together"),
        ({"parallel": "fsdp", "processes": 1}, "--processes 2"),
        ({"parallel": "fsdp", "optimizer": "muon"}, "--optimizer adamw"),
        ({"parallel": "fsdp", "compile": True}, "--compile isn't proven"),
        ({"parallel": "fsdp", "precision": "fp16"}, "bf16"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_in_one_line(changes, said):
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        TrainConfig(shards="s", store_root="/", **changes)
