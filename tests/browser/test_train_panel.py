"""The panel of a run in a real JupyterLab, over a run that only seems to train."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

BEGIN = """
from fake_run import FakeRun
from nbllm.panels.train import show_run
from nbllm.panels import registry
run = FakeRun(pace={pace}, total_steps=600).begin()
show_run(run, reference_bits_per_byte=2.27)
"""


def test_looks(open_notebook):
    notebook = open_notebook([BEGIN.format(pace=150)])
    notebook.run(0)
    notebook.panel.wait_for(timeout=20_000)
    notebook.page.wait_for_function("() => /step 4[0-9][0-9]/.test(document.querySelector('.nbllm').textContent)")
    notebook.panel.get_by_role("button", name="Pause").click()
    notebook.page.wait_for_function("() => document.querySelector('.nbllm').textContent.includes('paused')")
    notebook.shot("train-light", notebook.panel)
    notebook.theme(dark=True)
    notebook.shot("train-dark", notebook.panel)
    notebook.shot("train-page-dark")
