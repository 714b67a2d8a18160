"""The training config: what it refuses, and that JSON gives the same config back."""

import json

import pytest

from nbllm.errors import UsageError
from nbllm.train.config import AdapterConfig, TrainConfig


def config(**changes):
    return TrainConfig(shards="s", store_root="/store", **changes)


def test_json_gives_the_same_config_back():
    made = config(steps=5, log_with="tensorboard", adapter=AdapterConfig(targets="q_proj, v_proj"))
    assert TrainConfig.from_json(json.loads(json.dumps(made.as_json()))) == made
    assert made.adapter.targets == ("q_proj", "v_proj")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 0}, "received 0"),
        ({"steps": 3, "epochs": 1.0}, "--steps and --epochs"),
        ({"optimizer": "muno"}, "Did you mean muon?"),
        ({"lr": float("nan")}, "received nan"),
        ({"seq_len": True}, "received True"),
        ({"label_smoothing": 1.0}, "below 1"),
        ({"log_with": ("tensorbord",)}, "Did you mean tensorboard?"),
    ],
)
def test_a_wrong_value_is_named(changes, said):
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        config(**changes)


def test_an_unknown_field_is_named():
    with pytest.raises(UsageError, match="batch_size"):
        TrainConfig.from_json({"shards": "s", "store_root": "/", "batchsize": 3})
