"""The architecture's picture in a real JupyterLab: parts chosen by mouse and keys, their weights, both themes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

BEGIN = """
import threading
from types import SimpleNamespace
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from nbllm.inspect.architecture import summarize
from nbllm.panels import registry, show_model
torch.manual_seed(1)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=300, hidden_size=48, intermediate_size=96, num_hidden_layers=4, num_attention_heads=6,
    num_key_value_heads=2, head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 500.0},
))
show_model(SimpleNamespace(lock=threading.RLock()), summarize(model, name="tiny <img src=x onerror=window.hacked=1>"))
panel = registry.live("model")[-1]
"""


def test_a_part_is_chosen_and_its_weights_shown(open_notebook):
    notebook = open_notebook([BEGIN], width=1280, height=1100)
    notebook.run(0)
    notebook.panel.wait_for(timeout=20_000)
    notebook.wait_for_text("6 heads of 8 · 2 key/value heads")
    page, panel = notebook.page, notebook.panel
    assert "<img" in panel.inner_text(), "text from data stays text"
    assert page.evaluate("() => window.hacked ?? null") is None

    attention = panel.get_by_role("button", name="attention")
    attention.click()
    notebook.wait_for_text(r"model\.layers\.0\.self_attn\.q_proj\.weight.*48 × 48 float32")
    assert attention.get_attribute("aria-pressed") == "true"
    attention.press("ArrowDown")  # the norm after it
    notebook.wait_for_text(r"model\.layers\.0\.post_attention_layernorm\.weight.*mean 1 · std 0")
    focused = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("LlamaRMSNorm")
    page.keyboard.press("End")
    notebook.wait_for_text(r"lm_head\.weight")
    page.keyboard.press("Home")
    notebook.wait_for_text(r"model\.embed_tokens\.weight.*300 × 48")

    attention.click()
    layer = panel.get_by_role("slider", name="layer")
    layer.focus()
    layer.press("End")
    norm = float(notebook.kernel("float(model.model.layers[3].self_attn.q_proj.weight.norm())"))
    notebook.wait_for_text(rf"model\.layers\.3\.self_attn\.q_proj\.weight.*norm {norm:.4g}")
    assert notebook.kernel("panel.layer") == "3"
    notebook.shot("model-light", panel)
    least, text = notebook.least_contrast(panel)
    assert least >= 4.5, text
    notebook.theme(dark=True)
    notebook.shot("model-dark", panel)
    least, text = notebook.least_contrast(panel)
    assert least >= 4.5, text
    notebook.theme(dark=False)

    # narrow: the columns stack, and nothing is wider than the panel
    page.set_viewport_size({"width": 900, "height": 1100})
    page.wait_for_timeout(500)
    assert panel.evaluate("(root) => root.scrollWidth <= root.clientWidth + 1")

    saved = notebook.save()
    outputs = saved["cells"][0]["outputs"]
    face = next("".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {}))
    assert "<img" not in face
    assert "<svg" in face
    assert len(face) < 100_000
