"""What each level of a recording can replay, what it takes to keep, and how fast it is made.

    python benchmarks/recording.py [--drafter small] [--prompts 8] [--tokens 64] [--repeats 3] [-o FILE]

A drafter of the demo family is recorded along the target's own text: at every level, and with one beam of width 8 for
comparison. A position counts as censored for a published policy if the policy expands or verifies a node there that
was not recorded; what it does is read off a recording of its own tree over 60 children. That is strict: the planner
counts fewer, because many lost nodes cannot change a result, and a chain of a drafter that reads committed text alone
replays from the roots. CAST's tree depends on measured costs: they are timed first, at batch 1.

The last line is one JSON object; `holds` is true where no level loses a tree that it promises, and no node takes more
than 8 bytes.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from spectune.demo.prompts import calibration_prompts
from spectune.planner.records.draft import Children, Ints
from spectune.planner.records.recording import RecordedScorer, Recording, recording_of
from spectune.planner.strategies.base import Strategy, grow
from spectune.planner.strategies.cast import PAPER_THRESHOLDS as CAST_THRESHOLDS
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import EAGLE, Eagle2Policy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.talon import talon
from spectune.profiler.device import detect
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.loading import load_model, load_tokenizer
from spectune.runtime.shapes import ForwardShapes
from spectune.tuning.prompts import requests_of
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.recording.recipe import MOST_CHILDREN, BestFirst, Recipe, recipe_of
from spectune.tuning.recording.record import record_prompts
from spectune.tuning.request import Models, ProfileRequest

from result import print_result  # isort: skip

FAMILY = Path(__file__).resolve().parents[1] / "demo" / "models"
BYTES_BAR, CENSORED_BAR = 8.0, 0.005  # near-ties may fall differently in two recordings
CHAIN, EAGLE2, TALON, BEST_FIRST = "chain of 6", "EAGLE-2 60/7/10", "TALON 60/0.03/10", "best-first 60"
TALON_OF_10, BEST_FIRST_24 = "TALON 60/0.03/10 of 10 children", "best-first 24"
OPT_TREE, CAST = "OPT-Tree 60/0.5/10", "CAST 4/3/2.5"
PROMISED = {
    "quick": (CHAIN,),
    "standard": (CHAIN, EAGLE2, TALON_OF_10, BEST_FIRST_24),
    "full": (CHAIN, EAGLE2, TALON_OF_10, BEST_FIRST_24, TALON, BEST_FIRST, OPT_TREE, CAST),
}
Text = tuple[Request, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recipe's recording and how fast each repeat of it was."""

    trace: AcceptanceTrace
    positions_per_s: tuple[float, ...]


