"""The policies whose short rounds tell what rounds of every kind take beyond their forwards."""

from __future__ import annotations

from ...planner.strategies import REGISTRY
from ...planner.strategies.stack import StackPolicy, stack_name
from ...runtime.setup import RoundSetup
from .decoding import LOOKUP

MOST_PROBED = 32  # tokens of the largest rounds that are timed
FEWEST_PROBED = 8  # that probes can be limited to


def probes(drafter: str | None, most_tokens: int = MOST_PROBED) -> list[RoundSetup]:
    """Return one or more policies per kind that show its cost per forward and per node; `most_tokens` is at least 8.

    All kinds share the cost of a round, a node and a drafter's presence (`profiler/records/overhead.py`): small and
    large texts, chains and EAGLE-2 trees tell it. One policy of each other kind tells its own cost per forward.
    """
    setups = list[RoundSetup]()
    for strategy in REGISTRY.values():
        name = {"none": None, "text": LOOKUP}.get(strategy.source, drafter)
        if drafter is not None or strategy.source in ("none", "text"):
            setups += [RoundSetup(policy=policy, drafter=name) for policy in strategy.probes(most_tokens)]
    if drafter is not None:
        stack = StackPolicy(drafters=(drafter, LOOKUP), lengths=(4, 4))
        setups.append(RoundSetup(policy=stack, drafter=stack_name(stack)))
    return setups
