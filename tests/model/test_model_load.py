"""Loading a model from each kind of place, and the one line that says why it can't be loaded."""

import json
import shutil

import pytest
import torch

from nbllm.errors import NotFoundError, UsageError
from nbllm.model import build, load

IDS = torch.arange(12)[None] % 97


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "llama"
    build("llama-nano", vocab_size=97, max_length=64, bos_id=0, eos_id=0, pad_id=1, seed=3).save_pretrained(path)
    return path


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits.float()


def test_a_folder(folder):
    model = load(folder)
    assert not model.training
    assert model.dtype == torch.float32
    made = build("llama-nano", vocab_size=97, max_length=64, bos_id=0, eos_id=0, pad_id=1, seed=3)
    assert torch.equal(logits(model), logits(made.eval()))
    assert load(folder, dtype="bf16").dtype == torch.bfloat16
    assert load(folder, attention="eager").config._attn_implementation == "eager"


def test_a_dtype_that_does_not_exist(folder):
    with pytest.raises(UsageError, match="fp32, fp16, bf16"):
        load(folder, dtype="fp8")


def test_what_is_not_there_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotFoundError, match="holds no model"):
        load(tmp_path)
    with pytest.raises(NotFoundError, match="no folder"):
        load(tmp_path / "nothing")
    with pytest.raises(NotFoundError, match="hub") as raised:
        load("somebody/nothing")
    assert "\n" not in str(raised.value)
    with pytest.raises(NotFoundError, match="Did you mean llama-nano"):
        load("llama-nan")


def test_pickled_weights_are_never_read(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    torch.save(load(folder).state_dict(), tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(UsageError, match="can't be loaded"):
        load(tmp_path / "m")


def test_code_of_a_repository_needs_a_yes(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "strange", "auto_map": {k: f"code.{k}" for k in ("AutoConfig", "AutoModelForCausalLM")}}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    (tmp_path / "m" / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UsageError, match="--trust-remote-code"):
        load(tmp_path / "m")
    assert not (tmp_path / "ran").exists()


def write_gguf(path, model):
    """The model as llama.cpp's converter would name it, unquantised (rotary heads permuted as it does)."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_token_merges([])
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    for name, weight in model.state_dict().items():
        array = weight.float()
        parts = name.split(".")
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", array.numpy())
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", array.numpy())
        elif parts[1] == "layers":
            inner = ".".join(parts[3:-1])
            if inner in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = config.num_attention_heads
                array = array.view(heads, 2, -1, array.shape[1]).transpose(1, 2).reshape(array.shape)
            writer.add_tensor(f"blk.{parts[2]}.{names[inner]}.weight", array.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_loads_and_can_be_saved_again(folder, tmp_path):
    pytest.importorskip("gguf")
    original = load(folder)
    write_gguf(tmp_path / "m.gguf", original)
    for source in (tmp_path / "m.gguf", tmp_path):
        torch.testing.assert_close(logits(load(source)), logits(original), rtol=1e-4, atol=1e-4)
    load(tmp_path).save_pretrained(tmp_path / "again")
    torch.testing.assert_close(logits(load(tmp_path / "again")), logits(original), rtol=1e-4, atol=1e-4)
    shutil.copy(tmp_path / "m.gguf", tmp_path / "n.gguf")
    with pytest.raises(UsageError, match="several GGUF files"):
        load(tmp_path)
