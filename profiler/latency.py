"""Time forwards in shuffled rounds, so that what disturbs the machine disturbs all alike, and write each call down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ..errors import MeasurementError
from .clock import clock_of
from .design import AdaptiveDesign, Design
from .domain import Domain
from .protocols import MeasurementSink, ShapeRunner, SurfaceKey
from .records.device import Device
from .records.surface import LatencySurface
from .session import PreparedCalls, Progress, TimingSession, TimingSettings
from .tally import Tally

MOST_DISTURBED = 8.0  # times a fast call that half of the calls may take; beyond it nothing is kept


class Interrupted(KeyboardInterrupt):
    """The session was stopped by hand; every call timed so far is in the sink."""

    def __init__(self, calls: int) -> None:
        super().__init__(f"stopped; {calls} timed calls are kept, and the same command resumes from there")
        self.calls = calls


def measure(
    runners: Sequence[ShapeRunner],
    domains: Sequence[Domain],
    *,
    device: Device,  # the caller holds its lock
    budget_s: float,  # seconds for warm-up and rounds together, those of an earlier, stopped run included
    sink: MeasurementSink,  # gets every call and the surfaces, and gives back what a stopped run timed
    design: Design | None = None,
    progress: Progress | None = None,  # called with the spent share of the budget after every call
    session: TimingSettings | None = None,
) -> tuple[LatencySurface, ...]:
    """Return the measured surface of each runner, in their order; none where this sitting leaves some of the budget.

    Several sittings with other work between them see more of a device's moods than one of the same length: the surfaces
    are then of the typical mood, and `LatencySurface.drift` tells more.

    Rounds visit a few cells each, in random order, between visits of the sentinels that every round shares. The sink
    gets each call before the next one. Between rounds the design chooses where to look next. A cell that raises becomes
    a failure and the others go on. Raw repeats are stored with the drift of their rounds.

    Raises:
        Interrupted: a KeyboardInterrupt came.
        MeasurementError: runners and domains do not match, no shape of a runner can run, the first points of all
            surfaces do not fit into the budget, or something disturbed most calls.
    """
    if len(runners) != len(domains):
        raise MeasurementError(f"{len(runners)} runners but {len(domains)} domains; give one domain per runner")
    settings = session or TimingSettings()
    run = TimingSession(
        runners=list(runners),
        design=design or AdaptiveDesign(domains),
        settings=settings,
        clock=settings.clock or clock_of(device),
        calls=PreparedCalls(runners, settings.prepared),
        sink=sink,
        budget_s=budget_s,
        progress=progress,
    )
    keys = _keys(runners, device)
    try:
        run.sit()
    except KeyboardInterrupt as interrupt:
        raise Interrupted(run.ordinal) from interrupt
    if settings.until < 1.0:
        return ()
    _require_calm(run.tally)
    surfaces = tuple(_surface(key, run.tally, number) for number, key in enumerate(keys))
    sink.finish_surfaces(surfaces)
    return surfaces


def _require_calm(tally: Tally) -> None:
    if (times := tally.disturbance()) > MOST_DISTURBED:
        raise MeasurementError(
            f"half of a forward's calls took {times:.0f} times as long as its fast ones, so these timings say nothing "
            "of the device; end what else runs on it (spectune doctor names it), then run this again with --fresh"
        )


def _keys(runners: Sequence[ShapeRunner], device: Device) -> list[SurfaceKey]:
    keys = [
        SurfaceKey(
            device=device.fingerprint,
            model=runner.identity,
            role=runner.role,
            regime=runner.regime,
            dtype=runner.dtype,
            attention=runner.attention,
        )
        for runner in runners
    ]
    if len(set(keys)) < len(keys):
        raise MeasurementError("two runners measure the same surface; join them in one")
    return keys


def _surface(key: SurfaceKey, tally: Tally, number: int) -> LatencySurface:
    return LatencySurface(**asdict(key), measurements=tally.measurements(number))
