"""From turns of an engine to surfaces: milliseconds of a round that drafts as the recorded texts let it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from ...engines.measured import MeasuredEngine
from ...planner.engines.choice import EngineInputs, Way, source_of, walks_of
from ...planner.engines.walk import Walk
from ...planner.strategies.lookup import LookupPolicy
from ...planner.strategies.plain import PlainPolicy
from ...profiler.protocols import SurfaceKey
from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.device import Device
from ...profiler.records.measurement import Measurement
from ...profiler.records.surface import LatencySurface
from ..request import Identities
from .inputs import inputs_of_surfaces, way_of
from .mix import heavier_than_recorded
from .turns import Key, Turn, by_key
from .workload import regime_on


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceMaker:
    """Turns an engine's turns into surfaces, one per source; `context` is the middle of the texts, in tokens."""

    engine: MeasuredEngine
    identities: Identities
    device: Device
    workload: str
    context: int
    traces: Sequence[AcceptanceTrace]
    _walks: dict[Way, Walk] = field(default_factory=dict, init=False)

    def walks(self, inputs: EngineInputs) -> Mapping[Way, Walk]:
        """Return what every candidate does on the texts; what is timed later is one of them, so one look is enough."""
        if not self._walks:
            self._walks.update(walks_of(inputs))
        return self._walks

    def surfaces(self, turns: Sequence[Turn]) -> tuple[LatencySurface, ...]:
        """Return a surface of every source: a cell per concurrency and length."""
        ways = {key: self._way(key) for key in by_key(turns)}
        as_timed = self._surfaces(turns, ways, {})
        inputs = inputs_of_surfaces(as_timed, self.traces, self.identities)
        return self._surfaces(turns, ways, heavier_than_recorded(by_key(turns), ways, inputs, self.walks(inputs)))

    def _surfaces(
        self, turns: Sequence[Turn], ways: Mapping[Key, Way], heavier: Mapping[Key, float]
    ) -> tuple[LatencySurface, ...]:
        cells: dict[str, list[Measurement]] = {}
        for key, own in by_key(turns).items():
            concurrency, setting = key
            cells.setdefault(self._role(ways[key]), []).append(
                Measurement(
                    batch=concurrency,
                    context_tokens=self.context,
                    tokens=1 + (0 if setting is None else setting.length),
                    repeats_ms=tuple(turn.sample.round_ms / heavier.get(key, 1.0) for turn in own),
                    drift=tuple(turn.slowness for turn in own),
                )
            )
        return tuple(
            LatencySurface(**asdict(self._key(role)), measurements=tuple(found)) for role, found in cells.items()
        )

    def _way(self, key: Key) -> Way:
        way = (PlainPolicy(), None) if key[1] is None else way_of(self.engine, key[1])
        assert way is not None, "only settings of ways are timed"
        return way

    def _role(self, way: Way) -> str:
        policy, drafter = way
        if isinstance(policy, LookupPolicy) or drafter is None:
            return f"round:{source_of(way)}"
        return f"round:{self.identities.drafters[drafter].key}"

    def _key(self, role: str) -> SurfaceKey:
        return SurfaceKey(
            device=self.device.fingerprint,
            model=self.identities.target.key,
            role=role,
            regime=regime_on(self.engine.facts.regime, self.workload),
            dtype=self.engine.facts.dtype,
        )
