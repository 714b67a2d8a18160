"""What a notebook executed without a front end keeps of a panel: the final numbers, as a static face."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

HERE = Path(__file__).parent


@pytest.mark.parametrize("pause_s", [0, 1])  # the cell ends before the panel's own thread sees the end, and after
def test_an_executed_notebook_holds_the_end_of_its_run(tmp_path, pause_s):
    cells = [
        f"import sys, time; sys.path.insert(0, {str(HERE)!r})",
        "from fake_run import FakeRun\nfrom nbllm.panels import show_run",
        "run = FakeRun(pace=2000, total_steps=600).begin(); show_run(run)",
        f"while run.status == 'running': time.sleep(0.001)\ntime.sleep({pause_s})",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    faces = [output for output in notebook.cells[2].outputs if "text/html" in output.get("data", {})]
    assert len(faces) == 1
    assert faces[0].data["text/plain"].startswith("pydocs-nano: done, step 600 / 600 · loss 4.")
    assert notebook.cells[3].outputs == []
    page, _ = HTMLExporter().from_notebook_node(notebook)
    assert "step 600 / 600" in page
    assert 'aria-label="Loss of pydocs-nano' in page
