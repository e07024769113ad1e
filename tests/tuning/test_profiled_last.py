"""What is planned and validated where number format and workload are not named: what was profiled last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spectune.db.rows import ENGINE_PLAN
from spectune.db.sql.sql_store import SqlStore
from spectune.profiler.protocols import SurfaceKey
from spectune.tuning.engines.record import own_workload, workload_in
from spectune.tuning.profiled_last import (
    Workloads,
    dtype_profiled_last,
    workload_planned_last,
    workload_profiled_last,
)

from ..support.fresh_store import fresh_store
from ..support.store_records import trace
from ..support.synthetic import DEVICE, TARGET, overhead, surface

VERIFY = surface("large", "verify", lambda batch, context, tokens: 1.0 + tokens, tokens=(1, 2))


@pytest.fixture
def store(tmp_path: Path) -> SqlStore:
    return fresh_store(tmp_path)


def time_in(store: SqlStore, dtype: str, regime: str = "eager", *, rounds: bool = True) -> None:
    key = SurfaceKey(device=DEVICE.fingerprint, model=TARGET.key, role="verify", regime=regime, dtype=dtype)
    store.add_measurements(key, VERIFY.measurements)
    if rounds:
        store.add_overhead(replace(overhead(0.5), device=DEVICE.fingerprint, dtype=dtype, regime=regime))


def record_of(store: SqlStore, *workloads: str, temperature: float = 0.0) -> None:
    for workload in workloads:
        store.add_trace(replace(trace(workload=workload, temperature=temperature), target=TARGET.key))


def plan_for(store: SqlStore, *workloads: str, mark: str = "") -> list[int]:
    return [
        store.add_plan(
            "{}",
            device=f"{mark}{DEVICE.fingerprint}",
            device_kind=f"{mark}{DEVICE.kind_key}",
            target=TARGET.key,
            workload=workload,
            temperature=0.0,
        )
        for workload in workloads
    ]


@pytest.mark.parametrize("order", [("float32", "bfloat16"), ("bfloat16", "float32"), ("q4_0", "float16")])
def test_the_number_format_is_the_one_timed_last(order: tuple[str, str], store: SqlStore) -> None:
    for dtype in order:
        time_in(store, dtype)
    assert dtype_profiled_last(TARGET, DEVICE, "", store) == order[-1]


def test_a_regime_that_is_named_has_its_own_last_format(store: SqlStore) -> None:
    time_in(store, "float16", "cuda-graph")
    time_in(store, "float32")
    assert dtype_profiled_last(TARGET, DEVICE, "cuda-graph", store) == "float16"
    assert dtype_profiled_last(TARGET, DEVICE, "", store) == "float32"


def test_forwards_timed_alone_have_no_plan_and_do_not_count(store: SqlStore) -> None:
    time_in(store, "float32")
    time_in(store, "bfloat16", rounds=False)
    assert dtype_profiled_last(TARGET, DEVICE, "", store) == "float32"


def test_of_another_device_or_target_nothing_was_profiled(store: SqlStore) -> None:
    assert dtype_profiled_last(TARGET, DEVICE, "", store) == "auto"
    time_in(store, "float16")
    assert dtype_profiled_last(TARGET, replace(DEVICE, threads=1), "", store) == "auto"


@pytest.mark.parametrize(
    ("recorded", "found"),
    [
        ((), Workloads(last="default")),
        (("chat",), Workloads(last="chat")),
        (("default", "chat"), Workloads(last="chat", others=("default",))),
        (("chat", "default"), Workloads(last="default", others=("chat",))),
        (("chat", "code", "chat"), Workloads(last="chat", others=("code",))),
    ],
)
def test_the_workload_is_the_one_recorded_last(recorded: tuple[str, ...], found: Workloads, store: SqlStore) -> None:
    record_of(store, *recorded)
    assert workload_profiled_last(TARGET, 0.0, store) == found


def test_workloads_at_another_temperature_or_of_an_engine_do_not_count(store: SqlStore) -> None:
    record_of(store, "chat")
    record_of(store, "hot", temperature=0.8)
    record_of(store, workload_in("llama.cpp", "served"))
    assert workload_profiled_last(TARGET, 0.0, store).last == "chat"
    assert workload_profiled_last(TARGET, 0.8, store).last == "hot"
    assert workload_profiled_last(TARGET, 0.0, store, engine="llama.cpp").last == "served"
    assert workload_profiled_last(TARGET, 0.0, store, engine="vllm").last == "default"


def test_a_plan_of_the_workload_profiled_last_is_validated_though_another_was_planned_after_it(store: SqlStore) -> None:
    record_of(store, "code", "chat")
    plan_for(store, "chat", "code")
    assert workload_planned_last(TARGET, DEVICE, 0.0, store) == Workloads(last="chat", others=("code",))


def test_where_the_workload_profiled_last_has_no_plan_the_one_planned_last_is_validated(store: SqlStore) -> None:
    record_of(store, "code", "chat")
    first, _ = plan_for(store, "code", "default")
    assert workload_planned_last(TARGET, DEVICE, 0.0, store).last == "default"
    assert first == 1


def test_retired_plans_and_those_of_engines_and_devices_elsewhere_do_not_count(store: SqlStore) -> None:
    record_of(store, "chat")
    plan_for(store, "served (vllm)", mark=ENGINE_PLAN)
    (kept,) = plan_for(store, "code")
    (retired,) = plan_for(store, "default")
    store.retire_plan(retired, "me", "slow")
    assert workload_planned_last(TARGET, DEVICE, 0.0, store).last == "code"
    assert workload_planned_last(TARGET, DEVICE, 0.0, store, engine="vllm").last == "served"
    store.retire_plan(kept, "me", "slow")
    assert workload_planned_last(TARGET, DEVICE, 0.0, store).last == "chat"


@pytest.mark.parametrize("name", ["chat", "a (b)", ""])
def test_a_workload_of_an_engine_is_told_from_our_own(name: str) -> None:
    assert own_workload("vllm", workload_in("vllm", name)) == name
    assert own_workload("", name) == name
    assert own_workload("", workload_in("openvino", name)) is None
    assert own_workload("vllm", workload_in("openvino", name)) is None
