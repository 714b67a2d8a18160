"""Checkpoints on disk: complete or not there at all."""

import os
import signal

import pytest

from nbllm.errors import StoreError
from nbllm.train import checkpoint as disk


def write(folder, step, *, loss=None, content=b"weights"):
    draft = disk.open_draft(folder, step)
    (draft / "model.safetensors").write_bytes(content)
    (draft / disk.STATE / "trainer.json").write_text("{}")
    return disk.close_draft(folder, step, generation=0, eval_loss=loss, bits_per_byte=loss)


def steps(folder):
    return [checkpoint.step for checkpoint in disk.list_checkpoints(folder)]


def test_a_checkpoint_says_what_it_holds(tmp_path):
    made = write(tmp_path, 20, loss=1.5)
    (found,) = disk.list_checkpoints(tmp_path)
    assert found == made
    assert found.path.name == "step-00000020"
    assert sorted(found.files) == ["model.safetensors", "state/trainer.json"]
    found.verify()


def test_a_writer_killed_in_the_middle_leaves_the_one_before(tmp_path):
    write(tmp_path, 10)
    child = os.fork()
    if child == 0:
        draft = disk.open_draft(tmp_path, 20)
        (draft / "model.safetensors").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert steps(tmp_path) == [10]
    assert disk.newest(tmp_path).step == 10
    write(tmp_path, 20)
    assert steps(tmp_path) == [10, 20]
    assert not list((tmp_path / disk.CHECKPOINTS).glob(".*"))


def test_a_damaged_one_is_passed_over(tmp_path):
    write(tmp_path, 10)
    path = write(tmp_path, 20).path
    (path / "model.safetensors").write_bytes(b"weightz")
    assert disk.newest(tmp_path).step == 10
    with pytest.raises(StoreError, match=r"model\.safetensors"):
        disk.list_checkpoints(tmp_path)[-1].verify()
    (path / "model.safetensors").write_bytes(b"short")
    assert steps(tmp_path) == [10]
    disk.drop_after(tmp_path, 10)
    assert not path.exists()


def test_a_step_written_again_replaces_the_old_one(tmp_path):
    write(tmp_path, 10, content=b"old")
    write(tmp_path, 10, content=b"new")
    assert disk.newest(tmp_path).path.joinpath("model.safetensors").read_bytes() == b"new"


def test_the_newest_and_the_best_stay(tmp_path):
    for step, loss in enumerate([3.0, 1.0, 2.0, 2.5, None, 2.2], start=1):
        write(tmp_path, step, loss=loss)
        disk.prune(tmp_path, keep=2)
    assert steps(tmp_path) == [2, 5, 6]
    assert disk.best(disk.list_checkpoints(tmp_path)).step == 2
    write(tmp_path, 7, loss=float("nan"))
    assert disk.best(disk.list_checkpoints(tmp_path)).step == 2


def test_a_folder_without_checkpoints(tmp_path):
    assert disk.list_checkpoints(tmp_path) == []
    assert disk.newest(tmp_path) is None
