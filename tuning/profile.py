"""The profile job: how good each drafter is for this target, and what forwards and rounds cost here.

Each finished part is stored in the profile's journal at once, so the same request resumes a killed profile.
"""

from __future__ import annotations

import hashlib
import json
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version

from ..db.store import OpenProfile, Store
from ..profiler.device import detect
from ..profiler.domain import Domain
from ..profiler.protocols import Parts
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.device import Device
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.role import EAGER, READ
from ..profiler.records.surface import LatencySurface
from ..runtime.batch.faults import memory_for
from ..runtime.batch.sequence import Request
from ..runtime.models.loading import load_tokenizer
from .conversations import with_longest_answers, with_own_answers
from .family import (
    family_in,
    identify_all,
    load_family,
    require_formats,
    require_regime,
    settled_regime,
    torch_device,
)
from .measuring.decoding import Family
from .measuring.holding import device_session
from .measuring.host_times import RoundLimits, host_times
from .measuring.reading import measure_reading
from .measuring.timing import (
    FIRST,
    SECOND,
    FamilyTiming,
    TimingWindows,
    by_name,
    domains_of,
    resumes_by_name,
    runners_of,
)
from .measuring.trial import ForwardTrial, try_forwards
from .parts import kept_or_made
from .prompt_room import why_shorter_at
from .prompts import require_contexts, require_room, shown_to
from .recording.effort import RecordingBudget
from .recording.foresight import Foresight
from .recording.recipe import Recipe, recipe_of
from .recording.traces import RecordedTraces, Workload, parted, record_workloads, workloads_of
from .request import Identities, ProfileRequest
from .steps import Progress

