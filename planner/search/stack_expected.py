"""How fast stacks of drafters are expected to be in a cell, so that the promising ones are replayed.

By HSD's formula, on the cell's costs and acceptance along the texts; of a lookup's copies token by token. It takes
these as independent and knows one sequence, so it orders stacks and prices none.

Source: Globerson et al. 2025, arXiv:2510.19705.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..hierarchy.latency import latencies_ms
from ..hierarchy.records import BlockDrafter
from ..hierarchy.tables import Stack, Tables
from ..inputs import LOOKUP
from ..pricing.cost import CellCosts, Floats
from ..replay.rehearsal import Rehearsal
from ..strategies.chain import right_run
from ..strategies.lookup import LookupPolicy
from ..strategies.stack import STACK, StackPolicy
from .stack_forecast import hierarchy_inputs

MOST_COPIED = 8  # tokens of a lookup whose acceptance is looked at


def expected_rates(policies: Sequence[StackPolicy], rehearsal: Rehearsal, costs: CellCosts) -> Floats:
    """Return (stacks,): a cell's tokens per second; 0 where a draft is too long. No siblings; all models must run."""
    models = hierarchy_inputs(rehearsal.inputs, costs, STACK)
    acceptance = {model.name: _copied(rehearsal, model.name) for model in models.models[:-1]}
    block = BlockDrafter(name=LOOKUP, draft_ms=(0.0,) * (MOST_COPIED + 1), acceptance=acceptance)
    tables = Tables(replace(models, blocks=(block,)))
    return 1000.0 * costs.cell.batch / latencies_ms(tables, [_in_numbers(tables, policy) for policy in policies])


def _copied(rehearsal: Rehearsal, name: str) -> tuple[float, ...]:
    """Return the chance that a model accepts the first, second, ... token of a copy, given those before it.

    Tokens beyond a copy, and those on which model and copy agree against the text, count as refused.
    """
    copied = rehearsal.results(LookupPolicy(length=MOST_COPIED), LOOKUP).accepted
    both = np.minimum(copied, right_run(rehearsal.recording(name).next_rank))
    reached = [int((both >= tokens).sum()) for tokens in range(1, MOST_COPIED + 1)]
    return tuple(now / max(before, 1) for before, now in zip([len(both), *reached], reached, strict=False))


def _in_numbers(tables: Tables, policy: StackPolicy) -> Stack:
    """Return a stack as the formula's solvers take it: the lowest drafter first, its chain verified bare."""
    names = tables.inputs.node_names
    nodes = tuple(names.index(name) for name in reversed(policy.drafters))
    return Stack(nodes, tuple(reversed(policy.lengths)), tables.finishes_of(nodes[-1])[0])