def main() -> int:
    """Record every level; return 1 where a promise is missed."""
    asked = arguments()
    target = load_model(str(FAMILY / "target"), dtype="float32")
    drafter = load_model(str(FAMILY / asked.drafter), dtype="float32")
    texts = own_texts(target, asked.prompts, asked.tokens)
    cast = cast_policy(target, drafter, context=len(texts[0][0].prompt) + asked.tokens // 2)
    policies = published(cast)
    references = {
        name: recording_of(recorded(drafter, texts, Recipe(children=MOST_CHILDREN, trees=(tree,)), 1).trace)
        for name, tree in policies.items()
    }
    levels = {
        "one beam of 8": Recipe(trees=(Eagle2Policy(top_k=8, depth=7),)),
        "quick": recipe_of("quick"),
        "standard": recipe_of("standard"),
        "full": Recipe(children=MOST_CHILDREN, trees=(*recipe_of("full").trees, cast)),
    }
    found = {}
    for name, recipe in levels.items():
        made = recorded(drafter, texts, recipe, asked.repeats)
        recording = recording_of(made.trace)
        shares = {
            policy: float(censored(tree, references[policy], recording).mean()) for policy, tree in policies.items()
        }
        found[name] = facts(made, shares)
        tell(name, found[name])
    result = {
        "benchmark": "recording",
        "machine": detect("cpu").label,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "drafter": asked.drafter,
        "prompts": asked.prompts,
        "positions": made.trace.positions,
        "levels": found,
        "holds": all(keeps_its_promise(name, found[name]) for name in PROMISED),
        "not_run": [],
    }
    print_result(result, asked.output)
    return 0 if result["holds"] else 1


def arguments() -> argparse.Namespace:
    """Return what was asked on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", default="small", choices=("small", "medium"))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of each continuation")
    parser.add_argument("--repeats", type=int, default=3, help="recordings per level; the median speed counts")
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


def own_texts(target: CausalModel, prompts: int, tokens: int) -> list[Text]:
    """Return calibration prompts and the target's own greedy continuations."""
    models = Models(target=FAMILY / "target")
    request = ProfileRequest(models=models, prompts=calibration_prompts()[:prompts], max_new_tokens=tokens)
    requests = requests_of(request, load_tokenizer(str(models.target)))
    return list(zip(requests, continuations(target, requests), strict=True))


def cast_policy(target: CausalModel, drafter: CausalModel, *, context: int) -> CastPolicy:
    """Return CAST with the paper's thresholds and the costs of this machine at batch 1."""
    breadth, depth, rerank = CAST_THRESHOLDS
    return CastPolicy(
        breadth=breadth,
        depth=depth,
        rerank=rerank,
        max_width=10,
        max_depth=8,
        max_verify_tokens=60,
        ratio_window=4,
        draft_cost_ms=costs_ms(drafter, "draft", context, (1, 2, 4, 7, 10)),
        verify_cost_ms=costs_ms(target, "verify", context, (1, 2, 4, 8, 16, 32, 60)),
    )


def costs_ms(model: CausalModel, role: str, context: int, tokens: Sequence[int]) -> tuple[float, ...]:
    """Return the median time of a forward of 0, 1, ... tokens; straight lines lie between the timed ones."""
    shapes = ForwardShapes(model, identity=role, dtype="float32", role=role, slots=1, capacity=context + 256)
    timed = []
    for count in tokens:
        call = shapes.prepare(1, context, count)
        call()
        timed.append(statistics.median(_timed_ms(call) for _ in range(15)))
    between = np.interp(np.arange(1, max(tokens) + 1), tokens, timed)
    return (0.0, *between.tolist())


def _timed_ms(call: Callable[[], None]) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e6


def published(cast: CastPolicy) -> dict[str, Strategy]:
    """Return the trees people use, by name."""
    return {
        CHAIN: ChainPolicy(length=6),
        EAGLE2: EAGLE,
        TALON: talon(),
        TALON_OF_10: talon(10),
        BEST_FIRST: BestFirst(nodes=60),
        BEST_FIRST_24: BestFirst(nodes=24),
        OPT_TREE: OptTreePolicy(children=60),
        CAST: cast,
    }


def recorded(drafter: CausalModel, texts: Sequence[Text], recipe: Recipe, repeats: int) -> Recorded:
    """Return a recording and its speeds."""
    speeds = []
    for _ in range(repeats):
        start = time.perf_counter()
        prompts = record_prompts(drafter, texts, recipe)
        speeds.append(sum(prompt.positions for prompt in prompts) / (time.perf_counter() - start))
    trace = AcceptanceTrace(
        target="target",
        drafter="drafter",
        drafter_name="drafter",
        workload="calibration",
        temperature=0.0,
        seed=0,
        children=recipe.children,
        prefix_exact=True,
        prompts=prompts,
    )
    return Recorded(trace=trace, positions_per_s=tuple(speeds))


class WatchedScorer(RecordedScorer):
    """Answers from a recording that holds all, and marks rows where another one lacks what is asked or verified."""

    def __init__(self, reference: Recording, recording: Recording, rows: Ints) -> None:
        super().__init__(reference, rows)
        self._known, self._most = RecordedScorer(recording, rows), recording.children
        self._known.root(1)

    @property
    def lost(self) -> NDArray[np.bool_]:
        """(rows,): where the other recording lacks an expanded node."""
        return self._known.censored

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        """Ask both; the tokens are ranks."""
        self._known.expand(parents, np.minimum(ranks, self._most - 1), 1)
        answer = super().expand(parents, ranks, children)
        assert not self.absent.any()
        return _ranked(answer)

    def root(self, children: int) -> Children:
        """Return the recorded children of the committed texts; the tokens are ranks."""
        return _ranked(super().root(children))


def _ranked(answer: Children) -> Children:
    ranks = np.broadcast_to(np.arange(answer.tokens.shape[2]), answer.tokens.shape)
    return Children(tokens=ranks, log_probs=answer.log_probs)


def censored(tree: Strategy, reference: Recording, recording: Recording) -> NDArray[np.bool_]:
    """Return (positions,): where a strategy expands or verifies a node that the recording lacks.

    Args:
        tree: what is grown, at batch 1.
        reference: holds all that it looks at.
        recording: what is judged.
    """
    rows = np.flatnonzero(reference.rows.left)
    together = rows[:, None] if tree.is_coupled(len(rows)) else rows[None]
    return np.concatenate([_censored(tree, reference, recording, own) for own in together])


def _censored(tree: Strategy, reference: Recording, recording: Recording, rows: Ints) -> NDArray[np.bool_]:
    scorer = WatchedScorer(reference, recording, rows)
    draft = grow(tree, scorer, len(rows))
    return scorer.lost | (draft.tokens >= recording.children).any(axis=1)


def facts(made: Recorded, shares: dict[str, float]) -> dict[str, object]:
    """Return what is known about a level."""
    trace = made.trace
    return {
        "censored": shares,
        "children": trace.children,
        "expansions_per_position": sum(len(prompt.parent) for prompt in trace.prompts) / trace.positions,
        "bytes_per_position": trace.bytes_per_position,
        "bytes_per_node": trace.bytes_per_node,
        "positions_per_s": statistics.median(made.positions_per_s),
        "positions_per_s_runs": made.positions_per_s,
    }


def keeps_its_promise(level: str, found: dict[str, object]) -> bool:
    """Whether a level replays what it promises, within the bytes it may take."""
    shares, size = found["censored"], found["bytes_per_node"]
    assert isinstance(shares, dict) and isinstance(size, float)
    return size <= BYTES_BAR and all(shares[policy] <= CENSORED_BAR for policy in PROMISED[level])


def tell(name: str, found: dict[str, object]) -> None:
    """Print a level for people."""
    print(
        f"{name}: {found['expansions_per_position']:.0f} expansions of {found['children']} children, "
        f"{found['bytes_per_position']:.0f} bytes a position, {found['bytes_per_node']:.2f} a node, "
        f"{found['positions_per_s']:.0f} positions/s"
    )
    assert isinstance(found["censored"], dict)
    for policy, share in found["censored"].items():
        print(f"    {policy:34} censored at {share:6.1%} of the positions")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
