"""A fleet that leaves its plan is told from one that keeps it, by counters that a simulation of rounds made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from spectune.db import open_store
from spectune.engines.counters import CounterPage, page_of
from spectune.engines.load import Address
from spectune.errors import MeasurementError, RequestError
from spectune.planner.engines.served import PLAIN, Ran
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.profiler.device import detect
from spectune.tuning.engines.expected import Expected, best_ways, expected_of_bundle, expected_of_plan, repriced
from spectune.tuning.engines.models import identify_engine_model
from spectune.tuning.engines.pages import queried
from spectune.tuning.engines.plan import EnginePlanRequest, plan_engine
from spectune.tuning.engines.watch import FleetWatch

from ...support.engine_policies import chains_by_batch
from ...support.engine_profiles import profiled, saved_models
from ...support.metrics_pages import Rounds, as_prometheus, shown
from .test_tune_worlds import serving, tuned

RATES = (0.8, 0.6, 0.4)


def ran(source: str, length: int, round_ms: float, tokens: float) -> Ran:
    return Ran(
        source=source,
        length=length,
        round_ms=round_ms,
        tokens_per_round=tokens,
        acceptance=(),
        ttft_ms=0.0,
        answer_tokens=1e6,
        error=0.0,
    )


def expected(concurrency: int, plain_ms: float, *chains: tuple[int, float], planned: int) -> Expected:
    own = [ran("small", length, ms, 1.0 + sum(RATES[:length])) for length, ms in chains]
    return Expected(
        concurrency=concurrency,
        ran=(ran(PLAIN, 0, plain_ms, 1.0), *own),
        way=("small", planned) if planned else (PLAIN, 0),
        is_model=True,
        error=0.02,
    )


ONE = expected(1, 10.0, (3, 14.0), planned=3)  # 200 tokens/s, plain 100
EIGHT = expected(8, 20.0, (1, 24.0), (3, 60.0), planned=1)  # 600 tokens/s, plain 400, three 373


class Fleet:
    """One server, its rounds, and the watch over it."""

    def __init__(self, plan: Sequence[Expected] = (ONE,), *, seed: int = 0, engine: str = "vllm") -> None:
        self.rounds, self.running = Rounds(seed, engine), 1.0
        self.watch = FleetWatch(plan, {"here": lambda: page_of(self.rounds.page(self.running))})
        self.rounds.decode(100, (0.1, 0.1, 0.1))  # long before
        self.watch.look()
        self.watch.begin()

    def after(self, count: int, acceptance: Sequence[float], running: float = 1.0) -> FleetWatch:
        self.rounds.decode(count, acceptance)
        self.running = running
        self.watch.look()
        return self.watch


def test_a_fleet_that_keeps_its_plan_is_told_so() -> None:
    seen = Fleet().after(4000, RATES).seen()
    assert (seen.accepted, seen.mix, seen.has_left, seen.events) == ("as planned", "as planned", False, ())
    assert seen.tokens_per_round == pytest.approx(2.8, rel=0.03)
    assert seen.acceptance == pytest.approx(RATES, abs=0.03)
    assert seen.planned is not None and seen.planned[0] < 2.8 < seen.planned[1]
    assert (seen.gain, seen.better, seen.shares) == (1.0, (), {1: 1.0})


def test_drafts_that_are_accepted_less_left_the_plan_and_a_new_one_gains_what_it_would() -> None:
    rates = (0.2, 0.04, 0.01)
    seen = Fleet().after(4000, rates).seen()
    assert (seen.accepted, seen.has_left) == ("lower", True)
    now = 1000.0 * (1.0 + sum(seen.acceptance)) / 14.0
    assert seen.gain == pytest.approx(100.0 / now) and seen.gain == pytest.approx(1.12, abs=0.02)
    (better,) = seen.better
    assert (better.now, better.instead) == ("3 by small", "plain decoding")


def test_few_rounds_prove_nothing() -> None:
    seen = Fleet().after(8, (0.7, 0.5, 0.3)).seen()
    assert seen.accepted == "as planned"


def test_a_batch_beyond_the_plan_left_it() -> None:
    assert Fleet().after(400, RATES, running=9.0).seen().mix == "higher"
    many = Fleet((expected(4, 10.0, (3, 14.0), planned=3), EIGHT)).after(400, RATES, running=1.0).seen()
    assert (many.mix, many.shares) == ("lower", {4: 1.0, 8: 0.0})
    assert Fleet().after(400, RATES, running=0.0).seen().mix == "unknown"  # idle as it was looked at


def test_lengths_by_batch_are_told_apart_by_the_mix() -> None:
    """Half of the moments at one sequence with three drafted tokens, half at eight with one."""
    fleet = Fleet((ONE, EIGHT))
    weights = 1 / 14.0, 8 / 24.0  # rounds of sequences in a millisecond
    for weight, rates, running in zip(weights, (RATES, RATES[:1]), (1.0, 8.0), strict=True):
        fleet.after(round(20_000 * weight), rates, running)
    seen = fleet.watch.seen()
    assert seen.acceptance == pytest.approx(RATES, abs=0.05)
    mean = (weights[0] * 2.8 + weights[1] * 1.8) / sum(weights)
    assert seen.tokens_per_round == pytest.approx(mean, rel=0.02) and seen.accepted == "as planned"
    assert seen.gain == 1.0


def test_a_server_with_one_length_for_all_gets_one() -> None:
    """llama.cpp drafts three tokens, fit for one sequence; at eight one token is better by far."""
    fleet = Fleet((expected(1, 10.0, (1, 12.0), (3, 14.0), planned=3), EIGHT), engine="llama.cpp")
    for _ in range(3):
        fleet.after(400, RATES, running=8.0)
    seen = fleet.watch.seen()
    assert seen.mix == "as planned"
    assert seen.gain == pytest.approx((1.8 / 24.0) / (2.8 / 60.0), rel=0.05)
    assert {(one.now, one.instead) for one in seen.better} == {("3 by small", "1 by small")}


def test_copies_are_counted_over_all_rounds_since_some_draft_nothing() -> None:
    """Half of the rounds find a copy: of all rounds half of its acceptance is left."""
    found = [ran(PLAIN, 0, 10.0, 1.0), ran("lookup:3-3", 3, 11.0, 1.0 + sum(RATES) / 2.0)]
    plan = Expected(concurrency=1, ran=tuple(found), way=("lookup:3-3", 3), is_model=False, error=0.02)
    fleet = Fleet((plan,))
    fleet.rounds.decode(2000, ())
    seen = fleet.after(2000, RATES).seen()
    assert seen.tokens_per_round == pytest.approx(1.9, rel=0.03) and seen.accepted == "as planned"
    assert seen.acceptance == pytest.approx([rate / 2.0 for rate in RATES], abs=0.02)


def test_a_restart_is_an_event_and_what_it_counted_anew_counts() -> None:
    fleet = Fleet()
    fleet.rounds = Rounds(1)
    seen = fleet.after(3000, RATES).seen()
    assert seen.events == ()  # it counts more by now than before: nobody can know
    fleet.rounds = Rounds(2)
    seen = fleet.after(1000, RATES).seen()
    assert len(seen.events) == 1 and "the server started again in between" in seen.events[0]
    assert (seen.accepted, seen.generated) == ("as planned", fleet.rounds.tokens)


def test_servers_that_draft_otherwise_than_planned_are_named_once() -> None:
    fleet = Fleet()
    fleet.rounds.decode(10, (0.5, 0.4, 0.3, 0.2, 0.1))
    events = [fleet.after(100, (0.5, 0.4, 0.3, 0.2, 0.1)).seen().events for _ in range(2)]
    assert events == [("servers draft up to 5 tokens, and the plan 3: they run another one",), ()]


def test_n_grams_that_find_nothing_yet_are_no_other_plan_and_a_model_that_never_drafts_is() -> None:
    events = {}
    for is_model in (True, False):
        fleet = Fleet((replace(ONE, is_model=is_model),))
        events[is_model] = fleet.after(40, ()).seen().events
    assert events == {True: ("servers draft up to 0 tokens, and the plan 3: they run another one",), False: ()}


FLEETS, INTERVALS = 100, 40


def told(seed: int, rates: Sequence[float]) -> int:
    """Return after how many intervals an event says that acceptance left the plan; 0 for never."""
    fleet = Fleet(seed=seed)
    for interval in range(1, INTERVALS + 1):
        if any("accepted tokens a round" in event for event in fleet.after(300, rates).seen().events):
            return interval
    return 0


def test_false_alarms_are_rare_and_a_change_is_told_in_time() -> None:
    assert sum(told(seed, RATES) > 0 for seed in range(FLEETS)) <= 2
    assert all(0 < told(seed, (0.7, 0.5, 0.3)) <= 20 for seed in range(20))


def test_servers_are_added_and_one_that_fails_is_an_event() -> None:
    one, two = Rounds(1), Rounds(2)

    def gone() -> CounterPage:
        raise MeasurementError("http://three/metrics does not answer")

    watch = FleetWatch(
        (ONE,), {"one": lambda: page_of(one.page(1.0)), "two": lambda: page_of(two.page(1.0)), "3": gone}
    )
    one.decode(1000, RATES)
    two.decode(1000, RATES)
    watch.look()
    seen = watch.seen()
    assert (seen.servers, seen.generated) == (2, one.tokens + two.tokens)
    assert seen.events == ("3: http://three/metrics does not answer",)
    with pytest.raises(MeasurementError, match="does not answer"):
        FleetWatch((ONE,), {"3": gone}).look()


def test_a_prometheus_server_is_a_page_of_all_that_it_scrapes() -> None:
    one, two = Rounds(1), Rounds(2)
    one.decode(1000, RATES)
    two.decode(500, RATES)
    with shown(lambda: as_prometheus(one.page(3.0), two.page(4.0))) as (url, asked):
        watch = FleetWatch((ONE,), {"all": lambda: queried(Address(url=url), 'job="vllm"')})
        watch.look()
        seen = watch.seen()
    assert (seen.generated, seen.batch) == (one.tokens + two.tokens, 3.5)
    assert asked[0].startswith("GET /api/v1/query?query=%7B__name__%3D~%22") and "job%3D%22vllm%22" in asked[0]
    assert all(f"{prefix}%3A" in asked[0] for prefix in ("vllm", "sglang", "llamacpp"))
    with shown(lambda: "<html>") as (url, _), pytest.raises(MeasurementError, match="not as Prometheus does: '<html>'"):
        queried(Address(url=url))


def test_an_engine_s_plan_is_priced_anew_by_the_records_of_its_store(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    models = saved_models(tmp_path / "models")
    with open_store(str(tmp_path / "store.db")) as store:
        profiled(models, store)
        target = identify_engine_model(models.target)
        request = EnginePlanRequest(engine="llama.cpp", target=target, device=detect("cpu"))
        _, plan = plan_engine(request, store)
        with_records, alone = expected_of_plan(plan, store), expected_of_plan(plan)
    assert [one.concurrency for one in with_records] == [cell.batch for cell in plan.cells] == [1, 4]
    for one, other, cell in zip(with_records, alone, plan.cells, strict=True):
        assert one.way == other.way and len(one.ran) > len(other.ran)
        planned = one.of(one.way)
        assert planned is not None and planned.tokens_per_round == cell.prediction.tokens_per_round


def test_a_tuning_s_bundle_says_what_was_chosen() -> None:
    for takes_table in (False, True):
        bundle = tuned(serving(3, takes_table=takes_table)).bundle
        found = expected_of_bundle(bundle)
        assert bundle.chosen is not None
        assert [(one.concurrency, one.way[1]) for one in found] == list(bundle.chosen.lengths)
        assert all(one.of(one.way) is not None for one in found)


def test_plans_whose_drafts_no_server_counts_are_refused() -> None:
    plan = chains_by_batch([(1, 3), (4, 0)])
    assert [one.way for one in expected_of_plan(plan)] == [("small", 3), (PLAIN, 0)]
    tree = replace(plan.cells[0], policy=Eagle2Policy(verify_tokens=4, depth=3, top_k=2), run_tokens=(0, 1, 2, 3, 4))
    with pytest.raises(RequestError, match="servers count chains alone"):
        expected_of_plan(replace(plan, cells=(tree,)))


def test_idle_servers_promise_no_gain() -> None:
    seen = Fleet().after(0, RATES, running=0.0).seen()
    assert (seen.tokens_per_round, seen.accepted, seen.gain, seen.better) == (None, "unknown", None, ())


def test_what_a_prometheus_server_loses_for_a_moment_counts_once() -> None:
    one, two = Rounds(1), Rounds(2)
    pages = [(one, two), (one,), (one, two)]
    watch = FleetWatch((ONE,), {"all": lambda: page_of("".join(labelled(each) for each in pages.pop(0)))})
    one.decode(1000, RATES)
    two.decode(1000, RATES)
    watch.look()
    watch.begin()
    before = two.tokens
    two.decode(100, RATES)
    watch.look()
    watch.look()
    seen = watch.seen()
    assert (seen.generated, seen.events) == (two.tokens - before, ())


def labelled(rounds: Rounds) -> str:
    return rounds.page(1.0, f'engine="0",model_name="m",instance="{id(rounds)}"')


def test_a_server_that_answers_late_counts_from_then_on() -> None:
    one, late = Rounds(1), Rounds(2)
    is_up = [False]

    def page() -> CounterPage:
        if not is_up[0]:
            raise MeasurementError("late does not answer")
        return page_of(late.page(1.0))

    watch = FleetWatch((ONE,), {"one": lambda: page_of(one.page(1.0)), "late": page})
    late.decode(5000, (0.1, 0.1, 0.1))
    watch.look()
    watch.begin()
    is_up[0] = True
    watch.look()
    one.decode(1000, RATES)
    watch.look()
    assert watch.seen().generated == one.tokens


def test_servers_of_two_engines_and_a_plan_for_another_one_are_events() -> None:
    one, two = Rounds(1), Rounds(2, "llama.cpp")
    servers = {"one": lambda: page_of(one.page(1.0)), "two": lambda: page_of(two.page(1.0))}
    watch = FleetWatch((ONE,), servers, planned_for="llama.cpp")
    watch.look()
    seen = watch.seen()
    assert seen.servers == 1
    assert seen.events == (
        "the plan is of llama.cpp, and the servers are of vllm: its speeds are not theirs",
        "two is a server of llama.cpp, and others are of vllm; watch one engine",
    )


def test_a_new_plan_has_one_source_where_one_start_serves_all() -> None:
    """At one sequence copies are the best, at eight the draft model; a server takes one of both."""
    one = (ran(PLAIN, 0, 10.0, 1.0), ran("small", 3, 10.0, 1.5), ran("lookup", 3, 10.0, 2.0))
    eight = (ran(PLAIN, 0, 10.0, 1.0), ran("small", 3, 10.0, 2.0), ran("lookup", 3, 10.0, 1.1))
    plans = [
        Expected(concurrency=at, ran=own, way=(PLAIN, 0), is_model=True, error=0.02)
        for at, own in ((1, one), (8, eight))
    ]
    ways = repriced(plans, PLAIN, ())
    for takes_table in (False, True):
        best = best_ways(ways, {1: 0.5, 8: 0.5}, takes_table=takes_table)
        assert {at: way.source for at, way in best.items()} == {1: "small", 8: "small"}


@pytest.mark.parametrize("counts_rounds", [True, False])
@pytest.mark.parametrize(("rates", "told"), [(RATES, "as planned"), ((0.4, 0.2, 0.1), "lower")])
def test_sglang_s_gauges_tell_tokens_of_a_round_and_no_positions(
    rates: tuple[float, ...], told: str, *, counts_rounds: bool
) -> None:
    rounds = Rounds(1)
    watch = FleetWatch((ONE,), {"here": lambda: page_of(rounds.sglang_page(1.0, counts_rounds=counts_rounds))})
    watch.look()
    watch.begin()
    for _ in range(4):
        rounds.decode(1000, rates)
        watch.look()
    seen = watch.seen()
    assert (seen.accepted, seen.mix, seen.generated) == (told, "as planned", float(rounds.tokens))
    assert seen.tokens_per_round == pytest.approx(1.0 + sum(rates), rel=0.03)
    assert len(seen.acceptance) == 3 and sum(seen.acceptance) == pytest.approx(sum(rates), rel=0.05)
    falls = [behind / before for before, behind in pairwise((1.0, *seen.acceptance))]
    assert falls == pytest.approx([falls[0]] * 3)
    assert any("SGLang tells no positions" in event for event in seen.events)


def test_an_sglang_that_decodes_plainly_drafts_nothing() -> None:
    rounds = Rounds(1)
    watch = FleetWatch((ONE,), {"here": lambda: page_of(rounds.sglang_page(1.0, counts_rounds=True))})
    watch.look()
    watch.begin()
    rounds.decode(1000, ())
    watch.look()
    seen = watch.seen()
    assert (seen.tokens_per_round, seen.acceptance) == (None, ())
    assert not any("SGLang" in event for event in seen.events)


def test_a_schedule_that_begins_with_its_longest_length_is_planned_so() -> None:
    one = (ran(PLAIN, 0, 10.0, 1.0), ran("small", 1, 10.0, 1.9), ran("small", 3, 20.0, 2.5))
    eight = (ran(PLAIN, 0, 10.0, 1.0), ran("small", 1, 10.0, 1.2), ran("small", 3, 10.0, 2.0))
    plans = [
        Expected(concurrency=at, ran=own, way=(PLAIN, 0), is_model=True, error=0.02)
        for at, own in ((1, one), (8, eight))
    ]
    ways, shares = repriced(plans, PLAIN, ()), {1: 0.5, 8: 0.5}
    free = best_ways(ways, shares, takes_table=True)
    assert {at: way.length for at, way in free.items()} == {1: 1, 8: 3}
    bound = best_ways(ways, shares, takes_table=True, longest_first=True)
    assert bound[1].length >= bound[8].length
