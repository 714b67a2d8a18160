"""The one line of a log that says why a run failed."""

from __future__ import annotations

import pytest

from nbllm.train.log import describe_exit, last_error, says_port_taken, tail

SIMPLE = """\
Traceback (most recent call last):
  File "/x/worker.py", line 9, in <module>
    main()
ValueError: the step went wrong
Traceback (most recent call last):
  File "/x/launch.py", line 1000, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['python', '-m', 'nbllm.train.worker']' returned non-zero exit status 1.
"""
TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/x/worker.py", line 9, in <module>
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
[rank0]: Traceback (most recent call last):
[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4321
E1201 16:25:00.1 77 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "/x/run.py", line 2, in run
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
nbllm.train.worker FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 78)
============================================================
"""
CASES = {
    SIMPLE: "ValueError: the step went wrong",
    TORCHRUN: "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    # a mistake that its reader can mend is one line, without a traceback and without its class
    "loading\nDataError: The corpus has 120 tokens, fewer than one sequence of 256.\n"
    + SIMPLE[SIMPLE.index('Traceback (most recent call last):\n  File "/x/launch') :]: (
        "The corpus has 120 tokens, fewer than one sequence of 256."
    ),
    "Traceback (most recent call last):\n  File\nnbllm.errors.UsageError: --lr must be above 0.\n": (
        "--lr must be above 0."
    ),
    # of a chain, its end
    (
        "Traceback (most recent call last):\nKeyError: 'a'\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n  File\nRuntimeError: no key a\n"
    ): "RuntimeError: no key a",
    "Traceback (most recent call last):\n  File\nAssertionError\n": "AssertionError",
    (
        "Traceback (most recent call last):\nsubprocess.CalledProcessError: Command '[...]' died with "
        "<Signals.SIGKILL: 9>.\n"
    ): "A worker was killed (SIGKILL), most often because the memory ran out",
    TORCHRUN[TORCHRUN.index("[rank0]") :].replace("exitcode  : 1 ", "exitcode  : -9 "): (
        "A worker was killed (SIGKILL), most often because the memory ran out"
    ),
    "\x1b[31mValueError: red\x1b[0m\n": "ValueError: red",
    " 10%|#   |\r100%|####|\r\nKilled\n": "Killed",
    "": None,
}


@pytest.mark.parametrize(("text", "line"), CASES.items())
def test_the_line_that_says_why(tmp_path, text, line):
    (tmp_path / "worker.log").write_text(text)
    assert last_error(tmp_path / "worker.log") == line


def test_only_this_start_counts(tmp_path):
    path = tmp_path / "worker.log"
    path.write_text("ValueError: old EADDRINUSE\n")
    begin = path.stat().st_size
    assert says_port_taken(path)
    assert not says_port_taken(path, start=begin)
    assert last_error(path, start=begin) is None
    assert last_error(tmp_path / "missing.log") is None


def test_a_long_line_is_cut(tmp_path):
    (tmp_path / "worker.log").write_text("ValueError: " + "x" * 1000 + "\n")
    assert len(last_error(tmp_path / "worker.log")) == 300


def test_the_tail(tmp_path):
    path = tmp_path / "worker.log"
    path.write_bytes(b"one\n\x1b[1mtwo\x1b[0m\n0%\r50%\r100%\nbad \xff\nlast")
    assert tail(path, 4) == "two\n100%\nbad �\nlast"
    path.write_bytes(b"x" * (3 << 20) + b"\nend\n")
    assert tail(path, 1) == "end"


def test_exit_codes():
    assert describe_exit(-9) == "The launcher was ended by SIGKILL"
    assert describe_exit(3) == "The launcher ended with exit code 3 and said nothing"
