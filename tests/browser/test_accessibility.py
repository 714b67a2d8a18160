"""Every panel before axe, in the light and the dark theme, on a narrow page and at 200 % zoom.

axe-core comes with axe-playwright-python.
"""

from __future__ import annotations

from importlib.resources import files

import pytest

pytestmark = pytest.mark.browser
BEGIN = """
import nbllm, torch
from transformers import LlamaConfig, LlamaForCausalLM
%load_ext nbllm
session = nbllm.session()
texts = [f"the tokens of the <b>text</b> {n}, and the bytes of the tokens 12 123 é" for n in range(9)]
session.clean(texts=texts, recipe="none", stages=["length min=9", "dedup exact"], name="docs")
session.train_tokenizer(vocab_size=280)
torch.manual_seed(0)
config = LlamaConfig(vocab_size=session.tokenizer.vocab_size, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                     num_attention_heads=2)
LlamaForCausalLM(config).save_pretrained("model")
session.tokenizer.save("model")
session.model = session.models.reference("model")
"""
RUN = """
from fake_run import FakeRun
from nbllm.panels import show_run
run = FakeRun(name="<i>run</i>", pace=900, total_steps=100).begin()
show_run(run, reference_bits_per_byte=2.27)
"""
TUNING = """
from fake_tuning import FakeTuning
from nbllm.panels import show_finetune
show_finetune(FakeTuning())
"""
CELLS = {
    "clean": "%llm_panel clean",
    "tokenizer": "%llm_panel tokenizer",
    "generate": "%llm_panel generate",
    "attention": '%llm_attention "the tokens of the text"',
    "lens": '%llm_lens "the tokens of the text"',
    "model": "%llm_model",
    "finetune": TUNING,
    "train": RUN,
    "tabs": "%llm_panel",
}
CHECK = """async (selector) => {
  const found = await axe.run(selector, {resultTypes: ['violations']});
  return found.violations.filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) =>
    `${one.id} (${one.impact}): ` + one.nodes.slice(0, 4).map((node) => node.html.slice(0, 160)).join(' | '));
}"""
CUT = """() => [...document.querySelectorAll('.nbllm:not(.nbllm-face)')].filter((root) => root.offsetParent !== null)
  .filter((root) => root.scrollWidth > root.clientWidth + 1).map((root) => root.getAttribute('aria-label'))"""


@pytest.fixture(scope="module")
def axe() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(open_notebook, axe: str, theme: str) -> None:
    notebook = open_notebook([BEGIN, *CELLS.values()])
    page = notebook.page
    page.evaluate(axe)
    notebook.run(0)
    notebook.theme(theme == "dark")
    found = {}
    for number, name in enumerate(CELLS, 1):
        notebook.run(number)
        output = page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".jp-OutputArea-output")
        output.first.wait_for(timeout=20_000)
        page.wait_for_timeout(1200)
        page.evaluate("(n) => document.querySelectorAll('.jp-Cell')[n].scrollIntoView()", number)
        mark = f"axe-{name}"
        page.evaluate(
            "([n, mark]) => document.querySelectorAll('.jp-Cell')[n].querySelector('.jp-Cell-outputArea')"
            ".classList.add(mark)",
            [number, mark],
        )
        if problems := page.evaluate(CHECK, f".{mark}"):
            found[name] = problems
        least, text = notebook.least_contrast(page.locator(f".{mark}"))
        if least < 4.5:
            found[f"{name}, contrast"] = [f"{least:.2f} {text!r}"]
    assert not found, "\n".join(f"{name}: {line}" for name, lines in found.items() for line in lines)


@pytest.mark.parametrize(("width", "zoom"), [(700, 1.0), (1200, 2.0)], ids=["narrow", "zoomed"])
def test_nothing_is_cut(open_notebook, width: int, zoom: float) -> None:
    notebook = open_notebook([BEGIN, *CELLS.values()], width=width)
    page = notebook.page
    page.evaluate("(zoom) => { document.body.style.zoom = zoom; }", zoom)
    notebook.run(0)
    for number in range(1, len(CELLS) + 1):
        notebook.run(number)
    page.wait_for_timeout(1500)
    assert page.evaluate(CUT) == []
    notebook.shot("narrow" if zoom == 1 else "zoomed")
