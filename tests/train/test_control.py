"""Commands by file: sequence numbers, several writers, nothing lost between two looks, nothing left from the past."""

from __future__ import annotations

import json
import threading

import pytest

from nbllm.errors import UsageError
from nbllm.train import control


def test_nothing_asked_yet(tmp_path):
    assert control.read_control(tmp_path) == control.Control()
    assert control.acknowledged(tmp_path) == 0


def test_the_file_is_as_documented(tmp_path):
    control.send(tmp_path, "pause")
    control.send_lr_factor(tmp_path, 0.5)
    assert json.loads((tmp_path / "control.json").read_text()) == {
        "sequence": 2,
        "command": "pause",
        "lr_factor": 0.5,
        "paused_before": False,
        "commands": [{"sequence": 1, "command": "pause"}],
    }


def test_commands_between_two_looks_all_count(tmp_path):
    control.send(tmp_path, "pause")
    control.acknowledge(tmp_path, 1)
    control.send(tmp_path, "checkpoint")
    control.send(tmp_path, "resume")
    asked = control.read_control(tmp_path)
    assert asked.after(1) == ((2, "checkpoint"), (3, "resume"))
    assert asked.after(3) == ()
    assert [asked.paused_at(number) for number in (1, 2, 3)] == [True, True, False]


def test_a_checkpoint_or_a_factor_does_not_end_a_pause(tmp_path):
    control.send(tmp_path, "pause")
    assert not control.read_control(tmp_path).paused_at(0)
    control.acknowledge(tmp_path, 1)
    for _ in range(2):
        control.send(tmp_path, "checkpoint")
        number = control.send_lr_factor(tmp_path, 2)
        assert control.read_control(tmp_path).paused_at(control.acknowledged(tmp_path))
        control.acknowledge(tmp_path, number)
    assert control.read_control(tmp_path).paused_at(number)
    control.send(tmp_path, "stop")
    control.send_lr_factor(tmp_path, 1)
    assert control.read_control(tmp_path).command == "stop"
    assert [command for _, command in control.read_control(tmp_path).commands] == ["stop"]


@pytest.mark.parametrize("factor", [-0.1, 10.1, float("nan"), float("inf")])
def test_a_factor_out_of_range(tmp_path, factor):
    with pytest.raises(UsageError, match="from 0 to 10"):
        control.send_lr_factor(tmp_path, factor)
    assert not (tmp_path / "control.json").exists()


def test_settling_keeps_the_factor_and_the_count(tmp_path):
    control.send(tmp_path, "stop")
    control.send_lr_factor(tmp_path, 0.25)
    control.settle(tmp_path)
    asked = control.read_control(tmp_path)
    assert asked.after(control.acknowledged(tmp_path)) == ()
    assert (asked.lr_factor, asked.paused_at(9), asked.sequence) == (0.25, False, 3)
    assert control.send(tmp_path, "pause") == 4


def test_many_writers_get_a_number_each(tmp_path):
    numbers = []
    threads = [
        threading.Thread(target=lambda: numbers.extend(control.send(tmp_path, "checkpoint") for _ in range(10)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 41))
    assert [number for number, _ in control.read_control(tmp_path).commands] == list(range(1, 41))
