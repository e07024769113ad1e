"""One profile on several devices, each for itself: one that fails leaves the others their results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from ...db import OpenProfile, Store, open_store
from ...errors import SpectuneError
from ...profiler.device import detect, detect_all
from ...profiler.protocols import Parts
from ..family import identify_all, torch_device
from ..profile import Profile, profile
from ..request import ProfileRequest
from ..steps import Progress

Facts = dict[str, Any]  # JSON values
Word = tuple[str, str, float]  # (where, what is being done, share of it done)
Tell = Callable[[Word], None]
STEP = 0.25  # share of a stage between two words about it


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJob:
    """What to profile on every device, and what is wanted of the profile besides the store."""

    request: ProfileRequest
    facts: Callable[[Profile, str], Facts]  # of a profile and the store's URL without its password
    store_url: str | None = None  # None: as `open_store` understands it
    fresh: bool = False  # begin anew what an earlier run left unfinished, devices that it has finished included


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one device: the facts of its profile, or the error that ended it."""

    where: str
    facts: Facts | None = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        assert (self.facts is None) != (self.error is None), "an outcome is either facts or an error"

    @property
    def failure(self) -> str | None:
        """Say in one line why there are no facts; None where there are."""
        if self.error is None:
            return None
        line = " ".join(str(self.error).split())
        return line if isinstance(self.error, SpectuneError) else f"{type(self.error).__name__}: {line}"


@dataclass(slots=True)
class Quarters:
    """Tells a job's progress whenever something new begins, and at every quarter of it."""

    where: str
    tell: Tell
    last: tuple[str, int] = field(default=("", 0), init=False)

    def __call__(self, what: str, share: float) -> None:
        """Tell the progress at each quarter or change of step."""
        now = (what, int(share / STEP))
        if now != self.last:
            self.last = now
            self.tell((self.where, what, share))


def requests_of_devices(request: ProfileRequest) -> tuple[ProfileRequest, ...]:
    """Return the request for each device it is for; "all" is every one of this machine, the GPUs first."""
    if request.device != "all":
        return (request,)
    return tuple(replace(request, device=torch_device(device)) for device in detect_all())


def profile_all(job: FleetJob, tell: Tell) -> Iterator[Outcome]:
    """Profile each device of this machine, one after the other, and yield the outcomes.

    SpectuneError where the devices cannot be read or the store cannot be opened; nothing was measured then;
    Interrupted: Ctrl-C; the measurements of earlier devices are in the store.
    """
    requests = requests_of_devices(job.request)
    with open_store(job.store_url) as store:
        finished = store.open_profile(fleet_key(job.request), job.fresh)
        yield from noted(_outcomes(job, requests, store, finished, tell), finished)


def _outcomes(
    job: FleetJob, requests: Sequence[ProfileRequest], store: Store, finished: Parts, tell: Tell
) -> Iterator[Outcome]:
    for request in requests:
        try:
            facts = facts_of(job, request, store, finished, Quarters(request.device, tell))
        except Exception as error:  # whatever keeps one device from running is no reason to skip the others
            yield Outcome(where=request.device, error=error)
        else:
            yield Outcome(where=request.device, facts=facts)


def fleet_key(request: ProfileRequest) -> str:
    """Return what two runs must have in common for one to leave out the devices that the other has finished."""
    return hashlib.sha256(f"dated fleet {version('spectune')} {request}".encode()).hexdigest()


def facts_of(
    job: FleetJob,
    request: ProfileRequest,
    store: Store,
    finished: Parts,
    progress: Progress,
    lock_wait_s: float = 0.0,
) -> Facts:
    """Return the facts of a device's profile, from an earlier, stopped run of the fleet (`finished`) or made now.

    An earlier run's say in "done_before" when it measured the device, in UTC.
    """
    identities = identify_all(request.models)
    models = [identities.target.key, *(model.key for model in identities.drafters.values())]
    name = hashlib.sha256(repr((detect(request.device).fingerprint, models)).encode()).hexdigest()
    document = finished.part(name)
    if document is not None:
        kept = json.loads(document)
        return {**kept["facts"], "done_before": kept["at"]}
    facts = job.facts(profile(request, store, fresh=job.fresh, lock_wait_s=lock_wait_s, progress=progress), store.url)
    finished.add_part(name, json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), "facts": facts}))
    return facts


def noted(outcomes: Iterable[Outcome], finished: OpenProfile) -> Iterator[Outcome]:
    """Yield outcomes; where no device has failed the fleet is finished, and the same command is another one."""
    is_whole = True
    for outcome in outcomes:
        is_whole = is_whole and outcome.error is None
        yield outcome
    if is_whole:
        finished.finish()
