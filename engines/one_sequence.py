"""Common to engines that decode one sequence at a time and copy behind an n-gram's first occurrence."""

from __future__ import annotations

from ..errors import MeasurementError
from ..planner.strategies import TreePolicy
from ..planner.strategies.lookup import LookupPolicy
from .base import ExportEngine
from .measured import EngineCounters, EngineLoad
from .setting import OF_LLAMA_CPP, EngineDrafter, Setting

NGRAM_SIZES = (2, 3, 4)  # of the longest n-gram looked for
NGRAM_LENGTHS = (2, 4, 8)  # tokens copied behind one
WARM_UP_TOKENS = 8


def measurable(engine: ExportEngine, version: str, policy: TreePolicy, drafter: EngineDrafter | None = None) -> Setting:
    """Return the setting of an exported policy, `drafter` None for text; MeasurementError if there is none."""
    found = engine.setting(policy, drafter, version)
    if isinstance(found, str):
        raise MeasurementError(f"{policy.label} cannot be measured: {found}")
    return found


def lookups(engine: ExportEngine, version: str) -> list[Setting]:
    """Return a few lengths of prompt lookup, the simplest first."""
    return [
        measurable(engine, version, LookupPolicy(length=length, max_ngram=ngram, occurrence="first"))
        for ngram in NGRAM_SIZES
        for length in NGRAM_LENGTHS
    ]


def first_lookup(policy: LookupPolicy, engine: str, knob: str) -> Setting | str:
    """Return how an engine that copies behind an n-gram's first occurrence runs a lookup, or why it cannot."""
    if policy.occurrence == "mapped":
        return OF_LLAMA_CPP
    if policy.min_ngram > 1:
        return f"{engine}'s prompt lookup has a longest n-gram, and always looks down to 1"
    return Setting(
        method="prompt lookup",
        drafter=None,
        knobs=((knob, policy.max_ngram),),
        length=policy.length,
        distance=0 if policy.occurrence == "first" else 1,
    )


def require_one_sequence(engine: str, load: EngineLoad) -> None:
    """Raise MeasurementError for more than one sequence, or synthetic acceptance."""
    if load.synthetic:
        raise MeasurementError(f"{engine} verifies what is drafted; acceptance cannot be set by hand")
    if load.concurrency > 1:
        raise MeasurementError(f"{engine} is measured at concurrency 1 here, not at {load.concurrency}")


class RoundCounts:
    """Drafted and accepted tokens of all rounds so far."""

    def __init__(self) -> None:
        self._drafts = self._drafted = self._accepted = 0
        self._by_position: list[int] = []

    def add(self, drafted: int, kept: int) -> None:
        """Count one round of one sequence; one without draft does not count in `drafts`."""
        self._drafts += drafted > 0
        self._drafted += drafted
        self._accepted += kept
        self._by_position += [0] * (drafted - len(self._by_position))
        for position in range(kept):
            self._by_position[position] += 1

    @property
    def counters(self) -> EngineCounters:
        """The sums."""
        return EngineCounters(
            drafts=self._drafts,
            drafted=self._drafted,
            accepted=self._accepted,
            by_position=tuple(self._by_position),
        )
