"""What edge drafting is foretold to bring: closed forms where there are some, and the search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.edge.costs import EdgeRounds, ServerCosts, edge_rounds, server_batches, server_costs
from spectune.planner.edge.forecast import EdgeForecast, forecast
from spectune.planner.edge.search import EdgeSearch
from spectune.planner.edge.setting import BatchRule, DeviceDrafting, EdgeDevice
from spectune.planner.records.recording import Recording, recording_of
from spectune.planner.search.contest import MOST_CENSORED
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.profiler.records.acceptance import AcceptanceTrace

from ...support.synthetic import Language, SkilledDrafter, inputs, overhead, record, surface, texts

DRAFT_MS, RTT_MS, VERIFY_MS = 2.0, 9.0, 5.0
DEVICE = EdgeDevice(draft_ms=DRAFT_MS, rtt_ms=RTT_MS)
FLAT = ServerCosts(ms=np.pad(np.full((16, 16), VERIFY_MS), ((1, 0), (1, 0))))


def rounds(drafted: int, kept: int, *, goes_on: bool = False, count: int = 50) -> EdgeRounds:
    """Return equal rounds of one text."""
    return EdgeRounds(
        drafted=np.full(count, drafted),
        kept=np.full(count, kept),
        goes_on=np.full(count, goes_on),
        starts=np.zeros(1, dtype=np.int64),
    )


def drafting(length: int, ahead: int = 0) -> DeviceDrafting:
    return DeviceDrafting(chain=ConfidentChainPolicy(length=length, confidence=0.0), ahead=ahead)


def foretold(
    own: EdgeRounds,
    *,
    ahead: int = 0,
    devices: int = 1,
    rule: BatchRule | None = None,
    costs: ServerCosts = FLAT,
    device: EdgeDevice = DEVICE,
) -> EdgeForecast:
    way = drafting(max(int(own.drafted[0]), 1), ahead)
    count = [device] * devices, [way] * devices, [own] * devices
    return forecast(*count, rule or BatchRule(), costs, rounds_in_all=200 * devices)


def test_a_device_alone_drafts_sends_waits_and_begins_again() -> None:
    found = foretold(rounds(4, 3))
    round_ms = 4 * DRAFT_MS + RTT_MS + VERIFY_MS
    assert found.slowest_tokens_per_s == pytest.approx(3000.0 / round_ms)
    assert found.answer_ms == pytest.approx(RTT_MS + VERIFY_MS)
    assert found.busy == pytest.approx(VERIFY_MS / round_ms, rel=0.05)
    assert found.rows == 1.0 and found.wasted == pytest.approx(0.5)


def test_a_device_that_drafts_nothing_pays_the_way_for_every_token() -> None:
    found = foretold(rounds(0, 1))
    assert found.slowest_tokens_per_s == pytest.approx(1000.0 / (RTT_MS + VERIFY_MS))
    assert found.wasted == 0.0


def test_what_is_drafted_while_waiting_is_the_next_chain_where_all_was_right() -> None:
    """14 ms of waiting are 7 forwards; one of their tokens is the target's own, 4 are the next chain."""
    found = foretold(rounds(4, 5, goes_on=True), ahead=16)
    assert found.slowest_tokens_per_s == pytest.approx(5000.0 / (RTT_MS + VERIFY_MS), rel=0.02)


def test_no_more_is_drafted_ahead_than_may_be() -> None:
    found = foretold(rounds(4, 5, goes_on=True), ahead=3)  # 2 of the next 4
    assert found.slowest_tokens_per_s == pytest.approx(5000.0 / (2 * DRAFT_MS + RTT_MS + VERIFY_MS), rel=0.02)


def test_a_forward_that_has_begun_is_ended_before_the_answer_is_taken() -> None:
    late = EdgeDevice(draft_ms=10.0, rtt_ms=RTT_MS)  # 14 ms of waiting end within the second forward
    found = foretold(rounds(1, 1), ahead=16, device=late)
    assert found.slowest_tokens_per_s == pytest.approx(1000.0 / (10.0 + 20.0))


def test_what_is_drafted_ahead_of_a_chain_that_was_not_right_is_wasted() -> None:
    found = foretold(rounds(4, 3), ahead=2)
    assert found.tokens_per_s == foretold(rounds(4, 3)).tokens_per_s
    assert found.wasted == pytest.approx(1.0 - 2.0 / 6.0)


def test_many_devices_share_a_server_that_verifies_one_draft_as_fast_as_all() -> None:
    alone, together = foretold(rounds(4, 3)), foretold(rounds(4, 3), devices=8, rule=BatchRule(size=8, wait_ms=100.0))
    assert together.rows == 8.0
    assert together.slowest_tokens_per_s == pytest.approx(alone.slowest_tokens_per_s, rel=0.02)


