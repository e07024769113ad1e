"""Goldens of replays: what every kind of policy keeps, verifies and drafts on recorded texts, and the trees it grows.

Arrays are kept as sums, which say what changed, and as hashes, which say that something did.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spectune.planner.engines.mapped_ngrams import mapped_walk, whole_ngram_results
from spectune.planner.inputs import LOOKUP, PlanInputs
from spectune.planner.kernels.slots import NOBODY
from spectune.planner.lockstep import Replay
from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.recording import Recorded, RecordedScorer, Rows, rows_of
from spectune.planner.records.results import PositionResults
from spectune.planner.records.tree import TokenTree
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.price import drafted, textual
from spectune.planner.search.stack_search import StackSearch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.hybrid import ElsePolicy, HybridPolicy, hybrids
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.offers import Limits
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.profiler.records.calibration import SurvivalCurve

from .golden_inputs import TABLE, lossy_runs, made, recorded

Json = dict[str, Any]  # JSON values
Staged = tuple[TreePolicy, str | None]
MOST_TOKENS = 48  # that one verify feeds
BATCHES = (1, 3)
STRIDE = 7  # of the positions at which trees are grown
COPIES = (2, 5, 12)  # tokens that engines copy
TREE = TokenTree(parents=(-1, 0, 0, 1, 1, 3), ranks=(0, 0, 2, 0, 1, 0))
CAST: dict[str, Any] = {
    "max_width": 3,
    "max_depth": 4,
    "max_verify_tokens": 12,
    "ratio_window": 2,
    "draft_cost_ms": (0.0, 1.0, 1.25, 1.5),
    "verify_cost_ms": (0.0, *(10.0 + 0.5 * tokens for tokens in range(12))),
}
CURVE = SurvivalCurve(log_probs=(-6.0, -3.0, -1.0, 0.0), survivals=(0.0, 0.125, 0.5, 1.0), nodes=100)
ELSE: tuple[ElsePolicy, ...] = (
    ChainPolicy(length=2),
    StaticPolicy(tree=TREE),
    Eagle2Policy(verify_tokens=8, depth=2, top_k=3),
)
DRAFTED: tuple[TreePolicy, ...] = (
    ChainPolicy(length=1),
    ChainPolicy(length=4),
    ConfidentChainPolicy(length=5, confidence=0.3),
    StaticPolicy(tree=TREE),
    Eagle2Policy(verify_tokens=12, depth=2, top_k=3),
    Eagle2Policy(verify_tokens=4, depth=0, top_k=3),
    TalonPolicy(nodes=10, gate=0.2, top_k=2, children=3, max_depth=3),
    OptTreePolicy(nodes=8, least_gain=0.1, max_depth=3, children=3),
    CastPolicy(breadth=0.5, depth=0.25, rerank=0.5, **CAST),
    CastPolicy(breadth=1.5, depth=1.0, rerank=0.75, survival=(CURVE,), **CAST),
)
TEXTUAL: tuple[TreePolicy, ...] = (
    LookupPolicy(length=4),
    LookupPolicy(length=6, max_ngram=2, min_ngram=2, occurrence="first"),
    SuffixPolicy(),
    SuffixPolicy(length=8, factor=0, offset=48, min_match=2, occurrence="last"),
    SuffixTreePolicy(),
    SuffixTreePolicy(nodes=10, factor=4, offset=1, min_match=2, least_score=1.5),
    CachebackPolicy(),
    CachebackPolicy(leader_tokens=2, follower_tokens=3, followers=4, nodes=12, least_chance=0.05),
    CachebackPolicy(follower_tokens=2, nodes=8, frozen=TABLE),
)
HYBRIDS = (
    HybridPolicy(text=SuffixPolicy(length=8, min_match=2, occurrence="last"), model=ChainPolicy(length=3)),
    HybridPolicy(text=SuffixTreePolicy(nodes=10, factor=4, offset=1, min_match=2), model=ELSE[2]),
)
RESUMED = tuple(ResumedPolicy(draft=ChainPolicy(length=length)) for length in (2, 4))
STACKS = (
    StackPolicy(drafters=("good", "quick"), lengths=(4, 2)),
    StackPolicy(drafters=("good", "quick", LOOKUP), lengths=(6, 4, 3), max_ngram=2, siblings=2),
)


def replay_goldens() -> dict[str, str]:
    """Return what replays do, and what every grid does at every position."""
    every = {"made": Rehearsal(made()), "recorded": Rehearsal(recorded())}
    replays = {name: replays_of(rehearsal) for name, rehearsal in every.items()}
    sweeps = {name: sweeps_of(rehearsal) for name, rehearsal in every.items()}
    return {
        "replays.json.gz": json.dumps(replays | {"stacks": stacks_of(), "lossy": lossy_of()}, indent=1),
        "sweeps.json.gz": json.dumps(sweeps | {"engines": engine_sweeps_of(made())}, indent=1),
    }


def staged_of(inputs: PlanInputs) -> Iterator[Staged]:
    """Yield plain decoding, what drafts from the text, and what each drafter drafts."""
    yield PlainPolicy(), None
    yield from ((policy, LOOKUP) for policy in TEXTUAL)
    for drafter in inputs.drafters:
        resumed = RESUMED if drafter.resume is not None else ()
        yield from ((policy, drafter.name) for policy in (*DRAFTED, *HYBRIDS, *resumed))


def replays_of(rehearsal: Rehearsal) -> Json:
    """Return every policy's rounds at every batch size, trees that it grows, and their shape."""
    found: Json = {}
    for policy, drafter in staged_of(rehearsal.inputs):
        entry: Json = {f"batch {batch}": facts_of(rehearsal.replay(policy, drafter, batch)) for batch in BATCHES}
        if drafter is not None and drafter != LOOKUP and not isinstance(policy, HybridPolicy):
            entry["trees"] = trees_of(rehearsal, policy, drafter)
        shape = rehearsal.shape(policy, drafter, BATCHES[0])
        if shape is not None:
            entry["shape"] = {name: getattr(shape, name) for name in ("verified", "reached", "taken")}
        found[named(found, policy, drafter)] = entry
    return found


