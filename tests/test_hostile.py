"""Text and files from strangers: nothing of them steers a page or a terminal, is run, or reaches outside the store."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbllm.errors import DataError, NbllmError, NotFoundError, StoreError
from nbllm.panels.face import Face
from nbllm.plain import plain, plain_html
from nbllm.sample.prompt import chat_prompt
from nbllm.sessions import Session
from nbllm.store import Store
from nbllm.tokenizer import Tokenizer

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
LINK = "<a href='javascript:alert(1)'>x</a>"
STYLE = "</style><style>*{background:url(//evil)}</style>"
TURN = "\u202eevil\u202c \u2066x\u2069"
TERMINAL = "\x1b]0;title\x07\x1b[31mred\x1b[0m \x9b2J \x08\x08"
HOSTILE = [SCRIPT, IMAGE, LINK, STYLE, TURN, TERMINAL]
STEERING = ("\x1b", "\x07", "\x08", "\x9b", "\u202e", "\u2066")


def harmless_text(text: str) -> bool:
    return not any(character in text for character in STEERING)


def harmless_html(markup: str) -> bool:
    tags = ("<script", "<img", "<a href='javascript", "</style><style>*{back", "onerror=alert(1)>")
    return not any(tag in markup for tag in tags)


class Trap:
    """Unpickling it makes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("trapped"),))


def test_plain_writes_out_what_would_steer() -> None:
    assert plain("a\tb\nc\r\nd é 中文 مرحبا 😀") == "a\tb\nc\r\nd é 中文 مرحبا 😀"
    assert plain("\x1b[31m\u202ex\r!\ud800") == "<U+001B>[31m<U+202E>x<U+000D>!<U+D800>"
    assert plain_html("<b>\x1b</b>") == "<b>&lt;U+001B&gt;</b>"


@pytest.mark.parametrize("text", HOSTILE)
def test_an_error_shows_no_steering_character(text: str) -> None:
    error = NotFoundError(f"No run is named {text}", received=text, next=text)
    assert harmless_text(str(error))
    assert harmless_text("".join(error._render_traceback_()))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_face_sends_no_steering_character(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import html

    import IPython.display

    sent: list[dict[str, str]] = []
    monkeypatch.setattr(IPython.display, "publish_display_data", lambda data, **_: sent.append(data))
    Face().show(f"<p>{html.escape(text)}</p>", text)
    (data,) = sent
    assert harmless_text(data["text/plain"])
    assert harmless_text(data["text/html"])


@pytest.mark.parametrize("text", HOSTILE)
def test_documents_in_every_face_of_a_corpus_and_a_tokenizer(text: str, tmp_path: Path) -> None:
    session = Session(Store(tmp_path / ".nbllm"), "default")
    texts = [f"{text} number {n} and the words of it" for n in range(30)]
    corpus = session.clean(texts=texts, stages=["length min=3", "dedup exact"], name="docs")
    tokenizer = session.train_tokenizer(vocab_size=280, special=[f"<|{text}|>"])
    assert tokenizer.decode(tokenizer.encode(texts[0])) == texts[0]  # shown otherwise, kept exactly
    for shown in (corpus.report, tokenizer.inspect(texts[0]), tokenizer.report(corpus.texts()), session.card()):
        markup = shown._repr_html_()
        assert harmless_html(markup)
        assert harmless_html(markup.replace("&#x27;", "'"))


@pytest.mark.parametrize("text", HOSTILE)
def test_names_are_refused_or_harmless(text: str, tmp_path: Path) -> None:
    session = Session(Store(tmp_path / ".nbllm"), "default")
    with pytest.raises(NbllmError) as raised:
        session.clean(texts=["a"], name=text)
    assert harmless_text(str(raised.value))
    with pytest.raises(NbllmError):
        session.train(name=text)
    with pytest.raises(NbllmError):
        Session(Store(tmp_path / ".nbllm"), text)


@pytest.mark.parametrize("text", [SCRIPT, TURN, TERMINAL])
def test_a_file_name_in_reports_and_errors(text: str, tmp_path: Path) -> None:
    name = text.replace("/", "_")
    (tmp_path / f"{name}.txt").write_text("one document of words")
    (tmp_path / f"{name}.jsonl").write_bytes(b"\xff\n")
    session = Session(Store(tmp_path / ".nbllm"), "default")
    corpus = session.clean(str(tmp_path / f"{name}.txt"), recipe="none", name="docs")
    assert harmless_html(corpus.report._repr_html_())
    with pytest.raises(NbllmError) as raised:
        session.clean(str(tmp_path / f"{name}.jsonl"), recipe="none", name="more")
    assert harmless_text(str(raised.value))


def test_what_a_magic_prints_in_a_terminal(tiny_session: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "nbllm")
    with contextlib.suppress(NbllmError):
        shell.run_line_magic("llm_session", f'use "{TERMINAL}"')
    Path(".nbllm/sessions").mkdir(parents=True, exist_ok=True)
    Path(".nbllm/sessions/\x1b[31mred.json").write_text("{}")
    shell.run_line_magic("llm_session", "list")
    assert harmless_text(capsys.readouterr().out)


def test_what_a_result_shows_as_a_cells_out(tmp_path: Path) -> None:
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "nbllm")
    session = Session(Store(tmp_path / ".nbllm"), "default")
    corpus = session.clean(texts=[f"{text} {n}" for n, text in enumerate(HOSTILE)], recipe="none", name="docs")
    for result in (corpus.examples(9), [corpus.examples(9)], session.card(), corpus.report):
        data, _ = shell.display_formatter.format(result)
        assert harmless_text(data["text/plain"])
        if "text/html" in data:
            assert harmless_text(data["text/html"])
            assert data["text/html"].startswith('<div class="tex2jax_ignore mathjax_ignore">')
    assert not harmless_text("".join(corpus.texts()))  # Python gets it as it is
    shell.run_line_magic("unload_ext", "nbllm")
    assert "mathjax_ignore" not in shell.display_formatter.format(session.card())[0]["text/html"]


