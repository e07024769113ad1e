"""Everything a plan is computed from: surfaces, traces and host times that belong together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import PlanError
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.device import Device
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.role import BLOCK, DRAFT_ROLES, HEAD, RESUME, SELF, run_alike, run_beside
from ..profiler.records.surface import LatencySurface
from .lossy.run import LossyRun
from .records.footprint import Footprint
from .records.recording import Text, texts_of
from .strategies.naming import LOOKUP
from .strategies.stack import JOINT

__all__ = [
    "BLOCK",
    "LOOKUP",
    "NAMING",
    "SELF",
    "TARGET",
    "DrafterInputs",
    "PlanInputs",
    "is_free",
    "resumes_of",
    "with_weights",
]

TARGET = "target"  # what the target is called among the models of a PairwiseAcceptance
NAMING = f"{LOOKUP!r} is the text itself, {TARGET!r} the target, and {JOINT!r} stands between the names of a stack"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterInputs:
    """One drafter: its identity, forward costs, and proposals along the target's texts.

    `resume`: of an exit, the cost of a verification from its states; None where that was not measured.
    """

    name: str
    model: ModelIdentity
    surface: LatencySurface
    trace: AcceptanceTrace
    resume: LatencySurface | None = None

    def __post_init__(self) -> None:
        if not is_free(self.name):
            raise PlanError(f"a drafter cannot be called {self.name!r}: {NAMING}; take another name")
        _require_same(f"drafter {self.name}: the surface's model", self.surface.model, self.model.key)
        if self.surface.role not in DRAFT_ROLES:
            raise PlanError(
                f"drafter {self.name}: the surface's role is {self.surface.role!r}, expected one of {DRAFT_ROLES}"
            )
        _require_same(f"drafter {self.name}: the trace's drafter", self.trace.drafter, self.model.key)
        if self.resume is not None:
            self._require_of_exit(self.resume)

    @property
    def reads_features(self) -> bool:
        """Whether it drafts from the target's features, which only committed text has: so it is in no stack."""
        return self.surface.role in (HEAD, BLOCK, SELF)

    @property
    def surfaces(self) -> tuple[LatencySurface, ...]:
        """All its measured surfaces."""
        return (self.surface,) if self.resume is None else (self.surface, self.resume)

    def _require_of_exit(self, resume: LatencySurface) -> None:
        own = self.surface
        for what, seen, expected in (
            ("role", own.role, SELF),
            ("other surface's role", resume.role, RESUME),
            ("other surface's model", resume.model, own.model),
            ("other surface's device", resume.device, own.device),
            ("other surface's dtype", resume.dtype, own.dtype),
            ("other surface's regime", resume.regime, own.regime),
        ):
            _require_same(f"drafter {self.name}, verified from its states: the {what}", seen, expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """A target on a device with its drafters, all timed in one regime; all traces were recorded along the same texts.

    Attributes:
        workload, temperature: taken from the traces where there are any.
        footprints, readings: memory of the models, and times of reading prompts, by ModelIdentity.key, where known.
        host_times: the records joined into `overhead`, a plan's sources; empty where it is itself one of them.
        knots: contexts of computed surfaces between which rounds are priced, whatever others were computed; empty for
            measured ones, where all count.
    """

    device: Device
    target: ModelIdentity
    dtype: str
    verify: LatencySurface
    overhead: RoundOverhead
    drafters: tuple[DrafterInputs, ...] = ()
    texts: tuple[Text, ...] = ()  # may be empty where there is a drafter: its trace holds them
    workload: str = ""
    temperature: float = 0.0
    pairwise: PairwiseAcceptance | None = None  # agreement of "target" and all drafters; None where it was not recorded
    footprints: Mapping[str, Footprint] = field(default_factory=dict)
    readings: Mapping[str, LatencySurface] = field(default_factory=dict)
    host_times: tuple[RoundOverhead, ...] = field(default=(), compare=False)  # plans from equal times are equal
    paces: tuple[float, ...] = ()  # of the device in earlier validations and decoding, over its pace when profiled
    notes: tuple[str, ...] = ()  # what a reader of the plan must know of these inputs' origin
    lossy: tuple[LossyRun, ...] = ()  # runs of lossy ways; read only where a search allows them
    knots: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._require_measured()
        names = [drafter.name for drafter in self.drafters]
        if len(set(names)) < len(names):
            raise PlanError(f"drafter names must differ, got {names}; rename one")
        if self.drafters and not self.texts:
            object.__setattr__(self, "texts", texts_of(self.drafters[0].trace))
        if self.drafters and not self.workload:
            object.__setattr__(self, "workload", self.drafters[0].trace.workload)
            object.__setattr__(self, "temperature", self.drafters[0].trace.temperature)
        for drafter in self.drafters:
            self._require_recorded(drafter)
        if len(self.texts) < 2 or not self.workload:
            raise PlanError(
                f"a plan needs a workload of 2 texts or more, got {self.workload!r} with {len(self.texts)}; record more"
            )
        if self.pairwise is not None:
            self._require_agreement(self.pairwise)

    def drafter(self, name: str) -> DrafterInputs:
        """Return the drafter of that name; PlanError where there is none."""
        for drafter in self.drafters:
            if drafter.name == name:
                return drafter
        known = ", ".join(drafter.name for drafter in self.drafters) or "none"
        raise PlanError(f"no drafter {name!r} among the inputs ({known}); profile it first")

    def _require_measured(self) -> None:
        _require_same("the verify surface's role", self.verify.role, "verify")
        _require_same("the verify surface's model", self.verify.model, self.target.key)
        _require_same("the verify surface's dtype", self.verify.dtype, self.dtype)
        _require_same("the host times' target", self.overhead.target, self.target.key)
        devices = {self.verify.device, self.overhead.device, *(drafter.surface.device for drafter in self.drafters)}
        if devices != {self.device.fingerprint}:
            raise PlanError(
                f"surfaces of {sorted(devices)}, expected only {self.device.fingerprint}; measure all on one device"
            )
        surfaces = [surface for drafter in self.drafters for surface in drafter.surfaces]
        apart = [one for one in surfaces if not run_beside(one.regime, one.role, self.verify.regime)]
        regimes = sorted({self.overhead.regime, self.verify.regime, *(one.regime for one in apart)} - {""})
        if apart or not run_alike(*regimes):
            raise PlanError(
                f"forwards and host times of the regimes {' and '.join(regimes)}, expected those of one; measure all "
                "in one regime"
            )

    def _require_recorded(self, drafter: DrafterInputs) -> None:
        trace = drafter.trace
        _require_same(f"drafter {drafter.name}: the trace's target", trace.target, self.target.key)
        _require_same(f"drafter {drafter.name}: the trace's workload", trace.workload, self.workload)
        if trace.temperature != self.temperature or texts_of(trace) != self.texts:
            raise PlanError(
                f"drafter {drafter.name} was recorded along other texts or at temperature {trace.temperature}, "
                f"not {self.temperature}; record all drafters along the same texts"
            )

    def _require_agreement(self, pairwise: PairwiseAcceptance) -> None:
        _require_same("the agreement's target", pairwise.target or self.target.key, self.target.key)
        _require_same("the agreement's workload", pairwise.workload or self.workload, self.workload)
        names = {TARGET, *(drafter.name for drafter in self.drafters)}
        if not names <= set(pairwise.models):
            raise PlanError(
                f"the agreement is of {list(pairwise.models)}, which lacks some of {sorted(names)}; "
                "measure them together"
            )
        if pairwise.temperature not in (None, self.temperature):
            raise PlanError(
                f"the agreement was recorded at temperature {pairwise.temperature}, not {self.temperature}; "
                "measure them together"
            )


def is_free(name: str) -> bool:
    """Return whether a drafter may have this name; `NAMING` gives the rule."""
    return bool(name) and name not in (LOOKUP, TARGET) and JOINT not in name


def resumes_of(inputs: PlanInputs) -> dict[str, LatencySurface]:
    """Return the costs of verifications from the states of exits, by the exit's name."""
    return {drafter.name: drafter.resume for drafter in inputs.drafters if drafter.resume is not None}


def with_weights(traces: Iterable[AcceptanceTrace]) -> list[AcceptanceTrace]:
    """Return the traces of models: lookup's only holds the texts of a target profiled without drafters."""
    return [trace for trace in traces if trace.drafter != LOOKUP]


def _require_same(what: str, seen: str, expected: str) -> None:
    if seen != expected:
        raise PlanError(f"{what} is {seen!r}, expected {expected!r}; measure them together")
