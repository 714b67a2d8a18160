"""The sampling panel in a real JupyterLab, over a session that only seems to sample."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

BEGIN = """
from dataclasses import replace
from fake_session import FakeSession
from nbllm.panels import registry, show_generate
session = FakeSession()
show_generate(session, prompt="Return the next")
panel = registry.live("generate")[-1]
"""


def typed(notebook, label, value):
    notebook.page.wait_for_function(
        "([label, value]) => document.querySelector(`input[aria-label='${label}, typed']`).value === value",
        arg=[label, value],
    )


def begun(open_notebook, *more, width=1200, height=1000):
    notebook = open_notebook([BEGIN, *more], width=width, height=height)
    notebook.run(0)
    notebook.panel.wait_for(timeout=20_000)
    notebook.panel.get_by_role("button", name="Sample").click()
    notebook.wait_for_text("ended by length")
    return notebook


def test_moving_a_slider_samples_again(open_notebook):
    notebook = begun(open_notebook, "session.sampling = replace(session.sampling, top_p=0.5)")
    panel = notebook.panel
    output = panel.get_by_role("region", name="sampled text")
    first = output.inner_text()
    assert first.startswith("Return the next ")
    assert "<b>" in first, "text from data stays text"
    assert "40 tokens" in panel.inner_text()
    assert "12 prompt tokens reused · eager" in panel.inner_text().replace("\n", "")

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

    # a change made elsewhere moves the slider
    notebook.run(1)
    typed(notebook, "top-p", "0.50")
    # a typed value, a wrong one, and its error
    field = panel.get_by_role("textbox", name="temperature, typed")
    field.fill("0.35")
    field.press("Enter")
    notebook.wait_for_kernel("session.sampling.temperature", "0.35")
    field.fill("-1")
    field.press("Enter")
    panel.get_by_role("alert").wait_for()
    assert "temperature must be 0 or more" in panel.get_by_role("alert").inner_text()
    typed(notebook, "temperature", "0.35")
    notebook.page.wait_for_timeout(1200)  # a slider just moved isn't moved from outside

    panel.get_by_role("button", name="Copy as cell").click()
    cell = panel.get_by_role("textbox", name="the cell that samples this again")
    cell.wait_for()
    lines = cell.input_value().split("\n")
    assert lines[0].startswith(
        "%%llm_generate --model pydocs-nano --checkpoint 600 --adapter off --temperature 0.35 --top-p 0.5 --top-k 0 "
    )
    assert lines[1:] == ["Return the next"]

    notebook.save()
    notebook.reload()
    notebook.panel.wait_for(timeout=20_000)
    assert notebook.panel.get_by_role("region", name="sampled text").inner_text().startswith("Return the next ")


def test_alternatives_and_branches_by_keyboard(open_notebook):
    notebook = begun(open_notebook)
    page, panel = notebook.page, notebook.panel
    tokens = panel.locator(".nbllm-output .nbllm-token")
    assert panel.locator(".nbllm-output .nbllm-token[tabindex='0']").count() == 1, "the tokens are one tab stop"
    tokens.first.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    alternatives = panel.get_by_role("dialog", name="alternatives to the token")
    alternatives.wait_for()
    focused = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert ", rank " in focused
    assert ", probability " in focused
    name = page.evaluate("() => document.activeElement.textContent")
    assert name.strip() in alternatives.inner_text()
    assert alternatives.get_by_role("button").count() == 10
    page.keyboard.press("Escape")
    alternatives.wait_for(state="hidden")

    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    chosen = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert "rank 2" in chosen
    page.keyboard.press("Escape")
    assert page.evaluate("() => document.activeElement.matches('.nbllm-token')"), "the focus is back at the token"
    page.keyboard.press("ArrowDown")
    other = panel.locator(".alternative:not(.chosen)").nth(1)
    other.focus()
    page.keyboard.press("Enter")
    notebook.wait_for_kernel("len(panel.sampler.tree)", "2")
    notebook.wait_for_text("ended by length")
    assert notebook.kernel("len(panel.sampler.tree.current.prefix)") == "5"
    assert page.evaluate("() => document.activeElement.matches('.nbllm-token')")

    rows = panel.get_by_role("group", name="texts and branches").get_by_role("button")
    assert rows.count() == 2
    assert rows.nth(1).get_attribute("aria-current") == "true"
    rows.nth(1).focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    notebook.wait_for_kernel("len(panel.sampler.tree.current.prefix)", "0")
    page.wait_for_function("() => document.querySelectorAll('.nbllm-output .nbllm-token').length === 40")


def test_colours_pins_and_pickers(open_notebook):
    notebook = begun(open_notebook)
    page, panel = notebook.page, notebook.panel
    levels = "() => [...document.querySelectorAll('.nbllm-output .nbllm-token')].map((node) => node.className).join()"
    by_probability = page.evaluate(levels)
    for name in ("rank", "entropy", "none"):
        panel.get_by_role("radio", name=name).check()
        notebook.wait_for_kernel("panel.colour", repr(name))
    assert "nbllm-v" in by_probability
    page.wait_for_function(f"() => !({levels})().includes('nbllm-v')")
    panel.get_by_role("radio", name="probability").check()
    page.wait_for_function(f"(before) => ({levels})() === before", arg=by_probability)

    panel.get_by_role("button", name="Pin", exact=True).click()
    pinned = panel.get_by_role("region", name="pinned text 1", exact=True).last
    pinned.wait_for()
    text = panel.get_by_role("region", name="sampled text").inner_text()
    field = panel.get_by_role("textbox", name="temperature, typed")
    field.fill("1.5")
    field.press("Enter")
    notebook.wait_for_text("the same for 1[0-9] tokens")
    assert "temperature 0.80" in panel.locator(".nbllm-pin").inner_text()
    assert pinned.inner_text() == text
    panel.get_by_role("button", name="use the settings of pinned text 1").click()
    notebook.wait_for_kernel("session.sampling.temperature", "0.8")
    typed(notebook, "temperature", "0.80")
    notebook.wait_for_text("the same settings · the same text")

    panel.get_by_role("combobox", name="adapter").select_option("<i>terse</i>")
    notebook.wait_for_kernel("session.adapter", "'<i>terse</i>'")
    panel.get_by_role("combobox", name="checkpoint").select_option("400")
    notebook.wait_for_kernel("session.model.checkpoint", "400")
    notebook.wait_for_text("pydocs-nano · step 400 · adapter <i>terse</i>")
    panel.get_by_role("button", name="remove pinned text 1").click()
    panel.locator(".nbllm-pin").wait_for(state="detached")

    face = "panel.face._shown[0]"
    notebook.wait_for_kernel(f"'class=\"nbllm-v' in {face} and {face}.count('nbllm-said') == 1", "True")
    notebook.page.wait_for_timeout(500)  # the page has the face too
    saved = notebook.save()
    html = "".join("".join(out.get("data", {}).get("text/html", "")) for out in saved["cells"][0]["outputs"])
    assert 'class="nbllm-v' in html, "the static face is coloured"


@pytest.mark.parametrize("width", [1200, 640])
def test_it_looks_right(open_notebook, width):
    notebook = begun(open_notebook, width=width, height=1300 if width < 1000 else 1000)
    page, panel = notebook.page, notebook.panel
    notebook.command("application:toggle-left-area")
    panel.get_by_role("button", name="Pin", exact=True).click()
    panel.locator(".nbllm-pin").wait_for()
    field = panel.get_by_role("textbox", name="temperature, typed")
    field.fill("1.5")
    field.press("Enter")
    notebook.wait_for_text("the same for 1[0-9] tokens")
    tokens = panel.locator("[aria-label='sampled text'] .nbllm-token")
    tokens.nth(5).click()
    panel.locator(".alternative:not(.chosen)").nth(1).click()
    notebook.wait_for_kernel("len(panel.sampler.tree)", "2")
    notebook.wait_for_text("ended by length")
    alternatives = panel.get_by_role("dialog", name="alternatives to the token")
    for dark in (False, True):
        notebook.theme(dark=dark)
        page.mouse.move(5, 5)
        page.keyboard.press("Escape")
        alternatives.wait_for(state="hidden")
        name = f"generate-{width}-{'dark' if dark else 'light'}"
        notebook.shot(name, panel)
        tokens.nth(8).hover()
        alternatives.wait_for()
        notebook.shot(f"{name}-alternatives")
        least, text = notebook.least_contrast(panel)
        assert least >= 4.5, f"{text!r} has a contrast of {least:.2f}"
        box, inside = alternatives.bounding_box(), panel.bounding_box()
        assert inside["x"] <= box["x"]
        assert box["x"] + box["width"] <= inside["x"] + inside["width"] + 1, "it stays beside its text"
    nameless = panel.evaluate(
        "(root) => [...root.querySelectorAll('button, input, select, textarea')].filter((node) =>"
        " !node.getAttribute('aria-label') && !node.textContent.trim() && !node.closest('label'))"
        ".map((node) => node.outerHTML)"
    )
    assert nameless == [], "every control has a name"
    if width < 1000:
        columns = panel.locator(".nbllm-texts > div:first-child, .nbllm-pin")
        assert columns.nth(0).bounding_box()["x"] == columns.nth(1).bounding_box()["x"], "the columns stack"
    wide = panel.evaluate("(root) => root.scrollWidth - root.clientWidth")
    assert wide <= 1, "nothing is cut at the side"
