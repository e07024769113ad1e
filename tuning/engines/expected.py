"""What a plan, or a bundle of `tune`, expects of a server; `planner/engines/served.py` prices it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...db.store import Store
from ...engines.bundle import Bundle
from ...engines.regime import measured_in
from ...errors import RequestError
from ...planner.engines.choice import Offer, Way, source_of
from ...planner.engines.served import PLAIN, Ran, Served, served
from ...planner.engines.served_choice import LatencyBounds, Ways, best_table, sources_of
from ...planner.plans.plan import Plan, PlanCell
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.lookup import LookupPolicy
from ...planner.strategies.plain import PlainPolicy
from .export import offers_of_plan
from .ran import by_way, paces_of, ran_of

LONG = 1e6  # tokens of an answer, where a plan tells of steady decoding alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What was planned at one concurrency: what ran there, plain decoding among it, and the `way` that is served.

    `is_model`: whether every round of that way drafts. `error` is the relative standard error of its tokens per round.
    """

    concurrency: int
    ran: tuple[Ran, ...]
    way: tuple[str, int]
    is_model: bool
    error: float

    def of(self, way: tuple[str, int]) -> Ran | None:
        """Return what ran of a (source, length)."""
        return next((one for one in self.ran if (one.source, one.length) == way), None)


def expected_of_plan(plan: Plan, store: Store | None = None) -> tuple[Expected, ...]:
    """Return what a plan expects; of several contexts the middle one's.

    Where it is of an engine that the store has records of, what else was timed there is known, too. RequestError: a
    cell decodes by a tree, of which no server's counters tell. Errors of the store as of `offers_of_plan`.
    """
    cells: dict[int, list[PlanCell]] = {}
    for cell in sorted(plan.cells, key=lambda cell: (cell.batch, cell.context)):
        cells.setdefault(cell.batch, []).append(cell)
    measured = measured_in(plan)
    offers = {} if store is None or measured is None else offers_of_plan(plan, measured.engine, store)[1]
    return tuple(_of_cell(own[(len(own) - 1) // 2], offers.get(batch, ())) for batch, own in cells.items())


def _of_cell(cell: PlanCell, offers: Sequence[Offer]) -> Expected:
    policy, promise = cell.policy, cell.prediction
    if not isinstance(policy, PlainPolicy | ChainPolicy | LookupPolicy):
        raise RequestError(
            f"the plan decodes by a {policy.label} at batch {cell.batch}, and servers count chains alone; give a plan "
            "of spectune plan --engine, or a bundle of tune"
        )
    plain: Way = (PlainPolicy(), None)
    found = {
        offer.way: _ran(offer.way, offer.cost.ms, offer.walk.tokens_per_round) for offer in offers if offer.is_timed
    }
    found[plain] = _ran(plain, cell.plain.round_ms, 1.0)
    way: Way = (policy, cell.drafter)
    found[way] = _ran(way, promise.round_ms, promise.tokens_per_round)
    return Expected(
        concurrency=cell.batch,
        ran=tuple(found.values()),
        way=(found[way].source, found[way].length),
        is_model=isinstance(policy, ChainPolicy),
        error=promise.errors.acceptance,
    )


def _ran(way: Way, round_ms: float, tokens_per_round: float) -> Ran:
    return Ran(
        source=source_of(way),
        length=0 if isinstance(way[0], PlainPolicy) else way[0].length,
        round_ms=round_ms,
        tokens_per_round=tokens_per_round,
        acceptance=(),
        ttft_ms=0.0,
        answer_tokens=LONG,
        error=0.0,
    )


def expected_of_bundle(bundle: Bundle) -> tuple[Expected, ...]:
    """Return what a tuning's choice expects; RequestError where the run did not end."""
    chosen = bundle.chosen
    if chosen is None:
        raise RequestError("the bundle is of a run that did not end; let spectune tune --bundle end it")
    found, paces = list[Expected](), paces_of(bundle.trials)
    for concurrency, length in chosen.lengths:
        tables = [start for start in bundle.starts() if start.is_table and chosen.is_table]
        own = by_way(bundle, concurrency, tables=tables)
        ran = tuple(ran_of(*trials, paces=paces) for trials in own.values())
        way = (chosen.source, length) if length else (PLAIN, 0)
        if way not in own:  # chosen by its neighbours
            way = min((one for one in own if one[0] == chosen.source), key=lambda one: abs(one[1] - length))
        error = ran_of(*own[way]).error  # a machine's pace is not in its tokens per round
        drafts = [trial.counts.drafts for trial in own[way]]
        is_model = sum(drafts) > 0.5 * sum(
            trial.counts.rounds(trial.load.tokens, len(trial.load.ended)) for trial in own[way]
        )
        found.append(Expected(concurrency=concurrency, ran=ran, way=way, is_model=is_model, error=error))
    return tuple(found)


def repriced(expected: Sequence[Expected], source: str, acceptance: tuple[float, ...]) -> Ways:
    """Return every way at every concurrency where a source's drafts are accepted as was observed.

    Lengths that the server did not draft are left out; other sources stay as they were measured.
    """
    return {
        one.concurrency: served(
            one.concurrency,
            [
                replace(own, acceptance=acceptance, tokens_per_round=1.0 + sum(acceptance[: own.length]))
                if own.source == source
                else own
                for own in one.ran
                if own.source != source or own.length <= len(acceptance)
            ],
        )
        for one in expected
    }


def best_ways(
    ways: Ways, shares: Mapping[int, float], *, takes_table: bool, longest_first: bool = False
) -> dict[int, Served]:
    """Return what a new plan would serve at each concurrency, given the share of time of each.

    One start has one source, whose lengths differ by concurrency where it takes a table; with `longest_first` none is
    longer than that of the lowest. Of equals the first is taken.
    """
    known = {at: {(way.source, way.length): way for way in own} for at, own in ways.items()}
    common = set.intersection(*(set(own) for own in known.values()))
    choices = [dict.fromkeys(known, way) for way in sorted(common)]
    for source in sources_of(ways) if takes_table else ():
        lengths = best_table(ways, LatencyBounds(), source, longest_first=longest_first)[1]
        choices.append({at: (source, length) if length else (PLAIN, 0) for at, length in lengths.items()})
    best = max(choices, key=lambda way: sum(shares[at] * known[at][way[at]].least_tokens_per_s for at in known))
    return {at: own[best[at]] for at, own in known.items()}
