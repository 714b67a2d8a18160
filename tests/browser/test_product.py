"""The whole way in a real JupyterLab, typed as a user types it: clean, train, steer, reload, attach, sample."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap

import pytest

pytestmark = pytest.mark.browser

CELLS = [
    "%load_ext nbllm",
    "%llm_clean texts/*.txt --recipe none --name small",
    "%llm_tokenizer train --vocab-size 400",
    "%llm_train --steps 3000 --seq-len 32 --batch-size 2 --eval-every 200 --save-every 1000 --name first",
    "%load_ext nbllm\n%llm_train --attach first",
    "%llm_panel generate",
    "import nbllm\nsession = nbllm.session()",
]


def step_of(notebook) -> int:
    shown = re.search(r"step ([\d,]+) ", notebook.panel.inner_text())
    assert shown, notebook.panel.inner_text()
    return int(shown.group(1).replace(",", ""))


def grows(notebook) -> None:
    """Waits until the panel is twenty steps further."""
    step = step_of(notebook)
    notebook.page.wait_for_function(
        "(least) => Number(/step ([0-9,]+) /.exec(document.querySelector('.nbllm').textContent)[1].replace(',', ''))"
        " > least",
        arg=step + 20,
        timeout=60_000,
    )


@pytest.fixture
def notebook(open_notebook, lab):
    texts = lab.folder / "texts"
    texts.mkdir(exist_ok=True)
    for module in (argparse, inspect, json, textwrap):
        (texts / f"{module.__name__}.txt").write_text(inspect.getsource(module), encoding="utf-8")
    notebook = open_notebook(CELLS)
    yield notebook
    notebook.kernel("[run.stop() for run in __import__('nbllm').session().runs()]")


def test_a_run_from_its_start_to_a_sample(notebook):
    for index in range(4):
        notebook.run(index)
    panel = notebook.panel
    panel.wait_for(timeout=20_000)
    notebook.wait_for_text("● running step [1-9]|runningstep [1-9]", timeout=90_000)
    grows(notebook)

    panel.get_by_role("button", name="Pause").click()
    notebook.wait_for_text("❚❚ paused", timeout=30_000)
    panel.get_by_role("button", name="Resume").click()
    notebook.wait_for_text("● running", timeout=30_000)
    panel.get_by_role("button", name="Checkpoint").click()
    grows(notebook)

    # the page is loaded again while the run goes on: the panel is back, with all of its curve
    notebook.save()
    before = step_of(notebook)
    notebook.reload()
    panel.wait_for(timeout=60_000)
    assert step_of(notebook) >= before
    grows(notebook)
    notebook.shot("product-running", notebook.panel)

    # the kernel is restarted: the old panel says so, the run goes on, --attach brings it back with its history
    notebook.restart_kernel()
    notebook.wait_for_text("No word from the kernel")
    before = step_of(notebook)
    notebook.run(4)
    assert "live: first" in notebook.output(4)
    again = notebook.page.locator(".jp-Notebook .jp-Cell").nth(4).locator(".nbllm:not(.nbllm-face)")
    again.wait_for(timeout=20_000)
    shown = re.search(r"step ([\d,]+) ", again.inner_text())
    assert int(shown.group(1).replace(",", "")) >= before
    again.get_by_text("values as a table").click()
    assert again.locator("tbody tr").first.locator("td").first.inner_text() in ("1", "200")
    again.get_by_role("button", name="Stop").click()
    notebook.run(6)
    notebook.wait_for_kernel("session.run.status", "'stopped'", timeout_s=60)
    again.get_by_role("button", name="Resume").wait_for(timeout=10_000)
    notebook.shot("product-stopped", again)

    # sampling: the slider moves the session's setting, and the text is sampled again
    notebook.run(5)
    cell = notebook.page.locator(".jp-Notebook .jp-Cell").nth(5)
    sampling = cell.locator(".nbllm:not(.nbllm-face)")
    sampling.wait_for(timeout=20_000)
    sampling.get_by_role("textbox", name="prompt").fill("def ")
    sampling.get_by_role("textbox", name="prompt").press("Control+Enter")
    sampling.get_by_text("ended by").wait_for(timeout=60_000)
    slider = sampling.get_by_role("slider", name="temperature")
    slider.focus()
    slider.press("End")
    notebook.wait_for_kernel("session.sampling.temperature", "2.0")
    sampling.locator(".changed").first.wait_for(timeout=30_000)
    sampling.get_by_text("ended by").wait_for(timeout=60_000)
    notebook.shot("product-sampling", sampling)
