"""The attention panel in headless Chromium at 1,024 tokens: time until it is up, time to switch heads, memory.

    python benchmarks/attention_browser.py --model FOLDER [--tokens 1024] [--switches 30] [--chromium PATH]

FOLDER is a transformers folder (SmolLM2-135M in bf16: 30 layers of 9 heads). The page is the panel's own module; its
kernel half answers over a websocket in binary frames, as Jupyter's do; no JupyterLab around it. `up` runs from the end
of the forward pass to the frame in which the first map is drawn; a switch from the key press on the sheet of heads to
the frame in which the new map is drawn, for heads that weren't looked at before. Memory is the page's process:
JavaScript's heap, and what the system counts as its own (resident, not shared), against a blank page in the same
browser. Any request is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from attention_view import TEXT
from kept import keep
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler

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
  const socket = new WebSocket(`ws://${location.host}/kernel`);
  socket.binaryType = 'arraybuffer';
  await new Promise((open) => (socket.onopen = open));
  socket.onmessage = ({ data }) => {
    const length = new DataView(data).getUint32(0);
    const { content, sizes } = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
    let at = 4 + length;
    listen(content, sizes.map((size) => new DataView(data, (at += size) - size, size)));
  };
  const send = (content) => socket.send(JSON.stringify(content));
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
    """A panel whose messages go to the page at the other end of a websocket."""

    page: WebSocketHandler

    def send(self, content: Any, buffers: Any = None) -> None:
        head = json.dumps({"content": content, "sizes": [len(buffer) for buffer in buffers or ()]}).encode()
        self.page.write_message(b"".join([len(head).to_bytes(4, "big"), head, *(buffers or ())]), binary=True)

    def answer(self, content: dict[str, Any]) -> None:
        wish = {**content, "do": content.get("ask") or content["do"]}
        if wish["do"] != "alive":
            self._obey(wish)


def _serve(panel: _Kernel) -> str:
    """An empty page, and the panel's answers for it, on a port of this machine; its address."""

    class Socket(WebSocketHandler):
        def open(self) -> None:
            panel.page = self

        def on_message(self, message: str | bytes) -> None:
            panel.answer(json.loads(message))

    class Page(RequestHandler):
        def get(self) -> None:
            self.write('<!doctype html><link rel="icon" href="data:,">')

    (listener,) = bind_sockets(0, "127.0.0.1")

    def serve() -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        HTTPServer(Application([("/", Page), ("/kernel", Socket)])).add_sockets([listener])
        loop.run_forever()

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


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
        panel = _Kernel(session)
        page.goto(f"http://{_serve(panel)}/")
        page.on("request", lambda sent: requests.append(sent.url) if not sent.url.startswith("blob:") else None)
        blank = _memory(page)
        maps = session.attention(ids, model=str(options.model))
        began = time.perf_counter()
        side = Side(wanted=Wanted(text="", model=str(options.model)), maps=maps)
        panel.sides, panel.pinned = [side], side.tokens - 1
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
