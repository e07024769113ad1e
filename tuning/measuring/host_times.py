"""Host times of every way of decoding and every batch size, as far as memory has room for whole rounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ...errors import ModelError, NoRoomError
from ...profiler.protocols import Parts
from ...profiler.records.overhead import OverheadSample
from ...profiler.records.role import BLOCK, DRAFT_ROLES
from ...profiler.records.wire import from_json, to_json
from ...runtime.batch.faults import memory_for
from ...runtime.batch.sequence import Request
from ...runtime.models.drafter import role_of
from ..request import ProfileRequest
from ..steps import Progress
from .decoding import Family
from .in_rounds import MOST_PROBED
from .overhead import measure_overhead

REMEDY = "profile smaller batches, or shorter texts with --max-new-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Samples, and in words what could not be timed."""

    samples: tuple[OverheadSample, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLimits:
    """What the timing of whole rounds may take, and what is done between its parts."""

    most_tokens: Mapping[int, int] = field(default_factory=dict)  # verified at once, by batch; MOST_PROBED else
    seconds: float = math.inf  # for all; every kind of round is timed once whatever the limit
    between: Callable[[float], None] = lambda share: None  # gets the finished share before every part but the first


def host_times(
    request: ProfileRequest,
    family: Family,
    asked: Sequence[Sequence[Request]],
    identities: Mapping[str, str],
    journal: Parts,
    progress: Progress,
    limits: RoundLimits | None = None,
) -> HostTimes:
    """Return the host times of greedy and of sampled rounds, as far as any workload has such.

    Where rounds with a drafter cannot be timed, those without are. The journal gets only whole batches: what is left
    out of one may have room when the profile resumes. `identities` are ModelIdentity.key of the drafters.

    Raises:
        NoRoomError: memory has no room for rounds of any batch.
        ModelError: a round fails without a drafter.
    """
    found, limits = list[HostTimes](), limits or RoundLimits()
    drafters = _timed_apart(family, identities)
    rounds = [
        (way, requests, batch, whose)
        for way, requests in _ways(asked)
        for batch in request.batches
        for whose in drafters
    ]
    for done, (way, requests, batch, whose) in enumerate(rounds):
        if done:
            limits.between(done / len(rounds))
        progress("timing whole rounds", done / len(rounds))
        name = f"{way} {batch}{whose.told}"
        document = journal.part(name)
        if document is not None:
            found.append(HostTimes(samples=from_json(tuple[OverheadSample, ...], document)))
            continue
        own_s, most = limits.seconds / len(rounds), limits.most_tokens.get(batch, MOST_PROBED)
        timed = _of_batch(family, requests, whose, batch=batch, seed=request.seed, limit_s=own_s, most=most)
        if not timed.left_out:
            journal.add_part(name, to_json(timed.samples, tuple[OverheadSample, ...]))
        found.append(timed)
    samples = tuple(sample for each in found for sample in each.samples)
    left_out = tuple(dict.fromkeys(words for each in found for words in each.left_out))
    if not samples:
        raise NoRoomError(f"{left_out[0]}; {REMEDY}")
    return HostTimes(samples=samples, left_out=left_out)


def _ways(asked: Sequence[Sequence[Request]]) -> list[tuple[str, Sequence[Request]]]:
    """Return the requests of the first greedy and of the first sampled workload, by the name of their rounds."""
    greedy = [own for own in asked if own[0].temperature == 0.0]
    sampled = [own for own in asked if own[0].temperature > 0.0]
    return [("overhead", own) for own in greedy[:1]] + [("overhead sampled", own) for own in sampled[:1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whose:
    drafter: str | None
    identity: str = ""  # ModelIdentity.key of one that stands for no other
    told: str = ""  # behind the name of a part of the journal; the first drafter's is none

    @property
    def is_first(self) -> bool:
        return not self.told


def _timed_apart(family: Family, identities: Mapping[str, str]) -> list[_Whose]:
    """Return a drafter of every role, a model's first; of block drafters, which are unlike each other, all of them."""
    of_role = defaultdict[str, list[str]](list)
    for name, model in family.drafters.items():
        of_role[role_of(model)].append(name)
    apart = [(role, name) for role in DRAFT_ROLES for name in of_role[role][: None if role == BLOCK else 1]]
    return [
        _Whose(
            drafter=name,
            identity=identities[name] if role == BLOCK else "",
            told=f" {role} {name}" if place else "",
        )
        for place, (role, name) in enumerate(apart)
    ] or [_Whose(drafter=None)]


def _of_batch(
    family: Family, requests: Sequence[Request], whose: _Whose, *, batch: int, seed: int, limit_s: float, most: int
) -> HostTimes:
    """Return the host times of a batch: without its first drafter where that one's rounds fail, none without room."""
    timed = partial(_timed, family, requests, batch=batch, seed=seed, limit_s=limit_s, most=most)
    failed: tuple[str, ...] = ()
    if whose.drafter is not None:
        try:
            return HostTimes(samples=timed(drafter=whose.drafter, identity=whose.identity))
        except (NoRoomError, ModelError) as error:  # which holds the memory of these rounds until its handler ends
            told = "a drafter" if whose.is_first else whose.drafter
            failed = (f"rounds of batch {batch} with {told} were not timed: {error}",)
    if not whose.is_first:
        return HostTimes(samples=(), left_out=failed)
    try:
        return HostTimes(samples=timed(drafter=None), left_out=failed)
    except NoRoomError:
        failed = (f"memory has no room for rounds of batch {batch}, which were not timed",)
    return HostTimes(samples=(), left_out=failed)


def _timed(
    family: Family,
    requests: Sequence[Request],
    *,
    batch: int,
    drafter: str | None,
    identity: str = "",
    seed: int = 0,
    limit_s: float,
    most: int,
) -> tuple[OverheadSample, ...]:
    with memory_for(f"rounds of batch {batch}", REMEDY):
        found = measure_overhead(
            family,
            requests,
            batch=batch,
            drafter=drafter,
            identity=identity,
            seed=seed,
            limit_s=limit_s,
            most_tokens=most,
        )
        return tuple(found)
