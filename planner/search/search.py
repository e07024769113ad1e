"""Solve a plan: price every candidate in every cell, search the knobs that have no grid, choose.

The cells are solved in groups, which may run in processes of their own; the schedule is then made of what each cell
found as good as its best.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...profiler.records.device import GIB
from ...profiler.records.surface import LatencySurface
from ..inputs import PlanInputs
from ..lossy.search import search_lossy
from ..memory.peak import plan_bytes
from ..plans.plan import Plan, PlanCell
from ..plans.provenance import LeftOut, Provenance, surface_source, trace_source
from ..plans.schedule import HYSTERESIS, Place, Way, agreed
from ..pricing.cost import Cell, Floats
from ..pricing.estimate import resampling_weights
from ..published.prices import price_published
from ..replay.rehearsal import Rehearsal
from ..replay.shortened import shortened
from ..stacks.forecast import stack_forecast
from ..stacks.search import StackSearch
from .choice import ballot_of
from .contest import Contest
from .options import SearchOptions, Studies
from .planned import Beside, planned_cell
from .price import price_all
from .promise import UNKNOWN_ERROR, SurfaceErrors, errors_of, known_error
from .searched import Searcher
from .studies import studies_in_memory

MOST_NEAR = 5  # candidates as good as a cell's best that its schedule may take, the simplest ones


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedCell:
    """What one cell found.

    Attributes:
        near: the plans of the cell that are as good as its best, the one it would take by itself first.
        priced, pruned, untried: how many candidates were replayed, how many could be seen to lose without it, and of
            how many others less was expected.
    """

    near: tuple[PlanCell, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    priced: int
    pruned: int
    untried: int

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
    played = shortened(inputs, wanted.new_tokens)
    solved = partial(solve_cells, played, wanted, studies or studies_in_memory(wanted.seed))
    found = {one.place: one for group in spread(solved, groups) for one in group}
    outcomes = [found[cell.batch, cell.context] for cell in cells]  # whatever the groups were
    taken = agreed({one.place: one.ways for one in outcomes})
    chosen = tuple(one.near[taken[one.place]] for one in outcomes)
    provenance = _provenance(inputs, outcomes, wanted, created=created, spectune=spectune)
    return Plan(
        device=inputs.device,
        target=inputs.target,
        drafters=tuple((drafter.name, drafter.model) for drafter in inputs.drafters),
        dtype=inputs.dtype,
        workload=inputs.workload,
        temperature=inputs.temperature,
        cells=chosen,
        provenance=replace(provenance, notes=(*provenance.notes, *_note_of_memory(chosen, inputs, wanted))),
        bound=wanted.bound,
        new_tokens=wanted.new_tokens,
        hysteresis=HYSTERESIS,
    )


def solve_cells(
    inputs: PlanInputs, options: SearchOptions, studies: Studies, cells: Sequence[Cell]
) -> tuple[SolvedCell, ...]:
    """Return what each cell found; all contexts of a batch size are best solved together."""
    rehearsal = Rehearsal(inputs)
    contests = price_all(rehearsal, cells, options)
    searcher = Searcher(options=options, studies=studies, rehearsal=rehearsal)
    weights, errors = resampling_weights(len(inputs.texts), options.seed), errors_of(inputs)
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
    drafts = contest.costs.drafts
    layers = {name: rehearsal.recording(name).layers for name, table in drafts.items() if table.is_block}
    ballot = ballot_of(contest, weights)
    near = []
    for taken, place in enumerate(ballot.near[:MOST_NEAR]):
        one = ballot.candidates[place]
        shape = rehearsal.shape(one.policy, one.drafter, contest.batch)
        beside = Beside(published=published, stack=stack, shape=shape, layers=layers)
        near.append(planned_cell(contest, ballot, taken, weights, errors, beside))
    return SolvedCell(
        near=tuple(near),
        left_out=contest.left_out(),
        notes=(*_notes_of(contest), *stacks.notes_of(contest, near[0].policy), *notes),
        priced=len(contest.priced),
        pruned=contest.pruned,
        untried=contest.untried,
    )


def _groups(cells: Sequence[Cell], parts: int) -> list[tuple[Cell, ...]]:
    """Return the cells in groups of whole batch sizes, dealt out in turn; single cells where there are more parts."""
    batches = sorted({cell.batch for cell in cells})
    if parts > len(batches):
        dealt = [tuple(cells[start::parts]) for start in range(min(parts, len(cells)))]
        return [group for group in dealt if group]
    own = [set(batches[start::parts]) for start in range(max(parts, 1))]
    return [tuple(cell for cell in cells if cell.batch in some) for some in own]


def _provenance(
    inputs: PlanInputs, outcomes: list[SolvedCell], options: SearchOptions, *, created: str, spectune: str
) -> Provenance:
    surfaces = [inputs.verify, *(surface for drafter in inputs.drafters for surface in drafter.surfaces)]
    return Provenance(
        created=created,
        spectune=spectune,
        surfaces=tuple(surface_source(surface) for surface in surfaces),
        traces=tuple(trace_source(drafter.name, drafter.trace) for drafter in inputs.drafters),
        texts=len(inputs.texts),
        seed=options.seed,
        candidates=sum(one.priced for one in outcomes),
        pruned=sum(one.pruned for one in outcomes),
        untried=sum(one.untried for one in outcomes),
        censored=tuple(gone for one in outcomes for gone in one.left_out),
        notes=(
            *inputs.notes,
            *_notes(surfaces),
            *(() if options.new_tokens is None else _notes_of_answers(inputs, options.new_tokens)),
            *_notes_of_failures(inputs.verify, {one.place for one in outcomes}),
            *(note for one in outcomes for note in one.notes),
        ),
    )


def _notes(surfaces: list[LatencySurface]) -> tuple[str, ...]:
    return tuple(
        f"{surface.role} of {surface.model} has single repeats; its error is taken as {UNKNOWN_ERROR:.0%}"
        for surface in surfaces
        if known_error(surface) is None
    )


def _notes_of_answers(inputs: PlanInputs, new_tokens: int) -> tuple[str, ...]:
    """Return whose reading of prompts was not timed, so that nothing of it counts, and how long texts really are."""
    untimed = [drafter.name for drafter in inputs.drafters if drafter.model.key not in inputs.readings]
    longest = max(len(text.continuation) for text in inputs.texts)
    notes = []
    if untimed:
        notes.append(
            f"reading prompts was not timed of {', '.join(untimed)}, so theirs is not counted; profile them again"
        )
    if longest < new_tokens:
        notes.append(
            f"answers of {new_tokens} tokens are planned on texts of at most {longest}; profile with --max-new-tokens "
            f"{new_tokens}"
        )
    return tuple(notes)


def _notes_of_failures(verify: LatencySurface, places: Collection[Place]) -> tuple[str, ...]:
    """Return, by batch, where all forwards of the target failed, so that a plan of those places has no cell there."""
    notes = []
    for batch in sorted({cell.batch for cell in verify.measurements}):
        failed = {at: why for at, why in verify.all_failed(batch).items() if (batch, at) not in places}
        if failed:
            contexts, why = ", ".join(map(str, failed)), next(iter(failed.values()))
            notes.append(f"batch {batch}, context {contexts}: no forward of the target ran ({why}), so none is planned")
    return tuple(notes)


def _note_of_memory(cells: Sequence[PlanCell], inputs: PlanInputs, options: SearchOptions) -> tuple[str, ...]:
    """Return a note where a decoder that comes to every cell needs more than each of them may."""
    most = options.max_memory_bytes
    needed = None if most is None or len(cells) == 1 else plan_bytes(cells, inputs)
    if most is None or needed is None or needed <= most:
        return ()
    return (
        f"every cell keeps to {most / GIB:.3g} GiB, but a decoder of all drafters, for the most sequences and the "
        f"longest texts of the plan, takes {needed / GIB:.3g} GiB; where there is less it leaves out drafters",
    )


def _notes_of(contest: Contest) -> tuple[str, ...]:
    cell, known, notes = contest.costs.cell, contest.costs.verify.contexts, []
    if contest.clipped_share > 0.0:
        notes.append(
            f"batch {cell.batch}, context {cell.context}: {contest.clipped_share:.0%} of the rounds lie outside "
            f"the measured contexts {known[0]:.0f}..{known[-1]:.0f} and are priced at the nearest"
        )
    return tuple(notes)
