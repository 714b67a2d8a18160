"""The panel of a run in a real JupyterLab, over a run that only seems to train."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.browser

BEGIN = """
from fake_run import FakeRun
from nbllm.panels import registry, show_run
run = FakeRun(name={name!r}, pace={pace}, total_steps={steps}).begin()
show_run(run, reference_bits_per_byte=2.27)
"""


def begin(name: str = "pydocs-nano", pace: float = 150, steps: int = 600) -> str:
    return BEGIN.format(name=name, pace=pace, steps=steps)


def test_grows_is_steered_and_looks_well(open_notebook):
    notebook = open_notebook([begin()])
    notebook.run(0)
    panel = notebook.panel
    panel.wait_for(timeout=20_000)
    notebook.wait_for_text("step 4[0-9][0-9] / 600")
    panel.get_by_role("button", name="Pause").click()
    notebook.wait_for_text("❚❚ paused")
    notebook.wait_for_kernel("run.status", "'paused'")
    assert "<b>it</b>" in panel.inner_text(), "a sample's markup is text"
    assert not notebook.face.is_visible(), "the living panel hides the static face"

    slider = panel.get_by_role("slider", name="learning-rate factor")
    slider.focus()
    slider.press("ArrowLeft")
    notebook.wait_for_kernel("run.lr_factor", "0.95")
    field = panel.get_by_role("textbox", name="learning-rate factor, typed")
    field.fill("0.5")
    field.press("Enter")
    notebook.wait_for_kernel("run.lr_factor", "0.5")

    chart = panel.get_by_role("img", name="Loss in nats")
    chart.focus()
    for key in ("Home", "ArrowRight", "End"):
        chart.press(key)
    assert "smoothed" in str(chart.get_attribute("aria-label"))
    log = panel.get_by_role("button", name="log", exact=True)
    log.click()
    assert log.get_attribute("aria-pressed") == "true"
    assert not panel.get_by_role("button", name="whole run").is_visible()
    chart.focus()
    chart.press("+")
    notebook.shot("train-zoomed", panel)
    panel.get_by_role("button", name="whole run").click()
    assert not panel.get_by_role("button", name="whole run").is_visible()
    box = chart.bounding_box()
    notebook.page.mouse.move(box["x"] + 80, box["y"] + 60)
    notebook.page.mouse.down()
    notebook.page.mouse.move(box["x"] + 200, box["y"] + 60, steps=4)
    notebook.page.mouse.up()
    assert panel.get_by_role("button", name="whole run").is_visible()
    chart.dblclick()
    assert not panel.get_by_role("button", name="whole run").is_visible()
    log.click()
    assert "rank 0" in panel.get_by_role("table", name="memory and use by rank").inner_text()
    chart.evaluate("(node) => node.blur()")
    panel.get_by_text("values as a table").click()
    assert panel.locator("tbody tr").count() >= 8
    panel.get_by_text("values as a table").click()

    for dark in (False, True):
        notebook.theme(dark=dark)
        name = "dark" if dark else "light"
        notebook.shot(f"train-{name}", panel)
        least, text = notebook.least_contrast(panel)
        assert least >= 4.5, f"{name}: {text!r} has a contrast of {least:.2f}"

    panel.get_by_role("button", name="Resume").click()
    notebook.wait_for_text("● running|✓ done")
    panel.get_by_role("button", name="Checkpoint").click()
    notebook.wait_for_kernel("'checkpoint' in run.commands", "True")
    panel.get_by_role("button", name="Stop").click()
    notebook.wait_for_text("■ stopped")
    assert not panel.get_by_role("button", name="Stop").is_visible()
    assert panel.get_by_role("button", name="Resume").is_enabled()
    # the watcher has nothing left to watch
    notebook.wait_for_kernel("registry.live('train')[0]._watcher.is_alive()", "False")


def test_a_reload_catches_up_and_a_view_more_too(open_notebook):
    notebook = open_notebook([begin(pace=60, steps=100_000)])
    notebook.run(0)
    notebook.wait_for_text("step [1-9][0-9]+ ")
    notebook.save()
    notebook.reload()
    notebook.panel.wait_for(timeout=30_000)
    step = int(notebook.kernel("run.step"))
    notebook.wait_for_kernel(f"run.step > {step + 30}", "True")
    shown = "(least) => Number(/step ([0-9]+)/.exec(document.querySelector('.nbllm').textContent)[1]) > least"
    notebook.page.wait_for_function(shown, arg=step + 30)
    notebook.panel.get_by_text("values as a table").click()
    first = notebook.panel.locator("tbody tr").first.inner_text().split()
    assert first[0] in ("1", "50"), "the curve begins where the run began"
    notebook.command("notebook:create-output-view")
    views = (
        "() => [...document.querySelectorAll('.nbllm:not(.nbllm-face)')]"
        ".filter((node) => /step [1-9]/.test(node.textContent)).length === 2"
    )
    notebook.page.wait_for_function(views)
    notebook.shot("train-two-views")


def test_fifty_times_one_cell_gives_one_live_panel(open_notebook):
    # another name each time, as a cell that starts a run without --name does
    notebook = open_notebook([begin(name="x", pace=20).replace("'x'", "f'run-{__import__(\"time\").time_ns()}'")])
    for _ in range(50):
        notebook.run(0)
    notebook.panel.wait_for(timeout=20_000)
    assert notebook.panel.count() == 1
    assert notebook.kernel("len(registry.live('train'))") == "1"
    widgets = "sum(type(w).__name__ == 'TrainPanel' for w in __import__('ipywidgets').Widget._instances.values())"
    assert notebook.kernel(widgets.replace("Widget._instances", "widgets.widget._instances")) == "1"
    threads = "sum(t.name.startswith('nbllm-panel') for t in __import__('threading').enumerate())"
    notebook.wait_for_kernel(threads, "1")


def test_the_saved_notebook_is_small_and_shows_the_end_without_a_kernel(open_notebook, lab):
    cells = [begin(name=f"run-{index}", pace=2000, steps=3000) for index in range(3)]
    notebook = open_notebook([*cells, "import time\nwhile run.status == 'running': time.sleep(0.05)"])
    before = (lab.folder / notebook.name).stat().st_size
    for index in range(4):
        notebook.run(index)
    notebook.wait_for_text("✓ done")
    saved = notebook.save()
    after = (lab.folder / notebook.name).stat().st_size
    assert after - before < 300_000
    outputs = saved["cells"][2]["outputs"]
    assert [sorted(output["data"]) for output in outputs] == [
        ["application/vnd.jupyter.widget-view+json"],
        ["text/html", "text/plain"],
    ]
    assert "run-2: done, step 3,000 / 3,000" in "".join(outputs[1]["data"]["text/plain"])
    assert "<svg" in "".join(outputs[1]["data"]["text/html"])
    state = saved["metadata"].get("widgets", {})
    assert len(json.dumps(state)) < 150_000

    # without the kernel the static face stands where the panel was, and nothing else
    notebook.page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")
    notebook.page.goto(notebook.page.url.split("?")[0])
    notebook.face.first.wait_for(timeout=30_000)
    notebook.page.wait_for_timeout(1500)
    assert notebook.face.count() == 3
    assert "Error displaying widget" not in notebook.page.locator(".jp-Notebook").inner_text()
    notebook.theme(dark=False)
    notebook.shot("static-light", notebook.face.first)
    notebook.theme(dark=True)
    notebook.shot("static-dark", notebook.face.first)
    least, text = notebook.least_contrast(notebook.face.first)
    assert least >= 4.5, f"{text!r} has a contrast of {least:.2f}"


def test_a_kernel_restart_is_noticed_and_errors_show(open_notebook):
    hostile = '"><img src=x onerror="document.title = \'owned\'">'
    notebook = open_notebook(
        [begin(name=hostile, pace=60, steps=100_000), "run.fail_next = RuntimeError('<i>no</i> disk')"]
    )
    notebook.run(0)
    notebook.wait_for_text("step [1-9]")
    notebook.run(1)
    notebook.panel.get_by_role("button", name="Checkpoint").click()
    notebook.wait_for_text("RuntimeError: <i>no</i> disk")
    notebook.panel.get_by_role("button", name="Checkpoint").click()
    notebook.wait_for_kernel("run.commands", "['checkpoint']")
    notebook.page.wait_for_function("() => document.querySelector('.nbllm .nbllm-error').hidden")
    notebook.restart_kernel()
    notebook.wait_for_text("No word from the kernel")
    assert hostile in notebook.panel.inner_text()
    assert notebook.page.locator(".nbllm img, .nbllm i").count() == 0
    assert "owned" not in notebook.page.title()


def test_columns_stack_when_narrow(open_notebook):
    notebook = open_notebook([begin(pace=400)], width=700)
    notebook.run(0)
    notebook.wait_for_text("✓ done")
    notebook.command("application:toggle-left-area")
    notebook.page.wait_for_timeout(500)
    box = notebook.panel.bounding_box()
    assert box["x"] + box["width"] <= 700
    overflow = notebook.panel.evaluate("(root) => root.scrollWidth - root.clientWidth")
    assert overflow <= 0, "nothing is cut"
    notebook.shot("train-narrow", notebook.panel)


COMPARE = """
from types import SimpleNamespace
from fake_run import FakeRun
from nbllm.panels import show_comparison
runs = [FakeRun(name=name).steps_now(n).finish() for name, n in (('slow <b>', 400), ('fast', 600))]
for event in runs[1].events:
    if 'loss' in event: event['loss'] -= 0.4
