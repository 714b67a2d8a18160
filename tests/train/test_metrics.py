"""Reading metrics while they are written: torn lines, bad lines, restarts, numbers that aren't finite."""

from __future__ import annotations

import itertools
import json
import math

from nbllm.train import metrics
from nbllm.train.metrics import COLUMNS, History, MetricsReader, trim_torn_line


def line(**event):
    return json.dumps(event) + "\n"


def step(number, **more):
    return line(kind="step", step=number, loss=float(number), **more)


def test_a_torn_last_line_waits_for_its_rest(tmp_path):
    path = tmp_path / "metrics.jsonl"
    reader = MetricsReader(path)
    assert reader.poll() == []
    whole = step(1) + step(2)
    path.write_text(whole[:-9])
    assert [event["step"] for event in reader.poll()] == [1]
    assert reader.poll() == []
    path.write_text(whole)
    assert [event["step"] for event in reader.poll()] == [2]
    assert reader.offset == len(whole)


def test_a_line_torn_inside_a_character(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = (json.dumps({"kind": "sample", "step": 1, "text": "größer 🦦"}, ensure_ascii=False) + "\n").encode()
    reader = MetricsReader(path)
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert reader.poll() == []
    path.write_bytes(whole)
    assert reader.poll()[0]["text"] == "größer 🦦"


def test_a_bad_line_is_skipped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(step(1).encode() + b'{"kind": "st{"kind"\n\n[1]\n\xff\xfe\n' + step(2).encode())
    reader = MetricsReader(path)
    assert [event["step"] for event in reader.poll()] == [1, 2]
    assert reader.skipped == 3


def test_a_shorter_file_is_read_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(step(1) + step(2))
    reader = MetricsReader(path)
    reader.poll()
    path.write_text(step(7))
    assert [event["step"] for event in reader.poll()] == [7]


def test_numbers_that_are_not_finite(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        line(kind="step", step=1, loss="NaN", grad_norm="Infinity", lr="-Infinity")
        + line(kind="sample", step=1, text="NaN")
    )
    measured, sample = MetricsReader(path).poll()
    assert math.isnan(measured["loss"])
    assert (measured["grad_norm"], measured["lr"]) == (math.inf, -math.inf)
    assert sample["text"] == "NaN"
    history = History()
    history.add([measured])
    assert math.isnan(history.table()["loss"][0].as_py())


def test_the_table_joins_steps_and_evaluations(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        line(kind="start", generation=0, step=0)
        + line(kind="eval", step=0, eval_loss=8.0, bits_per_byte=4.0)
        + step(1, lr=0.1, grad_norm=2, tokens=512, tokens_per_s=99.5, seconds=5)
        + step(2)
        + line(kind="eval", step=2, eval_loss=7.0, bits_per_byte=3.5)
    )
    history = History()
    history.add(MetricsReader(path).poll())
    table = history.table()
    assert table.to_pydict() == {
        "step": [0, 1, 2],
        "loss": [None, 1.0, 2.0],
        "eval_loss": [8.0, None, 7.0],
        "bits_per_byte": [4.0, None, 3.5],
        "lr": [None, 0.1, None],
        "grad_norm": [None, 2.0, None],
        "tokens": [None, 512, None],
        "tokens_per_s": [None, 99.5, None],
        "seconds": [None, 5.0, None],
    }
    assert {field.name: str(field.type) for field in table.schema} == {
        name: kind.replace("float64", "double") for name, kind in COLUMNS.items()
    }


def test_an_empty_history_has_the_columns():
    table = History().table()
    assert table.num_rows == 0
    assert table.column_names == list(COLUMNS)


def test_a_restart_drops_what_came_after_its_step():
    history = History()
    history.add({"kind": "step", "generation": 0, "step": number, "loss": 1.0} for number in range(1, 13))
    history.add([{"kind": "eval", "step": 12, "eval_loss": 1.0}, {"kind": "end", "step": 12, "status": "stopped"}])
    history.add([{"kind": "start", "generation": 1, "step": 10}])
    history.add({"kind": "step", "generation": 1, "step": number, "loss": 2.0} for number in (11, 12))
    assert history.table()["loss"].to_pylist() == [1.0] * 10 + [2.0] * 2
    assert history.events("eval") == history.events("end") == []
    assert history.last("start")["generation"] == 1
    history.add([{"kind": "start", "generation": 2, "step": 0}])
    assert history.table().num_rows == 0


def test_trimming(tmp_path):
    path = tmp_path / "metrics.jsonl"
    trim_torn_line(path)
    for before, after in [(b"", b""), (b"torn", b""), (b"a\n", b"a\n"), (b"a\nb", b"a\n"), (b"\n\nb", b"\n\n")]:
        path.write_bytes(before)
        trim_torn_line(path)
        assert path.read_bytes() == after


def long_file(tmp_path, steps):
    path = tmp_path / "metrics.jsonl"
    lines = [{"kind": "start", "step": 0, "generation": 0}]
    lines += [{"kind": "step", "step": step, "loss": 2.5, "filler": "x" * 50} for step in range(1, steps + 1)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_skim_shows_a_long_file_from_its_first_to_its_last_line(tmp_path):
    path = long_file(tmp_path, 20_000)
    reader = MetricsReader(path)
    events = reader.skim(400)
    steps = [event["step"] for event in events]
    assert events[0]["kind"] == "start"
    assert steps == sorted(set(steps))
    assert steps[-1] == 20_000
    assert len(events) < 2000
    assert max(after - before for before, after in itertools.pairwise(steps)) < 120
    assert (reader.offset, reader.skipped) == (0, 0)
    assert reader.unread == path.stat().st_size
    assert [event["step"] for event in reader.poll()] == list(range(20_001))
    assert reader.unread == 0
    assert MetricsReader(tmp_path / "none").skim() == []


def test_a_poll_may_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "_CHUNK_BYTES", 1000)
    reader = MetricsReader(long_file(tmp_path, 500))
    found, looks = [], 0
    while events := reader.poll(5000):
        found += events
        looks += 1
    assert [event["step"] for event in found] == list(range(501))
    assert looks > 5
