"""Solve a plan: replay every candidate, price it in every cell, search the knobs that have no grid, choose.

The cells are solved in groups, which may run in processes of their own; the schedule is then made of what each cell
found as good as its best.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from ...errors import PlanError
from ...profiler.records.measurement import NORMAL_FROM_MAD
from ...profiler.records.surface import LatencySurface
from ..inputs import LOOKUP, PlanInputs, resumes_of
from ..lossy.search import search_lossy
from ..memory.peak import memory_bytes
from ..plans.plan import Plan, PlanCell
from ..plans.provenance import LeftOut, Provenance, surface_source, trace_source
from ..plans.schedule import HYSTERESIS, Place, Way, agreed
from ..policies import PlainPolicy, StackPolicy, TextPolicy, TreePolicy
from ..policies.hybrid import ElsePolicy
from ..pricing.bounds import most_tokens_per_round
from ..pricing.cost import Cell, Floats, cell_costs
from ..pricing.estimate import resampling_weights
from ..published.prices import price_published
from ..replay.recorded import Rows
from ..replay.rehearsal import Rehearsal
from ..replay.replay import Replay, replay_results
from ..stacks.forecast import stack_forecast
from ..stacks.search import StackSearch
from ..text.hybrid import hybrids
from .candidate import Candidate
from .candidates import Contender, drafted, resumed, textual, unrecorded_beams
from .choice import DRIFT, Beside, SurfaceErrors, ballot_of, planned_cell
from .contest import Contest
from .crossfit import EVERYWHERE
from .options import SearchOptions, Studies
from .searched import Searcher
from .studies import studies_in_memory

FEWEST_JUDGED = 5  # held-out shapes from which a surface's error is taken
UNKNOWN_ERROR = 0.10  # taken as a surface's relative error where single repeats leave it open
LEAST_STEADY = 0.5  # share of the texts' tokens below which a plan says how few it rests on
MOST_NEAR = 5  # candidates as good as a cell's best that its schedule may take, the simplest ones


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedCell:
    """What one cell found.

    Attributes:
        near: the plans of the cell that are as good as its best, the one it would take by itself first.
        priced, pruned: how many candidates were replayed, and how many could be seen to lose without it.
    """

    near: tuple[PlanCell, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    priced: int
    pruned: int

    @property
    def place(self) -> Place:
        """Batch and context."""
        return self.near[0].batch, self.near[0].context

    @property
    def ways(self) -> list[Way]:
        """What each of the near plans is called."""
        return [(cell.policy.label, cell.drafter) for cell in self.near]


Solve = Callable[[tuple[Cell, ...]], tuple[SolvedCell, ...]]
Spread = Callable[[Solve, Iterable[tuple[Cell, ...]]], Iterable[tuple[SolvedCell, ...]]]  # like map


def solve(
    inputs: PlanInputs,
    cells: Sequence[Cell],
    *,
    created: str,
    spectune: str,
    options: SearchOptions | None = None,
    studies: Studies | None = None,
    spread: Spread = map,
    parts: int = 1,
) -> Plan:
    """Return the fastest way to decode in every cell.

    Args:
        inputs: what was measured and recorded.
        cells: from `cells_of`.
        created: UTC time, ISO 8601.
        spectune: version that solves.
        options: how long to search and what to keep to.
        studies: opens Optuna studies by name; in memory where None.
        spread: applies a function to groups of cells, in order; may do so in other processes.
        parts: groups to make; whole batch sizes as long as there are enough of them.

    Raises:
        PlanError: fewer texts than slots, or inputs that do not belong together.
        MeasurementError: a batch, or the host time of plain decoding, was not measured.
    """
    wanted = options or SearchOptions()
    groups = _groups(cells, parts)
    solved = partial(solve_cells, inputs, wanted, studies or studies_in_memory(wanted.seed))
    found = {one.place: one for group in spread(solved, groups) for one in group}
    outcomes = [found[cell.batch, cell.context] for cell in cells]  # whatever the groups were
    taken = agreed({one.place: one.ways for one in outcomes})
    return Plan(
        device=inputs.device,
        target=inputs.target,
        drafters=tuple((drafter.name, drafter.model) for drafter in inputs.drafters),
        dtype=inputs.dtype,
        workload=inputs.workload,
        temperature=inputs.temperature,
        cells=tuple(one.near[taken[one.place]] for one in outcomes),
        provenance=_provenance(inputs, outcomes, created=created, spectune=spectune, seed=wanted.seed),
        bound=wanted.bound,
        hysteresis=HYSTERESIS,
    )


def solve_cells(
    inputs: PlanInputs, options: SearchOptions, studies: Studies, cells: Sequence[Cell]
) -> tuple[SolvedCell, ...]:
    """Return what each cell found; all contexts of a batch size are best solved together."""
    rehearsal = Rehearsal(inputs)
    contests = price_all(rehearsal, cells, options)
    searcher = Searcher(options=options, studies=studies, rehearsal=rehearsal)
    weights, errors = resampling_weights(len(inputs.texts), options.seed), _errors(inputs)
    stacks = StackSearch(rehearsal, options.seed)
    solved = []
    for contest in contests:
        searcher.search(contest)
        stacks.search(contest)
        notes = search_lossy(contest, inputs, options)
        solved.append(_solved(contest, rehearsal, stacks, weights, errors, notes))
    return tuple(solved)


def _solved(
    contest: Contest,
    rehearsal: Rehearsal,
    stacks: StackSearch,
    weights: Floats,
    errors: SurfaceErrors,
    notes: tuple[str, ...] = (),
) -> SolvedCell:
    published = price_published(contest, rehearsal)
    stack = stack_forecast(rehearsal.inputs, contest.costs)
    ballot = ballot_of(contest, weights)
    near = []
    for taken, place in enumerate(ballot.near[:MOST_NEAR]):
        one = ballot.candidates[place]
        shape = rehearsal.shape(one.policy, one.drafter, contest.batch)
        beside = Beside(published=published, stack=stack, shape=shape)
        near.append(planned_cell(contest, ballot, taken, weights, errors, beside))
    return SolvedCell(
        near=tuple(near),
        left_out=contest.left_out(),
        notes=(*_notes_of(contest), *stacks.notes_of(contest, near[0].policy), *notes),
        priced=len(contest.priced),
        pruned=contest.pruned,
    )


def price(inputs: PlanInputs, cell: Cell, policy: TreePolicy, drafter: str | None = None) -> Candidate:
    """Return one policy's speed in a cell, whether or not it would be chosen.

    Args:
        drafter: which one drafts; of no matter for plain decoding and what drafts from the text.

    Raises:
        PlanError: no such drafter, a forward larger than measured, or too few recorded expansions.
    """
    contest, rehearsal = _contest(inputs, cell, SearchOptions()), Rehearsal(inputs)
    if isinstance(policy, StackPolicy):
        return StackSearch(rehearsal, SearchOptions().seed).price(contest, policy)
    source = LOOKUP if isinstance(policy, TextPolicy) else None if isinstance(policy, PlainPolicy) else drafter
    found = contest.enter(policy, source, rehearsal.replay(policy, source, cell.batch))
    if found is None:
        raise PlanError(f"{policy.label} cannot be priced: {contest.left_out()[0].reason}")
    return found


def price_all(rehearsal: Rehearsal, cells: Sequence[Cell], options: SearchOptions) -> list[Contest]:
    """Return every cell with the candidates of all grids priced in it, pruned, or left out.

    Raises:
        PlanError: fewer texts than slots, or plain decoding has no price.
    """
    inputs = rehearsal.inputs
    contests = [_contest(inputs, cell, options) for cell in cells]
    most_tokens = max(contest.costs.verify.most_tokens for contest in contests)
    for contender in textual(inputs.texts, rehearsal.rows, most_tokens, options.tables):
        _enter(contests, contender, None if isinstance(contender.policy, PlainPolicy) else LOOKUP, rehearsal.rows)
    for contest in contests:
        if not any(isinstance(candidate.policy, PlainPolicy) for candidate in contest.priced):
            raise PlanError(f"plain decoding has no price: {contest.left_out()[0].reason}")
    for drafter in inputs.drafters:
        recording = rehearsal.recording(drafter.name)
        for contender in drafted(recording, most_tokens):
            _enter(contests, contender, drafter.name, recording.rows)
        if drafter.resume is not None:
            for contender in resumed(recording, most_tokens):
                _enter(contests, contender, drafter.name, recording.rows)
        for policy, results in hybrids(recording, _else_policies(contests, drafter.name), most_tokens):
            _enter(contests, Contender(policy=policy, results=results), drafter.name, recording.rows)
        for contest in contests:
            for beam in unrecorded_beams(recording):
                contest.refuse(beam, drafter.name, f"the trace records {recording.children} children per node")
    return contests


def _else_policies(contests: Sequence[Contest], drafter: str) -> list[ElsePolicy]:
    """Return what a drafter's hybrids draft where the text does not: its fastest of each such kind in every cell."""
    found: dict[ElsePolicy, None] = {}
    for contest in contests:
        best: dict[str, Candidate] = {}
        for one, half in zip(contest.priced, contest.searched_on, strict=True):
            if one.drafter == drafter and half == EVERYWHERE and isinstance(one.policy, ElsePolicy):
                known = best.get(one.policy.kind)
                if known is None or one.tokens_per_s > known.tokens_per_s:
                    best[one.policy.kind] = one
        found |= {one.policy: None for one in best.values() if isinstance(one.policy, ElsePolicy)}
    return list(found)


