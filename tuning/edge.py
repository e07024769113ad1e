"""The jobs of edge drafting: what to plan it from, and what a server sends to new devices."""

from __future__ import annotations

import statistics
import threading
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from ..db.store import Store
from ..errors import PlanError, StoreError
from ..planner.edge.costs import server_batches, server_costs
from ..planner.edge.search import EdgePlan, EdgeSearch
from ..planner.edge.setting import BatchRule, DeviceDrafting, EdgeDevice
from ..planner.inputs import DrafterInputs, PlanInputs
from ..planner.pricing.fed import nearest_context
from ..planner.records.recording import recording_of
from ..profiler.device import detect
from ..profiler.identity import identify
from ..profiler.records.excess import mean_over_median
from ..profiler.records.host_line import CHAIN
from ..profiler.records.role import EAGER
from ..runtime.batch.reason import told
from ..runtime.edge.messages import Hello, Welcome
from .inputs import inputs_from_store
from .request import PlanRequest

MOST_KNOWN = 256  # kinds of devices whose plan is remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRequest:
    """What edge drafting is planned for: a target's folder, its device ("auto", "cpu" or "cuda:N"), and its profile.

    `context` is the number of tokens before a draft; 0 takes the middle of the recorded texts.
    """

    target: Path
    device: str = "auto"
    dtype: str = "auto"
    workload: str = "default"
    temperature: float = 0.0
    context: int = 0


