"""The watch as a decoder meets it: which way it asks for, what it counts, and what it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spectune.errors import RequestError
from spectune.planner.plans.observation import Observation
from spectune.planner.plans.plan import Plan
from spectune.planner.plans.schedule import promised_contexts
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.records.match import DeviceMatch, Difference
from spectune.profiler.records.wire import from_json
from spectune.runtime.batch.faults import Fault
from spectune.runtime.batch.step_config import PLAIN, StepConfig
from spectune.runtime.plan_choice import Choice
from spectune.runtime.watch.ledger import Ledger, Subject
from spectune.runtime.watch.observations import ObservationWriter
from spectune.runtime.watch.options import WatchOptions
from spectune.runtime.watch.watch import MOST_TOLD, Watch, WatchEvent

from ...support.plans import plan_of
from ...support.watched_rounds import CHAIN, choice_of, drafting_plan, round_of

QUICK = WatchOptions(probe_share=0.5, block_rounds=4, block_texts=1, longest_block=8)
SUBJECT = Subject(plan_id=7, device="here", dtype="float32", source="this device", spectune="0.1")


def driven(watch: Watch, rounds: int, ms: Callable[[StepConfig], float], batch: int = 1) -> None:
    """Run rounds as the watch wants them: a chain keeps 2 tokens of every sequence; every tenth round ends a text."""
    for place in range(rounds):
        setup = watch.schedule(batch, 100)
        kept = [1 if isinstance(setup.policy, PlainPolicy) else 2] * batch
        watch.note(round_of(setup, kept, ms(setup), texts=place % 10 == 0))


def steady(setup: StepConfig) -> float:
    """As promised: 100 tokens/s with the chain, 50 plainly."""
    return 20.0


def slow_drafts(setup: StepConfig) -> float:
    """The chain takes 100 ms a round, plain decoding 20."""
    return 20.0 if isinstance(setup.policy, PlainPolicy) else 100.0


def totals(watch: Watch) -> dict[str, str]:
    """Return the samples of the metrics by what stands before their value."""
    lines = [line for line in watch.prometheus().splitlines() if not line.startswith("#")]
    return dict(line.rsplit(" ", 1) for line in lines)


def test_without_a_plan_every_round_is_plain() -> None:
    watch = Watch(choice_of(None))
    assert watch.schedule(1, 10) == watch.schedule(8, 4000) == PLAIN


def test_a_cell_runs_as_planned_until_it_is_compared() -> None:
    watch = Watch(choice_of(drafting_plan()))
    assert watch.schedule(1, 100) == StepConfig(policy=CHAIN, drafter="small", run_tokens=(0, 2, 2, 4, 4))


def test_plain_rounds_are_padded_as_the_cell_says() -> None:
    watch = Watch(choice_of(drafting_plan()), QUICK)
    seen = set()
    for _ in range(60):
        setup = watch.schedule(1, 100)
        seen.add((setup.policy.kind, setup.padded(1)))
        watch.note(round_of(setup, [1], 1.0))
    assert seen == {("chain", 2), ("plain", 2)}


def test_a_plan_slower_than_plain_decoding_is_left_and_it_is_said() -> None:
    told: list[WatchEvent] = []
    watch = Watch(choice_of(drafting_plan()), QUICK, on_event=told.append)
    driven(watch, 1500, slow_drafts)
    (event,) = [one for one in watch.events if one.kind == "switch"]
    assert event in told and (event.batch, event.context) == (1, 100)
    assert event.message.startswith("batch 1, context 100: plain decoding was faster than chain of 3 by small in ")
    assert totals(watch)['spectune_is_planned{batch="1",context="100"}'] == "0.0"


def test_a_plan_that_recovers_is_taken_up_again() -> None:
    watch = Watch(choice_of(drafting_plan()), QUICK)
    driven(watch, 1500, slow_drafts)
    driven(watch, 3000, steady)
    said = [one.message for one in watch.events if one.kind == "switch"]
    assert len(said) == 2 and "chain of 3 by small was faster than plain decoding" in said[1]
    assert totals(watch)['spectune_is_planned{batch="1",context="100"}'] == "1.0"


def test_a_switch_leaves_other_cells_alone() -> None:
    watch = Watch(choice_of(drafting_plan([(1, 100), (8, 100)])), QUICK)
    driven(watch, 2500, slow_drafts, batch=1)
    assert watch.schedule(8, 100).policy == CHAIN


def test_the_first_round_after_a_change_of_cell_is_counted_but_not_judged() -> None:
    watch = Watch(choice_of(drafting_plan([(1, 100), (8, 100)])), QUICK)
    for place in range(4000):  # every round follows one of the other cell, and is slow for that
        setup = watch.schedule(1 if place % 2 else 8, 100)
        watch.note(round_of(setup, [1], 1000.0, texts=1))
    assert not watch.events


def test_a_running_decoder_leaves_its_cell_only_beyond_the_plan_s_hysteresis() -> None:
    plan = replace(drafting_plan([(2, 100), (8, 100)]), hysteresis=1.3)
    watch = Watch(choice_of(plan))
    small, large = watch.schedule(2, 100), watch.schedule(8, 100)
    assert small is not large
    seen = [
        watch.schedule(batch, 100) is large for batch in (8, 5, 4, 3, 4, 5, 6)
    ]  # the middle is 4, and 1.3 around it
    assert seen == [True, True, True, False, False, False, True]


def test_speeds_below_the_interval_are_told_as_drift() -> None:
    watch = Watch(choice_of(drafting_plan()), QUICK)
    driven(watch, 1000, lambda setup: 25.0 if setup.policy == CHAIN else 200.0)  # 80 tokens/s, 90 are promised
    (event,) = watch.events
    assert event.kind == "drift" and "slower than the plan's interval of 90.0 to 110.0 tokens/s, 80.0" in event.message
    assert totals(watch)['spectune_drift{batch="1",context="100",direction="slower"}'] == "1.0"


@pytest.mark.parametrize(
    ("kept", "ms", "advice"),
    [
        (2.0, 20.0, "; profile and plan again"),  # rounds take 25 ms
        (2.6, 26.0, "; profile on texts like these and plan again"),
    ],
)
def test_drift_is_told_with_what_a_round_keeps_and_takes(kept: float, ms: float, advice: str) -> None:
    plan = drafting_plan([(4, 100)])
    (cell,) = plan.cells
    promise = replace(cell.prediction, tokens_per_s=400.0, low=360.0, high=440.0, tokens_per_round=kept, round_ms=ms)
    watch = Watch(choice_of(replace(plan, cells=(replace(cell, prediction=promise),))), QUICK)
    driven(watch, 1000, lambda setup: 25.0 if setup.policy == CHAIN else 200.0, batch=4)
    (message,) = [event.message for event in watch.events if event.kind == "drift"]
    assert message.endswith(advice)
    told = f"in 25.00 ms, as at 100 tokens, where {ms:.2f} were"  # what rounds behind other texts took is brought there
    assert f"keeps 2.00 tokens of a round where {kept:.2f} were promised, {told}" in message


def test_rounds_of_another_batch_size_say_nothing_of_the_promise() -> None:
    watch = Watch(choice_of(drafting_plan()), QUICK)
    driven(watch, 1000, lambda setup: 1000.0, batch=2)
    assert not [event for event in watch.events if event.kind == "drift"]


def test_plain_rounds_beside_a_plan_are_told_in_blocks_of_the_same_conditions() -> None:
    kept: list[str] = []
    writer = ObservationWriter(kept.append)
    watch = Watch(choice_of(drafting_plan()), QUICK, subject=SUBJECT, writer=writer)
    driven(watch, 500, lambda setup: 1000.0, batch=2)
    driven(watch, 500, steady)
    watch.flush()
    writer.close()
    ways = {cell.is_planned: set(cell.block_tokens_per_s) for cell in from_json(Observation, kept[0]).cells}
    assert ways == {True: {100.0}, False: {50.0}}


def drifts(choice: Choice, **other: Any) -> bool:
    """Whether rounds far slower than promised are told as drift."""
    watch = Watch(choice, QUICK)
    for _ in range(400):
        watch.note(round_of(watch.schedule(1, 100), [1], 1000.0, texts=1, **other))
    return any(event.kind == "drift" for event in watch.events)


def test_drift_is_told_of_rounds_that_the_plan_promises_something_about_and_of_no_others() -> None:
    choice = choice_of(drafting_plan())
    assert drifts(choice) and drifts(choice, context=80) and drifts(choice, context=125)
    for other in ({"temperature": 0.8}, {"temperature": None}, {"context": 79}, {"context": 126}):
        assert not drifts(choice, **other)
    threads = Difference(aspect="setting", field="threads", wanted="2", seen="1")
    elsewhere = DeviceMatch(grade="same-kind", differences=(threads,))
    assert not drifts(replace(choice, match=elsewhere)) and not drifts(replace(choice, match=None))


def test_a_drafter_that_rests_is_held_to_no_promise_and_its_rounds_are_told_as_plain() -> None:
    watch = Watch(choice_of(drafting_plan()), QUICK)
    asked = watch.schedule(1, 100)
    for _ in range(400):
        watch.note(round_of(asked.plain, [1], 20.0, texts=1, instead_of=asked))
    assert not watch.events
    ((name, rounds),) = [pair for pair in totals(watch).items() if pair[0].startswith("spectune_rounds_total")]
    assert 'policy="plain"' in name and rounds == "400"


def test_rounds_in_which_something_fails_are_held_to_no_promise() -> None:
    assert not drifts(choice_of(drafting_plan()), faults=(Fault(drafter="small", reason="NaN"),))


def growing_plan(*, is_alike: bool) -> Plan:
    """Return cells whose chains keep 1.6 tokens in 14 ms, plain rounds 1 in 12, both in 2 ms more for 1,000 tokens."""
    cells = []
    for cell in drafting_plan([(1, 1000), (1, 3000)]).cells:
        ms = 14.0 + 0.002 * cell.context
        speed = 1600.0 / ms
        own = {"tokens_per_s": speed, "low": 0.9 * speed, "high": 1.1 * speed, "tokens_per_round": 1.6, "round_ms": ms}
        promise, plain = replace(cell.prediction, **own), replace(cell.plain, round_ms=ms - 2.0)  # type: ignore[arg-type]
        cells.append(replace(cell, prediction=promise, plain=plain))
    if not is_alike:
        cells[1] = replace(cells[1], drafter="other")
    return replace(drafting_plan(), cells=tuple(cells))


@pytest.mark.thinned
@pytest.mark.parametrize("is_alike", [True, False])
@pytest.mark.parametrize("context", [600, 1000, 1900, 2500, 5900])
def test_a_promise_is_held_to_what_rounds_take_behind_other_contexts_than_its_cell_s(
    context: int, is_alike: bool
) -> None:
    for pace in (1.0, 1.2, 0.8):
        watch = Watch(choice_of(growing_plan(is_alike=is_alike)), QUICK)
        for place in range(200):
            setup = watch.schedule(1, context)
            kept, ms = (1, 12.0) if isinstance(setup.policy, PlainPolicy) else (2, 14.0)
            ms = (ms + 0.002 * context) * pace * (1.25 if kept == 2 else 1.0)  # as long for each of 1.6 tokens
            watch.note(round_of(setup, [kept], ms, texts=place % 10 == 0, context=context))
        assert any(event.kind == "drift" for event in watch.events) == (pace != 1.0)


def test_between_cells_a_promise_reaches_as_far_as_a_decoder_stays() -> None:
    plan = replace(drafting_plan([(1, 100), (1, 300), (1, 1000), (4, 150)]), hysteresis=1.2)
    reach = {cell.context: promised_contexts(plan, cell) for cell in plan.cells if cell.batch == 1}
    assert reach == {
        100: pytest.approx((50.0, 240.0)),
        300: pytest.approx((200.0 / 1.2, 650.0 * 1.2)),
        1000: pytest.approx((650.0 / 1.2, 2000.0)),
    }


def test_a_plan_of_plain_decoding_is_held_to_its_promise_too() -> None:
    watch = Watch(choice_of(plan_of([(1, 100)])), QUICK)
    driven(watch, 1000, steady)  # 50 tokens/s, and 90 to 110 are promised
    assert [event.kind for event in watch.events] == ["drift"]


def test_faults_are_counted_and_told_once_each_and_at_last_that_a_drafter_is_given_up() -> None:
    watch = Watch(choice_of(drafting_plan()))
    for reason, is_last in (("NaN", False), ("NaN", False), ("NaN", True)):
        fault = Fault(drafter="small", reason=reason, is_last=is_last)
        watch.note(round_of(watch.schedule(1, 100), [1], 1.0, faults=(fault,)))
    assert [event.message for event in watch.events] == ["batch 1, context 100: small: NaN"] * 2
    assert 3.0 in [float(value) for name, value in totals(watch).items() if name.startswith("spectune_faults_total")]


def test_a_drafter_that_every_call_gives_up_anew_is_told_of_once() -> None:
    watch = Watch(choice_of(drafting_plan()))
    for call in range(9):
        fault = Fault(drafter="small", reason=f"at {'x' * call}; it is not asked again", is_last=True)
        watch.note(round_of(watch.schedule(1, 100), [1], 1.0, faults=(fault,)))
    assert len(watch.events) == MOST_TOLD  # of different kinds, as any others
    watch = Watch(choice_of(drafting_plan()))
    for _ in range(9):
        fault = Fault(drafter="small", reason="NaN", is_last=True)
        watch.note(round_of(watch.schedule(1, 100), [1], 1.0, faults=(fault,)))
    assert len(watch.events) == 1


@pytest.mark.parametrize("is_behind", [False, True])
def test_rounds_that_may_wait_for_a_prompt_s_reading_are_counted_and_not_judged(is_behind: bool) -> None:
    watch = Watch(choice_of(drafting_plan()), QUICK)
    for place in range(1000):
        setup = watch.schedule(1, 100)
        kept = [1 if isinstance(setup.policy, PlainPolicy) else 2]
        done = round_of(setup, kept, slow_drafts(setup), texts=place % 10 == 0)
        watch.note(replace(done, is_behind=is_behind))
    assert (not watch.events) == is_behind
    rounds = [float(value) for name, value in totals(watch).items() if name.startswith("spectune_rounds_total")]
    assert sum(rounds) == 1000


def test_of_one_source_only_so_many_different_faults_are_told() -> None:
    watch = Watch(choice_of(drafting_plan()))
    for number in range(MOST_TOLD + 3):
        fault = Fault(drafter=None, reason=f"another one: {'x' * number}")
        watch.note(round_of(watch.schedule(1, 100), [1], 1.0, faults=(fault,)))
    assert len(watch.events) == MOST_TOLD


def test_faults_that_differ_in_numbers_alone_are_told_once() -> None:
    watch = Watch(choice_of(drafting_plan()))
    for gigabytes in ("2.00", "1.98"):
        fault = Fault(drafter=None, reason=f"no room for {gigabytes} GiB")
        watch.note(round_of(watch.schedule(1, 100), [1], 1.0, faults=(fault,)))
    assert len(watch.events) == 1


def test_rounds_of_another_schedule_are_not_counted() -> None:
    watch = Watch(choice_of(drafting_plan()))
    watch.note(round_of(StepConfig(policy=CHAIN, drafter="small"), [2], 1.0))
    assert not [name for name in totals(watch) if name.startswith("spectune_rounds_total")]


def test_totals_go_on_over_flushes() -> None:
    watch = Watch(choice_of(drafting_plan()))
    for _ in range(3):
        driven(watch, 5, steady)
        watch.flush()
    (rounds,) = [value for name, value in totals(watch).items() if name.startswith("spectune_rounds_total")]
    assert rounds == "15"


def test_observations_are_handed_over_every_so_many_rounds() -> None:
    kept: list[str] = []
    writer = ObservationWriter(kept.append)
    watch = Watch(choice_of(drafting_plan()), WatchOptions(flush_rounds=10), subject=SUBJECT, writer=writer)
    driven(watch, 25, steady)
    writer.close()
    seen = [from_json(Observation, text) for text in kept]
    assert [cell.rounds for one in seen for cell in one.cells] == [10, 10]
    assert {one.plan_id for one in seen} == {7}


def test_what_is_found_out_behind_the_last_round_is_kept_with_the_next() -> None:
    ledger = Ledger(choice_of(drafting_plan()), WatchOptions(), SUBJECT, lambda: "2026-01-01T00:00:00+00:00")
    ledger.tell("observations cannot be written")
    assert ledger.take() is None
    lane = ledger.cells[0].lane
    lane.since.add(round_of(lane.setup, [2], 1.0))
    seen = ledger.take()
    assert seen is not None and seen.events == ("observations cannot be written",)


def test_what_is_left_is_written_when_the_watch_is_forgotten() -> None:
    kept: list[str] = []
    watch = Watch(choice_of(drafting_plan()), subject=SUBJECT, writer=ObservationWriter(kept.append))
    driven(watch, 3, steady)
    del watch
    (text,) = kept
    assert from_json(Observation, text).cells[0].tokens == 6


def test_a_store_that_cannot_be_written_is_told_and_decoding_goes_on() -> None:
    def refuse(document: str) -> None:
        raise OSError("disk is full")

    writer = ObservationWriter(refuse)
    watch = Watch(choice_of(drafting_plan()), subject=SUBJECT, writer=writer)
    for _ in range(2):
        driven(watch, 5, steady)
        watch.flush()
        writer.close()
    assert [event.message for event in watch.events] == [
        "observations cannot be written and wait: OSError: disk is full"
    ]
    assert totals(watch)["spectune_observations_waiting"] == "2.0"


@pytest.mark.parametrize("wrong", [{"false_alarms": 0.0}, {"probe_share": 0.6}, {"block_rounds": 0}])
def test_options_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RequestError):
        WatchOptions(**wrong)  # type: ignore[arg-type]


def test_a_guess_is_compared_with_plain_decoding_from_the_first_round() -> None:
    watch = Watch(replace(choice_of(drafting_plan()), source="estimate"))
    driven(watch, 40, steady)
    assert [name for name in totals(watch) if 'way="plain"' in name]


def test_a_cell_that_runs_another_way_than_planned_is_held_to_no_promise() -> None:
    other = ((1, 100), StepConfig(policy=CHAIN, drafter="other"))
    watch = Watch(replace(choice_of(drafting_plan()), substitutes=(other,)), QUICK)
    driven(watch, 1000, lambda setup: 40.0)
    assert not [event for event in watch.events if event.kind == "drift"]
    assert not [name for name in totals(watch) if name.startswith("spectune_promised")]


@pytest.mark.parametrize("ms", [float("nan"), float("inf"), -1.0])
def test_times_that_cannot_be_are_not_counted(ms: float) -> None:
    watch = Watch(choice_of(drafting_plan()), QUICK)
    driven(watch, 100, lambda setup: ms)
    seconds = {float(value) for name, value in totals(watch).items() if name.startswith("spectune_round_seconds")}
    assert seconds == {0.0} and not watch.events


def test_a_plan_for_another_number_format_is_held_to_no_promise() -> None:
    watch = Watch(replace(choice_of(drafting_plan()), dtype="bfloat16"), QUICK)
    driven(watch, 1000, lambda setup: 25.0)
    assert not [event for event in watch.events if event.kind == "drift"]
    assert not [name for name in totals(watch) if name.startswith("spectune_promised")]
