"""A real JupyterLab in a temporary folder, driven through headless Chromium; no request may leave the machine.

`lab` is the server (one a test session), `open_notebook` gives a `Notebook` page over it. Screenshots go to
`tests/browser/screenshots/`. Without a browser the tests are skipped, except where CI is set: there they fail.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

HERE = Path(__file__).parent
SCREENSHOTS = HERE / "screenshots"
TOKEN = "for-tests-only"
LOCAL = {"127.0.0.1", "localhost", "[::1]", "::1", ""}
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# the contrast of every text in an element with what lies behind it, by WCAG 2.2; alpha is blended
CONTRAST = """(root) => {
  const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const over = (top, below) => {
    const a = top[3] ?? 1;
    return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a));
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    const layers = [];
    for (let n = node; n; n = n.parentElement) layers.push(parse(getComputedStyle(n).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const found = [];
  for (const node of root.querySelectorAll('*')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!(own || node.value) || node.disabled || node.offsetParent === null || node.type === 'range') continue;
    const back = behind(node);
    const [a, b] = [light(over(parse(getComputedStyle(node).color), back)), light(back)];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.textContent.slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0])[0];
}"""


class Lab:
    """A running JupyterLab server over `folder`."""

    def __init__(self, folder: Path, port: int, pid: int) -> None:
        self.folder, self.port, self.pid = folder, port, pid

    def write(self, name: str, cells: list[str]) -> Path:
        """Writes a notebook of code cells."""
        notebook = {
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"cell-{index}",
                    "metadata": {},
                    "source": source,
                    "outputs": [],
                    "execution_count": None,
                }
                for index, source in enumerate(cells)
            ],
            "metadata": {
                "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
                "language_info": {"name": "python"},
            },
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        path = self.folder / name
        path.write_text(json.dumps(notebook), encoding="utf-8")
        return path


class Notebook:
    """A notebook open in a page."""

    def __init__(self, page: Any, lab: Lab, name: str) -> None:
        self.page, self.lab, self.name = page, lab, name
        self.panel = page.locator(".nbllm:not(.nbllm-face):not(.nbllm-tabbar)")
        self.face = page.locator(".nbllm-face")

    def wait_for_text(self, pattern: str, *, timeout: float = 20_000) -> None:
        """Waits until what the (first) live panel says matches a regular expression."""
        self.page.wait_for_function(
            "(pattern) => new RegExp(pattern).test("
            "document.querySelector('.nbllm:not(.nbllm-face):not(.nbllm-tabbar)')?.textContent ?? '')",
            arg=pattern,
            timeout=timeout,
        )

    def open(self) -> None:
        workspace = self.name.removesuffix(".ipynb")
        self.page.goto(f"http://127.0.0.1:{self.lab.port}/lab/workspaces/{workspace}/tree/{self.name}?token={TOKEN}")
        self._ready()

    def reload(self, *, kernel: bool = True) -> None:
        """Loads the page again; without `kernel` it is only read."""
        self.page.reload()
        self._ready(kernel=kernel)

    def _ready(self, *, kernel: bool = True) -> None:
        self.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context?.isReady", timeout=60_000)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=30_000)
        if not kernel:
            return
        # the kernel is known to the page, and has answered once
        self.page.wait_for_function(
            "() => ['idle', 'busy'].includes("
            "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status)",
            timeout=60_000,
        )

    def command(self, name: str) -> None:
        """Runs a command of JupyterLab, and waits for it."""
        self.page.evaluate("(name) => window.jupyterapp.commands.execute(name).then(() => null)", name)

    def run(self, index: int, *, wait: bool = True) -> None:
        """Runs one cell; with `wait`, until it is done."""
        self.page.evaluate(
            "(index) => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = index; }", index
        )
        if wait:
            self.command("notebook:run-cell")
        else:
            self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-cell'); }")

    def set_source(self, index: int, source: str) -> None:
        """Replaces a cell's source."""
        self.page.evaluate(
            "([index, source]) => window.jupyterapp.shell.currentWidget.content.widgets[index].model.sharedModel"
            ".setSource(source)",
            [index, source],
        )

    def output(self, index: int) -> str:
        """What a cell's outputs say."""
        return str(self.page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".jp-OutputArea").inner_text())

    def kernel(self, code: str) -> str:
        """What an expression is worth in the kernel, by its repr; raises where it raises."""
        result = self.page.evaluate(
            """async (code) => {
                const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                const future = kernel.requestExecute(
                    {code: '', user_expressions: {value: code}, store_history: false, silent: true});
                const reply = await future.done;
                const value = reply.content.user_expressions.value;
                return value.status === 'ok' ? value.data['text/plain'] : `error: ${value.ename}: ${value.evalue}`;
            }""",
            code,
        )
        assert not result.startswith("error: "), result
        return str(result)

    def wait_for_kernel(self, code: str, value: str, *, timeout_s: float = 20) -> None:
        """Waits until an expression has that repr in the kernel."""
        deadline = time.monotonic() + timeout_s
        while (found := self.kernel(code)) != value:
            assert time.monotonic() < deadline, f"{code} is {found}, not {value}"
            self.page.wait_for_timeout(100)

    def restart_kernel(self) -> None:
        self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart().then(() => null)"
        )

    def shut_down_kernel(self) -> None:
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown().then(() => null)")

    def save(self) -> dict[str, Any]:
        """Saves the notebook, and returns what is then on disk."""
        self.command("docmanager:save")
        return dict(json.loads((self.lab.folder / self.name).read_text(encoding="utf-8")))

    def theme(self, dark: bool) -> None:
        name = "JupyterLab Dark" if dark else "JupyterLab Light"
        self.page.evaluate(
            "(theme) => window.jupyterapp.commands.execute('apputils:change-theme', {theme}).then(() => null)", name
        )
        self.page.wait_for_function(
            "(light) => document.body.dataset.jpThemeLight === light", arg="false" if dark else "true"
        )
        self.page.wait_for_timeout(700)  # the theme's style sheet, and the redrawing after it

    def least_contrast(self, locator: Any) -> tuple[float, str]:
        """The lowest contrast of a text within an element, and that text."""
        least, text = locator.evaluate(CONTRAST)
        return float(least), str(text)

    def shot(self, name: str, locator: Any = None) -> Path:
        SCREENSHOTS.mkdir(exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        (locator or self.page).screenshot(path=str(path))
        return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def chromium_path() -> str:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("No Chromium is installed, and CI must not pass without the browser tests.")
        pytest.skip("No Chromium is installed.")
    return path


@pytest.fixture(scope="session")
def lab(chromium_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab server of its own: own settings, own workspaces, no pop-ups."""
    base = tmp_path_factory.mktemp("lab")
    folder, config = base / "notebooks", base / "config"
    (config / "labconfig").mkdir(parents=True)
    folder.mkdir()
    disabled = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (config / "labconfig" / "page_config.json").write_text(json.dumps(disabled))
    port = _free_port()
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTER_DATA_DIR": str(base / "data"),
        "JUPYTER_RUNTIME_DIR": str(base / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(base / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(base / "workspaces"),
        "IPYTHONDIR": str(base / "ipython"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent / "panels"), os.environ.get("PYTHONPATH", "")]),
    }
    environment.pop("NBLLM_HOME", None)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}"]
    command += [f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"]
    with (base / "lab.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_until_up(port, server, base / "lab.log")
        yield Lab(folder, port, server.pid)
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()


def _wait_until_up(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={TOKEN}", timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"JupyterLab didn't come up:\n{log.read_text(errors='replace')[-3000:]}")


@pytest.fixture(scope="session")
def browser(chromium_path: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium_path, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.when == "call":
        item.failed_call = report.failed  # type: ignore[attr-defined]
    return report


@pytest.fixture
def open_notebook(lab: Lab, browser: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Notebook]]:
    """Opens a notebook of the given cells; at the end, checks that no request left the machine."""
    contexts, outside, problems, consoles = [], [], [], []

    def watch(page: Any) -> None:
        page.on("request", lambda sent: outside.append(sent.url) if not _is_local(sent.url) else None)
        page.on("websocket", lambda socket: outside.append(socket.url) if not _is_local(socket.url) else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: consoles.append(said.text) if said.type == "error" else None)

    def open_one(cells: list[str], *, width: int = 1200, height: int = 1000) -> Notebook:
        name = f"{request.node.name.replace('[', '-').replace(']', '')}-{len(contexts)}.ipynb"
        lab.write(name, cells)
        context = browser.new_context(viewport={"width": width, "height": height}, device_scale_factor=2)
        context.route(lambda url: not _is_local(url), lambda route: route.abort())
        contexts.append(context)
        page = context.new_page()
        watch(page)
        notebook = Notebook(page, lab, name)
        notebook.open()
        return notebook

    yield open_one
    failed = getattr(request.node, "failed_call", False)
    for context in contexts:
        if failed:  # what the page looked like then is worth more than a stack of frames
            SCREENSHOTS.mkdir(exist_ok=True)
            context.pages[0].screenshot(path=str(SCREENSHOTS / f"failed-{request.node.name}.png"))
            problems += [f"(failed) {line}" for line in consoles[-10:]]
        for page in context.pages:
            page.evaluate("() => window.jupyterapp?.serviceManager.sessions.shutdownAll()")
        context.close()
    assert not outside, f"requests left the machine: {outside[:5]}"
    assert not problems, f"errors in the page: {problems[:5]}"


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "about", "chrome-extension") or (parts.hostname or "") in LOCAL