def named(found: Mapping[str, Any], policy: TreePolicy, drafter: str | None) -> str:
    """Return what an entry is called."""
    name = f"{policy.kind}: {policy.code}" + (f" by {drafter}" if drafter else "")
    assert name not in found, f"two entries are called {name}"
    return name


def stacks_of() -> Json:
    """Return the rounds of stacks of the made-up family."""
    search, found = StackSearch(Rehearsal(made()), seed=5), dict[str, Any]()
    for policy in STACKS:
        entry: Json = {}
        for batch in BATCHES:
            told = search.replay(policy, batch)
            arrays = {"levels": told.levels, "is_modelled": told.is_modelled}
            entry[f"batch {batch}"] = facts_of(told.replay) | {name: digest(one) for name, one in arrays.items()}
        found[named(found, policy, None)] = entry
    return found


def lossy_of() -> Json:
    """Return the rounds of lossy ways, whole and of short answers."""
    return {
        f"{run.policy.kind}: {run.policy.code} at batch {run.batch}": {
            "whole": facts_of(run.replay),
            "answers of 12": facts_of(run.shortened(12).replay),
        }
        for run in lossy_runs()
    }


def facts_of(replay: Replay) -> Json:
    """Return the sums of a replay's arrays, and a hash of each."""
    arrays = {
        "contexts": replay.contexts,
        "nodes": replay.nodes,
        "catch_up": replay.catch_up,
        "widths": without_zeros(replay.widths),
        "texts": replay.texts,
        "kept": np.where(replay.texts == NOBODY, 0, replay.kept),
    }
    sums = {name: int(array.sum()) for name, array in arrays.items()}
    return {
        "rounds": replay.rounds,
        "tokens": replay.tokens,
        "censored": replay.censored,
        "sums": sums,
        "hashes": {name: digest(array) for name, array in arrays.items()},
    }


def trees_of(rehearsal: Rehearsal, policy: TreePolicy, drafter: str) -> Json:
    """Return the trees that a policy grows at some positions of the recording, each by itself."""
    recording = rehearsal.recording(drafter)
    rows = np.flatnonzero(recording.rows.left)[::STRIDE, None]
    drafts = [grow(policy, RecordedScorer(recording, row), 1) for row in rows]
    nodes = [array for draft in drafts for array in (nodes_of(draft), np.array(draft.widths))]
    return {"nodes": sum(int(draft.sizes.sum()) for draft in drafts), "hash": digest(*nodes)}


