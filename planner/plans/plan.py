"""A plan: how to decode in every cell of batch x context, what that promises, and where it comes from.

A plan that names any lossy policy has a version of its own, and `"lossy": true`. Readers without lossy policies so
refuse it by its version, and never take it for lossless.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...errors import PlanError
from ...profiler.records.device import Device
from ...profiler.records.model import ModelIdentity
from ..lossy.quality import Quality
from ..records.tree import ShapeFacts
from ..strategies import TreePolicy, drafting
from ..strategies.lossy import LossyPolicy, classifiers_of
from ..strategies.naming import LOOKUP
from ..strategies.plain import PlainPolicy
from ..strategies.stack import StackPolicy, stack_name
from .objective import LatencyBound
from .outlook import Outlook
from .prediction import Prediction, PromptReading
from .provenance import Provenance

VERSION = 2
LOSSY_VERSION = 3  # of plans that name a lossy policy
MOST_BATCH, MOST_CONTEXT, MOST_FED = 2**20, 2**40, 2**12  # of cells: beyond are mistakes, and arithmetic that fails


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another policy that was priced in the cell, without the optimism taken off the plan's own."""

    label: str
    policy: TreePolicy
    drafter: str | None
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """How far a choice is ahead of the runner-up on the recorded texts: relative, and its standard error over texts."""

    relative: float  # negative where the runner-up is faster, but less simple
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPrice:
    """What a published default would do in the cell; no speed where it could not be priced, and why."""

    name: str  # as people call it, e.g. "EAGLE-2 60/7/10"
    drafter: str | None
    tokens_per_s: float | None
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.tokens_per_s is None) != bool(self.reason):
            raise PlanError(f"{self.name} needs a speed, or a reason why it has none")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackForecast:
    """The best hierarchy of drafters in the cell: modelled from pairwise acceptance, not replayed, so never chosen.

    Source: Globerson et al. 2025, arXiv:2510.19705.
    """

    models: tuple[str, ...]  # smallest first, the target not among them; older plans may have fewer than two
    thresholds: tuple[int, ...]  # tokens each gathers before the next one verifies
    tokens_per_s: float
    best_single_tokens_per_s: float  # of the best single drafter by the same model


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCell:
    """How to decode at one batch size and context."""

    batch: int
    context: int
    policy: TreePolicy
    drafter: str | None  # "lookup" for a LookupPolicy, `stack_name` of a StackPolicy, None for plain decoding
    run_tokens: tuple[int, ...]  # index = tokens in the tree, value = tokens fed per sequence
    prediction: Prediction
    plain: Prediction
    runner_up: Alternative | None  # the fastest alternative of another kind or drafter
    alternatives: tuple[Alternative, ...]  # the fastest of every other kind and drafter, fastest first
    published: tuple[PublishedPrice, ...] = ()  # published defaults, each with its fastest drafter
    outlook: Outlook | None = None
    memory_bytes: int | None = None  # at the peak, with weights and caches; None: unknown architecture
    keeps_bound: bool = True  # True where the plan has no latency bound
    lead: Lead | None = None  # over the runner-up
    stack: StackForecast | None = None  # the best hierarchy, where pairwise acceptance is known
    shape: ShapeFacts | None = None
    run_ms: tuple[float, ...] = ()  # mean of that forward at the context; older plans: median, or empty
    quality: Quality | None = None  # measured cost of a lossy policy; None for lossless ones
    reading: PromptReading | None = None  # None where it was not timed of all who draft
    latency_ms: float | None = None  # by the metric of the plan's bound; None where there is none
    priced_at: int | None = None  # nearest measured context where its own is beyond all; else None

    def __post_init__(self) -> None:
        if not (1 <= self.batch <= MOST_BATCH and 1 <= self.context <= MOST_CONTEXT):
            raise PlanError(
                f"a cell needs a batch of 1 to {MOST_BATCH} and a context of 1 to {MOST_CONTEXT}, got {self.batch} and "
                f"{self.context}"
            )
        if (self.drafter is None) != isinstance(self.policy, PlainPolicy):
            raise PlanError(f"a {self.policy.label} cannot have drafter {self.drafter!r}; only plain decoding has none")
        drafts = drafting(self.policy)
        if isinstance(drafts, StackPolicy) and self.drafter != stack_name(drafts):
            raise PlanError(f"a {self.policy.label} is drafted by {stack_name(drafts)!r}, got {self.drafter!r}")
        if self.is_lossy != (self.quality is not None):
            has = "none" if self.quality is None else "one"
            raise PlanError(f"a measured quality belongs to lossy policies, and to all; {self.policy.label} has {has}")
        padded = self.run_tokens
        if len(padded) <= self.policy.max_verify_tokens or any(fed < n for n, fed in enumerate(padded)):
            raise PlanError(
                f"run_tokens must reach {self.policy.max_verify_tokens} tokens and never feed fewer than requested, "
                f"got {padded}"
            )
        if max(padded) > MOST_FED:
            raise PlanError(f"run_tokens feed at most {MOST_FED} tokens, got {max(padded)}; plan again")
        if self.run_ms and len(self.run_ms) != len(padded):
            raise PlanError(f"run_ms must have a time for each of {len(padded)} run_tokens, got {len(self.run_ms)}")
        if not all(math.isfinite(ms) and ms >= 0.0 for ms in self.run_ms):
            raise PlanError(f"run_ms must be finite and at least 0, got {self.run_ms}")

    @property
    def is_lossy(self) -> bool:
        """Whether the cell's output is not the target's own."""
        return isinstance(self.policy, LossyPolicy)

    @property
    def names_lossy(self) -> bool:
        """Whether the cell is lossy or names a lossy policy among its alternatives."""
        return self.is_lossy or any(isinstance(other.policy, LossyPolicy) for other in self.alternatives)

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of all that draft: every level of a stack, else the one drafter, or none."""
        drafts = drafting(self.policy)
        if isinstance(drafts, StackPolicy):
            return drafts.drafters
        return () if self.drafter is None else (self.drafter,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The schedule of one target on one device for one workload and temperature.

    A running decoder keeps its cell up to the factor `hysteresis`, in batch or context, beyond the middle to the next.
    """

    device: Device
    target: ModelIdentity
    drafters: tuple[tuple[str, ModelIdentity], ...]
    dtype: str
    workload: str
    temperature: float
    cells: tuple[PlanCell, ...]
    provenance: Provenance
    bound: LatencyBound | None = None
    new_tokens: int | None = None  # of an answer, where requests chose the plan; older ones: in their cells alone
    cached_share: float = 0.0  # of the prompts, not read again, since earlier texts began so
    hysteresis: float = 1.0
    version: int = 0  # LOSSY_VERSION where any cell names a lossy policy, else VERSION; 0 is filled in

    def __post_init__(self) -> None:
        own = LOSSY_VERSION if any(cell.names_lossy for cell in self.cells) else VERSION
        if not self.version:
            object.__setattr__(self, "version", own)
        if self.version != own:
            raise PlanError(f"this is a plan of version {self.version}, and what it holds is of {own}; make it again")
        if self.new_tokens is None:
            told = (cell.reading.new_tokens for cell in self.cells if cell.reading is not None)
            object.__setattr__(self, "new_tokens", next(told, None))
        if not 0.0 <= self.cached_share < 1.0 or (self.cached_share and self.new_tokens is None):
            raise PlanError(
                f"with new_tokens, {self.new_tokens}, a share of 0 to less than 1 of a prompt is cached, got "
                f"{self.cached_share}; plan anew"
            )
        if not 1.0 <= self.hysteresis < math.inf:
            raise PlanError(f"a plan's hysteresis is a factor of at least 1, got {self.hysteresis}; 1 is none")
        places = [(cell.batch, cell.context) for cell in self.cells]
        if not places or len(set(places)) < len(places):
            raise PlanError(f"a plan needs cells at different (batch, context), got {places}; plan every cell once")
        known = {LOOKUP, *(name for name, _ in self.drafters)}
        for cell in self.cells:
            if not known.issuperset(cell.drafters):
                raise PlanError(f"a cell drafts with {cell.drafter!r}, which is not among the plan's drafters; add it")
        if shared := known.intersection(dict(self.classifiers)):
            raise PlanError(f"a drafter and a classifier are both called {min(shared)!r}; rename one")

    @property
    def regime(self) -> str:
        """How the target's forwards ran that priced it; "eager" where none is known."""
        return next((each.regime for each in self.provenance.surfaces if each.role == "verify"), "eager")

    @property
    def is_lossy(self) -> bool:
        """Whether any cell decodes to another text than the target's own."""
        return any(cell.is_lossy for cell in self.cells)

    @property
    def classifiers(self) -> tuple[tuple[str, ModelIdentity], ...]:
        """Every pivot classifier that a cell or an alternative uses, by name; none but with PAD."""
        ways = ((cell.policy, *(other.policy for other in cell.alternatives)) for cell in self.cells)
        return classifiers_of(policy for own in ways for policy in own)

    def cell(self, batch: int, context: int) -> PlanCell:
        """Return the nearest cell: first in the logarithm of the batch, then in context; ties go down."""
        if batch < 1 or context < 0:
            raise PlanError(f"a cell is looked up by batch >= 1 and context >= 0, got {batch} and {context}")
        return min(
            self.cells,
            key=lambda cell: (
                abs(math.log(cell.batch / batch)),
                cell.batch,
                abs(cell.context - context),
                cell.context,
            ),
        )

    def at_context(self, cell: PlanCell, context: int) -> PlanCell:
        """Return a cell as it is at a context on the way to the next cell of its batch: its predictions and run_ms.

        Times are taken to be linear in context between two cells: those of rounds by the policy's own where both have
        it, else as plain ones grow; those of forwards by the sizes that both know. Beyond the outermost cells nothing
        is added.
        """
        towards = 1 if context > cell.context else -1
        beside = [
            other for other in self.cells if other.batch == cell.batch and (other.context - cell.context) * towards > 0
        ]
        if context == cell.context or not beside:
            return cell
        other = min(beside, key=lambda one: abs(one.context - cell.context))
        way = min((context - cell.context) / (other.context - cell.context), 1.0)

        def factor(one: Prediction, two: Prediction) -> float:
            return 1.0 + way * (two.round_ms / one.round_ms - 1.0)

        is_same = (other.policy, other.drafter) == (cell.policy, cell.drafter)
        by_plain = factor(cell.plain, other.plain)
        planned = factor(cell.prediction, other.prediction) if is_same else by_plain
        moved, names = cell.prediction.slower(planned), ("speedup_over_plain", "speedup_low", "speedup_high")
        speedups = {name: getattr(moved, name) * by_plain / planned for name in names}
        known = min(len(cell.run_ms), len(other.run_ms))
        grown = [way * (other.run_ms[n] - cell.run_ms[n]) for n in range(known)] or [0.0]
        return replace(
            cell,
            context=min(context, other.context) if towards > 0 else max(context, other.context),
            prediction=replace(moved, **speedups),
            plain=cell.plain.slower(by_plain),
            run_ms=tuple(max(ms + grown[min(n, len(grown) - 1)], 0.0) for n, ms in enumerate(cell.run_ms)),
        )
