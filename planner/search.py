"""Solve a plan: replay every candidate, price it in every cell, choose."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import PlanError
from ..profiler.records.measurement import NORMAL_FROM_MAD
from ..profiler.records.surface import LatencySurface
from .acceptance import PositionResults, eagle2_results, lookup_results, plain_results, rank_results
from .candidate import Candidate, candidate_of
from .candidates import EAGLE2_WIDTHS, cast_policies, drafted, textual
from .choice import SurfaceErrors, planned_cell
from .cost import Cell, CellCosts, cell_costs
from .estimate import resampling_weights
from .inputs import LOOKUP, DrafterInputs, PlanInputs
from .plan import Plan
from .policy import ChainPolicy, DraftedPolicy, Eagle2Policy, LookupPolicy, PlainPolicy, StaticPolicy, TreePolicy
from .provenance import LeftOut, Provenance, surface_source, trace_source
from .recorded import Recording, Rows, recording_of, rows_of
from .replay import Replay, replay_grown, replay_results

MOST_CENSORED = 0.02  # share of visited positions that may lack an expansion before a policy is left out
FEWEST_JUDGED = 5  # held-out shapes from which a surface's error is taken
UNKNOWN_ERROR = 0.10  # taken as a surface's relative error where single repeats leave it open


def solve(inputs: PlanInputs, cells: Sequence[Cell], *, created: str, spectune: str, seed: int = 0) -> Plan:
    """Return the fastest way to decode in every cell.

    Args:
        inputs: what was measured and recorded.
        cells: from `cells_of`.
        created: UTC time, ISO 8601.
        spectune: version that solves.
        seed: of the resampling of texts.

    Raises:
        PlanError: fewer texts than slots, or inputs that do not belong together.
        MeasurementError: a batch, or the host time of plain decoding, was not measured.
    """
    contests = price_all(inputs, cells)
    weights = resampling_weights(len(inputs.texts), seed)
    errors = SurfaceErrors(
        verify=_known_error(inputs.verify),
        drafts={drafter.name: _known_error(drafter.surface) for drafter in inputs.drafters},
    )
    return Plan(
        device=inputs.device,
        target=inputs.target,
        drafters=tuple((drafter.name, drafter.model) for drafter in inputs.drafters),
        dtype=inputs.dtype,
        workload=inputs.workload,
        temperature=inputs.temperature,
        cells=tuple(planned_cell(contest.costs.cell, contest.priced, weights, errors) for contest in contests),
        provenance=_provenance(inputs, contests, created=created, spectune=spectune, seed=seed),
    )


def price(inputs: PlanInputs, cell: Cell, policy: TreePolicy, drafter: str | None = None) -> Candidate:
    """Return one policy's speed in a cell, whether or not it would be chosen.

    Args:
        drafter: which one drafts; of no matter for plain decoding and lookup.

    Raises:
        PlanError: no such drafter, a forward larger than measured, or too few recorded expansions.
    """
    contest = _contest(inputs, cell)
    if isinstance(policy, PlainPolicy | LookupPolicy):
        rows = rows_of(inputs.texts)
        source = None if isinstance(policy, PlainPolicy) else LOOKUP
        contest.enter(policy, source, replay_results(_textual_results(policy, inputs, rows), rows, cell.batch))
    else:
        if drafter is None:
            raise PlanError(f"a {policy.label} needs a drafter; name one of the inputs' drafters")
        recording = recording_of(inputs.drafter(drafter).trace)
        contest.enter(policy, drafter, _drafted_replay(policy, recording, cell.batch))
    if contest.left_out:
        raise PlanError(f"{policy.label} cannot be priced: {contest.left_out[0].reason}")
    return contest.priced[0]


@dataclass(slots=True, eq=False)
class Contest:
    """The candidates of one cell, priced or left out."""

    costs: CellCosts
    texts: int  # recorded
    priced: list[Candidate] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    clipped_share: float = 0.0  # of plain decoding's rounds

    def enter(self, policy: TreePolicy, drafter: str | None, replay: Replay) -> None:
        """Price a replay, or note why it cannot be."""
        if replay.censored_share > MOST_CENSORED:
            lacking = f"{replay.censored_share:.1%} of the visited positions lack a recorded expansion"
            self.leave_out(policy.label, drafter, f"{lacking}; record wider or deeper")
            return
        try:
            self.priced.append(candidate_of(policy, drafter, replay, self.costs, self.texts))
        except PlanError as error:
            self.leave_out(policy.label, drafter, str(error))

    def leave_out(self, label: str, drafter: str | None, reason: str) -> None:
        """Note a policy that is not priced."""
        cell = self.costs.cell
        self.left_out.append(
            LeftOut(batch=cell.batch, context=cell.context, drafter=drafter, label=label, reason=reason)
        )


def price_all(inputs: PlanInputs, cells: Sequence[Cell]) -> list[Contest]:
    """Return every cell with all candidates priced in it or left out.

    Raises:
        PlanError: fewer texts than slots, or plain decoding has no price.
    """
    contests = [_contest(inputs, cell) for cell in cells]
    rows = rows_of(inputs.texts)
    for policy, results in textual(inputs.texts, rows):
        _enter(contests, policy, None if isinstance(policy, PlainPolicy) else LOOKUP, results, rows)
    for contest in contests:
        if not any(isinstance(candidate.policy, PlainPolicy) for candidate in contest.priced):
            raise PlanError(f"plain decoding has no price: {contest.left_out[0].reason}")
    for drafter in inputs.drafters:
        _enter_drafter(contests, drafter)
    return contests


def _enter_drafter(contests: list[Contest], drafter: DrafterInputs) -> None:
    recording = recording_of(drafter.trace)
    for policy, results in drafted(recording, drafter.trace.rank_acceptance()):
        _enter(contests, policy, drafter.name, results, recording.rows)
    for contest in contests:
        for top_k in EAGLE2_WIDTHS:
            if top_k > recording.children:
                reason = f"the trace records {recording.children} children per node"
                contest.leave_out(f"EAGLE-2 of top {top_k}", drafter.name, reason)
        for cast in cast_policies(contest.costs, drafter.name, recording.children):
            contest.enter(cast, drafter.name, replay_grown(cast, recording, contest.costs.cell.batch))


def _enter(
    contests: list[Contest], policy: TreePolicy, drafter: str | None, results: PositionResults, rows: Rows
) -> None:
    """Replay once per batch size, price in every cell."""
    replays: dict[int, Replay] = {}
    for contest in contests:
        batch = contest.costs.cell.batch
        if batch not in replays:
            replays[batch] = replay_results(results, rows, batch)
        contest.enter(policy, drafter, replays[batch])
        if isinstance(policy, PlainPolicy):
            contest.clipped_share = contest.costs.clipped_share(replays[batch])


def _contest(inputs: PlanInputs, cell: Cell) -> Contest:
    drafts = {drafter.name: drafter.surface for drafter in inputs.drafters}
    return Contest(costs=cell_costs(cell, inputs.verify, drafts, inputs.overhead), texts=len(inputs.texts))


def _textual_results(policy: PlainPolicy | LookupPolicy, inputs: PlanInputs, rows: Rows) -> PositionResults:
    if isinstance(policy, PlainPolicy):
        return plain_results(rows)
    ((_, results),) = lookup_results(inputs.texts, policy.max_ngram, policy.min_ngram, [policy.length])
    return results


def _drafted_replay(policy: DraftedPolicy, recording: Recording, batch: int) -> Replay:
    if isinstance(policy, Eagle2Policy):
        ((_, results),) = eagle2_results(recording, policy.top_k, [policy.depth], [policy.verify_tokens])
    elif isinstance(policy, ChainPolicy | StaticPolicy):
        results = rank_results(policy, recording)
    else:
        return replay_grown(policy, recording, batch)
    return replay_results(results, recording.rows, batch)


def _known_error(surface: LatencySurface) -> float:
    """Return a surface's relative standard error: at shapes it never saw where those were timed, else at its own."""
    judged = [held.error for held in surface.held_out()]
    if len(judged) >= FEWEST_JUDGED:
        return NORMAL_FROM_MAD * statistics.median(judged)
    error = surface.relative_error()
    return error if math.isfinite(error) else UNKNOWN_ERROR


