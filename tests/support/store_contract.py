"""The contract every store keeps: one class of tests, run against each kind of store by a subclass.

A subclass brings the fixture `store`; where its plans must be whole ones, `WholePlans` too (`whole_plans.py`):

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self) -> Iterator[Store]: ...
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spectune.db.rows import Records
from spectune.db.store import Store
from spectune.errors import StoreError
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.overhead import joined

from .plan_contract import PlanContract, PlanKeeping, ShelfContract, SourceContract
from .store_records import (
    DEVICE,
    MODEL,
    OTHER,
    SETUP,
    SURFACE,
    VISIT,
    agreement,
    cell,
    other_surface,
    overhead,
    surface,
    trace,
)


class IdentityContract:
    """Devices and models."""

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


class MeasurementContract:
    """Surfaces and host times."""

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

    def test_the_newest_overhead_of_a_regime_is_found_or_one_whose_regime_is_not_known(self, store: Store) -> None:
        eager, captured = overhead(0.5, regime="eager"), overhead(0.9, regime="cuda-graph")
        for each in (overhead(0.1), overhead(0.2, regime="eager"), eager, captured):
            store.add_overhead(each)
        asked = ("device", "target", "float32")
        assert store.overhead(*asked) == store.overhead(*asked, "cuda-graph") == captured
        assert store.overhead(*asked, "eager-transformers") == eager
        assert store.overhead(*asked, "compiled") == overhead(0.1)

    def test_host_times_come_back_as_the_records_they_are_joined_from(self, store: Store) -> None:
        lone, newer = overhead(0.1, regime="eager"), overhead(0.2, regime="eager")
        wide = replace(lone, samples=(*lone.samples, *(replace(sample, batch=64) for sample in lone.samples)))
        for each in (overhead(0.3, regime="cuda-graph"), lone, wide, newer):
            store.add_overhead(each)
        assert store.host_times("device", "target", "float32") == [newer, wide]
        assert store.overhead("device", "target", "float32") == joined([newer, wide])

    def test_an_unmeasured_overhead_is_none(self, store: Store) -> None:
        assert store.overhead("device", "target", "float32") is None
        assert store.host_times("device", "target", "float32") == []


class TraceContract:
    """Recordings and agreement."""

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

    def test_traces_are_listed_page_by_page_without_their_recordings(self, store: Store) -> None:
        for drafter in "abc":
            store.add_trace(trace(drafter))
        first, second, third = store.trace_rows()
        assert (first.drafter, store.trace(second.id)) == ("a", trace("b"))
        assert store.trace_rows(limit=1, after=second.id) == [third]

    def test_the_newest_agreement_is_found_whatever_the_order_of_names(self, store: Store) -> None:
        store.add_pairwise(agreement(10))
        store.add_pairwise(agreement(20))
        assert store.pairwise(["small", "large"]) == agreement(20)

    @pytest.mark.parametrize("other", [{"target": "other"}, {"workload": "code"}, {"temperature": 0.0}])
    def test_agreement_along_other_texts_hides_none_of_equal_names(self, store: Store, other: dict[str, Any]) -> None:
        for along, positions in ((SETUP, 10), ({**SETUP, **other}, 20)):
            store.add_pairwise(agreement(positions, **along))
        found, there = (store.pairwise(["small", "large"], **along) for along in (SETUP, {**SETUP, **other}))
        assert (found, there) == (agreement(10, **SETUP), agreement(20, **{**SETUP, **other}))
        assert store.pairwise(["small", "large"], target="nobody") is None

    def test_agreement_of_other_models_is_none(self, store: Store) -> None:
        store.add_pairwise(agreement(10))
        assert store.pairwise(["small"]) is None


class OutcomeContract(PlanKeeping):
    """What became of plans."""

    @pytest.mark.parametrize("kind", ["observation", "validation"])
    def test_outcomes_of_a_plan_come_back_oldest_first(self, store: Store, kind: str) -> None:
        plan_id, other = self.add_plan(store), self.add_plan(store)
        for target, text in ((plan_id, "a"), (other, "b"), (plan_id, "c")):
            getattr(store, f"add_{kind}")(target, text)
        assert getattr(store, f"{kind}s")(plan_id) == ["a", "c"]


class RecordContract:
    """Records from elsewhere enter once."""

    def records(self) -> Records:
        return Records(
            devices=(DEVICE,),
            models=(MODEL,),
            surfaces=(surface(cell(1, 1.0), cell(2, 2.0)),),
            traces=(trace(),),
            overheads=(overhead(0.5),),
        )

    def test_records_are_found_again(self, store: Store) -> None:
        assert store.add_records(self.records()) == self.records()
        assert (store.devices(), store.models(), store.surfaces()) == ([DEVICE], [MODEL], [*self.records().surfaces])
        assert (store.trace(1), store.overhead("device", "target", "float32")) == (trace(), overhead(0.5))

    def test_records_that_are_there_are_not_added_again(self, store: Store) -> None:
        store.add_records(self.records())
        assert store.missing(self.records()) == Records()
        assert store.add_records(self.records()) == Records()
        assert len(store.trace_rows()) == 1

    def test_only_the_new_cells_of_a_surface_are_added(self, store: Store) -> None:
        store.add_measurements(SURFACE, [cell(1, 1.0)])
        added = store.add_records(Records(surfaces=(surface(cell(1, 1.0), cell(2, 2.0)),)))
        assert added.surfaces == (surface(cell(2, 2.0)),)


class JournalContract:
    """Profiles under way are found again, and finished once."""

    def test_an_unfinished_profile_is_resumed_with_its_visits_and_parts(self, store: Store) -> None:
        begun = store.open_profile("key")
        begun.add_visit(VISIT)
        begun.add_part("traces", "document")
        found = store.open_profile("key")
        assert (begun.is_resumed, found.is_resumed, found.profile_id) == (False, True, begun.profile_id)
        assert (list(found.visits()), found.part("traces"), found.part("other")) == ([VISIT], "document", None)

    def test_an_ordinal_is_taken_once(self, store: Store) -> None:
        journal = store.open_profile("key")
        journal.add_visit(VISIT)
        with pytest.raises(StoreError, match=r"visit 0 .* is already there"):
            journal.add_visit(VISIT)
        assert list(journal.visits()) == [VISIT]

    def test_finished_surfaces_take_the_place_of_their_visits(self, store: Store) -> None:
        journal = store.open_profile("key")
        journal.add_visit(VISIT)
        journal.finish_surfaces([surface(cell(1, 1.0), cell(2, 2.0))])
        assert (list(journal.visits()), store.surfaces()) == ([], [surface(cell(1, 1.0), cell(2, 2.0))])

    def test_a_finished_profile_takes_nothing_more(self, store: Store) -> None:
        journal = store.open_profile("key")
        journal.finish(overhead=overhead(0.5), traces=[trace()], pairwise=[agreement(10)])
        assert store.overhead("device", "target", "float32") == overhead(0.5)
        assert store.pairwise(["large", "small"]) == agreement(10)
        with pytest.raises(StoreError, match="takes nothing more"):
            journal.add_part("name", "document")
        assert not store.open_profile("key").is_resumed

    def test_a_fresh_profile_abandons_the_unfinished_one(self, store: Store) -> None:
        left = store.open_profile("key")
        assert not store.open_profile("key", fresh=True).is_resumed
        with pytest.raises(StoreError, match="takes nothing more"):
            left.add_visit(VISIT)

    def test_the_cells_of_the_newest_profile_make_the_surface(self, store: Store) -> None:
        for number in (1.0, 2.0):
            store.open_profile("key").finish_surfaces([surface(cell(1, number), key=SURFACE)])
            store.open_profile("key", fresh=True)
        assert store.surfaces()[0].measurements == (cell(1, 2.0),)


class StoreContract(
    IdentityContract,
    MeasurementContract,
    TraceContract,
    PlanContract,
    OutcomeContract,
    SourceContract,
    ShelfContract,
    RecordContract,
    JournalContract,
):
    """Everything that holds for every store."""
