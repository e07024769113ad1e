"""`tune`: which drafts a server should make at each concurrency, found by a few starts of it.

    plain -> every source's longest chain -> the lengths that promise most, until none does -> a choice

Starts are the cost: drafts are fixed while a server runs. So a start runs the load of every concurrency. The longest
chain's acceptance by position gives that of shorter ones; rounds of lengths between are guessed from those that ran
(`planner/engines/served.py`). Results are saved after every load, so that an interrupted run resumes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...engines.bundle import Bundle
from ...engines.server_engine import Start
from ...planner.engines.served_choice import Ways
from .compared import Compared, TunedChoice
from .serving import Progress, Save, Serving, TuneRequest
from .starts import Starts

THRASHED = (
    "lengths by batch size are slower in this server than each length alone, as in vLLM's issue 49548; one length for "
    "all batches is chosen"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A run's result: choices of each concurrency alone, all ways measured or guessed, and notes.

    `start` is to be served, for all concurrencies together where the engine takes one length. `tried` are the ways that
    ran, compared as the choices are.
    """

    start: Start
    choices: tuple[TunedChoice, ...]
    tried: tuple[TunedChoice, ...]
    ways: Ways
    bundle: Bundle
    notes: tuple[str, ...]


def tune(request: TuneRequest, serving: Serving, bundle: Bundle, *, save: Save, progress: Progress) -> Tuned:
    """Return what a server should draft; MeasurementError if plain decoding cannot run or nothing drafts.

    `bundle` is empty or an interrupted run's; `save` gets it after every load. `progress` gets a message and a share.
    """
    starts = Starts(request, serving, bundle, save, progress)
    starts.measure_plain()
    starts.measure_longest_chains()
    starts.measure_promising_lengths()
    starts.measure_best_table()
    found = plan(request, serving, starts.ran.bundle)
    save(found.bundle)
    return replace(found, notes=(*starts.notes, *found.notes))


def plan(request: TuneRequest, serving: Serving, bundle: Bundle) -> Tuned:
    """Return what a server should draft by what ran; nothing is started. A table counts where it ran as a whole."""
    ran = Compared(request, serving, bundle)
    start = ran.chosen([table for table in ran.whole_tables if table.source in ran.tables])
    return Tuned(
        start=start,
        choices=tuple(ran.choices(start)),
        tried=tuple(ran.tried()),
        ways=ran.ways,
        bundle=replace(bundle, chosen=start),
        notes=(*ran.paces.notes(), *((THRASHED,) if serving.takes_table and ran.thrash else ())),
    )
