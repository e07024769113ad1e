"""One profile on several devices, each for itself: one that fails leaves the others their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ...db.store import open_store
from ...errors import SpectuneError
from ...profiler.device import detect_all
from ..family import torch_device
from ..profile import Profile, profile
from ..request import ProfileRequest

Facts = dict[str, Any]  # JSON values
Word = tuple[str, str, float]  # (where, what is being done, share of it done)
Tell = Callable[[Word], None]
STEP = 0.25  # share of a stage between two words about it


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJob:
    """What every device is asked for, and what is wanted of its profile beside the store."""

    request: ProfileRequest
    facts: Callable[[Profile, str], Facts]  # of a profile and the store's URL without its password
    store_url: str | None = None  # None: as `open_store` understands it
    fresh: bool = False  # begin anew what an earlier run left unfinished


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
        """Tell it, or not."""
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
    """Yield what became of each device of this machine, one after the other.

    Raises:
        SpectuneError: the devices cannot be told, or the store cannot be opened; nothing was measured then.
        Interrupted: Ctrl-C; what the devices before it measured is in the store.
    """
    requests = requests_of_devices(job.request)
    with open_store(job.store_url) as store:
        for request in requests:
            try:
                done = profile(request, store, progress=Quarters(request.device, tell), fresh=job.fresh)
            except Exception as error:  # whatever keeps one device from running is no reason to skip the others
                yield Outcome(where=request.device, error=error)
            else:
                yield Outcome(where=request.device, facts=job.facts(done, store.url))
