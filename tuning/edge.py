"""The jobs of edge drafting: what to plan it from, and what a server tells devices that come."""

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
from ..runtime.edge.messages import Hello, Welcome
from ..runtime.reason import told
from .inputs import inputs_from_store
from .request import PlanRequest

MOST_KNOWN = 256  # kinds of devices whose plan is remembered


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

    def __init__(
        self,
        inputs: PlanInputs,
        *,
        context: int = 0,
        rule: BatchRule | None = None,
        most_drafted: int | None = None,
    ) -> None:
        """Take the server's measurements.

        Args:
            inputs: as a plan's.
            context: tokens before a draft; the middle of the recorded texts where 0.
            rule: when the server verifies, where that is settled; else it is searched for.
            most_drafted: tokens of a draft that the server takes; as many as were measured where None.
        """
        self._inputs, self._rule, self._most_drafted = inputs, rule, most_drafted
        middles = (len(text.prompt) + len(text.continuation) // 2 for text in inputs.texts)
        self._context = context or int(statistics.median(middles))
        self._searches: dict[tuple[str, int], EdgeSearch] = {}

    @property
    def most_devices(self) -> int:
        """Most devices at once that rounds were timed for.

        Raises:
            PlanError: there were none.
        """
        return server_batches(self._inputs)[-1]

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
        """Return a device that drafts as fast as the profiled one did, with what its host did at each forward.

        What forwards take less where a whole draft is one call is left: a device guesses on forward by forward.
        """
        surface, chain = drafter.surface, self._inputs.overhead.lines(1, drafter.surface.role).get(CHAIN)
        median_ms = surface.latency(1, nearest_context(surface, 1, self._context), 1).ms
        mean_ms = median_ms * mean_over_median(surface, mean_over_median(self._inputs.verify))
        return EdgeDevice(draft_ms=mean_ms + (max(chain.forward_ms, 0.0) if chain else 0.0), rtt_ms=rtt_ms)

    def plan(self, drafter: DrafterInputs, device: EdgeDevice, devices: int) -> EdgePlan:
        """Return what to do with so many devices that are all alike.

        Raises:
            PlanError: rounds of so many sequences were not timed; or the drafter reads what the target computes.
        """
        return self.search(drafter, devices).plan([device] * devices)

    def search(self, drafter: DrafterInputs, devices: int) -> EdgeSearch:
        """Return what foretells so many devices with a drafter.

        Raises:
            PlanError: as `plan` does.
        """
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
    """Return what plans edge drafting from the newest profile of a target; the arguments are `EdgePlanner`'s.

    Raises:
        StoreError: it was not profiled here.
        PlanError: what was profiled does not fit together.
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
    """Tells every device that comes how to draft; devices that are nearly alike are told the same."""

    def __init__(self, planner: EdgePlanner | None, *, devices: int, most_drafted: int, why_not: str = "") -> None:
        """Advise.

        Args:
            planner: None where nothing was profiled: then everybody drafts as is usual.
            devices: expected at once.
            most_drafted: tokens of one draft.
            why_not: there is no planner.
        """
        self.why_not = why_not
        self._planner, self._devices, self._most = planner, devices, most_drafted
        self._lock = threading.Lock()
        self._planned = lru_cache(MOST_KNOWN)(self._plan)

    def __call__(self, hello: Hello) -> Welcome:
        """Return how a device is to draft, and why.

        Raises:
            PlanError: its times make no sense.
        """
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
    """Return what advises devices of a server from the store's profile of the target, or says why it cannot.

    Args:
        request: the target.
        store: with its profile.
        slots: texts that the server holds.
        devices: expected at once; where None, as many as slots, or the most that rounds were timed for.
        rule: when the server verifies.
        most_drafted: tokens of one draft.
    """
    try:
        planner = edge_planner(request, store, rule=rule, most_drafted=most_drafted)
        most = planner.most_devices
        if devices is not None and devices > most:
            raise PlanError(f"rounds of {devices} sequences were not timed, at most {most}; profile larger batches")
    except (StoreError, PlanError) as error:
        return Adviser(None, devices=devices or slots, most_drafted=most_drafted, why_not=told(error))
    return Adviser(planner, devices=devices or min(slots, most), most_drafted=most_drafted)
