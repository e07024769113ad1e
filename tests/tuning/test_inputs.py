"""What a plan's inputs leave out is named: drafters that newer ones replaced, and those that were not timed here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spectune.db import Store, open_store
from spectune.errors import StoreError
from spectune.profiler.records.acceptance import AcceptanceTrace
from spectune.tuning.host_notes import note_of_drafters
from spectune.tuning.inputs import inputs_from_store, recorded_together

from ..support.synthetic import model, overhead
from .test_one_regime import REQUEST, profile, recorded

RETRAINED = replace(recorded("head"), drafter=model("retrained").key)
REPLACED = (
    f"an older head (weights {model('head').key}) does not compete, because a newer one has its name; profile it under "
    "another name to keep both"
)


def elsewhere(trace: AcceptanceTrace) -> AcceptanceTrace:
    """Return a trace along fewer texts."""
    return replace(trace, prompts=trace.prompts[1:])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.db")) as opened:
        yield opened


def test_a_drafter_that_was_trained_again_takes_the_place_of_the_older_one(store: Store) -> None:
    profile(store, "eager", "head", "retrained")
    store.add_trace(RETRAINED)
    found = inputs_from_store(REQUEST, store)
    assert [(drafter.name, drafter.model) for drafter in found.drafters] == [("head", model("retrained"))]
    assert found.notes == (REPLACED,)


@pytest.mark.parametrize("newest", [RETRAINED, elsewhere(RETRAINED)])
def test_the_newest_of_a_name_counts_whatever_texts_the_others_were_recorded_along(newest: AcceptanceTrace) -> None:
    assert recorded_together([recorded("head"), newest]) == ([newest], (REPLACED,))


def test_a_name_is_its_newest_drafter_s_even_where_that_one_does_not_compete() -> None:
    small = recorded("small")
    together, notes = recorded_together([recorded("head"), elsewhere(RETRAINED), small])
    assert together == [small]
    assert notes[0] == REPLACED and notes[1].startswith("head was recorded along other texts than small")


def test_a_drafter_that_was_not_timed_on_this_device_is_left_out_and_named(store: Store) -> None:
    store.add_model(model("elsewhere"))
    store.add_trace(recorded("elsewhere"))
    profile(store, "eager", "small")
    found = inputs_from_store(REQUEST, store)
    assert [drafter.name for drafter in found.drafters] == ["small"]
    assert found.notes == (
        "elsewhere was not timed on this device in float32 and does not compete; profile all drafters together",
    )


def test_drafters_of_several_roles_are_told_to_share_the_host_times_of_one(store: Store) -> None:
    profile(store, "eager", "small", "medium")
    assert not inputs_from_store(REQUEST, store).notes
    profile(store, "eager", "head")
    (note,) = inputs_from_store(REQUEST, store).notes
    assert "beside a drafter of role draft that is none of head (head), and prices these too" in note


@pytest.mark.parametrize("is_its_own", [True, False])
def test_a_block_drafter_is_told_of_where_another_s_rounds_price_it(store: Store, is_its_own: bool) -> None:
    profile(store, "eager", "small")
    (small,) = inputs_from_store(REQUEST, store).drafters
    block = replace(small, name="medusa", surface=replace(small.surface, role="block"))
    known, timed = overhead(1.0), block.surface.model if is_its_own else "ctc"
    samples = (*known.samples, *(replace(sample, role="block", drafter=timed) for sample in known.samples))
    notes = note_of_drafters([small, block], replace(known, samples=samples))
    assert bool(notes) is not is_its_own
    assert is_its_own or "role block, draft that is none of medusa (block)" in notes[0]


def test_drafters_none_of_which_was_timed_here_are_asked_for(store: Store) -> None:
    profile(store, "eager")
    for name in ("small", "medium"):
        store.add_model(model(name))
        store.add_trace(recorded(name))
    with pytest.raises(StoreError, match="no draft surface of small in float32"):
        inputs_from_store(REQUEST, store)


def test_host_times_that_the_last_profile_left_out_are_those_of_the_one_before(store: Store) -> None:
    profile(store, "eager", "small")
    last = overhead(2.0, batches=(3,))
    plain = tuple(sample for sample in last.samples if sample.kind == "plain")
    store.add_overhead(replace(last, samples=plain, regime="eager"))
    found = inputs_from_store(REQUEST, store).overhead
    assert [found.host_ms("plain", 1, 0, 1), found.host_ms("chain", 1, 0, 1)] == pytest.approx([1.0, 1.0])
    assert "chain" in found.lines(3)
