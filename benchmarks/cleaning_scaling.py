"""How a cleaning's time and memory grow with the number of documents, and a corpus larger than the memory allowed.

    python benchmarks/cleaning_scaling.py [--documents 10000,30000,100000,300000,1000000] [--saved FOLDER --at-most 2]
    python benchmarks/cleaning_scaling.py --limited 256 [--times 4]

Documents are made of sentences of this machine's own texts (`builtin:pydocs`), drawn by a fixed seed, some 700 bytes
each; one in twenty is an exact copy of an earlier one and one in twenty a copy with its end changed. They are read from
a .jsonl file and cleaned by the default recipe (normalize, length, dedup exact, dedup minhash) and `dedup paragraph` on
one worker, each size in a process of its own. Kept: seconds in all, memory of its own at its peak (RssAnon: what isn't
a file's), the power of the number of documents by which the time grows, and a picture.

`--limited MB` sets RLIMIT_DATA, the limit on a process's own memory, to so many MB and cleans a corpus so many times as
large; without enough it would end with a MemoryError.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

SIZES = "10000,30000,100000,300000,1000000"
STAGES = ["normalize", "length min=100", "dedup exact", "dedup minhash", "dedup paragraph"]
_SENTENCES = 8


def write_documents(path: Path, count: int | None, size_bytes: int | None) -> int:
    """Documents as JSON lines, so many or so many bytes; returns their bytes."""
    from nbllm.corpus import pydocs

    pool = sorted({
        sentence.strip()
        for _, text in pydocs.documents()
        for sentence in re.split(r"(?<=[.:;])\s+", text)
        if 40 < len(sentence.strip()) < 200
    })  # fmt: skip
    rng = random.Random(0)
    recent: list[str] = []
    written = number = 0
    with path.open("w", encoding="utf-8") as file:
        while number < count if count else written < (size_bytes or 0):
            draw = rng.random()
            if recent and draw < 0.1:
                text = rng.choice(recent)
                if draw < 0.05:
                    text += f"\n\nA remark of number {number}."
            else:
                drawn = rng.choices(pool, k=_SENTENCES)
                text = f"{' '.join(drawn[:4])}\n\n{' '.join(drawn[4:])} {rng.randrange(10**9)}"
                if len(recent) < 20_000:
                    recent.append(text)
                else:
                    recent[rng.randrange(len(recent))] = text
            file.write(json.dumps({"text": text}) + "\n")
            written += len(text.encode())
            number += 1
    return written


def cleaned(source: str, limit_mb: int) -> None:
    """Runs in a process of its own: cleans a file and prints what it took."""
    from nbllm.corpus import clean
    from nbllm.store import Store

    if limit_mb:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_mb << 20, limit_mb << 20))
    peak = 0
    steps: dict[str, float] = {}
    stop = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.05):
            status = Path("/proc/self/status").read_text(encoding="ascii")
            peak = max(peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")))

    def progress(name: str, done: int, total: int | None) -> None:
        steps[name] = time.perf_counter()

    threading.Thread(target=watch, daemon=True).start()
    with tempfile.TemporaryDirectory(dir=Path(source).parent) as folder:
        started = time.perf_counter()
        corpus = clean(Store(folder), [source], stages=STAGES, name="docs", progress=progress)
        seconds = time.perf_counter() - started
        stop.set()
        ends = [started, *steps.values(), started + seconds]
        spans = [round(after - before, 2) for before, after in itertools.pairwise(ends)]
        print(json.dumps({
            "documents": corpus.report.came_in.documents,
            "kept": len(corpus),
            "seconds": round(seconds, 2),
            "by_step": dict(zip([*steps, "files"], spans, strict=True)),
            "own_memory_mb": round(peak / 1024),
        }))  # fmt: skip


def measured(count: int | None, size_bytes: int | None = None, limit_mb: int = 0) -> dict[str, Any]:
    """One size, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "documents.jsonl")
        text_bytes = write_documents(source, count, size_bytes)
        command = [sys.executable, __file__, "--one", str(source), str(limit_mb)]
        # Arrow's own allocator reserves whole regions, which count against the limit; malloc doesn't
        environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
        answer = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout
    return {**json.loads(answer.splitlines()[-1]), "bytes": text_bytes}


def picture(rows: list[dict[str, Any]]) -> str:
    """Seconds over documents, both by powers of ten, beside a line of growth in proportion."""
    xs = [math.log10(row["documents"]) for row in rows]
    ys = [math.log10(row["seconds"]) for row in rows]
    left, bottom, unit = 60, 330, 130

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (x - xs[0]) * unit * 2, bottom - (y - ys[0]) * unit

    places = [at(x, y) for x, y in zip(xs, ys, strict=True)]
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in places)
    labels = "".join(
        f'<text x="{x + 8:.1f}" y="{y + 14:.1f}">{row["documents"]:,}: {row["seconds"]:.1f} s, '
        f"{row['own_memory_mb']} MB</text>"
        for (x, y), row in zip(places, rows, strict=True)
    )
    x0, y0 = at(xs[0], ys[0])
    x1, y1 = at(xs[-1], ys[0] + xs[-1] - xs[0])
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 360" font-family="sans-serif" font-size="12" '
        'fill="#0072b2"><rect width="760" height="360" fill="#fff"/>'
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="#999" stroke-dasharray="5 4"/>'
        f'{dots}<g fill="#333">{labels}<text x="10" y="20">seconds and own memory by documents; dashed: in proportion'
        "</text></g></svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", default=SIZES)
    parser.add_argument("--saved", type=Path, help="a folder in which sizes are kept, for a run in several calls")
    parser.add_argument("--at-most", type=int, help="so many sizes in this call; the last call gives the result")
    parser.add_argument("--limited", type=int, help="MB of memory of its own that the cleaning may take")
    parser.add_argument("--times", type=float, default=4.0, help="how much larger the corpus is")
    options = parser.parse_args()
    from kept import keep

    if options.limited:
        row = measured(None, round(options.limited * options.times * 2**20), options.limited)
        row = {"limit_mb": options.limited, "corpus_mb": round(row["bytes"] / 2**20), **row}
        print(row)
        print(keep("cleaning_limited", {"what": "a corpus larger than the memory allowed to the cleaning", **row}))
        return
    rows, new = [], 0
    for count in map(int, options.documents.split(",")):
        file = options.saved / f"{count}.json" if options.saved else None
        if file and file.exists():
            row = json.loads(file.read_text(encoding="utf-8"))
        elif new == options.at_most:
            raise SystemExit(f"{new} sizes measured; the same call goes on")
        else:
            row = measured(count)
            new += 1
            if file:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(row), encoding="utf-8")
        rows.append(row)
        print(row, flush=True)
    first, last = rows[0], rows[-1]
    power = math.log(last["seconds"] / first["seconds"]) / math.log(last["documents"] / first["documents"])
    result = {
        "what": "cleaning and deduplicating from few documents to many, on one worker",
        "grows_with_the_power": round(power, 3),
        "documents_per_s": {row["documents"]: round(row["documents"] / row["seconds"]) for row in rows},
        "rows": rows,
    }
    path = keep("cleaning_scaling", result)
    path.with_suffix(".svg").write_text(picture(rows), encoding="utf-8")
    print(power, path)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        cleaned(sys.argv[2], int(sys.argv[3]))
    else:
        main()
