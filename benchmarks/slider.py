"""From a moved slider of the sampling panel to the first new text on the page, in a real JupyterLab: `python
benchmarks/slider.py FOLDER`.

FOLDER holds a transformers model (SmolLM2-135M-Instruct for the kept result). A prompt of 200 tokens is sampled once;
then the temperature's slider is moved, `--moves` times with pauses (the text has come to its end) and as often at once
after the first new text (the sampling under way has to be cancelled). The clock is the page's: from the slider's input
event to the frame after the first new token stands in the document. The kernel's own share, from the start of the
sampling to its first token, stands beside it. Prompt tokens computed twice are the panel's own number. Needs playwright
and Chromium; nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from kept import keep

TOKEN = "for-the-benchmark-only"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
PROMPT_TOKENS = 200
TARGET_MS = 150
SETUP = """
import os
import nbllm
from nbllm.panels import registry, show_generate
session = nbllm.session()
session.model = session.models.reference({folder!r})
session.sampling = {{"max_new_tokens": 40, "temperature": 0.8, "seed": 1}}
model, tokenizer = session.load_model()
words = "The history of the town begins with a river, a mill and a road that led to the sea. " * 40
ids = tokenizer.encode(words)[:{tokens}]
show_generate(session, prompt=tokenizer.decode(ids))
panel = registry.live("generate")[-1]
"""
# moves the slider; resolves with milliseconds to the frame after the first token that came after the old text went
MOVE = """(value) => new Promise((resolve, reject) => {
  const panel = document.querySelector('.nbllm:not(.nbllm-face)');
  const body = panel.querySelector('.nbllm-output').lastElementChild;
  const range = panel.querySelector("input[type=range][aria-label='temperature']");
  let cut = body.children.length === 0;
  const timer = setTimeout(() => reject(new Error('no new text came')), 60000);
  const observer = new MutationObserver((records) => {
    for (const record of records) {
      if (record.removedNodes.length) cut = true;
      if (cut && record.addedNodes.length) {
        observer.disconnect();
        clearTimeout(timer);
        const there = performance.now() - start;
        requestAnimationFrame(() => setTimeout(() => resolve([performance.now() - start, there]), 0));
        return;
      }
    }
  });
  observer.observe(body, { childList: true });
  range.value = value;
  const start = performance.now();
  range.dispatchEvent(new Event('input', { bubbles: true }));
})"""
KERNEL = """async (code) => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const reply = await kernel.requestExecute(
    {code: '', user_expressions: {value: code}, store_history: false, silent: true}).done;
  const value = reply.content.user_expressions.value;
  return value.status === 'ok' ? value.data['text/plain'] : `error: ${value.evalue}`;
}"""
IDLE = """() => {
  const panel = document.querySelector('.nbllm:not(.nbllm-face)');
  return panel && /ended by/.test(panel.textContent);
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="a transformers folder")
    parser.add_argument("--moves", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        server, port = start_lab(Path(base), str(Path(arguments.folder).absolute()))
        try:
            found = measure(port, arguments.moves)
        finally:
            server.terminate()
            server.wait(20)
    found |= {"model": Path(arguments.folder).name, "target_ms": TARGET_MS}
    print(json.dumps(found, indent=1))
    print(keep("slider", found))


def start_lab(base: Path, folder: str) -> tuple[subprocess.Popen[bytes], int]:
    """A JupyterLab of its own over a notebook of one cell, and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None}
    spec = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    cell["source"] = SETUP.format(folder=folder, tokens=PROMPT_TOKENS)
    notebook = {"cells": [cell], "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
    (base / "slider.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    settings = base / "config" / "labconfig"
    settings.mkdir(parents=True)
    off = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (settings / "page_config.json").write_text(json.dumps(off))
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(base / "config"), "HF_HUB_OFFLINE": "1"}
    for name in ("DATA", "RUNTIME"):
        environment[f"JUPYTER_{name}_DIR"] = str(base / name.lower())
    environment |= {"JUPYTERLAB_WORKSPACES_DIR": str(base / "workspaces"), "IPYTHONDIR": str(base / "ipython")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={base}"]
    command += ["--LabApp.expose_app_in_browser=True"]
    server = subprocess.Popen(command, env=environment, cwd=base, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(240):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={TOKEN}", timeout=1).close()
            return server, port
        except OSError:
            time.sleep(0.5)
    server.terminate()
    raise SystemExit("JupyterLab didn't start")


def measure(port: int, moves: int) -> dict[str, Any]:
    """Moves the slider with pauses and quickly; milliseconds and the panel's own numbers."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        page.goto(f"http://127.0.0.1:{port}/lab/workspaces/slider/tree/slider.ipynb?token={TOKEN}")
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context?.isReady", timeout=120_000)
        ready = "() => window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
        page.wait_for_function(ready, timeout=120_000)
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-cell').then(() => null)")
        page.wait_for_selector(".nbllm:not(.nbllm-face) input[type=range]", timeout=120_000)
        page.locator(".nbllm:not(.nbllm-face)").get_by_role("button", name="Sample").click()
        page.wait_for_function(IDLE, timeout=120_000)
        found: dict[str, Any] = {"prompt_tokens": int(page.evaluate(KERNEL, "len(ids)"))}
        twice = []
        for name, paused in (("with_pauses", True), ("quick", False)):
            times, there, kernel = [], [], []
            for number in range(moves + 1):
                value = 0.5 + 0.05 * (number % 12)
                shown, in_document = page.evaluate(MOVE, value)
                if paused:
                    page.wait_for_function(IDLE, timeout=120_000)
                    page.wait_for_timeout(400)
                    facts = json.loads(
                        str(page.evaluate(KERNEL, "(__import__('json').dumps(panel.sampler.tree.current.facts))"))[1:-1]
                    )
                    prompt = int(page.evaluate(KERNEL, "len(panel.sampler.tree.current.prompt_tokens)"))
                    twice.append(prompt - int(facts["reused"]))
                    kernel.append(facts["first_token_ms"])
                if number:  # the first move warms up
                    times.append(shown)
                    there.append(in_document)
            page.wait_for_function(IDLE, timeout=120_000)
            found[name] = {
                "median_ms": round(statistics.median(times), 1),
                "worst_ms": round(max(times), 1),
                "median_in_document_ms": round(statistics.median(there), 1),
                "moves": len(times),
            }
            if kernel:
                found[name]["median_first_token_in_the_kernel_ms"] = round(statistics.median(kernel[1:]), 1)
        found["prompt_tokens_computed_twice"] = sum(twice)
        browser.close()
    return found


if __name__ == "__main__":
    main()
