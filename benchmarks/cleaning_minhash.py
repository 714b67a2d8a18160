"""`dedup minhash` against datatrove's on this machine's own texts: documents a second, recall, false merges.

    NBLLM_DATATROVE_PYTHON=/path/to/python python benchmarks/cleaning_minhash.py [--documents 20000] [--rounds 3]

That Python is as for `cleaning_vs_datatrove.py`, whose documents these are. Among them copies are planted whose tail
was replaced so that the Jaccard similarity of their 5-grams is 0.5, 0.6 (to be kept), 0.8, 0.85 or 0.9 (to be found, at
the threshold 0.75, so that a pair at 0.8 isn't decided by rounding; each pair's true similarity comes from its words).
Both sides use 14 bands of 8 rows. Ours: the whole cleaning with its files, verification and report tables. Theirs: the
signature, bucket, cluster and filter steps in a folder, without reading the texts. One process each, round by round.
Wall and processor seconds are kept, since another load on the machine stretches only the first.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIMILARITIES = (0.5, 0.6, 0.8, 0.85, 0.9)
THRESHOLD = 0.75
_WORDS_LEAST = 150
_WORDS_MOST = 3000


def jaccard(first: str, second: str) -> float:
    """Of 5-grams of words, by Python's sets."""
    from nbllm.corpus.words import words

    one, two = (
        {tuple(found[at : at + 5]) for at in range(len(found) - 4)}
        for found in (words(first.lower()), words(second.lower()))
    )
    return len(one & two) / max(1, len(one | two))


def planted(texts: list[str]) -> tuple[list[str], list[tuple[int, int, float]]]:
    """The texts with copies among them, and the pairs: positions and true similarity."""
    from nbllm.corpus.words import words_with_places

    rng = random.Random(0)
    pairs = []
    found = list(texts)
    fit = []
    for number, text in enumerate(texts):
        if len(text) < 30_000 and _WORDS_LEAST <= len(text.split()) <= _WORDS_MOST:
            fit.append(number)
    for turn, number in enumerate(rng.sample(fit, min(len(fit), 250 * len(SIMILARITIES)))):
        similarity = SIMILARITIES[turn % len(SIMILARITIES)]
        places = words_with_places(texts[number])
        count = len(places) - 4
        gone = round(count * (1 - similarity) / (1 + similarity))
        tail = " ".join(f"{rng.choice('bcdfg')}{rng.randrange(10**6)}" for _ in range(gone))
        copy = f"{texts[number][: places[len(places) - gone][1]]} {tail}"
        pairs.append((number, len(found), jaccard(texts[number], copy)))
        found.append(copy)
    order = list(range(len(found)))
    rng.shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    return [found[old] for old in order], [(place[a], place[b], value) for a, b, value in pairs]


def ours(texts: list[str]) -> dict[str, Any]:
    from nbllm.corpus import parse_stages
    from nbllm.corpus.documents import batches
    from nbllm.corpus.engine import run

    given = list(batches((text, str(number), "s") for number, text in enumerate(texts)))
    (stage,) = parse_stages([f"dedup minhash threshold={THRESHOLD}"])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "warm").mkdir()
        run(lambda skip: [given[0].slice(0, 20)][skip:], [stage], Path(folder, "warm"))
        Path(folder, "c").mkdir()
        wall, cpu = time.perf_counter(), time.process_time()
        run(lambda skip: given[skip:], [stage], Path(folder, "c"))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        import pyarrow as pa

        scores = pa.ipc.open_file(pa.memory_map(str(Path(folder, "c", "scores", "01-dedup-minhash.arrow")))).read_all()
        gone = scores.filter(pa.compute.is_valid(scores["reason"])).to_pylist()
    return {"wall_s": wall, "cpu_s": cpu, "dropped": {row["row"]: row["copy_of"] for row in gone}}


