"""Two versions of spectune decode the same prompts with the same plan, in turns: is the new one as fast?

    git worktree add /tmp/before COMMIT
    python benchmarks/before_after.py --before /tmp/before --target FOLDER [--drafter NAME=FOLDER] --plan PLAN.json \
        --prompts humaneval.jsonl [--batch 1,4] [--count 8] [--tokens 64] [--turns 3]

Each version is a process of its own, both hold the models, one decodes at a time. A group of prompts is decoded by
both, one right behind the other, the order changing; the ratio of a group is that of its medians. `holds` says that
the median ratio is at most 2 % off at every batch size, and that the texts are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from spectune.profiler.prompts import read_prompts

from result import print_result  # isort: skip

Json = dict[str, Any]
MOST_OFF = 0.02
WORKER = """
import json, sys, time
import torch
import spectune
torch.set_grad_enabled(False)
given = json.loads(sys.stdin.readline())
models = {}
def ready(batch):
    if batch not in models:
        models[batch] = spectune.load(given["target"], device="cpu", plan=given["plan"], drafters=given["drafters"])
    return models[batch]
print(json.dumps({"file": spectune.__file__, "reason": ready(1).choice.reason}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    model, prompts = ready(1), asked["prompts"]
    started = time.perf_counter()
    done = model.generate_batch(prompts, max_new_tokens=asked["tokens"], slots=asked["batch"])
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "texts": [one.tokens for one in done]}), flush=True)
"""


class Version:
    """One checkout that decodes on demand."""

    def __init__(self, checkout: Path, given: Json) -> None:
        """Load the models there."""
        self._links = tempfile.TemporaryDirectory()
        (Path(self._links.name) / "spectune").symlink_to(checkout.resolve())
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": self._links.name},
        )
        self.facts = self._ask(given)

    def decode(self, prompts: list[str], batch: int, tokens: int) -> tuple[float, list[list[int]]]:
        """Return the seconds that prompts take, and their tokens."""
        told = self._ask({"prompts": prompts, "batch": batch, "tokens": tokens})
        return float(told["seconds"]), told["texts"]

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._links.cleanup()

    def _ask(self, what: Json) -> Json:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"a version ended with {self._process.wait()}; its error stands above")
        told: Json = json.loads(answer)
        return told


def main() -> None:
    """Decode with both versions in turns, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the older version")
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--plan", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--batch", default="1,4")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    given = {
        "target": asked.target,
        "plan": str(Path(asked.plan).resolve()),
        "drafters": dict(pair.split("=", 1) for pair in asked.drafter),
    }
    texts = [prompt.text for prompt in read_prompts(asked.prompts)][: asked.count]
    versions = {"before": Version(asked.before, given), "after": Version(Path(__file__).parents[1], given)}
    rows = [row(versions, texts, int(batch), asked.tokens, asked.turns) for batch in asked.batch.split(",")]
    facts = {name: version.facts["reason"] for name, version in versions.items()}
    for version in versions.values():
        version.close()
    holds = all(abs(one["after_over_before"] - 1.0) <= MOST_OFF and one["same_texts"] for one in rows)
    print_result({"benchmark": "before_after", "holds": holds, "plans": facts, "rows": rows})


def row(versions: dict[str, Version], texts: list[str], batch: int, tokens: int, turns: int) -> Json:
    """Return how the versions compare at one batch size; the first turn only warms up."""
    groups = [texts[at : at + batch] for at in range(0, len(texts) - batch + 1, batch)]
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in groups] for name in versions}
    is_same = True
    for turn in range(turns + 1):
        for number, group in enumerate(groups):
            order = list(versions) if (turn + number) % 2 else list(reversed(versions))
            found = {name: versions[name].decode(group, batch, tokens) for name in order}
            is_same = is_same and found["before"][1] == found["after"][1]
            for name, (spent, _) in found.items():
                if turn:
                    seconds[name][number].append(spent)
    ratios = [
        statistics.median(before) / statistics.median(after)
        for before, after in zip(seconds["before"], seconds["after"], strict=True)
    ]
    print(f"batch {batch}: after {statistics.median(ratios):.3f} of before's speed; same texts: {is_same}", flush=True)
    return {
        "batch": batch,
        "after_over_before": statistics.median(ratios),
        "groups": len(groups),
        "same_texts": is_same,
    }


if __name__ == "__main__":
    main()
