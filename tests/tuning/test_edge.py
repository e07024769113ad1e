"""What a server tells devices that come: planned where it was profiled, as is usual elsewhere, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.errors import PlanError
from spectune.planner.edge.search import EdgePlan
from spectune.planner.edge.setting import BatchRule, EdgeDevice
from spectune.planner.inputs import DrafterInputs
from spectune.profiler.records.overhead import OverheadSample
from spectune.runtime.edge.messages import Hello
from spectune.tuning.edge import Adviser, EdgePlanner

from ..support.synthetic import Language, SkilledDrafter, inputs, model, overhead, record, surface, texts

LANGUAGE = Language(3)
SPOKEN = texts(LANGUAGE, 4, lambda text: 30)
MADE = inputs(record(SkilledDrafter(LANGUAGE, 0.9), SPOKEN, [(0,) * depth for depth in range(17)]))
HELLO = Hello(drafter=model("small").key, draft_ms=1.0, rtt_ms=5.0)
RULE = BatchRule(size=2, wait_ms=1.0)


def adviser(*, devices: int = 3, most_drafted: int = 6) -> tuple[Adviser, EdgePlanner]:
    planner = EdgePlanner(MADE, rule=RULE, most_drafted=most_drafted)
    return Adviser(planner, devices=devices, most_drafted=most_drafted), planner


def test_a_device_is_told_the_plan_for_its_like_under_the_server_s_own_rule() -> None:
    advise, planner = adviser()
    told = advise(HELLO)
    drafter = planner.named("small")
    plan = planner.plan(drafter, planner.here(drafter, 5.0).about, 3)
    assert told.drafting == plan.best.draftings[0] and told.most_drafted == 6
    assert plan.best.rule == RULE and told.drafting.chain.length <= 6
    assert told.reason.startswith("planned for 3 devices that draft a token in about 1 ms and are about 4.87 ms away: ")


def test_a_device_like_the_profiled_one_takes_mean_forwards_and_what_the_host_does_at_each() -> None:
    chains = [
        OverheadSample(kind="chain", batch=1, draft_forwards=length, nodes=1, host_ms=(0.1 + 0.3 * length,) * 9)
        for length in (2, 6)
    ]
    host = replace(overhead(0.1, (1,)), samples=(*overhead(0.1, (1,)).samples[:1], *chains))
    one, own = surface("small", "draft", lambda *shape: 2.0), MADE.drafters[0]
    stalling = (replace(each, repeats_ms=(2.0, 2.0, 2.0, 2.0, 4.0)) for each in one.measurements)
    stalled = replace(one, measurements=tuple(stalling))
    for drafted, draft_ms in ((one, 2.3), (stalled, 2.4 + 0.3)):
        drafter = replace(own, surface=drafted)
        planner = EdgePlanner(replace(MADE, overhead=host, drafters=(drafter,)))
        assert planner.here(drafter, 5.0).draft_ms == pytest.approx(draft_ms)


@pytest.mark.parametrize("role", ["head", "block", "self"])
def test_a_drafter_that_reads_what_the_target_computes_is_planned_for_no_device(role: str) -> None:
    head = replace(MADE.drafters[0], surface=surface("small", role, lambda *shape: 1.0))
    planner = EdgePlanner(replace(MADE, drafters=(head,)))
    with pytest.raises(PlanError, match="small reads what the target computes, which a device has not"):
        planner.plan(head, EdgeDevice(draft_ms=1.0, rtt_ms=5.0), 1)


def test_no_more_devices_are_planned_for_than_rounds_were_timed_of() -> None:
    assert EdgePlanner(MADE).most_devices == 3
    assert EdgePlanner(replace(MADE, overhead=overhead(0.1, (1,)))).most_devices == 1


def test_devices_that_are_nearly_alike_are_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    advise, planner = adviser()
    searches, plan = list[EdgeDevice](), planner.plan

    def planned(drafter: DrafterInputs, device: EdgeDevice, devices: int) -> EdgePlan:
        searches.append(device)
        return plan(drafter, device, devices)

    monkeypatch.setattr(planner, "plan", planned)
    told = [advise(Hello(drafter=HELLO.drafter, draft_ms=ms, rtt_ms=5.0)) for ms in (1.0, 1.01, 0.99, 2.0)]
    assert len(searches) == 2 and told[0] == told[1] == told[2] != told[3]


@pytest.mark.parametrize(
    ("hello", "devices", "why"),
    [
        (Hello(drafter="another", draft_ms=1.0, rtt_ms=5.0), 3, "this drafter was not recorded with the target"),
        (HELLO, 4, "rounds of 4 sequences were not timed"),
    ],
)
def test_what_cannot_be_planned_is_told_as_is_usual(hello: Hello, devices: int, why: str) -> None:
    advise, _ = adviser(devices=devices, most_drafted=3)
    told = advise(hello)
    assert told.reason.startswith(f"not planned, as is usual: {why}")
    assert (told.drafting.chain.length, told.drafting.chain.confidence, told.drafting.ahead) == (3, 0.6, 8)


def test_without_a_profile_everybody_drafts_as_is_usual() -> None:
    told = Adviser(None, devices=1, most_drafted=16, why_not="nothing\nwas profiled")(HELLO)
    assert told.reason == "not planned, as is usual: nothing was profiled" and told.drafting.chain.length == 4


@pytest.mark.parametrize("draft_ms", [0.0, -1.0, 1e-320, 1e9])
def test_times_that_make_no_sense_are_refused(draft_ms: float) -> None:
    advise, _ = adviser()
    with pytest.raises(PlanError, match=r"in 0\.001 to 100000 ms"):
        advise(Hello(drafter=HELLO.drafter, draft_ms=draft_ms, rtt_ms=5.0))
