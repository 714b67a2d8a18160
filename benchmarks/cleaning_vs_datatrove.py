"""Quality rules against datatrove on this machine's own texts: the same decisions, and how fast.

    NBLLM_DATATROVE_PYTHON=/path/to/python python benchmarks/cleaning_vs_datatrove.py [--documents 20000] [--rounds 4]

That Python needs `pip install "datatrove[io,processing]" spacy "xxhash<4"`. Documents: manual pages in all languages
that are installed (their requests taken out), texts under /usr/share/doc, fortunes, and `builtin:pydocs`, mixed by a
fixed seed. Gopher quality, Gopher repetition, C4 and FineWeb one by one over the same documents on one process each,
round by round in turn. Agreement is of the decision to keep or drop, ours with `variant=datatrove`; for each document
that differs it is asked whether spaCy cuts its words otherwise than we do. Keeps every value and the medians.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RULES = {
    "gopher": "quality gopher",
    "repetition": "repetition gopher",
    "c4": "quality c4",
    "fineweb": "quality fineweb",
}
_REQUEST = re.compile(r"^[.'].*\n?", re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:f.|s[-+]?\d|\(..|[&e-])")
_LARGEST_BYTES = 200_000


def documents(count: int) -> list[str]:
    """So many texts of this machine."""
    from nbllm.corpus import pydocs

    found = [text for _, text in pydocs.documents()]
    for folder in ("/usr/share/man", "/usr/share/doc", "/usr/share/games/fortunes"):
        for path in sorted(Path(folder).rglob("*")):
            if not path.is_file() or path.is_symlink() or path.stat().st_size > _LARGEST_BYTES:
                continue
            try:
                text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
            except (OSError, EOFError, UnicodeDecodeError):
                continue
            if folder.endswith("man"):
                text = _ESCAPE.sub("", _REQUEST.sub("", text))
            found += text.split("\n%\n") if folder.endswith("fortunes") else [text]
    found = sorted({text for text in found if text.strip() and "\0" not in text})
    random.Random(0).shuffle(found)
    return found[:count]


def ours(texts: list[str], variant: str) -> dict[str, Any]:
    from nbllm.corpus import parse_stages
    from nbllm.corpus.documents import batches

    given = list(batches((text, str(number), "s") for number, text in enumerate(texts)))
    found: dict[str, Any] = {}
    for name, line in RULES.items():
        (stage,) = parse_stages([f"{line} variant={variant}"])
        stage.measure(given[0].slice(0, 1))
        started = time.perf_counter()
        reasons = []
        for batch in given:
            reasons += stage.decide(stage.measure(batch).scores).to_pylist()
        found[name] = {"reasons": reasons, "seconds": time.perf_counter() - started}
    return found


def peer(texts: list[str]) -> dict[str, Any]:
    """Runs in datatrove's Python."""
    import datatrove.utils.text as helpers
    from datatrove.data import Document
    from datatrove.pipeline import filters

    classes = (
        filters.GopherQualityFilter,
        filters.GopherRepetitionFilter,
        filters.C4QualityFilter,
        filters.FineWebQualityFilter,
    )
    found: dict[str, Any] = {}
    for name, kind in zip(RULES, classes, strict=True):
        rule = kind()
        rule.filter(Document(text=texts[0], id="0"))
        helpers.split_into_parts.cache_clear()
        started = time.perf_counter()
        reasons = []
        for number, text in enumerate(texts):
            try:
                result = rule.filter(Document(text=text, id=str(number)))
            except (ZeroDivisionError, AssertionError) as error:
                result = (False, type(error).__name__)
            reasons.append(None if result is True else result[1] if isinstance(result, tuple) else "dropped")
        found[name] = {"reasons": reasons, "seconds": time.perf_counter() - started}
    return found


def words_of(texts: list[str]) -> list[list[str]]:
    """Runs in datatrove's Python."""
    from datatrove.utils.text import split_into_words

    return [split_into_words(text) for text in texts]


