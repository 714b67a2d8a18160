"""All panels as tabs in a real JupyterLab: made when chosen, by mouse and keyboard, and closed with the tabs."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

BEGIN = """
import nbllm
%load_ext nbllm
session = nbllm.session("tabs")
nbllm.sessions.open_session("tabs")
texts = ["the tokens of the <b>text</b>, and the bytes of the tokens 12 123 é"] * 3
session.clean(texts=texts, recipe="none", name="docs-of-tabs")  # a name of its own: the lab's folder is shared
"""
KINDS = "[type(panel).__name__ for panel in __import__('nbllm.panels.registry', fromlist=['live']).live()]"


def test_panels_are_made_in_their_tabs(open_notebook):
    notebook = open_notebook([BEGIN, "%llm_panel", "%llm_panel"])
    page = notebook.page
    notebook.run(0)
    notebook.run(1)
    inside = page.locator(".jp-OutputArea")
    tabs = inside.get_by_role("tab")
    tabs.first.wait_for(timeout=20_000)
    assert tabs.all_inner_texts() == ["session", "clean", "tokenizer", "train", "finetune", "generate", "attention"]
    assert "docs" in page.locator(".jp-OutputArea .widget-html").first.inner_text()
    assert notebook.kernel(KINDS) == "['PanelTabs']"

    inside.get_by_role("tab", name="tokenizer").click()
    page.get_by_text("There is no tokenizer yet").first.wait_for()
    assert notebook.kernel(KINDS) == "['PanelTabs']"
    notebook.kernel("session.train_tokenizer(vocab_size=280).name")
    inside.get_by_role("tab", name="session").click()
    inside.get_by_role("tab", name="tokenizer").click()
    notebook.wait_for_text("exact round trip")
    assert notebook.kernel(KINDS) == "['PanelTabs', 'TokenizerPanel']"
    face = page.locator(".nbllm-face", has_text="round trip exact")
    assert face.count() == 1  # in the saved notebook; hidden beside the living panel
    assert not face.is_visible()
    assert not page.locator(".nbllm-face", has_text="on disk").is_visible()
    inside.get_by_role("tab", name="tokenizer").focus()

    # arrow keys, Home and End move along the tabs; Enter and Space open; JupyterLab's own shortcuts keep out
    chosen = "() => document.querySelector('.jp-OutputArea [role=tab][aria-selected=true]').innerText"
    for keys, expected in (
        (("ArrowRight", "Space"), "train"),
        (("Home", "Enter"), "session"),
        (("ArrowLeft", "Enter"), "attention"),
        (("End", "ArrowRight", "ArrowRight", "Space"), "clean"),
    ):
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_function(f"() => ({chosen})() === '{expected}'")
        page.wait_for_function(f"() => document.activeElement.innerText === '{expected}'")
    assert inside.get_by_role("tabpanel").get_attribute("aria-label") == "clean"
    assert len(notebook.save()["cells"]) == 3

    # a page that is loaded again still has them
    notebook.reload()
    page.wait_for_function(f"() => document.querySelector('.jp-OutputArea [role=tab]') && ({chosen})() === 'clean'")
    for dark in (False, True):
        notebook.theme(dark)
        inside.get_by_role("tab", name="tokenizer").click()
        notebook.panel.filter(has_text="exact round trip").wait_for()
        notebook.shot(f"tabs-{'dark' if dark else 'light'}")

    notebook.run(2)
    assert notebook.kernel(KINDS) == "['PanelTabs']"
    saved = notebook.save()
    assert "round trip exact" in str(saved["cells"][1]["outputs"])
