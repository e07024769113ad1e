"""A plan from a store is of one regime: that in which the target was profiled last, or the one that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spectune.db import Store, open_store
from spectune.db.rows import Records
from spectune.errors import PlanError, StoreError
from spectune.planner.inputs import PlanInputs
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.profiler.records.role import CAPTURED, run_alike, run_beside, running_of
from spectune.profiler.records.surface import LatencySurface
from spectune.tuning.inputs import inputs_from_store
from spectune.tuning.request import PlanRequest
from spectune.tuning.timed import timed_on

from ..support.synthetic import (
    DEVICE,
    TARGET,
    Language,
    SkilledDrafter,
    every_node,
    inputs,
    model,
    overhead,
    record,
    surface,
    texts,
)

REQUEST = PlanRequest(target=TARGET, device=DEVICE, dtype="float32", workload="made up", trials=2)


@cache
def recorded(name: str) -> AcceptanceTrace:
    spoken = Language(3)
    return record(SkilledDrafter(spoken, 0.8), texts(spoken, 4, lambda text: 10), every_node(2, 2), name=name)


def timed(name: str, role: str, regime: str, ms: float) -> LatencySurface:
    return replace(surface(name, role, lambda batch, context, tokens: ms, tokens=(1, 2)), regime=regime)


def keep(store: Store, kept: LatencySurface) -> None:
    store.add_records(Records(devices=(DEVICE,), surfaces=(kept,)))


def profile(store: Store, regime: str, *names: str, ms: float = 1.0) -> None:
    """Keep what a profile of the target and these drafters leaves, every forward and the host's part taking as long."""
    store.add_model(TARGET)
    keep(store, timed("large", "verify", regime, ms))
    for name in names:
        store.add_model(model(name))
        keep(store, timed(name, "head" if name == "head" else "draft", running_of(regime), ms))
        store.add_trace(recorded(name))
    store.add_overhead(replace(overhead(ms), regime=regime))


def regimes(found: PlanInputs) -> list[str]:
    """Return the regimes of the target, of the host's part and of every drafter."""
    return [found.verify.regime, found.overhead.regime, *(drafter.surface.regime for drafter in found.drafters)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def test_a_drafter_that_was_timed_in_another_regime_does_not_compete_and_is_named(store: Store) -> None:
    profile(store, CAPTURED, "small")
    profile(store, "eager", "head")  # which no graph can hold
    found = inputs_from_store(REQUEST, store)
    assert regimes(found) == ["eager", "eager", "eager"]
    assert [drafter.name for drafter in found.drafters] == ["head"]
    assert found.notes == (
        "small was timed in the regime cuda-graph, the target in eager, and does not compete; profile all drafters "
        "together, or run: spectune plan --regime cuda-graph",
    )


@pytest.mark.parametrize("role", ["block", "self"])
def test_what_nobody_captures_goes_with_a_captured_target(store: Store, role: str) -> None:
    profile(store, CAPTURED, "small")
    store.add_model(model("beside"))
    store.add_trace(recorded("beside"))
    for kept_role in (role, "resume", "read"):
        keep(store, timed("beside", kept_role, "eager", 1.0))
    found = inputs_from_store(REQUEST, store)
    by_name = {drafter.name: drafter.surface.regime for drafter in found.drafters}
    assert by_name == {"small": CAPTURED, "beside": "eager"} and not found.notes
    assert [surface.regime for surface in found.readings.values()] == ["eager"]
    assert run_beside("eager", "head", CAPTURED) is False is run_beside(CAPTURED, role, CAPTURED)


def test_the_regime_that_was_profiled_last_counts_though_it_was_begun_first(store: Store) -> None:
    for ms, regime in enumerate((CAPTURED, "eager", CAPTURED), start=1):
        profile(store, regime, "small", ms=float(ms))
    found = inputs_from_store(REQUEST, store)
    assert regimes(found) == [CAPTURED, CAPTURED, CAPTURED]
    costs = [each.latency(1, 2, 1).ms for each in (found.verify, found.drafters[0].surface)]
    assert [*costs, found.overhead.host_ms("plain", 1, 0, 1)] == [3.0, 3.0, 3.0]


def test_the_regime_that_is_asked_for_counts(store: Store) -> None:
    for regime in (CAPTURED, "eager"):
        profile(store, regime, "small")
    assert regimes(inputs_from_store(replace(REQUEST, regime=CAPTURED), store)) == [CAPTURED, CAPTURED, CAPTURED]
    with pytest.raises(StoreError, match="no verify surface of large in float32 in the regime compiled"):
        inputs_from_store(replace(REQUEST, regime="compiled"), store)


@pytest.mark.parametrize("asked", ["", "eager", "eager-transformers"])
def test_a_target_that_transformers_runs_goes_with_drafters_that_run_eagerly(store: Store, asked: str) -> None:
    profile(store, CAPTURED, "small")
    profile(store, "eager-transformers", "small")
    found = inputs_from_store(replace(REQUEST, regime=asked), store)
    assert regimes(found) == ["eager-transformers", "eager-transformers", "eager"]


def test_a_target_whose_forwards_were_timed_alone_since_is_planned_as_it_was_profiled(store: Store) -> None:
    profile(store, "eager", "small")
    keep(store, timed("large", "verify", CAPTURED, 1.0))
    assert regimes(inputs_from_store(REQUEST, store)) == ["eager", "eager", "eager"]


def test_host_times_of_a_regime_that_nobody_wrote_down_go_with_any(store: Store) -> None:
    profile(store, CAPTURED, "small")
    store.add_overhead(overhead(0.1))
    assert regimes(inputs_from_store(REQUEST, store)) == [CAPTURED, "", CAPTURED]


def test_what_was_timed_is_listed_by_its_newest_cell_and_nothing_computed_is(store: Store) -> None:
    for ms, regime in enumerate((CAPTURED, "eager", "estimated:eager", "imported:vllm", CAPTURED), start=1):
        keep(store, timed("large", "verify", regime, float(ms)))
    found = timed_on(DEVICE.fingerprint, store)
    assert [row.regime for row in found.rows] == [CAPTURED, "eager"]
    assert found.of(TARGET.key, "verify", "bfloat16") == found.of(TARGET.key, "draft") == []
    assert found.surface(found.rows[0]).latency(1, 2, 1).ms == 5.0


@pytest.mark.parametrize(
    "change",
    [
        lambda found: replace(found, verify=replace(found.verify, regime=CAPTURED)),
        lambda found: replace(found, overhead=replace(found.overhead, regime=CAPTURED)),
        lambda found: replace(found, verify=replace(found.verify, regime="estimated:cuda-graph")),
    ],
    ids=["forwards", "host time", "estimate"],
)
def test_inputs_of_two_regimes_are_refused(change: Callable[[PlanInputs], PlanInputs]) -> None:
    with pytest.raises(PlanError, match=r"of the regimes .*, expected those of one; measure all in one regime"):
        change(inputs(recorded("small")))


@pytest.mark.parametrize(
    ("regimes", "alike"),
    [
        (("eager", "eager-transformers", "estimated:eager"), True),
        (("eager", "cuda-graph"), False),
        (("compiled", "estimated:cuda-graph"), False),
        (("eager", ""), True),
        (("cuda-graph", "bound:eager", "imported:vllm", "engine:vllm-0.9"), True),
    ],
)
def test_regimes_are_alike_where_one_process_can_run_so(regimes: tuple[str, ...], alike: bool) -> None:
    assert run_alike(*regimes) == alike