def test_a_server_that_takes_as_long_for_each_draft_is_the_bound_of_many_devices() -> None:
    """They end up in step: whoever is verified together sends together, and the server waits for them."""
    each = ServerCosts(ms=np.pad(np.repeat(VERIFY_MS * np.arange(1.0, 17.0)[:, None], 16, axis=1), ((1, 0), (1, 0))))
    found = foretold(rounds(4, 3), devices=16, costs=each)
    assert 0.8 < found.busy < 1.0
    assert found.total_tokens_per_s == pytest.approx(found.busy * 3000.0 / VERIFY_MS, rel=0.03)


def test_who_is_alone_does_not_wait_for_others() -> None:
    assert foretold(rounds(4, 3), rule=BatchRule(size=8, wait_ms=50.0)) == foretold(rounds(4, 3))


def test_a_draft_waits_no_longer_than_the_rule_says() -> None:
    """One device is far away: the near one waits for it 3 ms each time, in vain."""
    devices = [DEVICE, EdgeDevice(draft_ms=DRAFT_MS, rtt_ms=1000.0)]
    ways, own = [drafting(4)] * 2, [rounds(4, 3)] * 2
    found = forecast(devices, ways, own, BatchRule(size=2, wait_ms=3.0), FLAT, rounds_in_all=120)
    assert found.tokens_per_s[0] == pytest.approx(3000.0 / (4 * DRAFT_MS + RTT_MS + VERIFY_MS + 3.0), rel=0.05)


@pytest.mark.parametrize(("drafted", "devices"), [(16, 1), (2, 17)])
def test_what_was_not_priced_is_refused(drafted: int, devices: int) -> None:
    with pytest.raises(PlanError, match="were not priced"):
        foretold(rounds(drafted, 1), devices=devices)


ROUNDS = 200  # of a forecast
LANGUAGE = Language(3)
TEXTS = texts(LANGUAGE, 8, lambda text: 40)


def trace(skill: float, depth: int = 16) -> AcceptanceTrace:
    return record(SkilledDrafter(LANGUAGE, skill), TEXTS, [(0,) * length for length in range(depth + 1)])


def search_of(recording: Recording, costs: ServerCosts, **settled: Any) -> EdgeSearch:
    return EdgeSearch(recording, costs, rounds_in_all=ROUNDS, **settled)


def searched(skill: float, verify_ms: float = 30.0, rows: int = 3) -> EdgeSearch:
    made = inputs(trace(skill), verify_ms=lambda batch, context, tokens: verify_ms + 0.3 * batch * tokens)
    return search_of(recording_of(made.drafters[0].trace), server_costs(made, most_rows=rows, context=20))


def test_rounds_cover_every_token_of_every_text_and_never_draft_its_last() -> None:
    own = edge_rounds(ConfidentChainPolicy(length=4, confidence=0.0), recording_of(trace(0.8)))
    assert own.kept.sum() == sum(len(text) - 1 for _, text in TEXTS)
    lefts = np.concatenate([np.cumsum(part[::-1])[::-1] for part in np.split(own.kept, own.starts[1:])])
    assert (own.drafted <= lefts - 1).all() and (own.kept <= own.drafted + 1).all()
    assert not own.goes_on[own.kept <= own.drafted].any()


def test_a_drafter_that_is_the_target_always_goes_on() -> None:
    own = edge_rounds(ConfidentChainPolicy(length=4, confidence=0.0), recording_of(trace(1.0)))
    ends = np.append(own.starts[1:], len(own.kept)) - 1
    assert np.delete(own.goes_on, ends).all() and (np.delete(own.kept, ends) == 5).all()


@pytest.mark.parametrize(("skill", "devices"), [(0.3, 3), (0.9, 1), (0.9, 2)])
def test_the_best_way_is_no_slower_than_the_usual_or_any_single_change(skill: float, devices: int) -> None:
    search = searched(skill)
    plan = search.plan([DEVICE] * devices)
    best = plan.best.forecast.slowest_tokens_per_s
    assert best >= plan.usual.forecast.slowest_tokens_per_s
    for length in (1, 4, 8):
        own = edge_rounds(ConfidentChainPolicy(length=length, confidence=0.0), search.recording)
        ways = [drafting(length, plan.best.draftings[0].ahead)] * devices
        rounds_of = [own] * devices
        found = forecast([DEVICE] * devices, ways, rounds_of, plan.best.rule, search.costs, rounds_in_all=ROUNDS)
        assert best >= 0.999 * found.slowest_tokens_per_s


def test_a_better_drafter_drafts_longer_chains() -> None:
    lengths = [searched(skill).plan([DEVICE]).best.draftings[0].chain.length for skill in (0.2, 0.95)]
    assert lengths[0] < lengths[1]


def test_devices_of_two_kinds_draft_each_in_its_own_way() -> None:
    slow = EdgeDevice(draft_ms=40.0, rtt_ms=RTT_MS)
    first, second, third = searched(0.9).plan([DEVICE, slow, DEVICE]).best.draftings
    assert first == third and second.chain.length < first.chain.length


