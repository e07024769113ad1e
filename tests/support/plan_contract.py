"""What every store does with plans; `store_contract.py` says how it is run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, ClassVar

import pytest

from spectune.db.sources import PlanSource, overhead_source, pairwise_source, surface_source, trace_source
from spectune.db.store import Store
from spectune.errors import NoPlanError, StoreError

from .store_records import SETUP, SURFACE, agreement, cell, overhead, surface, trace

ADMIN: dict[str, Any] = {"by": "ada", "reason": "it is faster"}


class PlanKeeping:
    """How the contract adds plans, and what it files them under."""

    device, other, kind = "device", "other", "kind"
    setup: ClassVar[dict[str, Any]] = SETUP

    def plan_text(self, note: str, device: str = "", **setup: Any) -> str:
        """Return a plan's text that differs from others by its note; a whole plan says what it is filed under."""
        return f'{{ "ü" :\t1.0,\n "note":"{note}" }}'

    def add_plan(self, store: Store, note: str = "only", device: str = "", **options: Any) -> int:
        device = device or self.device
        setup = {**self.setup, **{name: value for name, value in options.items() if name in self.setup}}
        text, sources = self.plan_text(note, device, **setup), options.get("sources", ())
        return store.add_plan(text, device=device, device_kind=self.kind, **setup, sources=sources)


class PlanContract(PlanKeeping):
    """Plans are kept byte for byte and found by their setup."""

    def test_a_plan_comes_back_byte_for_byte(self, store: Store) -> None:
        self.add_plan(store)
        assert store.plan(store.find_plan(device=self.device, **self.setup).id) == self.plan_text("only")

    def test_the_newest_plan_of_a_setup_wins(self, store: Store) -> None:
        for note in ("first", "second"):
            self.add_plan(store, note)
        self.add_plan(store, "elsewhere", device=self.other)
        assert store.plan(store.find_plan(device=self.device, **self.setup).id) == self.plan_text("second")

    def test_a_plan_is_found_by_the_kind_of_device(self, store: Store) -> None:
        self.add_plan(store)
        assert store.plan(store.find_plan(device_kind=self.kind, **self.setup).id) == self.plan_text("only")

    @pytest.mark.parametrize(("field", "value"), [("target", "t"), ("workload", "w"), ("temperature", 0.0)])
    def test_a_plan_for_another_setup_is_not_found(self, store: Store, field: str, value: object) -> None:
        self.add_plan(store)
        with pytest.raises(NoPlanError, match="run: spectune plan"):
            store.find_plan(device=self.device, **{**self.setup, field: value})

    def test_a_missing_plan_names_the_setup_and_the_store(self, store: Store) -> None:
        with pytest.raises(NoPlanError) as missing:
            store.find_plan(device=self.device, **self.setup)
        target = self.setup["target"]
        told = f"target {target} on device {self.device}, workload 'chat', temperature 0.7"
        assert missing.value.setup == told
        assert missing.value.store == store.url

    @pytest.mark.parametrize("places", [{}, {"device": "device", "device_kind": "kind"}])
    def test_a_plan_is_asked_for_by_one_place(self, store: Store, places: dict[str, Any]) -> None:
        with pytest.raises(StoreError, match="one of them"):
            store.find_plan(**places, **self.setup)

    def test_versions_count_the_plans_of_one_setup(self, store: Store) -> None:
        for device in (self.device, self.other, self.device):
            self.add_plan(store, device=device)
        found = [(row.device, row.version) for row in store.plans()]
        assert found == [(self.device, 1), (self.other, 1), (self.device, 2)]

    def test_a_plan_row_says_what_was_stored_and_when(self, store: Store) -> None:
        plan_id = self.add_plan(store)
        (row,) = store.plans()
        assert (row.id, row.target, row.workload, row.temperature) == (plan_id, *self.setup.values())
        assert timedelta() <= datetime.now(UTC) - datetime.fromisoformat(row.created) < timedelta(minutes=1)
        assert store.plan_row(plan_id) == row

    def test_the_content_hash_is_the_sha256_of_the_text(self, store: Store) -> None:
        self.add_plan(store)
        assert store.plans()[0].content_hash == sha256(self.plan_text("only").encode()).hexdigest()

    def test_plans_are_listed_page_by_page(self, store: Store) -> None:
        numbers = [self.add_plan(store, note) for note in "abc"]
        assert [row.id for row in store.plans(limit=2)] == numbers[:2]
        assert [row.id for row in store.plans(limit=2, after=numbers[1])] == numbers[2:]

    def test_plans_are_listed_by_setup_and_state(self, store: Store) -> None:
        first, second = self.add_plan(store), self.add_plan(store, workload="code")
        store.retire_plan(first, **ADMIN)
        assert [row.id for row in store.plans(workload="code")] == [second]
        assert [row.id for row in store.plans(state="retired")] == [first]
        assert [row.id for row in store.plans(temperature=0.7 + 1e-12)] == [first, second]

    @pytest.mark.parametrize("number", [9, 10**20])
    def test_an_unknown_plan_is_refused(self, store: Store, number: int) -> None:
        for asked in (store.plan, store.plan_row):
            with pytest.raises(StoreError):
                asked(number)

    @pytest.mark.parametrize("kind", ["observation", "validation"])
    def test_an_outcome_of_an_unknown_plan_is_refused(self, store: Store, kind: str) -> None:
        with pytest.raises(StoreError, match="no plan 7"):
            getattr(store, f"add_{kind}")(7, "{}")


