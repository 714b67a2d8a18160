"""What the doctor says of a run afterwards: its log, its text and its tokenizer; by handle, session and magic."""

from dataclasses import asdict

import pytest
import torch
from worker_kit import Kit, texts, train

from nbllm import shards as room
from nbllm import tokenizer as tokenizer_room
from nbllm.commands import Call, find
from nbllm.corpus import Corpus, clean
from nbllm.files import hash_value, write_json
from nbllm.model import PRESETS, build
from nbllm.model.presets import Preset
from nbllm.sessions import Session
from nbllm.store import Manifest, now, versions
from nbllm.train import Run
from nbllm.train.phase import RunState, write_state

PICO = Preset(family="llama", width=32, layers=1, heads=2, kv_heads=2, ffn=64, tied=True, summary="for tests")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(PRESETS, "pico", PICO)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return Kit(tmp_path_factory.mktemp("store"))


def shards(kit, documents, name, held_out=None):
    """Packed text, with the corpus that it came from."""
    corpus = clean(kit.store, texts=documents, recipe="none", name=name)
    return room.build(
        kit.store, kit.tokenizer, train=documents, held_out=held_out or texts(30, 9), parameters={"name": name},
        parents=[corpus.manifest.as_parent(), kit.tokenizer.manifest.as_parent()],
    ).name  # fmt: skip


def a_run(kit, name, **changes):
    """A run that was trained in this process, with the manifest that its session would have written."""
    options = {"steps": 40, "batch_size": 8, "seq_len": 64, "optimizer": "adamw", "lr": 2e-2, "eval_every": 20}
    folder = kit.run_folder(name, **{"model": "pico", **options, **changes})
    parameters = kit.config(**{"model": "pico", **options, **changes}).as_json()
    call = {"method": "train", "arguments": {"corpus": "web", "steps": 40, "lr": 2e-2, "name": name}}
    manifest = Manifest(
        kind="run", name=name, hash=hash_value(parameters), created=now(), parameters=parameters, parents=(),
        versions=versions(), call=call,
    )  # fmt: skip
    write_json(folder / "manifest.json", asdict(manifest))
    train(folder)
    write_state(folder, RunState(phase="done"))
    return Run(kit.store, name)


def test_duplicates_are_found_counted_and_named(kit):
    few = texts(12, 2)
    run = a_run(kit, "doubled", shards=shards(kit, few * 100, "doubled"), steps=60)
    found = {finding.name: finding for finding in run.diagnose()}
    one = found["duplicated text"]
    assert one.severity == "serious"
    said = "behind a loss that falls too fast: 99% of the training tokens are in copies (1,188 of 1,200 documents): "
    assert one.evidence.startswith(said)
    longest = max(few, key=len)
    assert f"100 × {longest[:30]!r}"[:-1] in one.evidence
    first = next(document for document in Corpus.load(kit.store, "doubled") if document["text"] == longest)
    assert first["id"] in one.evidence, "the document is named"
    assert "dedup minhash" in one.command
    assert "the training loss is too good to be true" in found


def test_a_clean_corpus_has_no_copies(kit):
    documents = [f"{number} {text}" for number, text in enumerate(texts(1500, 5))]
    run = a_run(kit, "clean", shards=shards(kit, documents, "clean"), lr=5e-3)
    found = run.diagnose()
    assert list(found) == []
    assert {"duplicates", "held-out text", "tokenizer and model", "spikes"} <= set(found.checked)


def test_held_out_text_in_the_training_part(kit):
    documents = [f"{number} {text}" for number, text in enumerate(texts(400, 5))]
    run = a_run(kit, "leaked", shards=shards(kit, documents, "leaked", held_out=documents[:40]), steps=4)
    one = {finding.name: finding for finding in run.diagnose()}["held-out text is in the training part"]
    assert "40 of 40 held-out documents" in one.evidence


def test_a_tokenizer_that_is_not_the_models(kit, tmp_path):
    other = tokenizer_room.train(kit.store, texts(99, 7), vocab_size=290, name="other")
    build("pico", vocab_size=300, max_length=64, bos_id=0, eos_id=0, pad_id=0, seed=1).save_pretrained(tmp_path / "m")
    other.save(tmp_path / "m")
    run = a_run(kit, "foreign", shards=kit.plain.name, model=str(tmp_path / "m"), steps=4)
    one = {finding.name: finding for finding in run.diagnose()}["the tokenizer isn't the model's"]
    assert "encoded by words (300 entries)" in one.evidence
    assert one.command.startswith("%llm_train --corpus web --steps 40 --lr 0.02 --tokenizer ")


def test_by_name_from_the_magic_and_the_current_run(kit):
    run = a_run(kit, "hot", shards=kit.plain.name, lr=3.0, clip=0, eval_every=0, schedule="constant")
    session = Session(kit.store, "doctor")
    command = find("llm_doctor")
    found = command.run(Call(session=session, arguments=command.parse("hot")))
    (one,) = [finding for finding in found if finding.name == "the loss diverges"]
    assert one.command == "%llm_train --corpus web --steps 40 --lr 1"
    assert "the loss diverges" in str(found)
    assert "the loss diverges" in found._repr_html_()
    session.run = run
    assert [finding.name for finding in session.diagnose()] == [finding.name for finding in found]


def test_a_run_that_died(kit):
    run = a_run(kit, "cut", shards=kit.plain.name, steps=4, eval_every=0)
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    (run.folder / "metrics.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    write_state(run.folder, RunState(phase="running"))
    assert run.status == "died"
    one = next(iter(Run(kit.store, "cut").diagnose()))
    assert one.name == "the run died"
    assert one.command == "%llm_train --resume cut"
