"""Where a solved plan comes from: what priced it, what was replayed, and what a reader must know of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...profiler.records.device import GIB
from ...profiler.records.surface import LatencySurface
from ..inputs import PlanInputs
from ..memory.peak import plan_bytes
from ..plans.plan import PlanCell
from ..plans.provenance import Provenance, surface_source, trace_source
from ..plans.schedule import Place
from .options import SearchOptions
from .promise import UNKNOWN_ERROR, known_error
from .solved import SolvedCell


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