def _enter(contests: list[Contest], contender: Contender, drafter: str | None, rows: Rows) -> None:
    """Replay once per batch size, price in every cell where the policy can matter."""
    policy, results = contender.policy, contender.results
    replays: dict[int, Replay] = {}
    most_tokens = most_tokens_per_round(results, rows)
    for contest in contests:
        if contest.lacks_host_time(policy, drafter) or not contest.can_matter(policy, drafter, results, most_tokens):
            continue
        if contest.batch not in replays:
            replays[contest.batch] = replay_results(results, rows, contest.batch)
        contest.enter(policy, drafter, replays[contest.batch], contender.searched_on)
        if isinstance(policy, PlainPolicy):
            contest.clipped_share = contest.costs.clipped_share(replays[contest.batch])
            contest.steady_share = replays[contest.batch].tokens / int(rows.left[rows.starts].sum())


def _contest(inputs: PlanInputs, cell: Cell, options: SearchOptions) -> Contest:
    drafts = {drafter.name: drafter.surface for drafter in inputs.drafters}
    costs = cell_costs(cell, inputs.verify, drafts, inputs.overhead, resumes_of(inputs))

    def needs_bytes(policy: TreePolicy, drafter: str | None) -> int | None:
        return memory_bytes(cell, policy, drafter, inputs, costs.verifying(policy.kind, drafter).run_tokens)

    return Contest(
        costs=costs,
        texts=len(inputs.texts),
        needs_bytes=needs_bytes,
        most_bytes=options.max_memory_bytes,
        bound=options.bound,
    )


