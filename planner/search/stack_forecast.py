"""The best hierarchy of drafters in a cell, modelled: what stacking drafters promises before it is recorded.

Acceptance between models is how often they agreed along the target's text, taken as independent from token to token. A
replay would need the lower drafter's trace along the *upper one's* text, so this is a forecast and no candidate.

Source: Globerson et al. 2025, arXiv:2510.19705.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...profiler.records.host_line import CHAIN
from ..hierarchy.records import HierarchyInputs, ModelCosts
from ..hierarchy.search import best_hierarchy
from ..inputs import TARGET, PlanInputs
from ..plans.plan import StackForecast
from ..pricing.cost import CellCosts

MOST_THRESHOLD = 16  # tokens a level gathers; drafters are not measured at wider forwards


def stack_forecast(inputs: PlanInputs, costs: CellCosts) -> StackForecast | None:
    """Return the best hierarchy of two or more drafters, beside the best single one by the same model."""
    models = sum(one.name in costs.drafts and not one.reads_features for one in inputs.drafters)
    if costs.cell.batch > 1 or models < 2 or inputs.pairwise is None or CHAIN not in costs.host:
        return None
    everything = hierarchy_inputs(inputs, costs)
    stacked = best_hierarchy(everything, MOST_THRESHOLD)
    if len(stacked.hierarchy.levels) < 2:
        return None
    single = min(best_hierarchy(_only(everything, place), MOST_THRESHOLD).ms_per_token for place in range(models))
    return StackForecast(
        models=tuple(level.name for level in stacked.hierarchy.levels),
        thresholds=tuple(level.threshold for level in stacked.hierarchy.levels),
        tokens_per_s=1000.0 / stacked.ms_per_token,
        best_single_tokens_per_s=1000.0 / single,
    )


def hierarchy_inputs(inputs: PlanInputs, costs: CellCosts, kind: str = CHAIN) -> HierarchyInputs:
    """Return a cell's models as a hierarchy's, the cheapest first; heads, which are in no stack, are left out.

    Acceptance by the target is how often a drafter's first choice was its token; by another drafter, how often their
    first choices agreed, 0 where not recorded. The host time is of policies of `kind`.
    """
    context = float(costs.cell.context)
    host = costs.host_of(kind)
    curves = {
        name: table.row(context) for name, table in costs.drafts.items() if not inputs.drafter(name).reads_features
    }
    order = sorted(curves, key=lambda name: float(curves[name][1]))
    more_ms, less_ms = max(host.forward_ms, 0.0), min(host.forward_ms, 0.0)
    models = [
        ModelCosts(name=name, forward_ms=tuple(np.maximum(curves[name] + less_ms, 0.0).tolist()), host_ms=more_ms)
        for name in order
    ]
    verify = costs.verify.row(context)
    verified = verify + host.node_ms * np.maximum(np.arange(len(verify)) - 1, 0)
    root_ms = max(host.at(0, 1), 0.0)  # of a round that drafts nothing
    target = ModelCosts(name=TARGET, forward_ms=tuple(verified.tolist()), host_ms=root_ms)
    return HierarchyInputs(models=(*models, target), acceptance=_acceptance(inputs, order))


def _acceptance(inputs: PlanInputs, order: list[str]) -> tuple[tuple[float, ...], ...]:
    by_target = tuple(float(inputs.drafter(name).trace.rank_acceptance()[0]) for name in order)
    if inputs.pairwise is None:
        return (*((0.0,) * place for place in range(len(order))), by_target)
    place = {name: index for index, name in enumerate(inputs.pairwise.models)}
    greedy = inputs.pairwise.greedy
    rows = [tuple(greedy[place[upper]][place[lower]] for lower in order[:index]) for index, upper in enumerate(order)]
    return (*rows, by_target)


def _only(inputs: HierarchyInputs, place: int) -> HierarchyInputs:
    chance = inputs.acceptance[-1][place]
    return replace(inputs, models=(inputs.models[place], inputs.models[-1]), acceptance=((), (chance,)))
