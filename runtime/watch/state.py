"""The current state as metrics: the plan, its promises, and their results."""

from __future__ import annotations

from collections.abc import Sequence

from ..plan_choice import Choice
from .drift import PromiseTest
from .ledger import WatchedCell
from .prometheus import Labels, MetricFamily, Sample


def gauge(name: str, about: str, samples: Sequence[Sample]) -> MetricFamily:
    """Return a metric that goes up and down."""
    return MetricFamily(name=f"spectune_{name}", kind="gauge", about=about, samples=samples)


def state_families(choice: Choice, cells: Sequence[WatchedCell]) -> list[MetricFamily]:
    """Return which plan is in use and why, which cells were switched, and which have drifted."""
    places = [
        ({"batch": str(cell.cell.batch), "context": str(cell.cell.context)}, cell)
        for cell in cells
        if cell.cell is not None
    ]
    followed = [(labels, float(cell.guard is None or not cell.guard.current)) for labels, cell in places]
    tests = [(labels, cell.planned.promise) for labels, cell in places if cell.planned.promise is not None]
    return [
        gauge("plan_info", "The plan that is followed, and why.", [(_about(choice), 1.0)]),
        gauge("is_planned", "1 where a cell runs as planned, 0 where it was switched to another way.", followed),
        *_promise_families(tests),
    ]


def _about(choice: Choice) -> Labels:
    about = {"source": choice.source, "reason": choice.reason}
    plan = choice.plan
    if plan is None:
        return about
    return about | {"target": plan.target.name, "device": plan.device.label, "workload": plan.workload}


def _promise_families(tests: Sequence[tuple[Labels, PromiseTest]]) -> list[MetricFamily]:
    ends = [
        ({**labels, "end": end}, value)
        for labels, test in tests
        for end, value in (("low", test.low), ("high", test.high))
    ]
    found = [
        ({**labels, "direction": direction}, float(test.found == direction))
        for labels, test in tests
        for direction in ("slower", "faster")
    ]
    return [
        gauge("promised_tokens_per_second", "Ends of the plan's 90 % interval.", ends),
        gauge("drift", "1 where the speed was found outside the plan's interval.", found),
    ]