table = SimpleNamespace(head=('run', 'status'), rows=(('slow <b>', 'done'), ('fast', 'done')))
show_comparison(SimpleNamespace(runs=runs, table=table, differences={'lr': ('0.01', '0.003')}))
"""


def test_runs_over_one_another(open_notebook):
    notebook = open_notebook([COMPARE])
    notebook.run(0)
    panel = notebook.page.get_by_role("group", name="Runs compared")
    panel.wait_for(timeout=20_000)
    assert "slow <b>" in panel.inner_text()
    panel.get_by_role("button", name="log").click()
    panel.get_by_text("what was asked differently").click()
    assert panel.locator("tbody tr", has_text="0.003").count() == 1
    for dark in (False, True):
        notebook.theme(dark=dark)
        name = "dark" if dark else "light"
        notebook.shot(f"compare-{name}", panel)
        least, text = notebook.least_contrast(panel)
        assert least >= 4.5, f"{name}: {text!r} has a contrast of {least:.2f}"


BROKEN = """
from fake_run import FakeRun
from nbllm.panels import show_run
run = FakeRun(name="broken").steps_now(400)
run.events = [event for event in run.events if event["kind"] in ("start", "step")]
for event in run.events[200:230]: event["loss"] = float("nan") if event["step"] % 2 else float("inf")
run.restart(1, 350)
run.steps_now(250)
for event in run.events[402:]:
    if "loss" in event: event["loss"] += 2
