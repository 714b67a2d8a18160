"""`%llm_tokenizer`: train one, load one, look into one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import NotFoundError, UsageError, did_you_mean

_FIRST_S, _EVERY_S = 5.0, 20.0
_ACTIONS = {
    "train": "train on the current corpus, without its held-out part",
    "load": "a stored name, a transformers folder, a tokenizer.json, .tiktoken or .model file, tiktoken:NAME",
    "inspect": "a text as coloured tokens with ids and bytes",
    "compare": "two to five tokenizers side by side on a corpus by language, or on a text in quotes behind them",
    "report": "vocabulary, compression and round trip on the current corpus; with --model, tokens it hardly learnt",
}


def _run(call: Call) -> Any:
    session, arguments = call.session, call.arguments
    action = arguments.action
    if action not in _ACTIONS:
        known = (
            did_you_mean(action, _ACTIONS) if action else "Type %llm_tokenizer train, load, inspect, compare or report"
        )
        raise UsageError(f"%llm_tokenizer can't {action!r}" if action else "%llm_tokenizer needs a verb", next=known)
    if action == "train":
        tokenizer = session.train_tokenizer(
            **arguments.only(
                "corpus", "algorithm", "vocab_size", "special", "pattern", "digits", "name", "held_out", "overwrite"
            ),
            progress=_Progress(call.say),
        )
        if tokenizer.reused:
            call.say(f"Tokenizer {tokenizer.name} was trained so on this corpus before: it is used again.")
        elif "vocab_size" not in arguments.given:
            call.say(f"Vocabulary of {tokenizer.vocab_size:,} entries, by the size of the corpus.")
        return tokenizer
    if action == "load":
        return session.load_tokenizer(
            _one(arguments.words, "load", "a name, folder or file"), **arguments.only("pattern")
        )
    if action == "compare":
        names = list(arguments.words)
        typed = names.pop() if len(names) > 2 and " " in str(names[-1]).strip() else None
        return session.compare_tokenizers(*names, text=typed, **arguments.only("corpus", "parallel"))
    if session.tokenizer is None:
        raise NotFoundError("There is no tokenizer yet", next="Make one with %llm_tokenizer train")
    if action == "inspect":
        text = _one(arguments.words, "inspect", 'a text in quotes: "some text"')
        return session.tokenizer.inspect(text, **arguments.only("allow_special"))
    if session.corpus is None:
        raise NotFoundError("There is no corpus to report on", next="Make one with %llm_clean builtin:pydocs")
    report = session.tokenizer.report(session.corpus.texts())
    if "model" in arguments.given:
        found = session.undertrained_tokens(model=arguments.model)
        report = dataclasses.replace(report, undertrained=found.tokens)
    return report


def _one(words: list[str], action: str, what: str) -> str:
    if len(words) != 1:
        raise UsageError(f"%llm_tokenizer {action} needs {what}", received=" ".join(words) or None)
    return words[0]


class _Progress:
    """Says how far the reading is, at a calm pace; the merging afterwards takes seconds to minutes and is silent."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._next_s = time.monotonic() + _FIRST_S

    def __call__(self, texts: int, text_bytes: int) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _EVERY_S
            self._say(f"Read {texts:,} texts, {text_bytes / 1e6:,.0f} MB …")


COMMAND = Command(
    name="llm_tokenizer",
    summary="train a tokenizer, load one, look into one",
    example='%llm_tokenizer train --vocab-size 2048\n%llm_tokenizer inspect "Two  spaces, naïve CH3COOH"',
    actions=_ACTIONS,
    options=(
        Option(name="action", help="what to do"),
        Option(name="words", help="a text to inspect, what to load, what to compare", many=True, completes="tokenizer"),
        Option(name="--corpus", help="what to train or compare on; the current corpus by default", completes="corpus"),
        Option(name="--algorithm", help="how", default="bpe", choices=("bpe", "unigram", "wordpiece")),
        Option(name="--vocab-size", help="entries; by default 2,048 to 32,768 by the text's size", kind="integer"),
        Option(name="--special", help="further special tokens", many=True),
        Option(
            name="--pattern",
            help="how text is cut before merging; gpt4 by default (wordpiece has its own way)",
            choices=("gpt2", "gpt4", "gpt4o", "llama3", "none"),
        ),
        Option(
            name="--digits",
            help="how digits are cut; by default the pattern's own way",
            choices=("single", "triple", "any"),
        ),
        Option(name="--held-out", help="fraction of documents to leave out", kind="number", default=0.05),
        Option(name="--name", help="the tokenizer's name; the corpus's by default"),
        Option(
            name="--parallel",
            help="with compare: a .tsv, .csv or .jsonl file or $table of the same sentences, a column a language",
            kind="any",
        ),
        Option(name="--model", help="with report: whose embedding to search for tokens hardly learnt", completes="run"),
        Option(name="--allow-special", help="read special tokens typed in a text to inspect as such", kind="flag"),
        Option(name="--overwrite", help="replace a tokenizer of that name", kind="flag"),
    ),
    run=_run,
)
