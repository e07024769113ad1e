"""Host times of several profiles are joined: of each batch and kind the newest count, and all are of one regime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spectune.db import Store, open_store
from spectune.db.exchange.check import faults_of
from spectune.db.exchange.prune import prune
from spectune.db.rows import Records
from spectune.db.sql.documents import row_of
from spectune.db.sql.sql_store import SqlStore
from spectune.errors import MeasurementError, StoreError
from spectune.profiler.records.overhead import OverheadSample, RoundOverhead

SETUP = ("device", "target", "float32")


def host_times(ms: float, *rounds: tuple[str, int], regime: str = "eager") -> RoundOverhead:
    """Return host times of these kinds and batches, every round taking as long."""
    samples = (OverheadSample(kind=k, batch=b, draft_forwards=0, nodes=1, host_ms=(ms,)) for k, b in rounds)
    return RoundOverhead(device="device", target="target", dtype="float32", samples=tuple(samples), regime=regime)


def found(store: Store, *rounds: tuple[str, int]) -> list[float]:
    times = store.overhead(*SETUP, "eager")
    assert times is not None
    return [times.host_ms(kind, batch, 0, 1) for kind, batch in rounds]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def test_a_profile_of_the_target_alone_leaves_the_drafted_kinds_their_host_time(store: Store) -> None:
    store.add_overhead(host_times(1.0, ("chain", 1)))
    store.add_overhead(host_times(1.0, ("plain", 1), ("suffix", 1)))
    assert found(store, ("plain", 1), ("suffix", 1), ("chain", 1)) == pytest.approx([1.0, 1.0, 1.0])


def test_a_profile_of_another_batch_leaves_the_first_its_host_time(store: Store) -> None:
    store.add_overhead(host_times(1.0, ("plain", 1)))
    store.add_overhead(host_times(4.0, ("plain", 64)))
    assert found(store, ("plain", 1), ("plain", 64)) == pytest.approx([1.0, 4.0])


def test_the_newest_samples_of_a_kind_at_a_batch_are_the_only_ones(store: Store) -> None:
    for ms in (1.0, 2.0, 3.0):
        store.add_overhead(host_times(ms, ("plain", 1)))
    assert store.overhead(*SETUP) == host_times(3.0, ("plain", 1))


def by_add(store: Store, times: RoundOverhead) -> None:
    store.add_overhead(times)


def by_profile(store: Store, times: RoundOverhead) -> None:
    store.open_profile("key").finish(overhead=times)


def by_import(store: Store, times: RoundOverhead) -> None:
    store.add_records(Records(overheads=(times,)))


@pytest.mark.parametrize("keep", [by_add, by_profile, by_import])
def test_host_times_are_the_newest_though_the_clock_was_ahead_before(
    store: Store, keep: Callable[[Store, RoundOverhead], None]
) -> None:
    assert isinstance(store, SqlStore)
    early = row_of(host_times(1.0, ("plain", 1)))
    early.created = "2999-01-01T00:00:00.000000+00:00"
    store._write(lambda session: session.add(early))
    keep(store, host_times(2.0, ("plain", 1)))
    assert found(store, ("plain", 1)) == pytest.approx([2.0])
    prune(store)
    assert store.host_times(*SETUP) == [host_times(2.0, ("plain", 1))]


def sampled(times: RoundOverhead, is_sampled: bool | None) -> RoundOverhead:
    return replace(times, samples=tuple(replace(sample, is_sampled=is_sampled) for sample in times.samples))


def test_sampled_rounds_do_not_take_the_place_of_greedy_ones(store: Store) -> None:
    store.add_overhead(sampled(host_times(1.0, ("plain", 1), ("plain", 4)), False))
    store.add_overhead(sampled(host_times(3.0, ("plain", 1)), True))
    times = store.overhead(*SETUP, "eager")
    assert times is not None
    assert [times.at_temperature(0.0).host_ms("plain", batch, 0, 1) for batch in (1, 4)] == pytest.approx([1.0, 1.0])
    assert times.at_temperature(0.8).host_ms("plain", 1, 0, 1) == pytest.approx(3.0)
    assert times.at_temperature(0.8).host_ms("plain", 4, 0, 1) == pytest.approx(1.0)  # better than nothing


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rounds_of_which_nobody_wrote_down_how_they_drew_go_before_others(temperature: float) -> None:
    old, other = host_times(2.0, ("plain", 1)), sampled(host_times(5.0, ("plain", 1)), temperature == 0.0)
    both = replace(old, samples=(*other.samples, *old.samples))
    assert both.at_temperature(temperature) == old
    assert old.at_temperature(temperature) is old


@pytest.mark.parametrize("regime", ["cuda-graph", "eager-transformers", ""])
def test_host_times_of_another_regime_are_not_joined(store: Store, regime: str) -> None:
    store.add_overhead(host_times(1.0, ("chain", 1), regime=regime))
    store.add_overhead(host_times(2.0, ("plain", 1)))
    with pytest.raises(MeasurementError, match="no host time for 'chain' at batch 1"):
        found(store, ("chain", 1))


def damaged(store: Store) -> None:
    """Keep host times as a newer version may write them, or as a disk may leave them."""
    assert isinstance(store, SqlStore)
    row = row_of(host_times(1.0, ("plain", 1)))
    row.document = "{}"
    store._write(lambda session: session.add(row))


def test_for_host_times_that_cannot_be_read_newer_ones_stand_in_and_a_prune_keeps_them(store: Store) -> None:
    damaged(store)
    for ms in (2.0, 3.0):
        store.add_overhead(host_times(ms, ("plain", 1)))
    assert isinstance(store, SqlStore)
    assert [each.rows for each in prune(store)] == [1]
    assert store.host_times(*SETUP) == [host_times(3.0, ("plain", 1))]
    assert [fault.place for fault in faults_of(store)] == ["row 1 of spectune_overhead"]


def test_the_newest_host_times_must_be_readable(store: Store) -> None:
    store.add_overhead(host_times(2.0, ("plain", 1)))
    damaged(store)
    with pytest.raises(StoreError, match="row 2 of spectune_overhead"):
        store.host_times(*SETUP)