run.finish()
show_run(run)
"""

LONG = """
import json, pathlib
from fake_run import FakeRun
from nbllm.panels import registry, show_run
from nbllm.train.metrics import MetricsReader
path = pathlib.Path("long.jsonl")
with path.open("w") as file:
    print(json.dumps({"kind": "start", "step": 0, "generation": 0, "total_steps": 300_000}), file=file)
    for step in range(1, 300_001):
        said = '"NaN"' if step == 150_000 else 2 + 300 / (100 + step)
        print(f'{{"kind": "step", "step": {step}, "loss": {said}, "lr": 0.001, "grad_norm": 0.5}}', file=file)
run = FakeRun(name="long", total_steps=300_000, status="done")
run.reader = lambda: MetricsReader(path)
show_run(run)
"""

# for each column of pixels of the loss, the rows in the curve's colour, highest and lowest; null where there are none
COLUMNS = """(canvas) => {
  const wanted = getComputedStyle(canvas).getPropertyValue('--nb-s1').trim();
  const ink = document.createElement('canvas').getContext('2d');
  ink.fillStyle = wanted;
  ink.fillRect(0, 0, 1, 1);
  const colour = ink.getImageData(0, 0, 1, 1).data;
  const { data, width, height } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const found = [];
  for (let x = 0; x < width; x++) {
    const rows = [];
    for (let y = 0; y < height; y++) {
      const at = 4 * (y * width + x);
      if (data[at + 3] > 200 && [0, 1, 2].every((i) => Math.abs(data[at + i] - colour[i]) < 40)) rows.push(y);
    }
    found.push(rows.length ? [rows[0], rows[rows.length - 1]] : null);
  }
  return found;
}"""


def test_gaps_a_restart_and_eight_hours(open_notebook):
    notebook = open_notebook([BROKEN, LONG], height=1400)
    notebook.run(0)
    notebook.wait_for_text("✓ done")
    chart = notebook.page.get_by_role("img", name="Loss in nats").first
    for dark in (False, True):
        notebook.theme(dark=dark)
        notebook.shot(f"train-broken-{'dark' if dark else 'light'}", notebook.panel.first)
        columns = chart.evaluate(COLUMNS)
        drawn = [x for x, rows in enumerate(columns) if rows]
        first, last = drawn[0], drawn[-1]

        def rows(begin, end, columns=columns, first=first, last=last):
            at = [round(first + (step - 1) / 599 * (last - first)) for step in (begin, end)]
            return [rows for rows in columns[at[0] : at[1] + 1] if rows]

        assert rows(150, 195)
        assert not rows(205, 225), "steps without a number are a gap"
        assert rows(235, 300)
        before, after = rows(300, 345), rows(355, 399)
        assert max(low for _, low in after) < min(high for high, _ in before) - 20, "only the newer generation is drawn"
    chart.focus()
    chart.press("Home")
    for _ in range(10):
        chart.press("Shift+ArrowRight")
    assert "step 3" in str(chart.get_attribute("aria-label"))
    notebook.run(1)
    panel = notebook.page.get_by_role("group", name="Training run long")
    panel.wait_for(timeout=20_000)
    notebook.wait_for_kernel("registry.live('train')[-1].history.first_bad_step", "150000")
    most = "max(len(curve) for curve in registry.live('train')[-1].history.curves.values())"
    assert int(notebook.kernel(most)) < 4200
    assert "step 300,000 / 300,000" in panel.inner_text()
    notebook.shot("train-long-dark", panel)
    notebook.theme(dark=False)
    notebook.shot("train-long-light", panel)