def _groups(cells: Sequence[Cell], parts: int) -> list[tuple[Cell, ...]]:
    """Return the cells in groups of whole batch sizes, dealt out in turn; single cells where there are more parts."""
    batches = sorted({cell.batch for cell in cells})
    if parts > len(batches):
        dealt = [tuple(cells[start::parts]) for start in range(min(parts, len(cells)))]
        return [group for group in dealt if group]
    own = [set(batches[start::parts]) for start in range(max(parts, 1))]
    return [tuple(cell for cell in cells if cell.batch in some) for some in own]


def _errors(inputs: PlanInputs) -> SurfaceErrors:
    return SurfaceErrors(
        verify=_error(inputs.verify),
        drafts={drafter.name: _error(drafter.surface) for drafter in inputs.drafters},
        resumed={name: _error(surface) for name, surface in resumes_of(inputs).items()},
        drift=max(DRIFT, math.sqrt(2.0) * inputs.verify.drift()),  # the moment of measuring is a sample, too
    )


def _error(surface: LatencySurface) -> float:
    known = _known_error(surface)
    return UNKNOWN_ERROR if known is None else known


def _known_error(surface: LatencySurface) -> float | None:
    """Return a surface's relative standard error: at shapes it never saw where those were timed, else at its own.

    None where single repeats leave it open.
    """
    judged = [held.error for held in surface.held_out()]
    if len(judged) >= FEWEST_JUDGED:
        return NORMAL_FROM_MAD * statistics.median(judged)
    error = surface.relative_error()
    return error if math.isfinite(error) else None


def _provenance(
    inputs: PlanInputs, outcomes: list[SolvedCell], *, created: str, spectune: str, seed: int
) -> Provenance:
    surfaces = [inputs.verify, *(surface for drafter in inputs.drafters for surface in drafter.surfaces)]
    return Provenance(
        created=created,
        spectune=spectune,
        surfaces=tuple(surface_source(surface) for surface in surfaces),
        traces=tuple(trace_source(drafter.name, drafter.trace) for drafter in inputs.drafters),
        texts=len(inputs.texts),
        seed=seed,
        candidates=sum(one.priced for one in outcomes),
        pruned=sum(one.pruned for one in outcomes),
        censored=tuple(gone for one in outcomes for gone in one.left_out),
        notes=(*inputs.notes, *_notes(surfaces), *(note for one in outcomes for note in one.notes)),
    )


def _notes(surfaces: list[LatencySurface]) -> tuple[str, ...]:
    return tuple(
        f"{surface.role} of {surface.model} has single repeats; its error is taken as {UNKNOWN_ERROR:.0%}"
        for surface in surfaces
        if _known_error(surface) is None
    )


def _notes_of(contest: Contest) -> tuple[str, ...]:
    cell, known, notes = contest.costs.cell, contest.costs.verify.contexts, []
    if contest.clipped_share > 0.0:
        notes.append(
            f"batch {cell.batch}, context {cell.context}: {contest.clipped_share:.0%} of the rounds lie outside "
            f"the measured contexts {known[0]:.0f}..{known[-1]:.0f} and are priced at the nearest"
        )
    if contest.steady_share < LEAST_STEADY:
        notes.append(
            f"batch {cell.batch}, context {cell.context}: with {contest.texts} texts only {contest.steady_share:.0%} "
            "of the tokens are decoded while every slot is busy, and only these count; record more prompts"
        )
    return tuple(notes)