def peer(texts: list[str]) -> dict[str, Any]:
    """Runs in datatrove's Python."""
    from datatrove.data import Document
    from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature

    config = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8)
    given = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as folder:
        signature = MinhashDedupSignature(f"{folder}/sig", config=config)
        signature.get_shingles("warm " * 20)
        wall, cpu = time.perf_counter(), time.process_time()
        signature.run(given)
        buckets = MinhashDedupBuckets(f"{folder}/sig", f"{folder}/buckets", config=config)
        for bucket in range(config.num_buckets):
            buckets.run(None, bucket, config.num_buckets)
        MinhashDedupCluster(f"{folder}/buckets", f"{folder}/remove", config=config).run(None, 0, 1)
        kept = {document.id for document in MinhashDedupFilter(f"{folder}/remove").run(iter(given), 0, 1)}
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "dropped": [number for number in range(len(texts)) if str(number) not in kept],
    }


def ask(python: str, texts: list[str]) -> Any:
    """Calls `peer` in datatrove's Python."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.json"), Path(folder, "out.json")
        source.write_text(json.dumps(texts), encoding="utf-8")
        subprocess.run([python, __file__, "--as-peer", str(source), str(target)], check=True)
        return json.loads(target.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3, help="parts that are measured in turn")
    options = parser.parse_args()
    from cleaning_vs_datatrove import documents
    from kept import keep

    python = os.environ.get("NBLLM_DATATROVE_PYTHON")
    if not python:
        raise SystemExit("Set NBLLM_DATATROVE_PYTHON to a Python that has datatrove")
    everything = documents(options.documents)
    size = -(-len(everything) // options.rounds)
    speeds: dict[str, dict[str, list[float]]] = {who: {"wall": [], "cpu": []} for who in ("nbllm", "datatrove")}
    found: dict[str, dict[float, list[int]]] = {who: {} for who in speeds}
    below = total = total_bytes = 0
    for start in range(0, len(everything), size):
        texts, pairs = planted(everything[start : start + size])
        total += len(texts)
        total_bytes += sum(len(text.encode()) for text in texts)
        mine, theirs = ours(texts), ask(python, texts)
        gone = {"nbllm": set(mine["dropped"]), "datatrove": set(theirs["dropped"])}
        below += sum(jaccard(texts[one], texts[other]) < 0.7 for one, other in mine["dropped"].items())
        for who, one in (("nbllm", mine), ("datatrove", theirs)):
            for clock in ("wall", "cpu"):
                speeds[who][clock].append(round(len(texts) / one[f"{clock}_s"], 1))
            for first, second, similarity in pairs:
                nearest = min(SIMILARITIES, key=lambda value: abs(value - similarity))
                if abs(nearest - similarity) < 0.02:
                    counted = found[who].setdefault(nearest, [0, 0])
                    counted[0] += bool({first, second} & gone[who])
                    counted[1] += 1
        print(
            start,
            {who: {clock: values[-1] for clock, values in one.items()} for who, one in speeds.items()},
            flush=True,
        )
    middle = {who: {clock: statistics.median(values) for clock, values in one.items()} for who, one in speeds.items()}
    result = {
        "what": "near-duplicates: documents a second on one process, planted copies found, false merges",
        "documents": total,
        "mean_bytes": round(total_bytes / total),
        "documents_per_s": middle,
        "times": {clock: round(middle["nbllm"][clock] / middle["datatrove"][clock], 1) for clock in ("wall", "cpu")},
        "mb_per_cpu_s": round(middle["nbllm"]["cpu"] * total_bytes / total / 1e6, 1),
        "found": {
            who: {str(value): f"{hits} of {of}" for value, (hits, of) in sorted(one.items())}
            for who, one in found.items()
        },
        "dropped_for_a_text_less_similar_than_0.7": below,
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "all": speeds,
    }
    print(json.dumps({key: value for key, value in result.items() if key != "all"}, indent=1))
    print(keep("cleaning_minhash", result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-peer"]:
        _, _, source, target = sys.argv
        Path(target).write_text(
            json.dumps(peer(json.loads(Path(source).read_text(encoding="utf-8")))), encoding="utf-8"
        )
    else:
        main()
