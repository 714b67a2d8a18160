"""The logit lens in a real JupyterLab: cells walked through, colours, checkpoints along training, both themes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

BEGIN = """
from fake_lens import Session, lens
from nbllm.panels import registry, show_lens
session = Session()
show_lens(session, lens(tokens=30, rows=7), text="abc", wanted={"top": 3})
panel = registry.live("lens")[-1]
"""


def test_cells_are_walked_through_and_a_checkpoint_is_chosen(open_notebook):
    notebook = open_notebook([BEGIN], width=1280, height=1000)
    notebook.run(0)
    notebook.panel.wait_for(timeout=20_000)
    notebook.wait_for_text("30 tokens · 6 layers")
    page, panel = notebook.page, notebook.panel
    assert "<img" in panel.inner_text(), "text from data stays text"
    assert page.evaluate("() => window.hacked ?? null") is None

    cell = panel.locator('td[data-row="6"][data-at="29"]')
    cell.focus()
    for key in ("ArrowUp", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    at = page.evaluate("() => [document.activeElement.dataset.row, document.activeElement.dataset.at]")
    assert at == ["5", "27"]
    shown = float(notebook.kernel("float(panel.lens.top_probabilities[5, 27, 0])"))
    notebook.wait_for_text(rf"after layer 4, at “.*{shown:.3f}")
    settles = notebook.kernel("panel.lens.rows[panel.lens.settles[27]]").strip("'")
    assert f"it settles at {settles}" in panel.inner_text()

    # hovering shows another cell's alternatives; colours by what really comes
    panel.locator('td[data-row="2"][data-at="25"]').hover()
    notebook.wait_for_text("after layer 1, at “")
    value = float(notebook.kernel("float(panel.lens.actual_probability[2, 25])"))
    panel.get_by_role("combobox", name="colour").select_option("actual")
    kind = panel.locator('td[data-row="2"][data-at="25"]').get_attribute("class")
    assert f"v{int(value * 8)}" in kind.split()

    for theme in ("light", "dark"):
        notebook.theme(dark=theme == "dark")
        notebook.shot(f"lens-{theme}", panel)
        least, text = notebook.least_contrast(panel)
        assert least >= 4.5, f"{theme}: {text}"
    notebook.theme(dark=False)

    slider = panel.get_by_role("slider", name="checkpoint")
    slider.focus()
    slider.press("ArrowLeft")
    notebook.wait_for_kernel("session.asked[-1:]", "[('abc', {'top': 3, 'checkpoint': 100})]")
    saved = notebook.save()
    outputs = saved["cells"][0]["outputs"]
    face = next("".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {}))
    assert "<img" not in face
    assert len(face) < 300_000
