"""The attention panel in headless Chromium at 1,024 tokens: time until it is up, time to switch heads, memory.

    python benchmarks/attention_browser.py --model FOLDER [--tokens 1024] [--switches 30] [--chromium PATH]

FOLDER is a transformers folder (SmolLM2-135M in bf16: 30 layers of 9 heads). The page is the panel's own module over
what its kernel half answers, message by message; no JupyterLab around it. `up` runs from the end of the forward pass to
the frame in which the first map is drawn; a switch from the key press on the sheet of heads to the frame in which the
new map is drawn, for heads that weren't looked at before. Memory is the page's process: JavaScript's heap, and what the
system counts as its own (resident, not shared), against a blank page in the same browser. Any request is counted.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from attention_view import TEXT
from kept import keep

from nbllm.panels.attention import AttentionPanel
from nbllm.panels.attention_view import Side, Wanted
from nbllm.sessions import Session
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer

PAGE = """async ([module, css]) => {
  const style = document.createElement('style');
  style.textContent = css;
  document.head.append(style);
  let listen;
  const view = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const send = async (content) => {
    for (const [message, buffers] of await window.kernel(content)) listen(message, buffers.map(view));
  };
  const model = { send, on: (_, call) => (listen = call), off: () => {} };
  const { default: panel } = await import(URL.createObjectURL(new Blob([module], { type: 'text/javascript' })));
  panel.render({ model, el: document.body });
}"""

DRAWN = """(name) => new Promise((done) => {
  const began = performance.now();
  const look = () => {
    const label = document.querySelector('.nbllm-map .nbllm-label')?.textContent ?? '';
    const [from, canvas] = [performance.now(), document.querySelector('.nbllm-map canvas')];
    if (label.startsWith(name) && canvas?.width) requestAnimationFrame(() => done(performance.now() - began));
    else if (from - began > 60000) done(NaN);
    else requestAnimationFrame(look);
  };
  look();
})"""

SWITCH = (
    """async ([key, name]) => {
  const drawn = ("""
    + DRAWN
    + """)(name);
  document.querySelector('.nbllm-heads canvas').dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
  return drawn;
}"""
)


class _Kernel(AttentionPanel):
    """A panel whose messages are gathered, to be handed to the page that asked."""

    def send(self, content: Any, buffers: Any = None) -> None:
        self.said: list[Any]
        self.said.append([content, [base64.b64encode(buffer).decode() for buffer in buffers or ()]])

    def answer(self, content: dict[str, Any]) -> list[Any]:
        self.said = []
        if "ask" in content:
            content = {**content, "do": content["ask"]}
        if content["do"] != "alive":
            self._obey(content)
        return self.said


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--switches", type=int, default=30)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    ids = Tokenizer.from_folder(options.model).encode(TEXT * 60)[: options.tokens]
    requests: list[str] = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        session = Session(Store(folder), "benchmark")
        session.attention(ids[:16], model=str(options.model))  # the model is read before the clock runs
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 1400})
        page.on("request", lambda sent: requests.append(sent.url) if not sent.url.startswith("blob:") else None)
        page.goto("about:blank")
        blank = _memory(page)
        maps = session.attention(ids, model=str(options.model))
        began = time.perf_counter()
        side = Side(wanted=Wanted(text="", model=str(options.model)), maps=maps)
        panel = _Kernel(session, [side], layer=0, head=0)
        page.expose_function("kernel", panel.answer)
        page.evaluate(PAGE, [panel._esm, panel._css])
        page.evaluate(DRAWN, "layer 0, head 0")
        up_s = time.perf_counter() - began
        switches = []
        layer = head = 0
        for number in range(options.switches):
            down = number % 3 == 0 and layer + 1 < maps.layers
            layer, head = (layer + 1, head) if down else (layer, (head + 1) % maps.heads)
            key = "ArrowDown" if down else "ArrowRight" if head else "Home"
            switches.append(page.evaluate(SWITCH, [key, f"layer {layer}, head {head}"]))
        page.wait_for_timeout(500)
        memory = _memory(page)
        browser.close()
        panel.close()
    switches.sort()
    result = {
        "model": options.model.name,
        "tokens": len(ids),
        "heads": f"{maps.layers} × {maps.heads}",
        "up_s_after_forward": round(up_s, 2),
        "switch_ms": {
            "count": len(switches),
            "median": round(switches[len(switches) // 2], 1),
            "longest": round(switches[-1], 1),
            "over_150": sum(each > 150 for each in switches),
        },
        "memory_mb": {"blank_page": blank, "panel": memory},
        "requests": requests,
    }
    print(json.dumps(result, indent=1))
    print("kept in", keep("attention_browser", result))


def _memory(page: Any) -> dict[str, float]:
    """Of the page's process, MB: JavaScript's heap after a collection, and private resident memory."""
    link = page.context.new_cdp_session(page)
    link.send("HeapProfiler.collectGarbage")
    heap = link.send("Runtime.getHeapUsage")["usedSize"]
    system = page.context.browser.new_browser_cdp_session()
    found = system.send("SystemInfo.getProcessInfo")["processInfo"]
    renderers = [_private(process["id"]) for process in found if process["type"] == "renderer"]
    return {"heap": round(heap / 1e6, 1), "process_private": round(max(renderers) / 1e6, 1)}


def _private(process: int) -> float:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


if __name__ == "__main__":
    main()
