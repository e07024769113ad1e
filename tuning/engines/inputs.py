"""Between an engine's words and the planner's: settings and ways, surfaces and what a plan is computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from ...engines.measured import MeasuredEngine
from ...engines.setting import Setting
from ...engines.table import ENGINES
from ...errors import MeasurementError
from ...planner.engines.choice import EngineInputs, TimedSetting, Way
from ...planner.records.recording import texts_of
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.lookup import AnyOccurrence, LookupPolicy
from ...planner.strategies.naming import LOOKUP
from ...planner.strategies.plain import PlainPolicy
from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.measurement import Measurement
from ...profiler.records.surface import LatencySurface
from ..request import Identities

LONGEST_NGRAM = 4
WHOLE_NGRAMS = "engine:llama.cpp-"  # how regimes begin whose n-gram drafts are no shorter than the n-gram
PADDED_NGRAMS = "engine:openvino-"  # and those whose n-gram rounds cost their full length
OCCURRENCES: tuple[AnyOccurrence, ...] = get_args(AnyOccurrence)
PLAIN_ROLE, ROLE, LOOKUP_ROLE = "round:plain", "round:", f"round:{LOOKUP}:"


def setting_of(engine: MeasuredEngine, way: Way) -> Setting | None:
    """Return the engine setting for a policy, None for plain decoding; raise MeasurementError where it has none."""
    policy, drafter = way
    if isinstance(policy, PlainPolicy):
        return None
    if isinstance(policy, ChainPolicy):
        own = next((one for one in engine.drafters if one.name == drafter), None)
        if own is None:
            raise MeasurementError(f"{engine.facts.name} was not given the drafter {drafter!r}; give it with --drafter")
        return engine.chain(own, policy.length)
    found = ENGINES[engine.facts.name].setting(policy, None, engine.facts.recorded)
    if isinstance(found, str):
        raise MeasurementError(f"{engine.facts.name} does not run {policy.label}: {found}")
    return found


def way_of(engine: MeasuredEngine, setting: Setting) -> Way | None:
    """Return the way a setting decodes; None where no policy of ours is exactly that."""
    if setting.drafter is not None:
        return ChainPolicy(length=setting.length), setting.drafter.name
    own = ENGINES[engine.facts.name]
    for occurrence in OCCURRENCES:
        for most in range(1, LONGEST_NGRAM + 1):
            for least in range(most, 0, -1):
                policy = LookupPolicy(length=setting.length, max_ngram=most, min_ngram=least, occurrence=occurrence)
                if own.setting(policy, None, engine.facts.recorded) == setting:
                    return policy, LOOKUP
    return None


def inputs_of_surfaces(
    surfaces: Sequence[LatencySurface], traces: Sequence[AcceptanceTrace], identities: Identities
) -> EngineInputs:
    """Return the plan inputs of one engine's surfaces.

    Roles are "round:plain", "round:KEY" of a drafter, "round:lookup:..." of a search. All drafters' traces are along
    the same texts; at least one is needed for the texts.

    Raises:
        MeasurementError: a role names no known drafter.
    """
    timed: dict[int, list[TimedSetting]] = {}
    for surface in surfaces:
        for cell in surface.measurements:
            if cell.failure is None:
                way = _way(surface.role, cell, identities)
                error = cell.spread_ms / cell.median_ms if len(cell.repeats_ms) > 1 else 0.1
                timed.setdefault(cell.batch, []).append(TimedSetting(way=way, ms=_mean_ms(cell), error=error))
    models = {trace.drafter_name: trace for trace in traces if trace.drafter_name in identities.drafters}
    drift = max((surface.drift() for surface in surfaces), default=0.0)
    context = surfaces[0].measurements[0].context_tokens
    return EngineInputs(
        traces=models,
        texts=texts_of(traces[0]),
        timed=timed,
        context=context,
        drift=drift,
        whole_ngrams=surfaces[0].regime.startswith(WHOLE_NGRAMS),
        pads_ngrams=surfaces[0].regime.startswith(PADDED_NGRAMS),
    )


def _mean_ms(cell: Measurement) -> float:
    """Return the mean steady repeat, the outermost pulled in to 1.5 times the median: throughput sums rounds."""
    middle = cell.median_ms
    return sum(min(ms, 1.5 * middle) for ms in cell.steady_ms) / len(cell.steady_ms)


def _way(role: str, cell: Measurement, identities: Identities) -> Way:
    length = cell.tokens - 1
    if role == PLAIN_ROLE:
        return PlainPolicy(), None
    if role.startswith(LOOKUP_ROLE):
        least, most, *which = role.removeprefix(LOOKUP_ROLE).split("-")
        occurrence: AnyOccurrence = next((one for one in OCCURRENCES if [one] == which), "last")
        policy = LookupPolicy(length=length, max_ngram=int(most), min_ngram=int(least), occurrence=occurrence)
        return policy, LOOKUP
    name = next((n for n, model in identities.drafters.items() if f"{ROLE}{model.key}" == role), None)
    if name is None:
        names = ", ".join(identities.drafters) or "none"
        raise MeasurementError(f"the role {role!r} is of no drafter that is known ({names}); profile anew")
    return ChainPolicy(length=length), name