def ask(python: str, what: str, texts: list[str]) -> Any:
    """Calls `peer` or `words_of` in datatrove's Python."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.json"), Path(folder, "out.json")
        source.write_text(json.dumps(texts), encoding="utf-8")
        subprocess.run([python, __file__, "--as-peer", what, str(source), str(target)], check=True)
        return json.loads(target.read_text(encoding="utf-8"))


def causes(python: str, texts: list[str], differing: dict[str, list[tuple[int, Any, Any]]]) -> dict[str, Any]:
    """For each rule: the kinds of difference, with how many of them have words that spaCy cuts otherwise."""
    from nbllm.corpus.spacy_words import cut

    found: dict[str, Any] = {}
    for name, rows in differing.items():
        theirs = ask(python, "words_of", [texts[number] for number, _, _ in rows]) if rows else []
        counted: collections.Counter[str] = collections.Counter()
        for (number, mine, other), words in zip(rows, theirs, strict=True):
            own = [word for piece in texts[number].split() for word in cut(piece)]
            why = "same words" if own == words else "words cut otherwise"
            counted[f"ours: {mine or 'kept'}; datatrove: {other or 'kept'}; {why}"] += 1
        found[name] = dict(counted.most_common())
    return found


def measured(python: str, part: list[str]) -> dict[str, Any]:
    """One round: both sides over the same documents, ours also with datatrove's decisions."""
    fast, same, other = ours(part, "paper"), ours(part, "datatrove"), ask(python, "peer", part)
    seconds = {
        who: {name: one["seconds"] for name, one in found.items()}
        for who, found in (("nbllm", fast), ("datatrove", other))
    }
    reasons = {name: [same[name]["reasons"], other[name]["reasons"]] for name in RULES}
    peak_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return {"documents": len(part), "seconds": seconds, "reasons": reasons, "peak_memory_mb": peak_mb}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=4, help="parts that are measured in turn")
    parser.add_argument("--saved", type=Path, help="a folder in which rounds are kept, for a run in several calls")
    parser.add_argument("--at-most", type=int, help="so many rounds in this call; the last call gives the result")
    options = parser.parse_args()
    from kept import keep

    python = os.environ.get("NBLLM_DATATROVE_PYTHON")
    if not python:
        raise SystemExit("Set NBLLM_DATATROVE_PYTHON to a Python that has datatrove")
    texts = documents(options.documents)
    speeds: dict[str, dict[str, list[float]]] = {name: {"nbllm": [], "datatrove": []} for name in [*RULES, "all four"]}
    agree = dict.fromkeys(RULES, 0)
    differing: dict[str, list[tuple[int, Any, Any]]] = {name: [] for name in RULES}
    size = -(-len(texts) // options.rounds)
    peak_mb = new = 0
    for start in range(0, len(texts), size):
        file = options.saved / f"{start}-{size}.json" if options.saved else None
        if file and file.exists():
            one = json.loads(file.read_text(encoding="utf-8"))
        elif new == options.at_most:
            raise SystemExit(f"{new} rounds measured; the same call goes on")
        else:
            one = measured(python, texts[start : start + size])
            new += 1
            if file:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(one), encoding="utf-8")
        peak_mb = max(peak_mb, one["peak_memory_mb"])
        for name in RULES:
            for who, seconds in one["seconds"].items():
                speeds[name][who].append(round(one["documents"] / seconds[name]))
            for number, (mine, theirs) in enumerate(zip(*one["reasons"][name], strict=True)):
                if (mine is None) == (theirs is None):
                    agree[name] += 1
                else:
                    differing[name].append((start + number, mine, theirs))
        for who, seconds in one["seconds"].items():
            speeds["all four"][who].append(round(one["documents"] / sum(seconds.values()), 1))
        print(start, {name: {who: values[-1] for who, values in one.items()} for name, one in speeds.items()})
    total_bytes = sum(len(text.encode()) for text in texts)
    rows = {}
    for name, values in speeds.items():
        middle = {who: statistics.median(found) for who, found in values.items()}
        rows[name] = {
            "documents_per_s": middle,
            "times": round(middle["nbllm"] / middle["datatrove"], 1),
            "all": values,
        }
        if name in agree:
            rows[name]["agreement"] = round(agree[name] / len(texts), 5)
        print(name, {key: value for key, value in rows[name].items() if key != "all"}, flush=True)
    result = {
        "what": "quality rules: decisions as datatrove's, and documents a second on one process",
        "documents": len(texts),
        "mean_bytes": round(total_bytes / len(texts)),
        "not_ascii": sum(not text.isascii() for text in texts),
        "mb_per_s": round(rows["all four"]["documents_per_s"]["nbllm"] * total_bytes / len(texts) / 1e6, 2),
        "peak_memory_mb": peak_mb,
        "rules": rows,
        "differences": causes(python, texts, differing),
    }
    print(json.dumps(result["differences"], indent=1, ensure_ascii=False))
    print(keep("cleaning_vs_datatrove", result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-peer"]:
        _, _, what, source, target = sys.argv
        given = json.loads(Path(source).read_text(encoding="utf-8"))
        Path(target).write_text(json.dumps({"peer": peer, "words_of": words_of}[what](given)), encoding="utf-8")
    else:
        main()
