"""Solve a plan: price every candidate in every cell, search the knobs that have no grid, choose.

Each cell is solved alone, whichever others are planned; groups of cells may run in separate processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...profiler.records.device import GIB
from ...profiler.records.surface import LatencySurface
from ..inputs import PlanInputs
from ..memory.peak import plan_bytes
from ..plans.plan import Plan, PlanCell
from ..plans.provenance import Provenance, surface_source, trace_source
from ..plans.schedule import HYSTERESIS, Place
from ..pricing.cells import Cell
from ..pricing.cost import Floats
from ..replay.rehearsal import Rehearsal
from ..replay.shortened import shortened
from .choice import Ballot, ballot_of
from .contest import CellSearch, unknown_bytes
from .estimate import resampling_weights
from .lossy_search import search_lossy
from .options import SearchOptions, Studies
from .planned import BesideChoice, planned_cell
from .price import needs_bytes_of, price_all
from .promise import UNKNOWN_ERROR, SurfaceErrors, errors_of, known_error
from .published import price_published
from .searched import Searcher
from .stack_forecast import stack_forecast
from .stack_search import StackSearch
from .studies import studies_in_memory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SolvedCell:
    """What one cell found: all that was priced, which of it is as good as the best, and notes for its readers."""

    contest: CellSearch
    ballot: Ballot
    beside: BesideChoice
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        """Batch and context."""
        cell = self.contest.costs.cell
        return cell.batch, cell.context


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
    """Return the fastest way to decode in every cell; cells are from `cells_of`.

    `created` is UTC, ISO 8601; `spectune` the version. `studies` opens Optuna studies by name, in memory where None.
    `spread` applies a function to `parts` groups of cells, in order, maybe in other processes; groups are whole batch
    sizes as long as there are enough.

    PlanError: fewer texts than slots, or inputs that do not belong together. MeasurementError: a batch, or the host
    time of plain decoding, was not measured.
    """
    wanted = options or SearchOptions()
    groups = _groups(cells, parts)
    played = shortened(inputs, wanted.new_tokens)
    solved = partial(solve_cells, played, wanted, studies or studies_in_memory(wanted.seed))
    found = {one.place: one for group in spread(solved, groups) for one in group}
    outcomes = [found[cell.batch, cell.context] for cell in cells]  # whatever the groups were
    rehearsal, weights = Rehearsal(played), resampling_weights(len(played.texts), wanted.seed)
    stacks, errors = StackSearch(rehearsal, wanted.seed), errors_of(played)
    for one in outcomes:
        one.contest.needs_bytes = needs_bytes_of(played, one.contest.costs)
    chosen = [_planned(one, rehearsal, weights, errors) for one in outcomes]
    notes = [
        note for one, cell in zip(outcomes, chosen, strict=True) for note in stacks.notes_of(one.contest, cell.policy)
    ]
    return Plan(
        device=inputs.device,
        target=inputs.target,
        drafters=tuple((drafter.name, drafter.model) for drafter in inputs.drafters),
        dtype=inputs.dtype,
        workload=inputs.workload,
        temperature=inputs.temperature,
        cells=tuple(chosen),
        provenance=provenance_of(inputs, outcomes, chosen, wanted, notes, created=created, spectune=spectune),
        bound=wanted.bound,
        new_tokens=wanted.new_tokens,
        cached_share=wanted.cached_share,
        hysteresis=HYSTERESIS,
    )


def solve_cells(
    inputs: PlanInputs, options: SearchOptions, studies: Studies, cells: Sequence[Cell]
) -> tuple[SolvedCell, ...]:
    """Return what each cell found; all contexts of a batch size are best solved together."""
    rehearsal = Rehearsal(inputs)
    contests = price_all(rehearsal, cells, options)
    searcher = Searcher(options=options, studies=studies, rehearsal=rehearsal)
    weights, stacks = resampling_weights(len(inputs.texts), options.seed), StackSearch(rehearsal, options.seed)
    solved = []
    for contest in contests:
        searcher.search(contest)
        stacks.search(contest)
        solved.append(_solved(contest, rehearsal, options, weights))
        contest.needs_bytes = unknown_bytes
    return tuple(solved)


def _solved(contest: CellSearch, rehearsal: Rehearsal, options: SearchOptions, weights: Floats) -> SolvedCell:
    drafts = contest.costs.drafts
    layers = {name: rehearsal.recording(name).layers for name, table in drafts.items() if table.is_block}
    notes = (*_notes_of(contest), *search_lossy(contest, rehearsal.inputs, options, layers))
    beside = BesideChoice(
        published=price_published(contest, rehearsal),
        stack=stack_forecast(rehearsal.inputs, contest.costs),
        layers=layers,
    )
    return SolvedCell(contest=contest, ballot=ballot_of(contest, weights), beside=beside, notes=notes)


def _planned(solved: SolvedCell, rehearsal: Rehearsal, weights: Floats, errors: SurfaceErrors) -> PlanCell:
    contest, ballot = solved.contest, solved.ballot
    one = contest.priced[ballot.near[0]]
    shape = rehearsal.shape(one.policy, one.drafter, contest.batch)
    return planned_cell(contest, ballot, weights, errors, replace(solved.beside, shape=shape))


def _groups(cells: Sequence[Cell], parts: int) -> list[tuple[Cell, ...]]:
    """Return groups of whole batch sizes, dealt out in turn; single cells where there are more parts."""
    batches = sorted({cell.batch for cell in cells})
    if parts > len(batches):
        dealt = [tuple(cells[start::parts]) for start in range(min(parts, len(cells)))]
        return [group for group in dealt if group]
    own = [set(batches[start::parts]) for start in range(max(parts, 1))]
    return [tuple(cell for cell in cells if cell.batch in some) for some in own]


def _notes_of(contest: CellSearch) -> tuple[str, ...]:
    cell, known, notes = contest.costs.cell, contest.costs.verify.contexts, []
    if contest.costs.priced_at_context is not None:
        notes.append(
            f"batch {cell.batch}, context {cell.context}: beyond the measured {known[0]:.0f}..{known[-1]:.0f}, "
            f"so it is priced as {contest.costs.priced_at_context} and may be far off; profile it with: spectune "
            f"profile --context {cell.context}"
        )
    if contest.clipped_share > 0.0:
        notes.append(
            f"batch {cell.batch}, context {cell.context}: {contest.clipped_share:.0%} of the rounds lie outside "
            f"the measured contexts {known[0]:.0f}..{known[-1]:.0f} and are priced at the nearest"
        )
    return tuple(notes)


def provenance_of(
    inputs: PlanInputs,
    outcomes: Sequence[SolvedCell],
    chosen: Sequence[PlanCell],
    options: SearchOptions,
    notes: Sequence[str],
    *,
    created: str,
    spectune: str,
) -> Provenance:
    """Return where the chosen cells of a plan come from.

    `outcomes` are all that the cells found, `chosen` what the schedule takes, `notes` on that choice. `created` is UTC,
    ISO 8601; `spectune` the version that solved.
    """
    surfaces = [inputs.verify, *(surface for drafter in inputs.drafters for surface in drafter.surfaces)]
    return Provenance(
        created=created,
        spectune=spectune,
        surfaces=tuple(surface_source(surface) for surface in surfaces),
        traces=tuple(trace_source(drafter.name, drafter.trace) for drafter in inputs.drafters),
        texts=len(inputs.texts),
        seed=options.seed,
        candidates=sum(len(one.contest.priced) for one in outcomes),
        pruned=sum(one.contest.pruned for one in outcomes),
        untried=sum(one.contest.untried for one in outcomes),
        censored=tuple(gone for one in outcomes for gone in one.contest.left_out()),
        notes=(
            *inputs.notes,
            *_notes(surfaces),
            *(() if options.new_tokens is None else _notes_of_answers(inputs, options.new_tokens)),
            *_notes_of_failures(inputs.verify, {one.place for one in outcomes}),
            *(note for one in outcomes for note in one.notes),
            *notes,
            *_note_of_memory(chosen, inputs, options),
        ),
    )


def _notes(surfaces: list[LatencySurface]) -> tuple[str, ...]:
    return tuple(
        f"{surface.role} of {surface.model} has single repeats; its error is taken as {UNKNOWN_ERROR:.0%}"
        for surface in surfaces
        if known_error(surface) is None
    )


def _notes_of_answers(inputs: PlanInputs, new_tokens: int) -> tuple[str, ...]:
    """Return which readings of prompts were not timed, so that they do not count, and how long texts really are."""
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
    """Return, by batch, where all forwards of the target failed, so that the plan has no cell there."""
    notes = []
    for batch in sorted({cell.batch for cell in verify.measurements}):
        failed = {at: why for at, why in verify.all_failed(batch).items() if (batch, at) not in places}
        if failed:
            contexts, why = ", ".join(map(str, failed)), next(iter(failed.values()))
            notes.append(f"batch {batch}, context {contexts}: no forward of the target ran ({why}), so none is planned")
    return tuple(notes)


def _note_of_memory(cells: Sequence[PlanCell], inputs: PlanInputs, options: SearchOptions) -> tuple[str, ...]:
    """Return a note where a decoder of all cells needs more memory than each cell may."""
    most = options.max_memory_bytes
    needed = None if most is None or len(cells) == 1 else plan_bytes(cells, inputs)
    if most is None or needed is None or needed <= most:
        return ()
    return (
        f"every cell keeps to {most / GIB:.3g} GiB, but a decoder of all drafters, for the most sequences and the "
        f"longest texts of the plan, takes {needed / GIB:.3g} GiB; where there is less it leaves out drafters",
    )
