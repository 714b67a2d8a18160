"""The training panel over the log of eight hours in headless Chromium: time until it is up, memory.

    python benchmarks/train_panel.py [--steps 300000] [--chromium PATH]

A metrics.jsonl of 300,000 steps, with steps whose loss isn't a number and a restart in it. The page is the panel's own
module over what its kernel half sends, message by message; no JupyterLab around it. `up` runs from the call that makes
the panel to the frame in which the last step's number and the curve are drawn (from a preview of the file); `whole` to
the frame after every line was read. Memory is the page's process against a blank page in the same browser, as in
attention_browser.py, and the bytes of all messages.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attention_browser import _memory
from kept import keep

from nbllm.panels.train import TrainPanel
from nbllm.train.metrics import MetricsReader

PAGE = """async ([module, css]) => {
  const style = document.createElement('style');
  style.textContent = css;
  document.head.append(style);
  let listen = null;
  const view = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const hear = (messages) => messages.forEach(([content, buffers]) => listen(content, buffers.map(view)));
  const send = async (content) => hear(await window.kernel(content));
  const model = { send, on: (_, call) => (listen = call), off() {} };
  setInterval(async () => hear(await window.kernel({})), 50);
  const { default: panel } = await import(URL.createObjectURL(new Blob([module], { type: 'text/javascript' })));
  panel.render({ model, el: document.body });
}"""

UP = """(step) => new Promise((done) => {
  const look = () => {
    const canvas = document.querySelector('.nbllm canvas');
    const up = document.querySelector('.nbllm')?.textContent.includes(`step ${step}`) && canvas?.width > 300;
    requestAnimationFrame(up ? () => requestAnimationFrame(() => done(true)) : look);
  };
  look();
})"""


class _Kernel(TrainPanel):
    """A panel whose messages are gathered until the page fetches them."""

    def send(self, content: Any, buffers: Any = None) -> None:
        self.__dict__.setdefault("waiting", []).append((content, list(buffers or ())))
        self.__dict__["sent_bytes"] = self.__dict__.get("sent_bytes", 0) + sum(map(len, buffers or ()))

    def answer(self, content: dict[str, Any]) -> list[Any]:
        if content:
            self._receive(self, content, None)
        said, self.__dict__["waiting"] = self.__dict__.get("waiting", []), []
        return [[each, [base64.b64encode(buffer).decode() for buffer in buffers]] for each, buffers in said]


def write_log(path: Path, steps: int) -> None:
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:

        def write(kind: str, **fields: Any) -> None:
            file.write(json.dumps({"kind": kind, **fields}) + "\n")

        write("start", step=0, generation=0, world_size=1, precision="bf16", device="cpu", total_steps=steps)
        for step in range(1, steps + 1):
            if step == steps // 2:
                write("start", step=step - 500, generation=1, world_size=1, total_steps=steps)
            loss: Any = 2 + 5 / (1 + step / 2000) + draw.gauss(0, 0.1)
            loss = {steps // 3: "NaN", steps // 3 + 1: "Infinity"}.get(step, loss)
            write(
                "step", step=step, loss=loss, lr=1e-3, grad_norm=draw.random(), tokens=step * 2048,
                tokens_per_s=20_000.0, seconds=step * 0.096, memory_bytes=10**9,
            )  # fmt: skip
            if step % 5000 == 0:
                write("eval", step=step, eval_loss=2.1, bits_per_byte=1.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "metrics.jsonl"
        write_log(path, options.steps)
        run = SimpleNamespace(
            name="eight-hours", status="done", error=None, config=SimpleNamespace(parallel="ddp"), checkpoints=[],
            total_steps=options.steps, lr_factor=1.0, reader=lambda: MetricsReader(path), usage=list,
        )  # fmt: skip
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.goto("about:blank")
        blank = _memory(page)
        began = time.perf_counter()
        panel = _Kernel(run)
        panel.update()
        page.expose_function("kernel", panel.answer)
        page.evaluate(PAGE, [panel._esm, panel._css])
        page.evaluate(UP, f"{options.steps:,}")
        up_s = time.perf_counter() - began
        reading = threading.Thread(target=lambda: [None for _ in iter(panel._read_on, False)])
        reading.start()
        while reading.is_alive():
            page.wait_for_timeout(20)
        page.wait_for_timeout(200)
        whole_s = time.perf_counter() - began
        memory = _memory(page)
        page.screenshot(path=str(Path(tempfile.gettempdir()) / "train_panel.png"))
        points = {name: len(curve) for name, curve in panel.history.curves.items()}
        result = {
            "steps": options.steps,
            "file_mb": round(path.stat().st_size / 1e6, 1),
            "up_s": round(up_s, 2),
            "whole_s": round(whole_s, 2),
            "memory_mb": {"blank_page": blank, "panel": memory},
            "sent_mb": round(panel.__dict__["sent_bytes"] / 1e6, 2),
            "points_kept": points,
        }
        browser.close()
        panel.close()
    print(json.dumps(result, indent=1))
    print("kept in", keep("train_panel", result))


if __name__ == "__main__":
    main()
