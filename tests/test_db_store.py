"""The contract every store keeps, run against a file and against memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spectune.db import Store, open_store
from spectune.errors import NoPlanError, StoreError
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance, PromptTrace
from spectune.profiler.records.device import Device
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.model import ModelIdentity
from spectune.profiler.records.overhead import OverheadSample, RoundOverhead

DEVICE = Device(kind="cpu", name="Test CPU", index=0, memory_bytes=2**33, cores=2, threads=2, isa=("avx2",))
MODEL = ModelIdentity(
    name="tiny", weights_hash="a" * 64, parameters=10, config_hash="b" * 64, tokenizer_hash="", location="/models/tiny"
)
SURFACE = SurfaceKey(device="device", model="model", role="verify", regime="eager", dtype="float32")
PLAN = '{"schedule": [1.0, 0.1]}'
SETUP: dict[str, Any] = {"target": "target", "workload": "chat", "temperature": 0.7}


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db") if request.param == "file" else "sqlite://") as opened:
        yield opened


OTHER = {  # values of a key's fields that SURFACE does not have
    "device": "other",
    "model": "other",
    "role": "draft",
    "regime": "cuda-graph",
    "dtype": "bfloat16",
    "attention": "sdpa",
}


def other_surface(field: str) -> SurfaceKey:
    different: dict[str, Any] = {field: OTHER[field]}
    return replace(SURFACE, **different)


def cell(tokens: int, *repeats_ms: float) -> Measurement:
    return Measurement(batch=1, context_tokens=128, tokens=tokens, repeats_ms=repeats_ms)


def overhead(host_ms: float, dtype: str = "float32") -> RoundOverhead:
    sample = OverheadSample(kind="chain", batch=1, draft_forwards=3, nodes=4, host_ms=(host_ms, host_ms + 0.1))
    return RoundOverhead(device="device", target="target", dtype=dtype, samples=(sample,))


def trace(drafter: str = "drafter", seed: int = 0, temperature: float = 0.7, workload: str = "chat") -> AcceptanceTrace:
    prompt = PromptTrace(
        prompt=(1, 2),
        continuation=(3, 4, 5),
        next_rank=np.array([0, 255], np.uint8),
        offsets=np.array([0, 1, 2], np.int32),
        parent=np.array([-1, -1], np.int16),
        rank=np.array([0, 0], np.uint8),
        log_probs=np.array([[-0.1, -3.0], [-1 / 3, -np.inf]], np.float32),
        hit_rank=np.array([0, 255], np.uint8),
    )
    return AcceptanceTrace(
        target="target",
        drafter=drafter,
        drafter_name=f"the {drafter}",
        workload=workload,
        temperature=temperature,
        seed=seed,
        children=2,
        prefix_exact=True,
        prompts=(prompt,),
    )


def agreement(positions: int, models: tuple[str, ...] = ("large", "small")) -> PairwiseAcceptance:
    rows = ((1.0, 0.4), (0.4, 1.0))
    return PairwiseAcceptance(models=models, greedy=rows, overlap=rows, positions=positions)


def add_plan(store: Store, text: str = PLAN, device: str = "device", temperature: float = 0.7) -> int:
    setup = {**SETUP, "temperature": temperature}
    return store.add_plan(text, device=device, device_kind="kind", **setup)


class TestIdentities:
    def test_a_device_comes_back_equal(self, store: Store) -> None:
        store.add_device(DEVICE)
        assert store.devices() == [DEVICE]

    def test_a_device_added_twice_is_kept_once_as_it_was_last(self, store: Store) -> None:
        moved = replace(DEVICE, memory_bytes=DEVICE.memory_bytes + 1)
        assert moved.fingerprint == DEVICE.fingerprint
        store.add_device(DEVICE)
        store.add_device(moved)
        assert store.devices() == [moved]

    def test_a_device_with_other_settings_is_another_device(self, store: Store) -> None:
        store.add_device(DEVICE)
        store.add_device(replace(DEVICE, threads=1))
        assert [device.threads for device in store.devices()] == [2, 1]

    def test_a_model_is_found_by_its_key(self, store: Store) -> None:
        store.add_model(MODEL)
        assert store.find_model("a" * 16) == MODEL

    def test_an_unknown_model_is_none(self, store: Store) -> None:
        assert store.find_model("c" * 16) is None

    def test_a_moved_model_is_kept_once_at_its_new_place(self, store: Store) -> None:
        store.add_model(MODEL)
        store.add_model(replace(MODEL, location="/elsewhere"))
        assert [model.location for model in store.models()] == ["/elsewhere"]


class TestMeasurements:
    def test_raw_repeats_come_back_bit_for_bit_and_in_order(self, store: Store) -> None:
        repeats_ms = (1 / 3, 0.1 + 0.2, 1e-9)
        store.add_measurements(SURFACE, [cell(1, *repeats_ms)])
        assert store.surfaces()[0].measurements[0].repeats_ms == repeats_ms

    def test_a_failure_comes_back(self, store: Store) -> None:
        failed = Measurement(batch=8, context_tokens=0, tokens=64, failure="out of memory\non 'cuda:0'")
        store.add_measurements(SURFACE, [failed])
        assert store.surfaces()[0].measurements == (failed,)

    def test_cells_of_one_key_form_one_sorted_surface(self, store: Store) -> None:
        store.add_measurements(SURFACE, [cell(4, 4.0), cell(1, 1.0)])
        store.add_measurements(SURFACE, [cell(2, 2.0)])
        (surface,) = store.surfaces()
        assert [measurement.tokens for measurement in surface.measurements] == [1, 2, 4]

    @pytest.mark.parametrize("field", OTHER)
    def test_another_key_is_another_surface(self, store: Store, field: str) -> None:
        store.add_measurements(SURFACE, [cell(1, 1.0)])
        store.add_measurements(other_surface(field), [cell(1, 9.0)])
        assert [surface.latency(1, 128, 1).ms for surface in store.surfaces()] == [1.0, 9.0]

    @pytest.mark.parametrize("field", OTHER)
    def test_a_surface_keeps_every_field_of_its_key(self, store: Store, field: str) -> None:
        store.add_measurements(other_surface(field), [cell(1, 1.0)])
        assert getattr(store.surfaces()[0], field) == OTHER[field]

    @pytest.mark.parametrize("field", OTHER)
    def test_surfaces_are_chosen_by(self, store: Store, field: str) -> None:
        store.add_measurements(SURFACE, [cell(1, 1.0)])
        store.add_measurements(other_surface(field), [cell(1, 9.0)])
        wanted: dict[str, Any] = {field: OTHER[field]}
        (surface,) = store.surfaces(**wanted)
        assert surface.latency(1, 128, 1).ms == 9.0

    def test_an_empty_attention_chooses_the_surfaces_whose_kernel_is_unknown(self, store: Store) -> None:
        store.add_measurements(other_surface("attention"), [cell(1, 9.0)])
        store.add_measurements(SURFACE, [cell(1, 1.0)])
        assert [surface.attention for surface in store.surfaces(attention="")] == [""]

    def test_a_held_out_cell_comes_back_as_one(self, store: Store) -> None:
        held_out = replace(cell(1, 1.0, 2.0), purpose="held-out", disturbed=(False, True))
        store.add_measurements(SURFACE, [cell(2, 2.0), held_out])
        assert store.surfaces()[0].measurements[0] == held_out

    def test_the_newest_timing_of_a_cell_wins_and_other_cells_stay(self, store: Store) -> None:
        store.add_measurements(SURFACE, [cell(1, 1.0), cell(2, 2.0)])
        store.add_measurements(SURFACE, [cell(1, 7.0)])
        assert store.surfaces()[0].table(1, 128, 2).tolist() == [0.0, 7.0, 2.0]

    def test_the_newest_wins_even_when_it_is_a_failure(self, store: Store) -> None:
        store.add_measurements(SURFACE, [cell(1, 1.0)])
        store.add_measurements(SURFACE, [Measurement(batch=1, context_tokens=128, tokens=1, failure="out of memory")])
        assert [measurement.failure for measurement in store.surfaces()[0].measurements] == ["out of memory"]

    def test_an_unfinished_batch_leaves_nothing(self, store: Store) -> None:
        with pytest.raises((OverflowError, StoreError)):  # at the second row
            store.add_measurements(SURFACE, [cell(1, 1.0), cell(10**30, 1.0)])
        assert store.surfaces() == []

    def test_the_newest_overhead_wins(self, store: Store) -> None:
        store.add_overhead(overhead(0.5))
        store.add_overhead(overhead(0.2))
        store.add_overhead(overhead(0.9, dtype="bfloat16"))
        assert store.overhead("device", "target", "float32") == overhead(0.2)

    def test_an_unmeasured_overhead_is_none(self, store: Store) -> None:
        assert store.overhead("device", "target", "float32") is None


class TestTraces:
    def test_a_trace_comes_back_equal_arrays_included(self, store: Store) -> None:
        store.add_trace(trace())
        assert store.traces("target", "chat", 0.7) == [trace()]

    def test_the_newest_trace_of_each_drafter_is_returned(self, store: Store) -> None:
        for drafter, seed in (("eagle", 1), ("lookup", 2), ("eagle", 3)):
            store.add_trace(trace(drafter, seed))
        assert {(found.drafter, found.seed) for found in store.traces("target", "chat", 0.7)} == {
            ("eagle", 3),
            ("lookup", 2),
        }

    def test_traces_of_another_setup_stay_out(self, store: Store) -> None:
        store.add_trace(trace(temperature=0.0))
        store.add_trace(trace(workload="code"))
        assert store.traces("target", "chat", 0.7) == []

    def test_a_temperature_is_found_within_a_billionth(self, store: Store) -> None:
        store.add_trace(trace(temperature=0.1 + 0.2))
        assert len(store.traces("target", "chat", 0.3)) == 1
        assert store.traces("target", "chat", 0.3 + 1e-8) == []

    def test_the_newest_agreement_is_found_whatever_the_order_of_names(self, store: Store) -> None:
        store.add_pairwise(agreement(10))
        store.add_pairwise(agreement(20))
        assert store.pairwise(["small", "large"]) == agreement(20)

    def test_agreement_of_other_models_is_none(self, store: Store) -> None:
        store.add_pairwise(agreement(10))
        assert store.pairwise(["small"]) is None


class TestPlans:
    def test_a_plan_comes_back_byte_for_byte(self, store: Store) -> None:
        text = '{ "ü" :\t1.0,\n "x":[ ] }'
        add_plan(store, text)
        assert store.newest_plan(device="device", **SETUP) == text

    def test_the_newest_plan_of_a_setup_wins(self, store: Store) -> None:
        for text in ("first", "second"):
            add_plan(store, text)
        add_plan(store, "elsewhere", device="other")
        assert store.newest_plan(device="device", **SETUP) == "second"

    def test_a_plan_is_found_by_the_kind_of_device(self, store: Store) -> None:
        add_plan(store)
        assert store.newest_plan(device_kind="kind", **SETUP) == PLAN

    @pytest.mark.parametrize(("field", "value"), [("target", "t"), ("workload", "w"), ("temperature", 0.0)])
    def test_a_plan_for_another_setup_is_not_found(self, store: Store, field: str, value: object) -> None:
        add_plan(store)
        with pytest.raises(NoPlanError, match="run: spectune plan"):
            store.newest_plan(device="device", **{**SETUP, field: value})

    def test_a_missing_plan_names_the_setup_and_the_store(self, store: Store) -> None:
        with pytest.raises(NoPlanError) as missing:
            store.newest_plan(device="device", **SETUP)
        assert missing.value.setup == "target target on device device, workload 'chat', temperature 0.7"
        assert missing.value.store == store.url

    @pytest.mark.parametrize("places", [{}, {"device": "device", "device_kind": "kind"}])
    def test_a_plan_is_asked_for_by_one_place(self, store: Store, places: dict[str, Any]) -> None:
        with pytest.raises(StoreError, match="one of them"):
            store.newest_plan(**places, **SETUP)

    def test_versions_count_the_plans_of_one_setup(self, store: Store) -> None:
        for device in ("device", "other", "device"):
            add_plan(store, device=device)
        assert [(row.device, row.version) for row in store.plans()] == [("device", 1), ("other", 1), ("device", 2)]

    def test_a_plan_row_says_what_was_stored_and_when(self, store: Store) -> None:
        plan_id = add_plan(store)
        (row,) = store.plans()
        assert (row.id, row.target, row.workload, row.temperature) == (plan_id, "target", "chat", 0.7)
        assert timedelta() <= datetime.now(UTC) - datetime.fromisoformat(row.created) < timedelta(minutes=1)

    def test_the_content_hash_is_the_sha256_of_the_text(self, store: Store) -> None:
        add_plan(store, "abc")
        assert store.plans()[0].content_hash == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

    @pytest.mark.parametrize("kind", ["observation", "validation"])
    def test_outcomes_of_a_plan_come_back_oldest_first(self, store: Store, kind: str) -> None:
        plan_id, other = add_plan(store), add_plan(store)
        for target, text in ((plan_id, "a"), (other, "b"), (plan_id, "c")):
            getattr(store, f"add_{kind}")(target, text)
        assert getattr(store, f"{kind}s")(plan_id) == ["a", "c"]

    @pytest.mark.parametrize("kind", ["observation", "validation"])
    def test_an_outcome_of_an_unknown_plan_is_refused(self, store: Store, kind: str) -> None:
        with pytest.raises(StoreError, match="no plan 7"):
            getattr(store, f"add_{kind}")(7, "text")
