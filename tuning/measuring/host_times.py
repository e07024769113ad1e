"""Host times of every way of decoding and every batch size, as far as memory has room for whole rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ...errors import ModelError, NoRoomError
from ...profiler.protocols import Parts
from ...profiler.records.overhead import OverheadSample
from ...profiler.records.role import BLOCK, DRAFT_ROLES
from ...profiler.records.wire import from_json, to_json
from ...runtime.faults import memory_for
from ...runtime.models.drafter import role_of
from ...runtime.requests import Request
from ..request import ProfileRequest
from ..steps import Progress
from .decoding import Family
from .overhead import measure_overhead

REMEDY = "profile smaller batches, or shorter texts with --max-new-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Samples, and in words what could not be timed."""

    samples: tuple[OverheadSample, ...]
    left_out: tuple[str, ...] = ()


def host_times(
    request: ProfileRequest,
    family: Family,
    asked: Sequence[Sequence[Request]],
    identities: Mapping[str, str],
    journal: Parts,
    progress: Progress,
    between: Callable[[float], None] = lambda share: None,
) -> HostTimes:
    """Return the host times of greedy rounds and of sampled ones, as far as any of the workloads has such.

    Where rounds with a drafter cannot be timed, those without are. Only whole batches are kept in the journal: what is
    left out of one may have room when the same profile goes on.

    Args:
        request: what is profiled.
        family: the models, in its regime.
        asked: what each workload decodes.
        identities: ModelIdentity.key of the family's drafters.
        journal: receives what is finished, and gives back what a stopped run finished.
        progress: told each step.
        between: told the share that is done, before every part but the first.

    Raises:
        NoRoomError: memory has no room for rounds of any batch.
        ModelError: a round fails without a drafter.
    """
    greedy = [own for own in asked if own[0].temperature == 0.0]
    sampled = [own for own in asked if own[0].temperature > 0.0]
    ways = [("overhead", greedy[0])] if greedy else []
    ways += [("overhead sampled", sampled[0])] if sampled else []
    found: list[HostTimes] = []
    drafters = _timed_apart(family)
    rounds = [
        (f"{way} {batch}{told}", requests, batch, drafter)
        for way, requests in ways
        for batch in request.batches
        for told, drafter in drafters
    ]
    for done, (name, requests, batch, drafter) in enumerate(rounds):
        if done:
            between(done / len(rounds))
        progress("timing whole rounds", done / len(rounds))
        document = journal.part(name)
        if document is not None:
            found.append(HostTimes(samples=from_json(tuple[OverheadSample, ...], document)))
            continue
        is_first = drafter == drafters[0][1]
        is_block = drafter is not None and role_of(family.drafters[drafter]) == BLOCK
        alone = identities[drafter] if drafter is not None and is_block else ""
        whose = Whose(drafter=drafter, alone=alone, is_first=is_first)
        timed = _of_batch(family, requests, whose, batch=batch, seed=request.seed)
        if not timed.left_out:
            journal.add_part(name, to_json(timed.samples, tuple[OverheadSample, ...]))
        found.append(timed)
    samples = tuple(sample for each in found for sample in each.samples)
    left_out = tuple(dict.fromkeys(words for each in found for words in each.left_out))
    if not samples:
        raise NoRoomError(f"{left_out[0]}; {REMEDY}")
    return HostTimes(samples=samples, left_out=left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """Beside whom rounds are timed."""

    drafter: str | None
    alone: str  # ModelIdentity.key where it stands for no other
    is_first: bool  # of those beside whom rounds are timed


def _timed_apart(family: Family) -> list[tuple[str, str | None]]:
    """Return a drafter of every role, a model's first, and what its part of a journal is called besides.

    Block drafters are no models of each other: all of them are timed.
    """
    of_role = defaultdict[str, list[str]](list)
    for name, model in family.drafters.items():
        of_role[role_of(model)].append(name)
    known = [role for role in DRAFT_ROLES if of_role[role]]
    if not known:
        return [("", None)]
    apart = [(role, name) for role in known for name in of_role[role][: None if role == BLOCK else 1]]
    (_, first), *others = apart
    return [("", first), *((f" {role} {name}", name) for role, name in others)]


def _of_batch(family: Family, requests: Sequence[Request], whose: Whose, *, batch: int, seed: int) -> HostTimes:
    """Return the host times of a batch: without its first drafter where that one's rounds fail, none without room."""
    timed = partial(_timed, family, requests, batch=batch, seed=seed)
    failed: tuple[str, ...] = ()
    if whose.drafter is not None:
        try:
            return HostTimes(samples=timed(drafter=whose.drafter, alone=whose.alone))
        except (NoRoomError, ModelError) as error:  # which holds the memory of these rounds until its handler ends
            told = "a drafter" if whose.is_first else whose.drafter
            failed = (f"rounds of batch {batch} with {told} were not timed: {error}",)
    if not whose.is_first:
        return HostTimes(samples=(), left_out=failed)
    try:
        return HostTimes(samples=timed(drafter=None, alone=""), left_out=failed)
    except NoRoomError:
        failed = (f"memory has no room for rounds of batch {batch}, which were not timed",)
    return HostTimes(samples=(), left_out=failed)


def _timed(
    family: Family, requests: Sequence[Request], *, batch: int, drafter: str | None, alone: str, seed: int
) -> tuple[OverheadSample, ...]:
    with memory_for(f"rounds of batch {batch}", REMEDY):
        return tuple(measure_overhead(family, requests, batch=batch, drafter=drafter, alone=alone, seed=seed))
