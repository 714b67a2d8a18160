"""The tokenizer panel in a real JupyterLab: typing, keyboard, side by side, the vocabulary, hostile text."""

from __future__ import annotations

import ast

import pytest

pytestmark = pytest.mark.browser

BEGIN = """
from fake_tokenizing import TokenizingSession
from nbllm.panels import registry, show_tokenizer
from nbllm.store import Store
from nbllm.tokenizer import train
texts = ["the tokens of the text, and the bytes of the tokens 12 123 é <b>bold</b>"] * 20
store = Store("tokenizers")
small = train(store, texts, vocab_size=280, name="small")
session = TokenizingSession(store, train(store, texts, vocab_size=340, name="large"))
show_tokenizer(session, text="the tokens 😀 and é CH3COOH")
panel = registry.live("tokenizer")[-1]
"""
HOSTILE = (
    "<img src=x onerror=\"window.harmed=1\"> <script>window.harmed=2</script> '\"><svg onload='window.harmed=3'>"
    " &lt;b&gt; \x01\x1b[31m \u202eright to left\u202c \u2066x\u2069 javascript:window.harmed=4"
)


def begun(open_notebook, width=1200, height=900):
    notebook = open_notebook([BEGIN], width=width, height=height)
    notebook.run(0)
    notebook.panel.wait_for(timeout=20_000)
    notebook.wait_for_text("exact round trip")
    return notebook


def shown(notebook):
    return notebook.page.evaluate(
        "() => [...document.querySelectorAll('.nbllm-tokens .token')].map((node) => node.textContent)"
    )


def test_typing_and_the_keyboard(open_notebook):
    notebook = begun(open_notebook)
    page, panel = notebook.page, notebook.panel
    field = panel.get_by_role("textbox", name="text", exact=True)
    field.fill("the tokens of 😀")
    names = "[session.tokenizer.token_text(id) for id in session.tokenizer.encode('the tokens of 😀')]"
    page.wait_for_function("() => document.querySelector('.nbllm-tokens').textContent.includes('␣of')")
    assert shown(notebook) == ast.literal_eval(notebook.kernel(names))
    assert "😀" in panel.locator(".whole").inner_text()

    panel.get_by_role("group", name="tokens, arrow keys").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    live = panel.locator("[aria-live]")
    second = shown(notebook)[1]
    assert live.text_content().startswith(f"token 2 of {len(shown(notebook))}: {second}, id ")
    assert panel.locator(".token.at").text_content() == second
    page.wait_for_function("() => document.querySelector('.nbllm-details').textContent.includes('Bytes')")
    assert "Bytes" in panel.locator(".nbllm-details").inner_text()
    page.keyboard.press("End")
    assert f"token {len(shown(notebook))} of" in live.text_content()


def test_hostile_text_is_text(open_notebook):
    notebook = begun(open_notebook)
    page, panel = notebook.page, notebook.panel
    panel.get_by_role("textbox", name="text", exact=True).fill(HOSTILE)
    page.wait_for_function("() => document.querySelector('.nbllm-tokens').textContent.includes('onerror')")
    panel.get_by_role("button", name="Vocabulary").click()
    panel.get_by_role("textbox", name="search the vocabulary").fill("<b")
    page.wait_for_timeout(600)
    panel.get_by_role("group", name="tokens, arrow keys").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.harmed") is None
    inside = page.evaluate(
        "() => document.querySelectorAll('.nbllm-tokenizer img, .nbllm-tokenizer script, .nbllm-tokenizer svg').length"
    )
    assert inside == 0
    strip = page.evaluate("() => document.querySelector('.nbllm-tokens').textContent")
    assert "\u202e" not in strip
    assert "<U+202E>" in strip or "<E2>" in strip
    assert "\x1b" not in strip
    notebook.save()
    assert page.evaluate("() => window.harmed") is None


def test_side_by_side_and_the_vocabulary(open_notebook):
    notebook = begun(open_notebook)
    page, panel = notebook.page, notebook.panel
    panel.get_by_role("combobox", name="put a tokenizer beside it").select_option("small")
    notebook.wait_for_kernel("len(panel.tokenizers)", "2")
    notebook.wait_for_text("2  small: ")
    whole = (
        "(which) => [...document.querySelectorAll(`.nbllm-tokens [data-which='${which}']`)].map((n) => n.textContent)"
    )
    for which, name in ((0, "session.tokenizer"), (1, "small")):
        wanted = notebook.kernel(f"[{name}.token_text(id) for id in {name}.encode(panel.text)]")
        assert page.evaluate(whole, which) == ast.literal_eval(wanted)
    edges = page.evaluate(
        "() => [...document.querySelectorAll('.nbllm-tokens .unit')].map((unit) =>"
        " [...unit.querySelectorAll(':scope > .row')].map((row) => row.getBoundingClientRect().left))"
    )
    assert all(len({round(left) for left in unit}) == 1 for unit in edges), "both begin where the other does"
    panel.get_by_role("button", name="Vocabulary").click()
    search = panel.get_by_role("textbox", name="search the vocabulary")
    search.fill("0x20 74")
    page.wait_for_function(
        "() => /^\\d+ of \\d+$/.test(document.querySelector('.nbllm-vocabulary-head .nbllm-dim').textContent)"
    )
    page.wait_for_function(
        "() => [...document.querySelectorAll('.entry .text')].some((n) => n.textContent.startsWith('␣t'))"
    )
    panel.get_by_role("group", name="vocabulary, arrow keys").focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => document.querySelector('.nbllm-details').textContent.includes('20 74')")
    panel.get_by_role("button", name="remove small").click()
    notebook.wait_for_kernel("len(panel.tokenizers)", "1")


@pytest.mark.parametrize("width", [1200, 640])
def test_it_looks_right(open_notebook, width):
    notebook = begun(open_notebook, width=width, height=1100)
    page, panel = notebook.page, notebook.panel
    notebook.command("application:toggle-left-area")
    text = "the tokens of 😀 and naïve  bytes of CH3COOH 1234567\n\tdef f(x): the text of tokens שלום 안녕"
    panel.get_by_role("textbox", name="text", exact=True).fill(text)
    page.wait_for_function("() => document.querySelector('.nbllm-tokens').textContent.includes('def')")
    panel.get_by_role("combobox", name="put a tokenizer beside it").select_option("small")
    notebook.wait_for_kernel("len(panel.tokenizers)", "2")
    panel.get_by_role("button", name="Vocabulary").click()
    page.wait_for_function("() => document.querySelectorAll('.entry').length > 5")
    panel.locator(".token", has_text="tokens").first.click()
    page.wait_for_timeout(500)
    for dark in (False, True):
        notebook.theme(dark=dark)
        notebook.shot(f"tokenizer-{width}-{'dark' if dark else 'light'}", panel)
        least, what = notebook.least_contrast(panel)
        assert least >= 4.5, f"{what!r} has a contrast of {least:.2f}"
    wide = panel.evaluate("(root) => root.scrollWidth - root.clientWidth")
    assert wide <= 1, "nothing is cut at the side"
