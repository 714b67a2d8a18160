"""The sampling panel in a real JupyterLab, over a session that only seems to sample."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

BEGIN = """
from dataclasses import replace
from fake_session import FakeSession
from nbllm.panels import show_generate
session = FakeSession()
show_generate(session, prompt="Return the next")
"""


def test_moving_a_slider_samples_again(open_notebook):
    notebook = open_notebook([BEGIN, "session.sampling = replace(session.sampling, top_p=0.5)"])
    notebook.run(0)
    panel = notebook.panel
    panel.wait_for(timeout=20_000)
    panel.get_by_role("button", name="Sample").click()
    notebook.wait_for_text("ended by length")
    output = panel.get_by_role("region", name="sampled text")
    first = output.inner_text()
    assert first.startswith("Return the next ")
    assert "<b>" in first, "text from data stays text"

    slider = panel.get_by_role("slider", name="temperature")
    slider.focus()
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    notebook.page.wait_for_function("() => document.querySelector('.nbllm-output .changed')")
    notebook.wait_for_text("ended by length")
    assert notebook.kernel("session.sampling.temperature") == "0.9"
    second = output.inner_text()
    assert second != first
    assert second[:50] == first[:50], "the same random numbers"
    notebook.shot("generate-light", panel)

    # a change made elsewhere moves the slider
    notebook.run(1)
    notebook.page.wait_for_function(
        "() => document.querySelector('input[aria-label=\"top-p, typed\"]').value === '0.50'"
    )
    # a typed value, a wrong one, and its error
    field = panel.get_by_role("textbox", name="temperature, typed")
    field.fill("0.35")
    field.press("Enter")
    notebook.wait_for_kernel("session.sampling.temperature", "0.35")
    field.fill("-1")
    field.press("Enter")
    panel.get_by_role("alert").wait_for()
    assert "temperature must be 0 or more" in panel.get_by_role("alert").inner_text()
    notebook.page.wait_for_function(
        "() => document.querySelector('input[aria-label=\"temperature, typed\"]').value === '0.35'"
    )

    panel.get_by_role("button", name="Copy as cell").click()
    cell = panel.get_by_role("textbox", name="the cell that samples this again")
    cell.wait_for()
    lines = cell.input_value().split("\n")
    assert lines[0].startswith("%%llm_generate --temperature 0.35 --top-p 0.5 --top-k 0 ")
    assert lines[1:] == ["Return the next"]
    notebook.theme(dark=True)
    notebook.shot("generate-dark", panel)
    least, text = notebook.least_contrast(panel)
    assert least >= 4.5, f"{text!r} has a contrast of {least:.2f}"

    notebook.save()
    notebook.reload()
    notebook.panel.wait_for(timeout=20_000)
    assert notebook.panel.get_by_role("region", name="sampled text").inner_text().startswith("Return the next ")
