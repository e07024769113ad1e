"""One policy of every kind a plan may hold, and plans that put them into cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from spectune.engines.setting import DrafterForm, EngineDrafter
from spectune.planner.plans.plan import Alternative, Plan, PlanCell
from spectune.planner.plans.provenance import SurfaceSource
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.talon import TalonPolicy

from .plans import PLAIN_PROMISE, plain_cell
from .priced_cells import plan_with

POLICIES: dict[str, TreePolicy] = {
    "chain": ChainPolicy(length=3),
    "confident-chain": ConfidentChainPolicy(length=8, confidence=0.4),
    "lookup": LookupPolicy(length=10, max_ngram=2, min_ngram=1),
    "suffix": SuffixPolicy(),
    "suffix-tree": SuffixTreePolicy(),
    "cacheback": CachebackPolicy(),
    "hybrid": HybridPolicy(text=SuffixPolicy(length=4, min_match=2), model=ChainPolicy(length=3)),
    "static": StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 0, 1, 0))),
    "eagle2": Eagle2Policy(verify_tokens=8, depth=4, top_k=4),
    "talon": TalonPolicy(),
    "opt-tree": OptTreePolicy(),
    "cast": CastPolicy(
        breadth=1.0,
        depth=1.0,
        rerank=1.0,
        max_width=2,
        max_depth=2,
        max_verify_tokens=4,
        ratio_window=4,
        draft_cost_ms=(0.0, 1.0, 1.0),
        verify_cost_ms=(0.0, 1.0, 1.0, 1.0, 1.0),
    ),
    "stack": StackPolicy(drafters=("small", "lookup"), lengths=(4, 3)),
    "resumed": ResumedPolicy(draft=ChainPolicy(length=3)),
}
TEXT = ("lookup", "suffix", "suffix-tree", "cacheback")
Speeds = dict[tuple[TreePolicy, str | None], float]


def drafter_of(kind: str) -> str:
    """Return who drafts a policy of a kind."""
    return "lookup" if kind in TEXT else "small+lookup" if kind == "stack" else "small"


def engine_drafter(form: DrafterForm = "model") -> EngineDrafter:
    return EngineDrafter(name="small", path="drafters/small", form=form)


def cell_with(
    batch: int, context: int, policy: TreePolicy, drafter: str | None, speed: float, others: Speeds | None = None
) -> PlanCell:
    """Return a cell whose policy makes so many tokens per second, where plain decoding makes 100."""
    base = plain_cell(batch, context)
    if isinstance(policy, PlainPolicy):
        return base
    promise = replace(
        PLAIN_PROMISE,
        tokens_per_s=speed,
        low=speed,
        high=speed,
        speedup_over_plain=speed / 100.0,
        speedup_low=speed / 100.0,
        speedup_high=speed / 100.0,
    )
    return replace(
        base,
        policy=policy,
        drafter=drafter,
        run_tokens=tuple(range(policy.max_verify_tokens + 1)),
        prediction=promise,
        alternatives=tuple(
            Alternative(label=other.code, policy=other, drafter=by, tokens_per_s=rate)
            for (other, by), rate in (others or {}).items()
        ),
    )


def chains_by_batch(lengths: Sequence[tuple[int, int]], context: int = 100) -> Plan:
    """Return a plan of chains of "small" by batch; length 0 is plain decoding. All expressible speeds are listed."""
    cells = []
    for batch, length in lengths:
        policy: TreePolicy = ChainPolicy(length=length) if length else PlainPolicy()
        cells.append(cell_with(batch, context, policy, "small" if length else None, 150.0))
    return plan_with(*cells)


@cache
def plan_of_kind(kind: str) -> Plan:
    """Return a plan of one cell with a policy of a kind."""
    return plan_with(cell_with(1, 100, POLICIES[kind], drafter_of(kind), 200.0))


def measured(plan: Plan, regime: str = "engine:llama.cpp-b11549") -> Plan:
    """Return a plan as if an engine itself had been timed for it."""
    source = SurfaceSource(
        model="t", role="round:plain", regime=regime, dtype="float32", measurements=2, relative_error=0.01
    )
    engine = regime.removeprefix("engine:").partition("@")[0].rpartition("-")[0]
    return replace(
        plan, workload=f"{plan.workload} ({engine})", provenance=replace(plan.provenance, surfaces=(source,))
    )
