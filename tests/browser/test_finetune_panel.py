"""The fine-tuning panel in a real JupyterLab, over a session that only seems to compare."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

BEGIN = """
from fake_tuning import FakeTuning
from nbllm.panels import registry, show_finetune
session = FakeTuning()
show_finetune(session)
panel = registry.live("finetune")[-1]
"""


def begun(open_notebook, width=1200, height=1000):
    notebook = open_notebook([BEGIN], width=width, height=height)
    notebook.run(0)
    notebook.panel.wait_for(timeout=20_000)
    notebook.panel.get_by_role("button", name="Sample").click()
    notebook.wait_for_text("ended by length.*ended by length")
    return notebook


def test_a_weight_moved_by_keyboard_samples_that_column_again(open_notebook):
    notebook = begun(open_notebook)
    panel = notebook.panel
    base, polite = (panel.get_by_role("region", name=f"what {name} says") for name in ("the base", "polite"))
    first = polite.inner_text()
    assert "<img src=x onerror=alert(1)>" in base.inner_text() + first, "text from data stays text"
    assert polite.locator("ins").count() > 0
    assert base.locator("ins").count() == 0
    weight = panel.get_by_role("slider", name="weight of polite")
    weight.focus()
    weight.press("Home")
    notebook.page.wait_for_function("() => document.querySelectorAll('.nbllm-compared ins').length === 0")
    assert notebook.kernel("session.asked[-1]") == "('polite', 0.0)"
    assert weight.evaluate("(node) => document.activeElement === node"), "the slider keeps the focus"
    field = panel.get_by_role("textbox", name="weight of polite, typed")
    field.fill("2.5")
    field.press("Enter")
    notebook.wait_for_kernel("session.asked[-1]", "('polite', 2.5)")
    field.fill("-1")
    field.press("Enter")
    panel.get_by_role("alert").wait_for()
    assert "from 0" in panel.get_by_role("alert").inner_text()

    panel.get_by_role("checkbox", name="curt").press("Space")
    notebook.wait_for_kernel("panel.chosen", "('polite', 'curt')")
    panel.get_by_role("region", name="what curt says").wait_for()
    prompt = panel.get_by_role("textbox", name="prompt")
    prompt.fill("Why?")
    prompt.press("Control+Enter")
    notebook.wait_for_kernel("panel.shown.prompt", "'Why?'")
    saved = notebook.save()
    notebook.reload()
    notebook.wait_for_text("ended by length.*ended by length.*ended by length")
    faces = [out["data"]["text/html"] for out in saved["cells"][0]["outputs"] if "text/html" in out["data"]]
    assert len(faces) == 1


@pytest.mark.parametrize("width", [1200, 600])
def test_it_reads_well_in_both_themes(open_notebook, width):
    notebook = begun(open_notebook, width=width, height=1500 if width > 1000 else 2200)
    if width < 1000:
        notebook.command("application:toggle-left-area")
    panel = notebook.panel
    panel.get_by_role("checkbox", name="curt").press("Space")
    notebook.wait_for_kernel("len(panel.shown.columns)", "3")
    panel.get_by_role("button", name="What it changed").click()
    notebook.wait_for_text("whose probability moved most")
    table = panel.get_by_text("as a table")
    table.focus()
    table.press("Enter")
    assert panel.locator("details tbody tr").count() == 30
    table.press("Enter")
    for dark in (False, True):
        notebook.theme(dark)
        contrast, text = notebook.least_contrast(panel)
        assert contrast >= 4.5, text
        notebook.shot(f"finetune-{width}-{'dark' if dark else 'light'}", panel)
    nameless = panel.evaluate(
        "(root) => [...root.querySelectorAll('button, input, select, textarea')].filter((node) =>"
        " !node.getAttribute('aria-label') && !node.textContent.trim() && !node.closest('label'))"
        ".map((node) => node.outerHTML)"
    )
    assert nameless == [], "every control has a name"
    assert panel.evaluate("(root) => root.scrollWidth - root.clientWidth") <= 1, "nothing is cut at the side"
