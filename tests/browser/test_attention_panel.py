"""The attention panel in a real JupyterLab, over maps of known heads."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

BEGIN = """
from fake_attention import TEXT, FakeLooking
from nbllm.panels import registry, show_attention
from nbllm.panels.attention_view import Wanted
session = FakeLooking()
show_attention(session, wanted=Wanted(text=TEXT), maps=session.attention(TEXT), layer=2, head=1)
panel = registry.live("attention")[-1]
"""
HOSTILE = "␣<img"


def test_heads_are_drawn_chosen_and_pointed_at(open_notebook):
    notebook = open_notebook([BEGIN, "panel.sides[0].weights(3, 1)[13, 3]"], width=1280, height=1500)
    notebook.run(0)
    notebook.panel.wait_for(timeout=20_000)
    notebook.wait_for_text("layer 2 · head 1 · induction 0.61")
    notebook.wait_for_text(r"“␣table” \(19\) looks at")
    page, panel = notebook.page, notebook.panel
    panel.locator(".nbllm-key").first.wait_for()
    assert HOSTILE in panel.locator(".nbllm-lines").inner_text(), "text from data stays text"
    assert page.evaluate("() => window.hacked ?? null") is None

    sheet = panel.locator(".nbllm-heads canvas")
    sheet.focus()
    sheet.press("ArrowDown")
    notebook.wait_for_text("layer 3 · head 1")
    assert "layer 3, head 1" in sheet.get_attribute("aria-label")
    assert notebook.kernel("(panel.layer, panel.head)") == "(3, 1)"

    # the map: a cell by keys, its exact weight, its row pinned
    chart = panel.locator(".nbllm-map canvas").first
    chart.focus()
    chart.press("PageUp")
    for _ in range(3):
        chart.press("ArrowDown")
    chart.press("Home")
    chart.press("Enter")
    exact = float(notebook.kernel("float(panel.sides[0].weights(3, 1)[3, 0])"))
    notebook.wait_for_text(rf"“␣on” \(3\) → “The” \(0\): {exact:.3f} ")
    notebook.wait_for_kernel("panel.pinned", "3")
    assert "“␣on” (3) looks at" in panel.inner_text()

    # a head switched off, and the next token without it
    panel.get_by_role("button", name="Switch head off").click()
    notebook.wait_for_text("3.1 ×")
    assert notebook.kernel("panel.off") == "[(3, 1)]"
    assert "0.360" in panel.inner_text(), "the next token's probability without the head"
    notebook.shot("attention-light", panel)
    notebook.theme(dark=True)
    notebook.shot("attention-dark", panel)
    least, text = notebook.least_contrast(panel)
    assert least >= 4.5, text
    notebook.theme(dark=False)

    # a checkpoint along training, then a second one beside it
    slider = panel.get_by_role("slider", name="checkpoint")
    slider.focus()
    slider.press("ArrowLeft")
    notebook.wait_for_text("step 400")
    panel.get_by_role("combobox", name="compare with").select_option(label="step 600")
    notebook.wait_for_text("second − first")
    assert panel.locator(".nbllm-map:not([hidden])").count() == 3
    notebook.shot("attention-compared", panel)
    saved = notebook.save()
    outputs = saved["cells"][0]["outputs"]
    face = next("".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {}))
    assert "<img" not in face
    assert len(face) < 300_000


LONG = """
long = " ".join([TEXT] * 12)
show_attention(session, wanted=Wanted(text=long), maps=session.attention(long), layer=0, head=1)
"""
ENDS = """(box) => {
  const { scrollTop, clientHeight } = box;
  const paths = [...box.querySelectorAll('svg path')];
  const ys = paths.flatMap((path) => {
    const { y, height } = path.getBBox();
    return [y, y + height];
  });
  return [Math.min(...ys) - scrollTop, scrollTop + clientHeight - Math.max(...ys), paths.length,
    paths.filter((path) => path.hasAttribute('stroke-dasharray')).length];
}"""


def test_lines_to_tokens_out_of_sight_end_at_the_edge(open_notebook):
    notebook = open_notebook([BEGIN + LONG], width=1280, height=1500)
    notebook.run(0)
    notebook.wait_for_text(r"looks at · \d+ further up", timeout=40_000)
    box = notebook.panel.locator(".nbllm-lines")
    above, below, lines, cut = box.evaluate(ENDS)
    assert lines > 0
    assert 0 < cut <= lines
    assert above >= 0
    assert below >= 0
    notebook.shot("attention-lines", box)
    box.evaluate("(box) => { box.scrollTop = 0; }")  # to where the tokens are, away from the pinned one
    notebook.page.wait_for_timeout(500)
    above, below, lines, _ = box.evaluate(ENDS)
    assert lines > 0
    assert above >= 0
    assert below >= 0
    notebook.shot("attention-lines-top", box)
