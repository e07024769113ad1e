"""How fast recorded positions are replayed, once all loops are compiled, on one core.

    python benchmarks/replay.py [--prompts 64] [--tokens 128] [--repeats 15] [-o FILE]

The recording is made up: at every position a drafter whose confidences spread as those of the demo family's small one
(its most likely token's deciles are within 0.09 and its mean probability by rank within 0.04), 10 children of a node,
and what the `standard` recording level keeps: beams of width 1 to 10 and depth 8, and TALON's default tree. The
target's token is the drafter's first with probability 0.68, as it was there. How often a policy lacks an expansion that
could change its result is printed: OPT-Tree's wide layers are not in such a recording.

    stateless   recorded positions a second of one policy with 60 nodes, at all positions
    sweep       the same, of all depths and sizes of a width at once
    coupled     visited positions a second of CAST with 60 nodes and 8 layers, whose trees share widths and size

A rate is the median of the repeats, by the processor time of this process: on a core of its own that is the time on the
clock, and on a shared one the neighbours' turns do not count. The rate by the clock is printed beside it. The last line
is one JSON object; `holds` is true where EAGLE-2 60/7/10 runs at 300,000 positions a second and CAST at batch 8 at
100,000, with no position censored, and where the whole plan of `whole_plan.py` takes at most 60 s on all cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spectune.planner.records.draft import Children, Ints
from spectune.planner.records.recording import Recording, recording_of
from spectune.planner.records.results import PositionResults
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.cast import CastPolicy, replay_cast
from spectune.planner.strategies.eagle2 import Eagle2Policy, eagle2_results
from spectune.planner.strategies.opt_tree import OptTreePolicy, opt_tree_results
from spectune.planner.strategies.talon import TalonPolicy, talon_results
from spectune.profiler.device import detect
from spectune.profiler.records.acceptance import MISS, AcceptanceTrace, PromptTrace

from result import print_result  # isort: skip

STATELESS_BAR, COUPLED_BAR = 300_000.0, 100_000.0
CHILDREN, DEPTH, NODES = 10, 8, 60
HITS_BY_RANK = (0.68, 0.10, 0.045, 0.03, 0.02, 0.02, 0.01, 0.005, 0.004, 0.004)
NOBODY = 0
Words = NDArray[np.uint64]
Contenders = Sequence[tuple[TreePolicy, PositionResults]]
EAGLE2_DEPTHS, EAGLE2_SIZES = range(DEPTH), (4, 6, 8, 12, 16, 24, 32, 48, NODES)
TALON_NODES, TALON_DEPTHS = (8, 16, 24, 32, 48, NODES), (4, 6, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What each repeat took, by the processor's time and by the clock."""

    processor_s: tuple[float, ...]
    clock_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Positions a second of something that was done several times."""

    name: str
    positions: int
    spent: Spent
    censored_share: float

    @property
    def per_s(self) -> float:
        """Return the median rate by processor time."""
        return self.positions / statistics.median(self.spent.processor_s)

    @property
    def per_clock_s(self) -> float:
        """Return the median rate by the clock."""
        return self.positions / statistics.median(self.spent.clock_s)


def main() -> int:
    """Measure every rate on one core; return 1 where a bar is missed."""
    asked = arguments()
    machine = detect("cpu").label  # before this process sees one core only
    plan = whole_plan()  # likewise
    not_run = [] if pinned() else ["pinning to one core: not on this system"]
    trace = made_up_trace(asked.prompts, asked.tokens)
    recording = recording_of(trace)
    arrays = (recording.child, recording.log_probs, recording.scores, recording.hit_rank, recording.survivals())
    bytes_laid_out = sum(array.nbytes for array in arrays)
    print(f"{trace.positions} positions, {len(recording.child) / trace.positions:.0f} expansions each")
    print(
        f"{trace.bytes_per_position:.0f} bytes a position as a trace, {bytes_laid_out / trace.positions:.0f} laid out"
    )
    rates = [*stateless_rates(recording, asked.repeats), *coupled_rates(recording, asked.repeats)]
    for rate in rates:
        print(
            f"{rate.name:28} {rate.per_s:10,.0f} positions/s ({rate.per_clock_s:,.0f} by the clock), "
            f"censored {rate.censored_share:.1%}"
        )
    bars = {"EAGLE-2 60/7/10": STATELESS_BAR, "CAST, 60 nodes, batch 8": COUPLED_BAR}
    by_name = {rate.name: rate for rate in rates}
    result = {
        "benchmark": "replay",
        "machine": machine,
        "python": platform.python_version(),
        "positions": trace.positions,
        "bytes_per_position": {"trace": trace.bytes_per_position, "laid_out": bytes_laid_out / trace.positions},
        "rates": {
            rate.name: {"positions_per_s": rate.per_s, "by_the_clock": rate.per_clock_s, **asdict(rate)}
            for rate in rates
        },
        "whole_plan": plan,
        "bars": bars,
        "holds": plan["holds"]
        and all(by_name[name].per_s >= bar and not by_name[name].censored_share for name, bar in bars.items()),
        "not_run": not_run,
    }
    print_result(result, asked.output)
    return 0 if result["holds"] else 1


def arguments() -> argparse.Namespace:
    """Return what was asked on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="of each continuation")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


