"""Policies of every kind that a drafter's scores grow, with knobs drawn at random, and CAST's with random surfaces."""

from __future__ import annotations

from hypothesis import strategies as st

from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.profiler.records.calibration import SurvivalCurve

THRESHOLDS = st.one_of(st.just(0.0), st.floats(0.0, 0.3), st.floats(0.0, 8.0))
SHARES = st.floats(0.0, 1.0)


@st.composite
def static_policies(draw: st.DrawFn) -> StaticPolicy:
    """Trees of up to twelve nodes; a node's children have any ranks below six."""
    size = draw(st.integers(2, 12))
    parents = [-1, *(draw(st.integers(max(0, node - 4), node - 1)) for node in range(1, size))]
    ranks = {parent: draw(st.permutations(range(6))) for parent in parents}
    taken = [0, *(ranks[parents[node]][parents[1:node].count(parents[node])] for node in range(1, size))]
    return StaticPolicy(tree=TokenTree(parents=tuple(parents), ranks=tuple(taken)))


@st.composite
def curves(draw: st.DrawFn) -> SurvivalCurve:
    """Curves of one to four points, some of them in one place."""
    points = draw(st.integers(1, 4))
    log_probs = sorted(draw(st.lists(st.sampled_from([-9.0, -4.0, -2.5, -1.0, -0.25, 0.0]), min_size=1, max_size=4)))
    survivals = sorted(draw(st.lists(SHARES, min_size=len(log_probs), max_size=len(log_probs))))
    return SurvivalCurve(log_probs=tuple(log_probs[-points:]), survivals=tuple(survivals[-points:]), nodes=7)


@st.composite
def surfaces(draw: st.DrawFn, most: int) -> tuple[float, ...]:
    """Costs of 0 to `most` tokens: any, rising, or with steps of four tokens."""
    costs = draw(st.lists(st.floats(0.01, 5.0), min_size=most, max_size=most))
    form = draw(st.sampled_from(["any", "rising", "steps"]))
    if form == "rising":
        costs = [sum(costs[: place + 1]) for place in range(most)]
    if form == "steps":
        costs = [costs[place // 4] for place in range(most)]
    return (0.0, *costs)


@st.composite
def cast_policies(draw: st.DrawFn) -> CastPolicy:
    """CAST by the paper and with calibrated survival."""
    width, tokens = draw(st.integers(1, 4)), draw(st.integers(2, 16))
    return CastPolicy(
        breadth=draw(THRESHOLDS),
        depth=draw(THRESHOLDS),
        rerank=draw(THRESHOLDS),
        max_width=width,
        max_depth=draw(st.integers(1, 5)),
        max_verify_tokens=tokens,
        ratio_window=draw(st.integers(1, 3)),
        draft_cost_ms=draw(surfaces(width)),
        verify_cost_ms=draw(surfaces(tokens)),
        survival=tuple(draw(st.lists(curves(), max_size=3))),
    )


DRAWN: dict[str, st.SearchStrategy[TreePolicy]] = {
    "chain": st.builds(ChainPolicy, length=st.integers(1, 6)),
    "confident-chain": st.builds(ConfidentChainPolicy, length=st.integers(1, 6), confidence=SHARES),
    "static": static_policies(),
    "eagle2": st.builds(
        Eagle2Policy, verify_tokens=st.integers(2, 30), depth=st.integers(0, 3), top_k=st.integers(1, 5)
    ),
    "talon": st.builds(
        TalonPolicy,
        nodes=st.integers(2, 14),
        gate=st.floats(0.001, 1.0),
        top_k=st.integers(1, 4),
        children=st.integers(4, 12),
        max_depth=st.integers(1, 6),
    ),
    "opt-tree": st.builds(
        OptTreePolicy,
        nodes=st.integers(1, 12),
        least_gain=st.floats(-0.1, 0.9),
        max_depth=st.integers(1, 4),
        children=st.integers(1, 6),
    ),
    "cast": cast_policies(),
}
