"""The cleaning panel in a real JupyterLab: a threshold moves, dropped documents one by one, one is kept, applying."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

BEGIN = """
from messy_texts import messy
from nbllm.panels import registry, show_clean
from nbllm.sessions import Session
from nbllm.store import Store
session = Session(Store("cleaning-{name}"), "test")
stages = [
    "language en,de min=0.3",
     "length min=80",
    "dedup minhash",
    "repetition gopher " + " ".join(f"{score}=1" for score in ("top_2", "top_3", "top_4"))
    + " " + " ".join(f"repeated_{n}=0.5" for n in range(5, 11)),
]
_ = session.clean(texts=messy(), stages=stages, name="messy")
show_clean(session)
panel = registry.live("clean")[-1]
"""
STAGES = ["language", "length", "dedup minhash", "repetition gopher"]


def begun(open_notebook, name, width=1200, height=1500):
    notebook = open_notebook([BEGIN.replace("{name}", name)], width=width, height=height)
    notebook.run(0)
    notebook.panel.wait_for(timeout=30_000)
    notebook.wait_for_text("drops \\d+ of \\d+ documents")
    return notebook


def choose(notebook, stage):
    """Takes a stage of the flow chart."""
    notebook.panel.get_by_role("button", name=f"{stage}: ").click()
    notebook.wait_for_kernel("panel.number", str(1 + STAGES.index(stage)))


def test_a_threshold_moves_by_key_pointer_and_typing(open_notebook):
    notebook = begun(open_notebook, "moves")
    page, panel = notebook.page, notebook.panel
    choose(notebook, "length")
    handle = panel.get_by_role("slider", name="characters, min: threshold", exact=True)
    handle.wait_for()
    field = panel.get_by_role("textbox", name="characters, min: threshold, typed")
    field.fill("200")
    field.press("Enter")
    notebook.wait_for_kernel("panel.moved[2]", "{'min': 200}")
    drops = notebook.kernel("session.corpus.would_drop('length', min=200).documents")
    notebook.wait_for_text(f"drops {drops} of ")
    handle.focus()
    page.keyboard.press("ArrowRight")
    notebook.wait_for_kernel("panel.moved[2]['min'] > 200", "True")
    box = panel.locator(".nbllm-histogram").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20, steps=8)
    page.mouse.up()
    notebook.wait_for_kernel("panel.moved[2]['min'] > 400", "True")
    limit = notebook.kernel("panel.moved[2]['min']")
    assert field.input_value() == limit
    drops = notebook.kernel(f"session.corpus.would_drop('length', min={limit}).documents")
    notebook.wait_for_text(f"drops {drops} of ")
    notebook.wait_for_text(f"length min={limit}")
    panel.get_by_role("button", name="Reset").click()
    notebook.wait_for_kernel("panel.moved", "{}")
    notebook.wait_for_text("as cleaned")


def test_dropped_documents_are_stepped_through_and_one_is_kept(open_notebook):
    notebook = begun(open_notebook, "keeps")
    page, panel = notebook.page, notebook.panel
    choose(notebook, "length")
    notebook.wait_for_text("1 of \\d+")
    panel.get_by_role("button", name="next document").click()
    notebook.wait_for_text("2 of \\d+")
    page.keyboard.press("ArrowRight")
    notebook.wait_for_text("3 of \\d+")
    page.keyboard.press("ArrowLeft")
    notebook.wait_for_text("2 of \\d+")
    wanted = notebook.kernel("session.corpus.dropped_one('length', 1)[0].id")
    panel.get_by_role("checkbox", name="keep it").check()
    notebook.wait_for_kernel("list(panel.keep)", f"[{wanted}]")
    notebook.wait_for_text("1 kept by hand")
    before = int(notebook.kernel("len(session.corpus)"))
    panel.get_by_role("button", name="Apply").click()
    notebook.wait_for_text("messy was cleaned again")
    notebook.wait_for_kernel(f"{wanted} in [document['id'] for document in session.corpus]", "True")
    assert int(notebook.kernel("len(session.corpus)")) in (before, before + 1)
    assert page.evaluate("() => window.harmed") is None, "text of a document is text"


def test_it_reads_well_in_both_themes_and_narrow(open_notebook):
    notebook = begun(open_notebook, "looks")
    for stage in ("repetition gopher", "dedup minhash", "length"):
        choose(notebook, stage)
        notebook.page.wait_for_timeout(400)
        for dark in (False, True):
            notebook.theme(dark)
            least, text = notebook.least_contrast(notebook.panel)
            assert least >= 4.5, (stage, dark, text)
            notebook.shot(f"clean-{stage.replace(' ', '-')}-{'dark' if dark else 'light'}", notebook.panel)
    notebook.theme(False)
    choose(notebook, "repetition gopher")
    notebook.page.set_viewport_size({"width": 700, "height": 1500})
    notebook.page.wait_for_timeout(600)
    assert notebook.panel.evaluate("(node) => node.scrollWidth <= node.clientWidth + 1"), "nothing is cut"
    notebook.shot("clean-narrow", notebook.panel)
