"""--attention, --checkpointing, --compile and fp16's scaler: what is active is said, and no loss changes for it."""

import pytest
import torch
from worker_kit import Kit, events, kit, losses, train

from nbllm.errors import RunError, UsageError
from nbllm.model import build, check_packing
from nbllm.sessions import Session
from nbllm.train import attention, check_device, compiled, setup, worker
from nbllm.train.loss_model import LossModel

__all__ = ["kit"]  # the fixture


def model_of(preset="llama-nano", **options):
    return build(preset, vocab_size=300, max_length=32, bos_id=0, eos_id=1, pad_id=2, seed=0, **options).train()


@pytest.fixture(scope="module")
def plain(kit: Kit):
    return kit.train("plain", eval_every=3)


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_each_attention_is_active_and_trains_the_same(kit: Kit, plain, kind):
    folder = kit.train(f"with-{kind}", eval_every=3, attention=kind)
    assert events(folder, "start")[0]["attention"] == kind
    assert losses(folder) == pytest.approx(losses(plain), rel=5e-4)  # Muon makes much of the last digit


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize("preset", ["llama-nano", "gpt2-nano"])
def test_documents_in_a_row_never_see_each_other(preset, kind):
    model = model_of(preset, attention=kind).eval()
    check_packing(model, vocab_size=300)
    ids = torch.randint(300, (3, 24), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(24) % 9  # documents of 9, 9 and 6 tokens
    other = ids.clone()
    other[:, :9] = (other[:, :9] + 1) % 300
    with torch.no_grad():
        rows = {"position_ids": positions.expand(3, 24), "use_cache": False}
        found = [model(input_ids=each, **rows).logits for each in (ids, other)]
    assert not torch.allclose(found[0][:, :9], found[1][:, :9])
    torch.testing.assert_close(found[0][:, 9:], found[1][:, 9:])


def test_a_batch_as_one_long_row_has_the_same_loss():
    model = model_of()
    ids = torch.randint(300, (3, 24), generator=torch.Generator().manual_seed(0))
    positions = (torch.arange(24) % 9).expand(3, 24)
    whole = LossModel(model, fused="auto", settings={})
    expected = whole(ids, ids.roll(-1, 1), positions)
    whole._flattens = True  # what flash needs
    torch.testing.assert_close(whole(ids, ids.roll(-1, 1), positions), expected)


@pytest.mark.parametrize("kind", ["flash", "flex"])
def test_what_needs_a_gpu_is_refused_in_one_line(kit: Kit, kind):
    folder = kit.run_folder(f"with-{kind}", attention=kind)
    with pytest.raises(UsageError, match=f"--attention {kind} can't be trained without a GPU.*--attention sdpa"):
        train(folder)
    with pytest.raises(UsageError, match="without a GPU"):
        check_device(kit.config(attention=kind))
    with pytest.raises(UsageError, match="fp16 needs a GPU"):
        check_device(kit.config(precision="fp16"))


def test_flash_says_what_else_it_needs():
    with pytest.raises(UsageError, match="not in fp32"):
        attention.choose("flash", "cuda", precision="fp32")
    with pytest.raises(UsageError, match="needs flash-attn"):
        attention.choose("flash", "cuda", precision="bf16")
    assert attention.choose("flex", "cuda", precision="fp32") == "flex_attention"
    with pytest.raises(RunError, match="eager was asked for, but sdpa is active"):
        attention.active(model_of(attention="sdpa"), "eager")


def test_a_session_refuses_before_a_run_is_made(tmp_path, kit: Kit):
    session = Session(kit.store, "refusing")
    session.clean(texts=[f"Text number {number} of a few." for number in range(60)], recipe="none", name="few")
    session.train_tokenizer(vocab_size=300, name="few")
    before = kit.store.names("run")
    with pytest.raises(UsageError, match="--attention flex can't be trained without a GPU"):
        session.train(attention="flex")
    assert kit.store.names("run") == before


def test_checkpointing_is_active_and_changes_no_loss(kit: Kit, plain):
    folder = kit.train("checkpointed", eval_every=3, checkpointing=True)
    assert events(folder, "start")[0]["checkpointing"] is True
    assert events(plain, "start")[0]["checkpointing"] is False
    assert losses(folder) == pytest.approx(losses(plain), rel=1e-6)


def test_weights_stay_in_fp32_under_autocast(kit: Kit):
    folder = kit.train("in-bf16", steps=2, precision="bf16")
    start = events(folder, "start")[0]
    assert (start["precision"], start["weights"]) == ("bf16", "fp32")


def counting(calls):
    """A compiler that only counts what it is given."""

    def compile(graph, inputs):
        calls.append([tuple(each.shape) for each in inputs if isinstance(each, torch.Tensor)])
        return graph.forward

    return compile


@pytest.mark.parametrize("checkpointing", [False, True])
def test_only_the_usual_micro_batch_is_compiled_and_once_for_all_blocks(kit: Kit, plain, monkeypatch, checkpointing):
    calls = []
    torch._dynamo.reset()
    original = torch.nn.Module.compile
    backend = counting(calls)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: original(self, backend=backend, **options))
    folder = kit.train(f"compiled-{checkpointing}", eval_every=3, compile=True, checkpointing=checkpointing)
    assert events(folder, "start")[0]["compiled"] is True
    assert losses(folder) == pytest.approx(losses(plain), rel=5e-4)  # Muon makes much of the last digit
    assert len(calls) == 1
    assert any(shape[:2] == (4, 32) for shape in calls[0])
    torch._dynamo.reset()


def test_nothing_is_compiled_where_it_is_not_wanted():
    model = model_of()
    calls = []
    torch._dynamo.reset()
    for block in model.model.layers:
        block.compile(backend=counting(calls))
    with compiled.uncompiled():
        model(input_ids=torch.ones(1, 4, dtype=torch.int64))
    assert calls == []
    model(input_ids=torch.ones(1, 4, dtype=torch.int64))
    assert calls
    torch._dynamo.reset()


def with_scaler(monkeypatch, scaler):
    """Runs of this process scale their loss, as fp16 does on a GPU."""
    original = setup.make_accelerator

    def make(config, folder):
        accelerator = original(config, folder)
        accelerator.scaler = scaler
        return accelerator

    monkeypatch.setattr(worker.setup, "make_accelerator", make)


def test_the_scaler_is_logged_saved_and_restored(kit: Kit, plain, monkeypatch):
    setting = {"steps": 8, "save_every": 4, "eval_every": 3, "optimizer": "adamw"}
    unscaled = kit.train("unscaled", **setting)

    def scaler():  # its first scale is too large for fp32 itself, so that steps are skipped until it isn't
        return torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=3, backoff_factor=2.0**-30)

    with_scaler(monkeypatch, scaler())
    folder = kit.train("scaled", **setting)
    found = events(folder, "step")
    assert [event.get("skipped", False) for event in found] == [True] + [False] * 7
    assert [event["skipped_steps"] for event in found] == [1] * 8
    assert [event["scale"] for event in found] == [2.0**96] * 3 + [2.0**97] * 3 + [2.0**98] * 2
    assert losses(folder)[1] == losses(unscaled)[1]
    with_scaler(monkeypatch, scaler())
    again = kit.store.root / "runs" / "scaled"
    (again / "checkpoints" / "step-00000008" / "checkpoint.json").unlink()
    assert train(again, resume=True) == "done"
    second = events(again, "step")[len(found) :]
    assert [(event["step"], event["loss"], event["scale"]) for event in second] == [
        (event["step"], event["loss"], event["scale"]) for event in found[4:]
    ]