def nodes_of(draft: DraftBatch) -> NDArray[Any]:
    """Return (3, nodes): parents, depths and tokens of the one tree."""
    size = int(draft.sizes[0])
    return np.stack([draft.parents[0, :size], draft.depths[0, :size], draft.tokens[0, :size]])


def sweeps_of(rehearsal: Rehearsal) -> Json:
    """Return what every candidate of a plan's grids does at every position, by drafter and kind."""
    rows = rehearsal.rows
    found: Json = {LOOKUP: swept(text_sweep(rehearsal), rows)}
    for drafter in rehearsal.inputs.drafters:
        found[drafter.name] = swept(drafter_sweep(rehearsal, drafter.name), rows)
    return found


def text_sweep(rehearsal: Rehearsal) -> Iterator[tuple[TreePolicy, PositionResults]]:
    """Yield the grids that need no model."""
    texts = Recorded(texts=rehearsal.inputs.texts, rows=rehearsal.rows)
    for one in textual(texts, Limits(most_tokens=MOST_TOKENS, tables=(TABLE,))):
        yield one.policy, one.results


def drafter_sweep(rehearsal: Rehearsal, name: str) -> Iterator[tuple[TreePolicy, PositionResults]]:
    """Yield the grids of one drafter."""
    recording = rehearsal.recording(name)
    resumes = rehearsal.inputs.drafter(name).resume is not None
    for one in drafted(Recorded.by(recording), Limits(most_tokens=MOST_TOKENS, resumes=resumes)):
        yield one.policy, one.results
    yield from hybrids(recording, ELSE, MOST_TOKENS)


def swept(results: Iterable[tuple[TreePolicy, PositionResults]], rows: Rows) -> Json:
    """Return, by kind, how many policies there are, the sums of their results, and a hash of these in order."""
    found: dict[str, Json] = {}
    hashes: dict[str, Any] = {}
    for policy, one in results:
        arrays = told_by(one, rows)
        entry = found.setdefault(policy.kind, {"policies": 0, "sums": dict.fromkeys(arrays, 0)})
        entry["policies"] += 1
        for name, array in arrays.items():
            entry["sums"][name] += int(array.sum())
        told = hashes.setdefault(policy.kind, hashlib.sha256())
        told.update(f"{policy.code} {digest(*arrays.values())}".encode())
    return {kind: entry | {"hash": hashes[kind].hexdigest()[:16]} for kind, entry in found.items()}


def told_by(results: PositionResults, rows: Rows) -> dict[str, NDArray[Any]]:
    """Return what results tell where rounds begin: nothing of what lies behind the texts' ends."""
    at = rows.left > 0
    widths = np.broadcast_to(results.widths, (len(at), results.widths.shape[1]))
    return {
        "accepted": np.minimum(results.accepted, rows.left)[at],
        "sizes": results.sizes[at],
        "censored": results.censored[at],
        "widths": without_zeros(widths[at]),
    }


def engine_sweeps_of(inputs: PlanInputs) -> Json:
    """Return what lookups of other engines do on the texts."""
    mapped = {length: mapped_walk(inputs.texts, 2, length) for length in COPIES}
    return {
        "whole n-grams": swept(whole_ngram_results(inputs.texts, 2, COPIES), rows_of(inputs.texts)),
        "mapped n-grams": {
            str(length): {name: int(getattr(walk, name).sum()) for name in ("tokens", "rounds", "drafts", "drafted")}
            for length, walk in mapped.items()
        },
    }


def without_zeros(widths: NDArray[Any]) -> NDArray[Any]:
    """Return widths without the forwards at the end that never run: how much room they have is of no matter."""
    ran = np.flatnonzero(widths.any(axis=0))
    return widths[:, : int(ran[-1]) + 1 if len(ran) else 0]


def digest(*arrays: NDArray[Any]) -> str:
    """Return a hash of whole numbers and their shapes, whatever their width in memory."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(str(array.shape).encode())
        found.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return found.hexdigest()[:16]
