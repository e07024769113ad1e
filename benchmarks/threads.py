"""Does another thread decode as fast as the one that has loaded the model?

A server loads in its main thread and decodes in one of its own. GNU's OpenMP lets workers of all threads together sleep
between two loops where they are more than the cores, and those of a thread that does nothing any more count; see
`runtime/openmp.py`. The demo's target decodes plainly, by turns: in the thread that has loaded it, in another one, and
in another one while the first one keeps its workers, as all did before. Tokens/s of whole sessions, medians; `holds` is
true where another thread reaches 0.85 of the first one at every batch, and twice what it does beside idle workers at
batch 1. The last line is one JSON object.

    python benchmarks/threads.py [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import spectune
from spectune.demo.story import family_folder
from spectune.profiler.device import detect
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.openmp import let_workers_go

from result import print_result  # isort: skip

BATCHES, NEW_TOKENS = (1, 8), 256
WAYS = ("loading", "another", "another beside idle workers")
LEAST, GAIN = 0.85, 2.0


def main() -> None:
    """Run it and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="turns of each way")
    asked = parser.parse_args()
    session = spectune.load(family_folder() / "target", plan="none").session(slots=max(BATCHES), warm=True)
    with ThreadPoolExecutor(1) as pool:
        rows = [row_of(session, pool, batch, asked.repeats) for batch in BATCHES]
    checks = {f"batch {row['batch']}: another thread reaches {LEAST} of it": row["ratio"] >= LEAST for row in rows}
    checks[f"batch 1: {GAIN} times what it does beside idle workers"] = rows[0]["gain"] >= GAIN
    for row in rows:
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {name}")
    told = {"bench": "threads", "device": detect("cpu").label, "rows": rows, "checks": checks}
    print_result({**told, "holds": all(checks.values())})


def row_of(session: Scheduler, pool: ThreadPoolExecutor, batch: int, repeats: int) -> dict[str, float]:
    """Return tokens/s of each way at one batch, and the medians of what they are of each other turn by turn."""
    turns = []
    for _ in range(repeats):
        loading = speed(session, batch)
        beside = pool.submit(speed, session, batch).result()  # the first thread still has its workers
        let_workers_go()
        pool.submit(let_workers_go).result()
        another = pool.submit(speed, session, batch).result()
        pool.submit(let_workers_go).result()
        turns.append((loading, another, beside))
    medians = {way: statistics.median(turn[place] for turn in turns) for place, way in enumerate(WAYS)}
    return {
        "batch": batch,
        **medians,
        "ratio": statistics.median(another / loading for loading, another, _ in turns),
        "gain": statistics.median(another / beside for _, another, beside in turns),
    }


def speed(session: Scheduler, batch: int) -> float:
    """Return tokens/s of some requests that come at once."""
    start = time.perf_counter()
    for place in range(batch):
        session.submit(f"def main{place}(", max_new_tokens=NEW_TOKENS)
    done = [event.completion for event in session.events() if event.completion is not None]
    return sum(len(one.tokens) for one in done) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