class SourceContract(PlanKeeping):
    """A plan names what it was computed from."""

    def sources(self) -> list[PlanSource]:
        return [
            surface_source(surface(cell(1, 1.0), cell(2, 2.0)), "target"),
            overhead_source(overhead(0.5)),
            trace_source(trace()),
            pairwise_source(agreement(10)),
        ]

    def test_what_a_plan_was_computed_from_is_told_in_its_order(self, store: Store) -> None:
        store.add_measurements(SURFACE, [cell(1, 1.0), cell(2, 2.0)])
        store.add_overhead(overhead(0.5))
        store.add_trace(trace())
        store.add_pairwise(agreement(10))
        kept = store.plan_sources(self.add_plan(store, sources=self.sources()))
        assert [(each.kind, each.content_hash, each.name) for each in kept] == [
            (each.kind, each.content_hash, each.name) for each in self.sources()
        ]
        assert all(each.is_held for each in kept)

    def test_a_source_that_the_store_does_not_hold_is_told_as_such(self, store: Store) -> None:
        store.add_measurements(SURFACE, [cell(1, 1.0), cell(2, 9.0)])
        store.add_trace(trace(seed=1))
        kept = store.plan_sources(self.add_plan(store, sources=self.sources()))
        assert [each.is_held for each in kept] == [False] * 4

    def test_a_surface_s_source_holds_its_cells_hashes(self, store: Store) -> None:
        store.add_measurements(SURFACE, [cell(1, 1.0), cell(2, 2.0)])
        (found,) = store.surfaces()
        assert surface_source(found, "target") == self.sources()[0]

    def test_a_plan_without_sources_has_none(self, store: Store) -> None:
        assert store.plan_sources(self.add_plan(store)) == []


class ShelfContract(PlanKeeping):
    """Which plan counts is told by events."""

    def counts(self, store: Store) -> int:
        return store.find_plan(device=self.device, **self.setup).id

    def test_a_new_plan_is_kept_and_nothing_has_happened_to_it(self, store: Store) -> None:
        plan = self.add_plan(store)
        assert (store.plan_row(plan).state, store.plan_events(plan)) == ("kept", [])

    def test_a_promoted_plan_counts_before_newer_ones(self, store: Store) -> None:
        first, _ = self.add_plan(store, "first"), self.add_plan(store, "second")
        store.promote_plan(first, **ADMIN)
        self.add_plan(store, "third")
        assert self.counts(store) == first

    def test_the_plan_promoted_last_counts(self, store: Store) -> None:
        first, second = self.add_plan(store, "first"), self.add_plan(store, "second")
        for plan in (second, first):
            store.promote_plan(plan, **ADMIN)
        assert self.counts(store) == first

    def test_a_retired_plan_does_not_count(self, store: Store) -> None:
        first, second = self.add_plan(store, "first"), self.add_plan(store, "second")
        store.retire_plan(second, **ADMIN)
        assert self.counts(store) == first
        store.retire_plan(first, **ADMIN)
        with pytest.raises(NoPlanError):
            self.counts(store)

    def test_a_restored_plan_counts_as_the_newest_again(self, store: Store) -> None:
        _, second = self.add_plan(store, "first"), self.add_plan(store, "second")
        store.retire_plan(second, **ADMIN)
        store.restore_plan(second, **ADMIN)
        assert (self.counts(store), store.plan_row(second).state) == (second, "restored")

    def test_retiring_a_promoted_plan_lets_the_one_promoted_before_count(self, store: Store) -> None:
        plans = [self.add_plan(store, note) for note in "abc"]
        for plan in plans[:2]:
            store.promote_plan(plan, **ADMIN)
        store.retire_plan(plans[1], **ADMIN)
        assert self.counts(store) == plans[0]

    def test_events_are_told_oldest_first_with_who_and_why(self, store: Store) -> None:
        plan = self.add_plan(store)
        store.promote_plan(plan, by="ada", reason="faster")
        store.retire_plan(plan, by="bob", reason="slower")
        assert [(each.action, each.by, each.reason) for each in store.plan_events(plan)] == [
            ("promoted", "ada", "faster"),
            ("retired", "bob", "slower"),
        ]

    @pytest.mark.parametrize(("before", "action"), [("", "restore"), ("retire", "retire"), ("retire", "promote")])
    def test_an_event_that_makes_no_sense_is_refused(self, store: Store, before: str, action: str) -> None:
        plan = self.add_plan(store)
        if before:
            getattr(store, f"{before}_plan")(plan, **ADMIN)
        with pytest.raises(StoreError, match=f"plan {plan} .* is {'retired' if before else 'kept'}; "):
            getattr(store, f"{action}_plan")(plan, **ADMIN)

    def test_rolling_back_retires_the_plan_that_counts(self, store: Store) -> None:
        first, second = self.add_plan(store, "first"), self.add_plan(store, "second")
        for plan in (first, second):
            store.promote_plan(plan, **ADMIN)
        back = store.roll_back_plan(device=self.device, **self.setup, **ADMIN)
        assert (back.id, self.counts(store), store.plan_row(second).state) == (first, first, "retired")

    def test_the_only_plan_of_a_setup_is_not_rolled_back(self, store: Store) -> None:
        only = self.add_plan(store)
        with pytest.raises(StoreError, match="nothing to go back to"):
            store.roll_back_plan(device=self.device, **self.setup, **ADMIN)
        assert self.counts(store) == only