def whole_plan() -> dict[str, Any]:
    """Return what `whole_plan.py` says, on all cores and in a process of its own."""
    script = Path(__file__).with_name("whole_plan.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if not lines:
        raise SystemExit(done.stderr)
    print(lines[-2])
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def pinned() -> bool:
    """Stay on one core from now on; say whether the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return True


def stateless_rates(recording: Recording, repeats: int) -> list[Rate]:
    """Return the rates of policies whose trees depend on the committed text alone."""
    talon = partial(talon_results, recording, 0.03, CHILDREN, CHILDREN)
    sweeps: dict[str, Callable[[], Contenders]] = {
        "EAGLE-2 60/7/10": lambda: list(eagle2_results(recording, CHILDREN, [DEPTH - 1], [NODES])),
        "sweep of EAGLE-2 of top 10": lambda: list(eagle2_results(recording, CHILDREN, EAGLE2_DEPTHS, EAGLE2_SIZES)),
        "TALON 60/0.03/10": lambda: list(talon([NODES], [50])),
        "sweep of TALON of one gate": lambda: list(talon(TALON_NODES, TALON_DEPTHS)),
        "OPT-Tree 60/0.5/10": lambda: list(opt_tree_results(recording, [OptTreePolicy()])),
    }
    is_position = recording.rows.left > 0
    rates = []
    for name, sweep in sweeps.items():
        censored = float(np.mean([results.censored[is_position] for _, results in sweep()]))
        positions = int(is_position.sum())
        rates.append(Rate(name=name, positions=positions, spent=spent(sweep, repeats), censored_share=censored))
    return rates


def coupled_rates(recording: Recording, repeats: int) -> list[Rate]:
    """Return the rates of CAST, which drafts the whole beam and verifies 60 nodes where nothing has a price."""
    policy = CastPolicy(
        breadth=0.0,
        depth=0.0,
        rerank=0.0,
        max_width=CHILDREN,
        max_depth=DEPTH,
        max_verify_tokens=NODES,
        ratio_window=4,
        draft_cost_ms=(0.0, *(2.0 + 0.02 * nodes for nodes in range(CHILDREN))),
        verify_cost_ms=(0.0, *(25.0 + 0.1 * tokens for tokens in range(NODES))),
    )
    rates = []
    for batch in (1, 8, 32):
        run = partial(replay_cast, policy, recording, batch)
        replay = run()
        rates.append(
            Rate(
                name=f"CAST, 60 nodes, batch {batch}",
                positions=replay.kept.size,
                spent=spent(run, repeats),
                censored_share=replay.censored_share,
            )
        )
    return rates


def spent(action: Callable[[], object], repeats: int) -> Spent:
    """Return what each repeat took, after one that compiles and warms."""
    action()
    processor_s, clock_s = [], []
    for _ in range(repeats):
        clock_ns, processor_ns = time.perf_counter_ns(), time.process_time_ns()
        action()
        processor_s.append((time.process_time_ns() - processor_ns) / 1e9)
        clock_s.append((time.perf_counter_ns() - clock_ns) / 1e9)
    return Spent(processor_s=tuple(processor_s), clock_s=tuple(clock_s))


class MadeUpDrafter:
    """Answers at many positions at once and writes down every node it was asked about.

    A node is a word made of the position and the ranks on the way to it, and its children follow from that word alone.
    On the target's own path a word is even; below any other node all words are odd.
    """

    def __init__(self, positions: int) -> None:
        """Stand at the roots of so many positions."""
        self.rows = np.arange(positions)[:, None]
        self.words = hashed(self.rows.astype(np.uint64)) << np.uint64(1)
        self.seen: list[tuple[Ints, Words, Words, Ints]] = []  # rows, nodes, parents, ranks

    def root(self, children: int) -> Children:
        """Return the roots' children."""
        return self._answer(np.zeros_like(self.words), np.zeros(self.words.shape, dtype=np.int64), children)

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        """Return the next layer's children."""
        above = np.where(parents < 0, NOBODY, self.words[self.rows, parents])
        self.words = np.where(parents < 0, NOBODY, below(above, ranks))
        return self._answer(above, ranks, children)

    def _answer(self, above: Words, ranks: Ints, children: int) -> Children:
        is_real = self.words != NOBODY
        rows = np.broadcast_to(self.rows, self.words.shape)
        self.seen.append((rows[is_real], self.words[is_real], above[is_real], ranks[is_real]))
        log_probs = confidences(self.words)[:, :, :children]
        return Children(tokens=np.zeros(log_probs.shape, dtype=np.int64), log_probs=log_probs)


def hashed(words: Words) -> Words:
    """Return well mixed words (splitmix64)."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def below(words: Words, ranks: Ints) -> Words:
    """Return the children's words: even for the target's own token below a node on its path."""
    is_own = (ranks == own_ranks(words)) & (words % 2 == 0)
    children: Words = (hashed(words * np.uint64(16) + ranks.astype(np.uint64)) | np.uint64(1)) - is_own
    return children


def uniform(words: Words, stream: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1) that follow from the words."""
    numbers: NDArray[np.float64] = hashed(words ^ hashed(np.array([stream], dtype=np.uint64))) / 2.0**64
    return numbers


def own_ranks(words: Words) -> Ints:
    """Return which child the target would take."""
    ranks = np.searchsorted(np.cumsum(HITS_BY_RANK), uniform(words, 1))
    return np.where(ranks < CHILDREN, ranks, MISS)


def confidences(words: Words) -> NDArray[np.float32]:
    """Return (..., CHILDREN): log-probabilities, descending; the first one's spread is that of a small drafter."""
    first = 0.02 + 0.98 * uniform(words, 2) ** 1.35
    tail = np.arange(1, CHILDREN) ** -1.2
    others = np.minimum((1.0 - first)[..., None] * 0.45 * tail / tail.sum(), first[..., None])
    log_probs: NDArray[np.float32] = np.log(np.concatenate([first[..., None], others], axis=-1)).astype(np.float32)
    return log_probs


def made_up_trace(prompts: int, tokens: int) -> AcceptanceTrace:
    """Return the trace of beams of width 1 to 10 and of TALON's default tree."""
    positions = prompts * (tokens - 1)
    policies: list[TreePolicy] = [
        *(Eagle2Policy(verify_tokens=2, depth=DEPTH - 1, top_k=width) for width in range(1, CHILDREN + 1)),
        TalonPolicy(),
    ]
    seen = []
    for policy in policies:
        drafter = MadeUpDrafter(positions)
        grow(policy, drafter, positions)
        seen += drafter.seen
    rows, words, above, ranks = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    _, first = np.unique(words, return_index=True)
    first = first[np.lexsort((first, rows[first]))]  # by position, then in the order of drafting: parents first
    return trace_of(rows[first], words[first], above[first], ranks[first], prompts, tokens)


def trace_of(rows: Ints, words: Words, above: Words, ranks: Ints, prompts: int, tokens: int) -> AcceptanceTrace:
    """Return the trace of nodes that are sorted by position, parents before children."""
    order = np.argsort(words)
    starts = np.searchsorted(rows, np.arange(prompts * (tokens - 1) + 1))
    parents = order[np.searchsorted(words, above, sorter=order) % len(words)] - starts[rows]
    parents[above == NOBODY] = -1
    log_probs = confidences(words)
    hits = np.where(words % 2 == 0, own_ranks(words), MISS)
    traces = []
    for prompt in range(prompts):
        own = slice(prompt * (tokens - 1), (prompt + 1) * (tokens - 1) + 1)
        nodes = slice(starts[own][0], starts[own][-1])
        traces.append(
            PromptTrace(
                prompt=tuple(range(100)),
                continuation=tuple(range(tokens)),
                next_rank=hits[starts[own][:-1]].astype(np.uint8),
                offsets=(starts[own] - starts[own][0]).astype(np.int32),
                parent=parents[nodes].astype(np.int16),
                rank=ranks[nodes].astype(np.uint8),
                log_probs=log_probs[nodes],
                hit_rank=hits[nodes].astype(np.uint8),
            )
        )
    return AcceptanceTrace(
        target="made up",
        drafter="made up",
        drafter_name="made up",
        workload="made up",
        temperature=0.0,
        seed=0,
        children=CHILDREN,
        prefix_exact=False,  # positions were drawn apart from each other
        prompts=tuple(traces),
    )


if __name__ == "__main__":
    sys.exit(main())
