"""Engines for a plan, with as many of its drafters as can be made and fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ...errors import DeviceError, ModelError
from ...planner.inputs import LOOKUP
from ...planner.strategies import TreePolicy, drafting
from ...planner.strategies.stack import StackPolicy
from ...planner.strategies.texts import load_kernels
from ..backends.base import Backend
from ..batch.faults import PATIENCE, is_out_of_memory, reason_of
from ..batch.step_config import Schedule, StepConfig, draft_room
from ..drafters.base import Drafter
from ..drafters.head import model_drafter
from ..drafters.hybrid import HybridDrafter
from ..drafters.lookup import LookupDrafter
from ..drafters.stack import stack_drafter
from ..models.forward import CausalModel
from ..models.tapped import tapped_for
from .engine import Engine
from .pad import PivotJudge

CRAMPED = "it does not fit into memory beside the target: {error}"
STEP = 64  # lengths of texts that may meet the same cells are told apart by


@dataclass(slots=True)
class ReusableEngine:
    """A engine and what it has room for."""

    engine: Engine
    slots: int
    longest: int  # tokens of a text
    is_cramped: bool  # whether a drafter found no memory: it may find some later
    calls: int = 0  # that it served again

    def serves(self, slots: int, longest: int) -> bool:
        """Whether it is idle and faultless, and has as many slots and enough room."""
        is_free = not self.engine.running and self.engine.is_faultless
        is_able = not self.is_cramped or self.calls < PATIENCE
        return is_free and is_able and self.slots == slots and self.longest >= longest


@dataclass(slots=True)
class _Made:
    drafters: dict[str, Drafter] = field(default_factory=lambda: {LOOKUP: LookupDrafter()})
    refused: dict[str, str] = field(default_factory=dict)  # not to be had of these models
    cramped: dict[str, str] = field(default_factory=dict)  # no memory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineMaker:
    """What all engines of a generator have in common; `setups_within` maps sequences and context to setups."""

    target: CausalModel
    models: Mapping[str, CausalModel]
    setups_within: Callable[[int, int], tuple[StepConfig, ...]]
    schedule: Schedule
    judges: Mapping[str, PivotJudge]
    allow_lossy: bool
    backend: type[Backend]
    _known: dict[tuple[int, int], tuple[StepConfig, ...]] = field(default_factory=dict)  # of slots and lengths

    def make(self, slots: int, longest: int, *, prefix_caching: bool = True, spare_slots: int = 0) -> ReusableEngine:
        """Return a new engine, with only the drafters that such texts may need; see `Engine`.

        A drafter that cannot be made or has no memory is missing, and its rounds say why. If the target's own cache
        then has no memory, drafters are dropped from the plan's last on. DeviceError where there is no memory even
        without drafters.
        """
        setups = self._setups(slots, longest)
        load_kernels(setup.policy for setup in setups)
        capacity = longest + draft_room(setups, slots)
        yielding: dict[str, str] = {}  # drafters that are left out for the target's sake, and why
        while True:
            made = self._made(setups, yielding, slots + spare_slots, capacity)
            absent = made.refused | made.cramped | yielding
            try:
                engine = self._engine(
                    made,
                    setups,
                    absent,
                    slots=slots,
                    capacity=capacity,
                    prefix_caching=prefix_caching,
                    spare_slots=spare_slots,
                )
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                last = next((name for name in reversed(made.drafters) if name != LOOKUP), None)
                if last is None:
                    raise DeviceError(
                        f"{slots + spare_slots} sequences of {capacity} tokens, draft nodes among them, do not fit "
                        f"into memory: {reason_of(error)}; decode or keep fewer at once, or shorter texts"
                    ) from error
                yielding[last] = CRAMPED.format(error=reason_of(error))
                del made  # its caches make room for the next ones
                continue
            return ReusableEngine(engine, slots, longest, is_cramped=bool(made.cramped or yielding))

    def _setups(self, slots: int, longest: int) -> tuple[StepConfig, ...]:
        """Return the setups that such texts may need, rounded up to `STEP` and cached: every call asks."""
        place = slots, -(-longest // STEP) * STEP
        if place not in self._known:
            self._known[place] = self.setups_within(*place)
        return self._known[place]

    def _made(self, setups: Iterable[StepConfig], without: Iterable[str], slots: int, capacity: int) -> _Made:
        made, left_out = _Made(), set(without)
        for setup in setups:
            name = setup.drafter
            if name is None or name in left_out or name in made.drafters:
                continue
            try:
                made.drafters |= self._drafter(name, setup.policy, slots, capacity)
            except ModelError as error:
                made.refused[name] = reason_of(error)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                made.cramped[name] = CRAMPED.format(error=reason_of(error))
        return made

    def _drafter(self, name: str, policy: TreePolicy, slots: int, capacity: int) -> dict[str, Drafter]:
        """Return a drafter by its name; empty where its models are missing, which the engine reports as a fault."""
        drafts = drafting(policy)
        models = drafts.models if isinstance(drafts, StackPolicy) else (name,)
        if not set(models) <= set(self.models):
            return {}
        if isinstance(drafts, StackPolicy):
            return {name: stack_drafter(drafts, self.models, slots=slots, capacity=capacity)}
        return {name: HybridDrafter(model_drafter(self.models[name], slots=slots, capacity=capacity))}

    def _engine(
        self,
        made: _Made,
        setups: Iterable[StepConfig],
        absent: Mapping[str, str],
        *,
        slots: int,
        capacity: int,
        prefix_caching: bool,
        spare_slots: int,
    ) -> Engine:
        planned = [self.models[name] for name in made.drafters if name in self.models]
        asked = {setup.classifier for setup in setups}
        judges = {name: judge for name, judge in self.judges.items() if name in asked}
        return Engine(
            tapped_for(self.target, planned, also=(judge.reads for judge in judges.values())),
            made.drafters,
            self.schedule,
            slots=slots,
            capacity=capacity,
            allow_lossy=self.allow_lossy,
            judges=judges,
            absent=absent,
            prefix_caching=prefix_caching,
            spare_slots=spare_slots,
            backend=self.backend,
        )