class EdgePlanner:
    """Plans for devices of any speed at any distance, from what was profiled on the server."""

    def __init__(
        self,
        inputs: PlanInputs,
        *,
        context: int = 0,
        rule: BatchRule | None = None,
        most_drafted: int | None = None,
    ) -> None:
        """Take the server's measurements.

        `rule` says when the server verifies; None searches for it. `most_drafted` limits the tokens of a draft, if not
        None.
        """
        self._inputs, self._rule, self._most_drafted = inputs, rule, most_drafted
        middles = (len(text.prompt) + len(text.continuation) // 2 for text in inputs.texts)
        self._context = context or int(statistics.median(middles))
        self._searches: dict[tuple[str, int], EdgeSearch] = {}

    @property
    def most_devices(self) -> int:
        """Most devices at once that rounds were timed for; PlanError where no round was."""
        return server_batches(self._inputs)[-1]

    def named(self, name: str) -> DrafterInputs:
        """Return the drafter with that name, or raise PlanError."""
        return self._inputs.drafter(name)

    def drafter(self, key: str) -> DrafterInputs:
        """Return the drafter with these weights; raise PlanError where it was not recorded."""
        for drafter in self._inputs.drafters:
            if drafter.model.key == key:
                return drafter
        raise PlanError("this drafter was not recorded with the target; profile both on the server")

    def here(self, drafter: DrafterInputs, rtt_ms: float) -> EdgeDevice:
        """Return a device as fast as the profiled one, with its host time per forward: it drafts forward by forward."""
        surface, chain = drafter.surface, self._inputs.overhead.lines(1, drafter.surface.role).get(CHAIN)
        median_ms = surface.latency(1, nearest_context(surface, 1, self._context), 1).ms
        mean_ms = median_ms * mean_over_median(surface, mean_over_median(self._inputs.verify))
        return EdgeDevice(draft_ms=mean_ms + (max(chain.forward_ms, 0.0) if chain else 0.0), rtt_ms=rtt_ms)

    def plan(self, drafter: DrafterInputs, device: EdgeDevice, devices: int) -> EdgePlan:
        """Return the plan for so many equal devices; PlanError if untimed, or the drafter reads features."""
        return self.search(drafter, devices).plan([device] * devices)

    def search(self, drafter: DrafterInputs, devices: int) -> EdgeSearch:
        """Return the search that forecasts so many devices with a drafter; raise PlanError as `plan` does."""
        if drafter.reads_features:
            raise PlanError(
                f"{drafter.name} reads what the target computes, which a device has not; take a drafter model"
            )
        place = (drafter.name, devices)
        if place not in self._searches:
            costs = server_costs(self._inputs, most_rows=devices, context=self._context)
            self._searches[place] = EdgeSearch(
                recording_of(drafter.trace), costs, rule=self._rule, most_drafted=self._most_drafted
            )
        return self._searches[place]


def edge_planner(
    request: EdgeRequest, store: Store, *, rule: BatchRule | None = None, most_drafted: int | None = None
) -> EdgePlanner:
    """Return the planner of edge drafting on a target's newest profile; see `EdgePlanner`.

    StoreError where the target was not profiled here; PlanError where the profile's records do not fit together.
    """
    wanted = PlanRequest(
        target=identify(request.target),
        device=detect(request.device),
        dtype=request.dtype,
        workload=request.workload,
        temperature=request.temperature,
        regime=EAGER,  # what a server runs
    )
    inputs = inputs_from_store(wanted, store)
    return EdgePlanner(inputs, context=request.context, rule=rule, most_drafted=most_drafted)


class Adviser:
    """Advises every device that comes how to draft; devices that are nearly alike get the same advice."""

    def __init__(self, planner: EdgePlanner | None, *, devices: int, most_drafted: int, why_not: str = "") -> None:
        """Advise so many expected devices; without a planner (`why_not` says why) all draft as is usual."""
        self.why_not = why_not
        self._planner, self._devices, self._most = planner, devices, most_drafted
        self._lock = threading.Lock()
        self._planned = lru_cache(MOST_KNOWN)(self._plan)

    def __call__(self, hello: Hello) -> Welcome:
        """Return how a device is to draft, and why; raise PlanError where its times make no sense."""
        device = EdgeDevice(draft_ms=hello.draft_ms, rtt_ms=hello.rtt_ms or 0.0).about
        if self._planner is None:
            return self._usual(self.why_not)
        try:
            with self._lock:
                plan = self._planned(self._planner, hello.drafter, device)
        except PlanError as error:
            return self._usual(told(error))
        found = plan.best.forecast
        said = (
            f"planned for {self._devices} devices that draft a token in about {device.draft_ms:.3g} ms and are about "
            f"{device.rtt_ms:.3g} ms away: {found.slowest_tokens_per_s:.4g} tokens/s each, and {plan.saves:.3g} times "
            "the tokens of plain decoding for the server's time"
        )
        if not plan.drafts_at_the_edge:
            said += f"; the server alone would stream {plan.server_tokens_per_s:.4g} tokens/s to each"
        return Welcome(drafting=plan.best.draftings[0], most_drafted=self._most, reason=said)

    def _plan(self, planner: EdgePlanner, drafter: str, device: EdgeDevice) -> EdgePlan:
        return planner.plan(planner.drafter(drafter), device, self._devices)

    def _usual(self, why: str) -> Welcome:
        default = DeviceDrafting()
        chain = replace(default.chain, length=min(default.chain.length, self._most))
        reason = f"not planned, as is usual: {' '.join(why.split())}"
        return Welcome(drafting=replace(default, chain=chain), most_drafted=self._most, reason=reason)


def adviser_from_store(
    request: EdgeRequest, store: Store, *, slots: int, devices: int | None, rule: BatchRule, most_drafted: int
) -> Adviser:
    """Return the adviser of a server's devices from the store's profile; one without a planner says why it has none.

    `devices` None means as many as the server's `slots`, or the most that rounds were timed for.
    """
    try:
        planner = edge_planner(request, store, rule=rule, most_drafted=most_drafted)
        most = planner.most_devices
        if devices is not None and devices > most:
            raise PlanError(f"rounds of {devices} sequences were not timed, at most {most}; profile larger batches")
    except (StoreError, PlanError) as error:
        return Adviser(None, devices=devices or slots, most_drafted=most_drafted, why_not=told(error))
    return Adviser(planner, devices=devices or min(slots, most), most_drafted=most_drafted)
