"""Candidates, cells and plans made by hand: every number of a round is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spectune.planner.plans.plan import Alternative, Lead, Plan, PlanCell, PublishedPrice
from spectune.planner.plans.prediction import ErrorParts, Prediction
from spectune.planner.plans.provenance import Provenance
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import CellCosts
from spectune.planner.pricing.table import CostTable
from spectune.planner.records.tree import ShapeFacts
from spectune.planner.search.candidate import Candidate
from spectune.planner.search.sensitivity import outlook_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.records.host_line import HostLine

from .synthetic import DEVICE, TARGET, model

BATCH, CONTEXT, MOST = 4, 100, 16
DRAFTERS = ("small", "medium")


def priced(
    policy: TreePolicy, tokens: float, *, draft: float = 2.0, verify: float = 10.0, host: float = 0.5, by: str = "small"
) -> Candidate:
    """Return a candidate whose rounds yield so many tokens in so many milliseconds of each part."""
    return Candidate(
        policy=policy,
        drafter=None if isinstance(policy, PlainPolicy) else by,
        tokens=np.zeros(2, dtype=np.int64),  # by text; an outlook reads the means of rounds alone
        ms=np.zeros(2),
        tokens_per_round=tokens,
        draft_ms=0.0 if isinstance(policy, PlainPolicy) else draft,
        verify_ms=verify,
        host_ms=host,
        censored_share=0.0,
        run_tokens=tuple(range(policy.max_verify_tokens + 1)),
    )


PLAIN = priced(PlainPolicy(), 1.0, verify=8.0)


def costs(drafts: Sequence[str] = DRAFTERS, kinds: Sequence[str] = ("plain", "chain", "lookup")) -> CellCosts:
    """Return costs of n tokens: verify 8 + n / 10 ms, draft 1 + n / 100 ms, host 0.3 + 0.1 a forward + 0.01 a node."""
    tables = {name: _table(1.0, 0.01) for name in drafts}
    return CellCosts(
        cell=Cell(batch=BATCH, context=CONTEXT),
        verify=_table(8.0, 0.1),
        run_tokens=tuple(range(MOST + 1)),
        drafts=tables,
        host=dict.fromkeys(kinds, HostLine(0.3, 0.1, 0.01)),
    )


def _table(base_ms: float, token_ms: float) -> CostTable:
    row = [0.0, *(base_ms + token_ms * tokens for tokens in range(1, MOST + 1))]
    return CostTable(contexts=np.array([float(CONTEXT)]), ms=np.array([row]))


def cell_of(
    candidates: Sequence[Candidate],
    chosen: int = 1,
    *,
    batch: int = BATCH,
    context: int = CONTEXT,
    published: Sequence[PublishedPrice] = (),
    shape: ShapeFacts | None = None,
    optimism: float = 0.0,
) -> PlanCell:
    """Return the cell of a plan that chose one candidate; plain decoding is the first."""
    own, plain = candidates[chosen], candidates[0]
    others = sorted(
        (
            Alternative(
                label=each.policy.code, policy=each.policy, drafter=each.drafter, tokens_per_s=speed(each, batch)
            )
            for place, each in enumerate(candidates)
            if place != chosen
        ),
        key=lambda other: -other.tokens_per_s,
    )
    return PlanCell(
        batch=batch,
        context=context,
        policy=own.policy,
        drafter=own.drafter,
        run_tokens=own.run_tokens,
        prediction=promise(own, plain, batch, optimism),
        plain=promise(plain, plain, batch),
        runner_up=others[0] if others else None,
        lead=Lead(relative=speed(own, batch) / others[0].tokens_per_s - 1.0, error=0.01) if others else None,
        alternatives=tuple(others),
        published=tuple(published),
        outlook=outlook_of(candidates, chosen, 0, costs(), optimism=optimism),
        shape=shape,
    )


def plan_with(*cells: PlanCell) -> Plan:
    """Return a plan of such cells."""
    return Plan(
        device=DEVICE,
        target=TARGET,
        drafters=tuple((name, model(name)) for name in DRAFTERS),
        dtype="float32",
        workload="made up",
        temperature=0.0,
        cells=cells,
        provenance=Provenance(
            created="2026-01-01T00:00:00Z",
            spectune="0.1",
            surfaces=(),
            traces=(),
            texts=12,
            seed=0,
            candidates=345,
            pruned=67,
            censored=(),
            notes=("the device was busy",),
        ),
    )


def speed(candidate: Candidate, batch: int = BATCH) -> float:
    """Return tokens per second of all sequences."""
    return 1000.0 * batch * candidate.tokens_per_round / candidate.round_ms


def promise(own: Candidate, plain: Candidate, batch: int = BATCH, optimism: float = 0.0) -> Prediction:
    """Return what a candidate promises, 10 % to either side."""
    rate = speed(own, batch) * (1.0 - optimism)
    gain = rate / speed(plain, batch)
    return Prediction(
        tokens_per_s=rate,
        low=0.9 * rate,
        high=1.1 * rate,
        tokens_per_round=own.tokens_per_round * (1.0 - optimism),
        round_ms=own.round_ms,
        draft_ms=own.draft_ms,
        verify_ms=own.verify_ms,
        host_ms=own.host_ms,
        speedup_over_plain=gain,
        speedup_low=0.9 * gain,
        speedup_high=1.1 * gain,
        errors=ErrorParts(acceptance=0.03, surfaces=0.02, drift=0.02, optimism=optimism),
    )
