"""`%%llm_clean`: text from files, variables or the embedded corpus becomes a corpus, stage by stage."""

from __future__ import annotations

from typing import Any

from nbllm.commands.base import Call, Command
from nbllm.commands.options import Option
from nbllm.errors import Interrupted, UsageError


def _run(call: Call) -> Any:
    from nbllm.corpus.progress import CalmProgress

    arguments = call.arguments
    if not arguments.source:
        raise UsageError("There is nothing to clean", next="Name a file, a folder, $texts or builtin:pydocs")
    stages = None
    if call.body is not None and call.body.strip():
        stages = call.body.splitlines()
    paths = [source for source in arguments.source if not _strings(source)]
    texts = [text for source in arguments.source if _strings(source) for text in source] or None
    functions = {name: value for name, value in call.namespace.items() if callable(value) and not name.startswith("_")}
    progress = CalmProgress(call.say)

    def estimated(found: Any) -> None:
        call.say(f"{found}.")
        progress.expect(found.seconds)

    try:
        corpus = call.session.clean(
            *paths,
            texts=texts,
            stages=stages,
            functions=functions,
            progress=progress,
            say=call.say,
            estimated=estimated,
            **arguments.only("name", "recipe", "text_column", "split", "stream", "max_expansion", "overwrite"),
            **arguments.only("workers", "engine", "ray_address"),
            **arguments.only("mix", "tokens", "bytes_per_token"),
            **({"keep": _ids(arguments.keep)} if arguments.keep else {}),
        )
    except KeyboardInterrupt:
        raise Interrupted("no corpus was made; the same cell run again goes on where this stopped") from None
    if corpus.reused:
        call.say(f"Corpus {corpus.name} was made with these stages from this text before: it is used again.")
    return corpus


def _ids(given: list[Any]) -> list[str]:
    """The ids of an allow-list: typed one by one, or lists of the notebook."""
    return [str(one) for value in given for one in ([value] if isinstance(value, str) else value)]


def _strings(source: Any) -> bool:
    """Whether a notebook value is texts to clean rather than where to find them."""
    return isinstance(source, (list, tuple)) and all(isinstance(text, str) for text in source)


COMMAND = Command(
    name="llm_clean",
    summary="clean text into a corpus",
    example="%%llm_clean builtin:pydocs --name pydocs\nnormalize\nlength min=100\ndedup exact",
    body="one stage a line, in order; empty: the recipe's own stages",
    options=(
        Option(
            name="source",
            help="files, folders, globs, label=PATH, $variable, hf:NAME, builtin:pydocs",
            kind="any",
            many=True,
            completes="file",
        ),
        Option(name="--name", help="the corpus's name; by default after the first source"),
        Option(name="--recipe", help="a named list of stages", default="default", completes="recipe"),
        Option(name="--text-column", help="the column that holds the text, in .jsonl, .csv and .parquet"),
        Option(name="--split", help="how a text file becomes documents: file, line, blank or a marker", default="file"),
        Option(name="--stream", help="read hf: sources as they come, without a copy on disk", kind="flag"),
        Option(
            name="--max-expansion",
            help="how many times its size a compressed file may unpack to; 100 by default",
            kind="integer",
        ),
        Option(name="--mix", help="shares of the sources, NAME=WEIGHT,…, or $weights (a dict)", kind="any"),
        Option(name="--tokens", help="tokens the mix takes, such as 1B; by default all without a copy", kind="any"),
        Option(name="--bytes-per-token", help="how tokens are estimated for the mix: 4 by default", kind="number"),
        Option(name="--workers", help="processes; 1 by default, with Ray the cluster's CPUs", kind="integer"),
        Option(
            name="--engine",
            help="local, or ray: the same corpus from a cluster",
            choices=("local", "ray"),
            default="local",
        ),
        Option(name="--ray-address", help="a running Ray cluster: auto, ray://HOST:10001; by default a local one"),
        Option(
            name="--keep",
            help="ids of documents that no stage drops, or $ids (the panel marks them)",
            kind="any",
            many=True,
        ),
        Option(name="--overwrite", help="replace a corpus of that name", kind="flag"),
    ),
    run=_run,
)