def test_pickles_in_the_place_of_weights_are_not_read(tiny_session: Any) -> None:
    session = tiny_session()
    folder = Path("model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(NbllmError):
        session.generate("the", max_new_tokens=1)
    (folder / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(NbllmError):
        session.generate("the", max_new_tokens=1)
    assert not Path("trapped").exists()


def test_code_of_a_model_is_not_run(tiny_session: Any) -> None:
    session = tiny_session()
    folder = Path("model")
    (folder / "evil.py").write_text("from pathlib import Path\nPath('trapped').touch()\nclass M: pass\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.M", "AutoModelForCausalLM": "evil.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(NbllmError):
        session.generate("the", max_new_tokens=1)
    assert not Path("trapped").exists()


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch trapped') }}",
        "{% for m in messages %}{{ m.__init__.__globals__ }}{% endfor %}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_chat_template_is_sandboxed(tiny_session: Any, template: str) -> None:
    tiny_session()
    tokenizer = Tokenizer(Path("model/tokenizer.json").read_text(), config={}, chat_template=template, name="evil")
    with pytest.raises(NbllmError, match="The chat template refuses the conversation"):
        chat_prompt(tokenizer, "the")
    assert not Path("trapped").exists()


def test_links_out_of_the_store_are_neither_packed_nor_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    session = Session(Store(tmp_path / ".nbllm"), "default")
    corpus = session.clean(texts=["one", "two"], recipe="none", name="docs")
    os.symlink(secret, tmp_path / ".nbllm/corpora/docs/link.txt")
    with pytest.raises(StoreError, match="isn't what was written"):
        session.store.verify(corpus.manifest)
    session.pack("all.zip")
    assert b"secret" not in Path("all.zip").read_bytes()
    # removing takes the link, not what it points to
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("kept")
    os.symlink(tmp_path / "kept", tmp_path / ".nbllm/corpora/docs/folder")
    session.rm("docs", yes=True)
    assert (tmp_path / "kept/file").read_text() == "kept"
    assert secret.read_text() == "secret"


def test_a_manifest_does_not_choose_its_name(tmp_path: Path) -> None:
    session = Session(Store(tmp_path / ".nbllm"), "default")
    session.clean(texts=["one"], recipe="none", name="docs")
    file = tmp_path / ".nbllm/corpora/docs/manifest.json"
    fields = json.loads(file.read_text())
    file.write_text(json.dumps({**fields, "name": "../../" + SCRIPT}))
    assert session.store.names("corpus") == ["docs"]
    file.write_text(json.dumps({**fields, "kind": "../../evil"}))
    assert session.store.names("corpus") == []
    with pytest.raises(StoreError, match="no kind and name of an artefact"):
        session.store.get("corpus", "docs")


def test_a_bomb_in_a_session_file_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "bomb.zip").write_bytes(b"PK\x05\x06" + b"\0" * 18)
    session = Session(Store(tmp_path / ".nbllm"), "default")
    with pytest.raises(DataError, match=r"isn't an archive of a session"):
        session.unpack(tmp_path / "bomb.zip")
    shutil.rmtree(tmp_path / ".nbllm", ignore_errors=True)