def test_where_drafts_are_poor_and_the_way_is_long_the_server_alone_is_faster_and_else_not() -> None:
    assert not searched(0.2).plan([EdgeDevice(draft_ms=20.0, rtt_ms=100.0)]).drafts_at_the_edge
    plan = searched(0.95).plan([EdgeDevice(draft_ms=0.5, rtt_ms=2.0)])
    assert plan.drafts_at_the_edge and plan.saves > 1.5


def test_costs_between_measured_batches_are_a_line_and_the_host_is_in_them() -> None:
    made = inputs(trace(0.9), verify_ms=lambda batch, context, tokens: 10.0 * batch + tokens, host_ms=0.5)
    costs = server_costs(made, most_rows=3, context=20)
    assert costs.ms[1, 4] == pytest.approx(14.5) and costs.ms[3, 4] == pytest.approx(34.5)
    assert costs.ms[2, 4] == pytest.approx(24.5)
    assert (costs.most_rows, costs.ms[0].tolist()) == (3, [0.0] * (costs.most_tokens + 1))
    with pytest.raises(PlanError, match="rounds of 4 sequences were not timed, at most 3"):
        server_costs(made, most_rows=4, context=20)


@pytest.mark.parametrize(("alone", "contexts"), [(2, (2, 200)), (4, (900,))])
def test_a_batch_whose_forwards_were_timed_alone_prices_no_rounds(alone: int, contexts: tuple[int, ...]) -> None:
    made = inputs(trace(0.9))
    forwards = surface("large", "verify", lambda *shape: 99.0, batches=(alone,), contexts=contexts).measurements
    more = replace(made, verify=replace(made.verify, measurements=(*made.verify.measurements, *forwards)))
    assert server_batches(more) == (1, 3)
    found, expected = (server_costs(each, most_rows=3, context=20).ms for each in (more, made))
    np.testing.assert_array_equal(found, expected)


def test_where_no_rounds_were_timed_nothing_is_planned() -> None:
    made = inputs(trace(0.9))
    with pytest.raises(PlanError, match="no rounds were timed at the batches whose forwards were"):
        server_costs(replace(made, overhead=overhead(0.1, (7,))), most_rows=1, context=20)


@pytest.mark.parametrize(("skill", "depth"), [(0.6, 2), (0.2, 0)])
def test_chains_that_go_on_behind_what_was_recorded_do_not_compete(skill: float, depth: int) -> None:
    """A doubting chain of 16, or the usual one of 4, would look as if it stopped where the recording ends."""
    short = recording_of(trace(skill, depth))
    assert edge_rounds(ConfidentChainPolicy(length=8, confidence=0.01), short).censored > MOST_CENSORED
    plan = search_of(short, searched(0.6).costs).plan([EdgeDevice(draft_ms=0.01, rtt_ms=50.0)])
    for way in (*plan.best.draftings, *plan.usual.draftings):
        assert edge_rounds(way.chain, short).censored <= MOST_CENSORED


def test_forwards_are_priced_as_a_server_runs_them_without_padding() -> None:
    made = inputs(trace(0.9), verify_ms=lambda batch, context, tokens: 30.0 if tokens == 3 else 10.0 + 0.1 * tokens)
    costs = server_costs(made, most_rows=1, context=20)
    assert costs.ms[1, 2:5].tolist() == pytest.approx([10.3, 30.1, 10.5])


def test_a_server_whose_rule_and_longest_draft_are_settled_is_planned_for_as_it_is() -> None:
    base, rule = searched(0.95), BatchRule(size=2, wait_ms=7.0)
    plan = search_of(base.recording, base.costs, rule=rule, most_drafted=3).plan([DEVICE] * 3)
    assert (plan.best.rule, plan.usual.rule) == (rule, rule)
    assert max(way.chain.length for way in (*plan.best.draftings, *plan.usual.draftings)) <= 3


@pytest.mark.parametrize("ms", [0.002, 0.3, 17.0, 99_999.0])
def test_devices_that_differ_by_little_are_planned_as_one(ms: float) -> None:
    about = EdgeDevice(draft_ms=ms, rtt_ms=ms).about
    assert about.draft_ms == about.rtt_ms == pytest.approx(ms, rel=0.05)
    assert about.about == about
    assert EdgeDevice(draft_ms=1.0, rtt_ms=0.0).about.rtt_ms == 0.0


def test_chains_longer_than_was_priced_do_not_compete() -> None:
    search = searched(0.95)
    short = ServerCosts(ms=search.costs.ms[:, :4])
    plan = search_of(search.recording, short).plan([DEVICE])
    assert plan.best.draftings[0].chain.length <= 2 and plan.usual.draftings[0].chain.length == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EdgeDevice(draft_ms=0.0, rtt_ms=1.0), "in 0.001 to 100000 ms"),
        (lambda: EdgeDevice(draft_ms=1.0, rtt_ms=-1.0), "in 0 to 100000 ms, got 1.0 and -1.0"),
        (lambda: BatchRule(size=0), "at least 1"),
        (lambda: BatchRule(wait_ms=float("nan")), "at least 0"),
        (lambda: DeviceDrafting(ahead=-1), "0..64"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()
