"""Text from strangers in every panel and every face, in a real browser: nothing of it becomes an element, runs, asks
for a page, turns the writing or is typeset; also in the saved notebook opened again without its kernel, and as a page.
"""

from __future__ import annotations

import pytest
from nbconvert import HTMLExporter

pytestmark = pytest.mark.browser

BEGIN = r"""
import json, nbllm, torch
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
%load_ext nbllm
nbllm.sessions.open_session("hostile")
session = nbllm.session()
IMAGE = "<img data-evil src=x onerror='pwned=1'>"
EVIL = [
    "<script data-evil>pwned=1</script>",
    IMAGE,
    "<svg data-evil onload=pwned=1><style>*{color:red}</style></svg>",
    "</textarea></pre></style><style data-evil>body{background:url(//evil.invalid/css)}</style>",
    "<a data-evil href='javascript:pwned=1'>link</a>",
    "\" autofocus onfocus=\"pwned=1\" data-evil=\"",
    "' onmouseover='pwned=1' data-evil='",
    "&lt;img data-evil src=x onerror=pwned=1&gt;",
    "<iframe data-evil srcdoc='<script>parent.pwned=1</script>'></iframe>",
    r"$\href{javascript:pwned=1}{x}$ $$\style{color:red}{y}$$ \(z\) \begin{align}w\end{align}",
    "\u202eevil\u202c \u2066x\u2069",
    "\x1b]0;title\x07\x1b[31mred\x1b[0m \x9b2J \x08\x08",
]
ALL = " ".join(EVIL)
texts = [f"{evil} number {n} and the words of it" for n in range(4) for evil in EVIL] + [ALL] * 3
Path(f"{IMAGE}.txt").write_text(ALL)
# a file name, reasons and texts in a corpus and its report; tokens and special tokens
corpus = session.clean(f"{IMAGE}.txt", texts=texts, stages=["length min=3", "dedup exact"], name="hostile")
tokenizer = session.train_tokenizer(vocab_size=700, special=[f"<|{evil}|>" for evil in EVIL], name="hostile")
torch.manual_seed(0)
config = LlamaConfig(vocab_size=tokenizer.vocab_size, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                     num_attention_heads=2, name_or_path=ALL)
folder = Path(f"model {IMAGE}")
LlamaForCausalLM(config).save_pretrained(folder)
tokenizer.save(folder)
(folder / "README.md").write_text(f"---\nmodel_name: \"{IMAGE}\"\n---\n{ALL}")  # a model card
session.model = session.models.reference(str(folder))
"""
RUN = """
from fake_run import FakeRun
from nbllm.panels import show_run
run = FakeRun(name=IMAGE, pace=900, total_steps=60).steps_now(60)
run.events += [{"kind": "sample", "step": 60, "prompt": evil, "text": evil + ALL} for evil in EVIL]
show_run(run.finish("failed", error=ALL))
"""
TUNING = """
import fake_tuning
from nbllm.panels import show_finetune
fake_tuning.WORDS[:] = EVIL
show_finetune(fake_tuning.FakeTuning(names=EVIL))
"""
DATA = """
Path("data.jsonl").write_text("".join(json.dumps({"instruction": evil, "output": evil}) + "\\n" for evil in EVIL * 4))
%llm_finetune --data data.jsonl --dry-run
"""
CELLS = {
    "session": "%llm_session",
    "report": "corpus.report",
    "dropped": "corpus.dropped('dedup exact', 50)",
    "examples": "corpus.examples(50)",
    "clean": "%llm_panel clean",
    "inspect": "%llm_tokenizer inspect $ALL",
    "special": "%llm_tokenizer inspect $ALL --allow-special",
    "tokenizer report": "%llm_tokenizer report",
    "tokenizer panel": "%llm_panel tokenizer",
    "model": "%llm_model",
    "attention": "%llm_attention $ALL",
    "lens": "%llm_lens $ALL",
    "generated": "%llm_generate $ALL --max-new-tokens 60 --temperature 2 --seed 1",
    "trace": "%llm_generate $IMAGE --max-new-tokens 9 --temperature 2 --trace",
    "generate": "%llm_panel generate",
    "eval": "%llm_eval $ALL",
    "doctor": "session.diagnose(ALL, max_new_tokens=20)",
    "train": RUN,
    "finetune": TUNING,
    "data": DATA,
    "tabs": "%llm_panel",
    "error": "%llm_session use $ALL",
}
LOOK = r"""(cell) => {
  const root = cell === null ? document : document.querySelectorAll('.jp-Notebook .jp-Cell')[cell];
  const outputs = [...root.querySelectorAll('.jp-OutputArea, body.page')];
  const text = outputs.map((one) => one.textContent).join('');
  const steering = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/;
  const where = (match) => text.slice(Math.max(0, match - 60), match + 40);
  const found = [];
  for (const node of root.querySelectorAll('[data-evil], iframe, a[href^="javascript"]')) {
    found.push('element: ' + node.parentElement.outerHTML.slice(0, 200));
  }
  for (const node of root.querySelectorAll('mjx-container, .MathJax')) {
    found.push('typeset: ' + node.parentElement.outerHTML.slice(0, 200));
  }
  if (window.pwned) found.push('a script ran');
  if (steering.test(text)) found.push('steering: ' + where(text.search(steering)));
  if (document.title.includes('title')) found.push('title');
  return found.slice(0, 12);
}"""


def test_nothing_of_strangers_text_acts(open_notebook) -> None:
    notebook = open_notebook([BEGIN, *CELLS.values()])
    page = notebook.page
    notebook.run(0)
    found = {}
    for number, name in enumerate(CELLS, 1):
        notebook.run(number)
        if name == "tabs":
            tabs = page.locator(".jp-Notebook .jp-Cell").nth(number).get_by_role("tab")
            for tab in tabs.all():
                tab.click()
        page.wait_for_timeout(250)
        said = notebook.output(number)
        assert ("Error" in said) == (name == "error"), f"{name}: {said[-600:]}"
        if problems := page.evaluate(LOOK, number):
            found[name] = problems
    assert not found, "\n".join(f"{name}: {line}" for name, lines in found.items() for line in lines)

    # the saved notebook, trusted as the one who made it has it, without its kernel: the static faces
    notebook.save()
    notebook.shut_down_kernel()
    notebook.reload(kernel=False)
    page.wait_for_function("() => document.querySelectorAll('.nbllm-face').length > 8")
    page.wait_for_timeout(500)
    assert page.evaluate("() => window.jupyterapp.shell.currentWidget.model.cells.get(1).trusted")
    assert page.evaluate(LOOK, None) == []

    # and as a page on a host of code
    body, _ = HTMLExporter(template_name="basic").from_filename(str(notebook.lab.folder / notebook.name))
    still = page.context.new_page()
    still.set_content(f"<body class='page'>{body}</body>")
    still.wait_for_timeout(300)
    assert still.evaluate(LOOK, None) == []
