"""Frames of the tokenizer panel's strip with 10,000 tokens: scrolling, hovering and arrow keys, in headless Chromium.

    python benchmarks/strip.py [--tokens 10000] [--chromium PATH]

The page is the panel's own module over what its kernel half sends; no JupyterLab around it. A frame is the time between
two `requestAnimationFrame` calls, so that the display's 16.7 ms is the floor. The result is kept in results/strip.json.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import tempfile
import time
from typing import Any

from kept import keep
from traitlets import Any as AnyTrait
from traitlets import HasTraits

from nbllm.panels.tokenizer import TokenizerPanel
from nbllm.store import Store
from nbllm.tokenizer import train

PAGE = """async ([module, css, message, buffers]) => {
  const style = document.createElement('style');
  style.textContent = css;
  document.head.append(style);
  const bytes = buffers.map((text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer));
  let listen;
  const model = { send: () => {}, on: (_, call) => (listen = call), off: () => {} };
  const { default: panel } = await import(URL.createObjectURL(new Blob([module], { type: 'text/javascript' })));
  panel.render({ model, el: document.body });
  const began = performance.now();
  listen(message, bytes);
  document.querySelector('.nbllm-tokens').getBoundingClientRect();
  return performance.now() - began;
}"""

FRAMES = """(kind) => new Promise((done) => {
  const strip = document.querySelector('.nbllm-tokens');
  const box = strip.getBoundingClientRect();
  const times = [];
  let last = performance.now();
  let step = 0;
  const frame = (now) => {
    times.push(now - last);
    last = now;
    if (kind === 'scroll') strip.scrollTop = (strip.scrollTop + 137) % strip.scrollHeight;
    else if (kind === 'jump') strip.scrollTop = (step * 7919) % strip.scrollHeight;
    else if (kind === 'keys') {
      const key = step % 9 ? 'ArrowRight' : 'PageDown';
      strip.dispatchEvent(new KeyboardEvent('keydown', { key }));
    }
    else {
      const x = box.left + 5 + ((step * 31) % (box.width - 30));
      const at = document.elementFromPoint(x, box.top + 5 + ((step * 17) % (box.height - 10)));
      at?.dispatchEvent(new PointerEvent('pointerover', { bubbles: true }));
    }
    if (++step < 240) requestAnimationFrame(frame);
    else done(times.slice(3));
  };
  requestAnimationFrame(frame);
})"""


class Session(HasTraits):
    """What the panel asks of a session."""

    tokenizer = AnyTrait()
    corpus = None

    def __init__(self, store: Store, tokenizer: Any) -> None:
        super().__init__()
        self.store, self.tokenizer = store, tokenizer


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tokens", type=int, default=10_000)
    options.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    arguments = options.parse_args()
    from pydoc_data import topics

    from playwright.sync_api import sync_playwright

    prose = list(topics.topics.values())
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        tokenizer = train(store, prose[:40], vocab_size=2048, name="strip")
        text = ""
        for topic in prose:
            text += topic[:2000] + " naïve 😀 안녕 "
            if len(tokenizer.encode(text)) >= arguments.tokens:
                break
        text = tokenizer.decode(tokenizer.encode(text)[: arguments.tokens])
        panel = TokenizerPanel(Session(store, tokenizer), text=text)
        sent: list[tuple[dict[str, Any], list[bytes]]] = []
        panel.send = lambda content, buffers=None: sent.append((content, list(buffers or [])))  # type: ignore[method-assign]
        began = time.perf_counter()
        panel._send_strips("snapshot", view=None, face="none")
        kernel_ms = (time.perf_counter() - began) * 1e3
        content, buffers = sent[-1]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.goto("about:blank")
            encoded = [base64.b64encode(buffer).decode() for buffer in buffers]
            up_ms = page.evaluate(PAGE, [panel._esm, panel._css, content, encoded])
            page.wait_for_timeout(500)
            frames = {kind: page.evaluate(FRAMES, kind) for kind in ("scroll", "jump", "hover", "keys")}
            nodes = page.evaluate("() => document.querySelectorAll('.nbllm-tokens .token').length")
            browser.close()
        panel.close()
    result = {
        "tokens": content["strips"][0]["count"],
        "tokens_in_page": nodes,
        "kernel_ms": round(kernel_ms, 1),
        "layout_and_first_lines_ms": round(up_ms, 1),
        "sent_bytes": len(json.dumps(content)) + sum(map(len, buffers)),
        "frames": {
            kind: {
                "count": len(times),
                "median_ms": round(sorted(times)[len(times) // 2], 1),
                "longest_ms": round(max(times), 1),
                "over_50_ms": sum(each > 50 for each in times),
            }
            for kind, times in frames.items()
        },
    }
    print(json.dumps(result, indent=1))
    print("kept in", keep("strip", result))


if __name__ == "__main__":
    main()
