"""The jobs of edge drafting: what to plan it from, and what a server tells devices that come."""

from __future__ import annotations

import statistics
import threading
from dataclasses import dataclass
from pathlib import Path

from ..db.store import Store
from ..errors import PlanError, RequestError, StoreError
from ..planner.edge.costs import server_costs
from ..planner.edge.search import DEFAULT, EdgePlan, EdgeSearch
from ..planner.edge.setting import DeviceDrafting, EdgeDevice
from ..planner.inputs import DrafterInputs, PlanInputs
from ..planner.replay.recorded import recording_of
from ..profiler.device import detect
from ..profiler.identity import identify
from ..runtime.edge.messages import Hello, Welcome
from .inputs import inputs_from_store
from .request import PlanRequest

DIGITS = 2  # of a device's times: those that agree in so many draft alike


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRequest:
    """What edge drafting is planned for.

    Attributes:
        target: its folder.
        device: that the target runs on: "auto", "cpu" or "cuda:N".
        dtype, workload, temperature: of the profile, as a plan's.
        context: tokens before a draft; the middle of the recorded texts where 0.
    """

    target: Path
    device: str = "auto"
    dtype: str = "auto"
    workload: str = "default"
    temperature: float = 0.0
    context: int = 0


class EdgePlanner:
    """Plans for devices of any speed at any distance, from what was profiled on the server."""

    def __init__(self, inputs: PlanInputs, *, context: int = 0) -> None:
        """Take the server's measurements.

        Args:
            inputs: as a plan's.
            context: tokens before a draft; the middle of the recorded texts where 0.
        """
        self._inputs = inputs
        middles = (len(text.prompt) + len(text.continuation) // 2 for text in inputs.texts)
        self._context = context or int(statistics.median(middles))
        self._searches: dict[tuple[str, int], EdgeSearch] = {}

    @property
    def most_devices(self) -> int:
        """Most devices at once that forwards were measured for."""
        return self._inputs.verify.batches[-1]

    def named(self, name: str) -> DrafterInputs:
        """Return the drafter of that name.

        Raises:
            PlanError: there is none.
        """
        return self._inputs.drafter(name)

    def drafter(self, key: str) -> DrafterInputs:
        """Return the drafter with these weights.

        Raises:
            PlanError: it was not recorded.
        """
        for drafter in self._inputs.drafters:
            if drafter.model.key == key:
                return drafter
        raise PlanError("this drafter was not recorded with the target; profile both on the server")

    def here(self, drafter: DrafterInputs, rtt_ms: float) -> EdgeDevice:
        """Return a device that drafts as fast as the profiled one did."""
        context = min(max(self._context, drafter.surface.contexts(1)[0]), drafter.surface.contexts(1)[-1])
        return EdgeDevice(draft_ms=drafter.surface.latency(1, context, 1).ms, rtt_ms=rtt_ms)

    def plan(self, drafter: DrafterInputs, device: EdgeDevice, devices: int) -> EdgePlan:
        """Return what to do with so many devices that are all alike.

        Raises:
            PlanError: forwards of so many sequences were not measured; or the drafter reads what the target computes.
        """
        return self.search(drafter, devices).plan([device] * devices)

    def search(self, drafter: DrafterInputs, devices: int) -> EdgeSearch:
        """Return what foretells so many devices with a drafter.

        Raises:
            PlanError: as `plan` does.
        """
        place = (drafter.name, devices)
        if place not in self._searches:
            costs = server_costs(self._inputs, most_rows=devices, context=self._context)
            self._searches[place] = EdgeSearch(recording_of(drafter.trace), costs)
        return self._searches[place]


def edge_planner(request: EdgeRequest, store: Store) -> EdgePlanner:
    """Return what plans edge drafting from the newest profile of a target.

    Raises:
        StoreError: it was not profiled here.
        PlanError: what was profiled does not fit together.
    """
    device = detect(request.device)
    wanted = PlanRequest(
        target=identify(request.target),
        device=device,
        dtype=request.dtype,
        workload=request.workload,
        temperature=request.temperature,
    )
    return EdgePlanner(inputs_from_store(wanted, store), context=request.context)


class Adviser:
    """Tells every device that comes how to draft; what was searched once is remembered."""

    def __init__(self, planner: EdgePlanner | None, *, devices: int, most_drafted: int, why_not: str = "") -> None:
        """Advise.

        Args:
            planner: None where nothing was profiled: then everybody drafts as is usual.
            devices: expected at once.
            most_drafted: tokens of one draft.
            why_not: there is no planner.
        """
        self._planner, self._devices, self._most, self._why_not = planner, devices, most_drafted, why_not
        self._lock = threading.Lock()
        self._known: dict[tuple[str, float, float], EdgePlan] = {}

    def __call__(self, hello: Hello) -> Welcome:
        """Return how a device is to draft, and why.

        Raises:
            RequestError: it says no time that a draft takes.
        """
        if not 0.0 < hello.draft_ms < float("inf"):
            raise RequestError(f"a drafted token takes more than 0 ms, got {hello.draft_ms}; measure it")
        if self._planner is None:
            return self._usual(self._why_not)
        try:
            with self._lock:
                plan = self._planned(self._planner, hello)
        except PlanError as error:
            return self._usual(str(error))
        found = plan.best.forecast
        said = (
            f"planned for {self._devices} devices that draft a token in {hello.draft_ms:.3g} ms and are "
            f"{hello.rtt_ms or 0.0:.3g} ms away: {found.slowest_tokens_per_s:.4g} tokens/s each, and "
            f"{plan.saves:.3g} times the tokens of plain decoding for the server's time"
        )
        if not plan.drafts_at_the_edge:
            said += f"; the server alone would stream {plan.server_tokens_per_s:.4g} tokens/s to each"
        return Welcome(drafting=plan.best.draftings[0], most_drafted=self._most, reason=said)

    def _planned(self, planner: EdgePlanner, hello: Hello) -> EdgePlan:
        draft_ms, rtt_ms = (float(f"{ms:.{DIGITS}g}") for ms in (hello.draft_ms, hello.rtt_ms or 0.0))
        place = (hello.drafter, draft_ms, rtt_ms)
        if place not in self._known:
            device = EdgeDevice(draft_ms=draft_ms, rtt_ms=rtt_ms)
            self._known[place] = planner.plan(planner.drafter(hello.drafter), device, self._devices)
        return self._known[place]

    def _usual(self, why: str) -> Welcome:
        drafting = DEFAULT if DEFAULT.chain.length <= self._most else DeviceDrafting(ahead=0)
        return Welcome(drafting=drafting, most_drafted=self._most, reason=f"not planned, as is usual: {why}")


def adviser_from_store(request: EdgeRequest, store: Store, *, devices: int, most_drafted: int) -> Adviser:
    """Return what advises devices from the store's profile of the target, or says why it cannot."""
    try:
        planner = edge_planner(request, store)
    except (StoreError, PlanError) as error:
        return Adviser(None, devices=devices, most_drafted=most_drafted, why_not=" ".join(str(error).split()))
    return Adviser(planner, devices=devices, most_drafted=most_drafted)