def _provenance(inputs: PlanInputs, contests: list[Contest], *, created: str, spectune: str, seed: int) -> Provenance:
    surfaces = [inputs.verify, *(drafter.surface for drafter in inputs.drafters)]
    return Provenance(
        created=created,
        spectune=spectune,
        surfaces=tuple(surface_source(surface) for surface in surfaces),
        traces=tuple(trace_source(drafter.name, drafter.trace) for drafter in inputs.drafters),
        texts=len(inputs.texts),
        seed=seed,
        candidates=sum(len(contest.priced) for contest in contests),
        censored=tuple(gone for contest in contests for gone in contest.left_out),
        notes=_notes(surfaces, contests),
    )


def _notes(surfaces: list[LatencySurface], contests: list[Contest]) -> tuple[str, ...]:
    notes = []
    for surface in surfaces:
        if not math.isfinite(surface.relative_error()):
            notes.append(
                f"{surface.role} of {surface.model} has single repeats; its error is taken as {UNKNOWN_ERROR:.0%}"
            )
    for contest in contests:
        cell, known = contest.costs.cell, contest.costs.verify.contexts
        if contest.clipped_share > 0.0:
            notes.append(
                f"batch {cell.batch}, context {cell.context}: {contest.clipped_share:.0%} of the rounds lie outside "
                f"the measured contexts {known[0]:.0f}..{known[-1]:.0f} and are priced at the nearest"
            )
    return tuple(notes)