RECORDING_SHARE, LEAST_RECORDING_S = 2.0, 60.0  # of the budget for forwards, which recording may take besides
ROUNDS_SHARE, LEAST_ROUNDS_S = 0.75, 60.0  # likewise of timing whole rounds
READING_SHARE = 0.05  # of the budget for forwards, which the reading of prompts may take besides
STEPS = "trial, sittings, rounds by drafter"  # what a profile does; one that was stopped before it did so is begun anew


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBudgets:
    """How long each step of a profile may take; what is begun is finished."""

    timing_s: float
    recording_s: float
    rounds_s: float

    @classmethod
    def of(cls, budget_s: float) -> TimeBudgets:
        """Return the limits that go with a budget for timing forwards."""
        return cls(
            timing_s=budget_s * (1.0 + READING_SHARE),
            recording_s=max(LEAST_RECORDING_S, RECORDING_SHARE * budget_s),
            rounds_s=max(LEAST_ROUNDS_S, ROUNDS_SHARE * budget_s),
        )

    def told(self, recording_s: float | None) -> str:
        """Say what comes and how long it may take, beside the memory in use with all models loaded.

        `recording_s` is what is foreseen: 0 where that is not known, None where nothing limits it.
        """
        texts = f"recording up to about {recording_s or self.recording_s:.0f} s"
        texts = "recording, however long it takes" if recording_s is None else texts
        gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux tells KiB
        return (
            f"to come: timing forwards {self.timing_s:.0f} s, {texts}, whole rounds up to about {self.rounds_s:.0f} s; "
            f"{gib:.1f} GiB of memory in use"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Everything one profile measured."""

    device: Device
    identities: Identities
    verify: LatencySurface
    drafts: dict[str, LatencySurface]
    overhead: RoundOverhead
    traces: tuple[AcceptanceTrace, ...]
    pairwise: tuple[PairwiseAcceptance, ...]
    seconds: float  # of this run; what an earlier, stopped one did is not counted
    is_resumed: bool
    disturbances: tuple[str, ...]  # what spoilt timings meanwhile or left some out, in words
    resumes: dict[str, LatencySurface] = field(default_factory=dict)  # of verifying from exits' states
    readings: tuple[LatencySurface, ...] = ()  # of prompts, by the target and by drafters

    @property
    def surfaces(self) -> list[LatencySurface]:
        """All whose forwards were timed, the target's first."""
        return [self.verify, *self.drafts.values(), *self.resumes.values()]


@memory_for("this profile", "free some, or ask for fewer drafters, smaller batches or shorter texts")
def profile(
    request: ProfileRequest,
    store: Store,
    *,
    recipe: Recipe | None = None,
    fresh: bool = False,
    lock_wait_s: float = 0.0,
    progress: Progress,
) -> Profile:
    """Measure and record everything that a plan needs, and store it.

    `recipe` None records the trees of the request's level. `fresh` does not resume a killed profile of the same
    request. `lock_wait_s` is the time to wait for another profile of the device.

    Raises:
        SpectuneError: a model, tokenizer, device or prompt is not fit; nothing was measured then.
        NoRoomError: memory has no room for a text, or for whole rounds of any batch.
        Interrupted: Ctrl-C; finished parts are in the store, and the same request resumes there.
    """
    start = time.monotonic()
    subject = _subject(request, lock_wait_s, progress)
    device, identities = subject.device, subject.identities
    with device_session(device, identities, store, wait_s=lock_wait_s) as disturbed:
        asked, level = subject.request, recipe or request.record
        key = request_key(asked, device, identities, subject.workloads, subject.domains, level)
        journal = store.open_profile(key, fresh)
        done = _measured(subject, recipe, journal, progress)
        noticed = disturbed()
    return Profile(
        device=device,
        identities=identities,
        verify=done.surfaces[0],
        drafts=by_name(done.surfaces, identities.drafters),
        resumes=resumes_by_name(done.surfaces, identities.drafters),
        readings=tuple(surface for surface in done.surfaces if surface.role == READ),
        overhead=done.overhead,
        traces=done.recorded.traces,
        pairwise=done.recorded.pairwise,
        seconds=time.monotonic() - start,
        is_resumed=journal.is_resumed,
        disturbances=(*noticed, *done.left_out),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is profiled: a request whose device, number format, regime and answers are settled."""

    request: ProfileRequest
    device: Device
    identities: Identities
    workloads: Sequence[Workload]
    domains: tuple[Domain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurements:
    """What was measured, and in words what could not be."""

    surfaces: tuple[LatencySurface, ...]
    overhead: RoundOverhead
    recorded: RecordedTraces
    left_out: tuple[str, ...]


def _subject(request: ProfileRequest, lock_wait_s: float, progress: Progress) -> _Subject:
    """Return what is profiled; SpectuneError where a model, tokenizer, device or prompt is not fit."""
    device = detect(request.device)
    regime = settled_regime(request.regime, device)
    request = replace(request, dtype=device.dtype_for(request.dtype), regime=regime)
    require_regime(regime, device)
    identities = identify_all(request.models)
    require_formats(request.models, request.dtype, device)
    parted(with_longest_answers(request))  # refuses workloads of too few turns before any answer is decoded
    request = with_own_answers(request, lock_wait_s=lock_wait_s, progress=progress)
    workloads = workloads_of(request, load_tokenizer(str(request.models.target)))
    domains = domains_of(request, device, [asked for workload in workloads for asked in workload.requests])
    return _Subject(request=request, device=device, identities=identities, workloads=workloads, domains=domains)


def _measured(subject: _Subject, recipe: Recipe | None, journal: OpenProfile, progress: Progress) -> _Measurements:
    """Time forwards, record along the texts, time whole rounds, and store all."""
    request, identities, device = subject.request, subject.identities, subject.device
    family = load_family(request.models, dtype=request.dtype, device=torch_device(device))
    seen = _shown(subject, family)
    progress("trying a few forwards", 0.0)
    trial = kept_or_made(journal, "trial", ForwardTrial, lambda: _tried(request, family, identities, subject.domains))
    held_out = trial.held_out(request.held_out, subject.domains)
    domains = trial.limited(subject.domains)
    budget_s = request.budget_s or trial.budget_s(domains)
    request = replace(request, budget_s=budget_s, held_out=held_out)
    limits = TimeBudgets.of(budget_s)
    foresight = Foresight(trial=trial, drafters=tuple(family.drafters.values()))
    chosen = _recipe(request, recipe, foresight, seen, limits, progress)
    timing = FamilyTiming(request=request, identities=identities, domains=domains, device=device, progress=progress)
    sittings = TimingWindows(timing, journal)
    sittings.sit(family, FIRST)
    recorded = record_workloads(seen, identities, family, chosen, journal, progress)
    family = family_in(family, request.regime)
    traces = recorded.traces[: max(len(family.drafters), 1)]  # of the first workload
    readings = _readings(timing, family, journal)
    sittings.sit(family, SECOND, traces)
    timed = host_times(
        request,
        family,
        [shown_to(family.target, each.requests) for each in subject.workloads],
        {name: identity.key for name, identity in identities.drafters.items()},
        journal,
        progress,
        RoundLimits(
            most_tokens={batch: trial.probed(domains[0].most(batch)) for batch in request.batches},
            seconds=limits.rounds_s,
            between=lambda share: sittings.sit(family, SECOND + (1.0 - SECOND) * share, traces),
        ),
    )
    surfaces = sittings.finish(family, traces, readings)
    overhead = RoundOverhead(
        device=device.fingerprint,
        target=identities.target.key,
        dtype=request.dtype,
        samples=timed.samples,
        regime=surfaces[0].regime,
    )
    journal.finish(overhead=overhead, traces=recorded.traces, pairwise=recorded.pairwise)
    return _Measurements(surfaces=surfaces, overhead=overhead, recorded=recorded, left_out=timed.left_out)


def _shown(subject: _Subject, family: Family) -> list[Workload]:
    """Return the workloads as the target sees them; SpectuneError where it has no room for a text or a context."""
    longest, why = family.target.longest_context, why_shorter_at(subject.request.models.target)
    seen = [replace(each, requests=tuple(shown_to(family.target, each.requests))) for each in subject.workloads]
    require_room(longest, [asked for each in seen for asked in each.requests], why)
    require_contexts(subject.request.contexts, longest, why)
    return seen


def _recipe(
    request: ProfileRequest,
    recipe: Recipe | None,
    foresight: Foresight,
    seen: Sequence[Workload],
    limits: TimeBudgets,
    progress: Progress,
) -> Recipe | RecordingBudget:
    """Return which trees are recorded, as there is time for where nobody says, and tell what comes."""
    requests = [each.requests for each in seen]
    effort = foresight.effort(limits.recording_s / len(seen), max(request.batches), requests)
    is_limited = request.record == "auto" and recipe is None
    recording_s = sum(foresight.seconds(own, effort) for own in requests) if is_limited else None
    progress(limits.told(recording_s), 0.0)
    return recipe or (effort if request.record == "auto" else recipe_of(request.record))


def _tried(request: ProfileRequest, family: Family, identities: Identities, domains: Sequence[Domain]) -> ForwardTrial:
    """Return a trial of forwards; none where they are captured or compiled first, which takes longer than they do."""
    if request.regime != EAGER:
        return ForwardTrial()
    return try_forwards(runners_of(request, family, identities, domains), domains)


def _readings(timing: FamilyTiming, family: Family, journal: Parts) -> tuple[LatencySurface, ...]:
    request = timing.request

    def made() -> tuple[LatencySurface, ...]:
        share_s, contexts = READING_SHARE * (request.budget_s or 0.0), timing.domains[0].contexts
        return measure_reading(
            family,
            timing.identities,
            contexts,
            device=timing.device,
            dtype=request.dtype,
            budget_s=share_s,
            seed=request.seed,
        )

    timing.progress("reading prompts", 0.0)
    return kept_or_made(journal, "reading", tuple[LatencySurface, ...], made)


def request_key(
    request: ProfileRequest,
    device: Device,
    identities: Identities,
    workloads: Sequence[Workload],
    domains: Sequence[Domain],
    recipe: Recipe | str,
) -> str:
    """Return what two runs must have in common for one to go on where the other stopped; the budget may differ."""
    facts = [
        version("spectune"),  # another one may time otherwise
        STEPS,
        device.fingerprint,
        identities.target.key,
        [(name, model.key) for name, model in identities.drafters.items()],  # a surface is known by its place
        [request.dtype, request.regime, request.seed, request.held_out],
        [(w.label, [_facts(r) for r in w.requests]) for w in workloads],
        [repr(domain) for domain in domains],
        repr(recipe),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _facts(request: Request) -> tuple[object, ...]:
    facts = (request.prompt, request.max_new_tokens, request.seed, sorted(request.stop))
    return (*facts, [image.digest for image in request.images]) if request.images else facts
