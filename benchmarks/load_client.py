"""Is what the load client measures what the server did? Against a scripted server that writes down its own times.

    python benchmarks/load_client.py [--runs 5]

`holds` says that in the median run tokens/s of one user and mean TPOT are at most 1 % off, for texts and for chats.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from spectune.engines.load import SamplingParams
from spectune.engines.server import ServerTimeouts, started
from spectune.engines.table import SERVERS
from spectune.profiler.prompt import Prompt
from spectune.tests.support.openai_program import VLLM, chats, texts

from result import print_result  # isort: skip

DRAFTS = ("--speculative-config", '{"method": "draft_model", "model": "small", "num_speculative_tokens": 3}')
MOST_OFF = 0.01


def main() -> None:
    """Run the loads and print how far off they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    errors = {kind: [off(make) for _ in range(runs)] for kind, make in (("texts", texts), ("chats", chats))}
    medians = {kind: statistics.median(found) for kind, found in errors.items()}
    for kind, error in medians.items():
        print(f"{kind}: off by {error:.2%} in the median of {runs} runs")
    print_result({"benchmark": "load_client", "holds": max(medians.values()) <= MOST_OFF, "errors": errors})


def off(make: Callable[[int], list[Prompt]]) -> float:
    """Return how far the client's speed and TPOT are from the server's own, the larger of both, relative."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FAKE_TRUTH"] = f"{folder}/truth"
        with started(SERVERS["vllm"], [*VLLM, *DRAFTS], ServerTimeouts(start_s=30.0, stall_s=5.0)) as running:
            load = running.measure(make(8), SamplingParams(max_tokens=256), concurrency=2).load
        truth = [json.loads(line) for line in Path(os.environ["FAKE_TRUTH"]).read_text().splitlines()]
    speed = 1000.0 * load.tokens / sum(whole for _, _, whole in truth)
    tpot_ms = sum(whole - first for _, first, whole in truth) / sum(tokens - 1 for tokens, _, _ in truth)
    errors = load.tokens_per_s_per_user / speed - 1.0, load.percentiles("tpot_ms").mean / tpot_ms - 1.0
    return float(max(map(abs, errors)))


if __name__ == "__main__":
    main()
