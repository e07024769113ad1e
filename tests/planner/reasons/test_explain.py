"""The explanation of a plan says what its records say, one fact a line."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from spectune.planner.plans.crossing import crossings
from spectune.planner.plans.objective import LatencyBound
from spectune.planner.plans.outlook import Outlook
from spectune.planner.plans.plan import PlanCell, PublishedPrice, StackForecast
from spectune.planner.plans.prediction import ErrorParts, PromptReading
from spectune.planner.reasons.explain import cell_facts, explain_cell, explain_plan, out_of_reach
from spectune.planner.reasons.facts import published_shares
from spectune.planner.records.tree import TokenTree
from spectune.planner.search.candidate import Candidate
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.naming import name_of
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.talon import TalonPolicy

from ...support.priced_cells import PLAIN, cell_of, plan_with, priced, speed

CHAIN, LONGER = ChainPolicy(length=3), ChainPolicy(length=5)
EAGLE = Eagle2Policy(verify_tokens=8, depth=2, top_k=3)
FORK = StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 0, 1, 0)))
OWN = priced(CHAIN, 2.5)


def text(*rivals: Candidate, own: Candidate = OWN, optimism: float = 0.0) -> str:
    return "\n".join(explain_cell(cell_of([PLAIN, own, *rivals], optimism=optimism)))


def test_a_cell_says_what_each_part_of_a_round_costs() -> None:
    lines = explain_cell(cell_of([PLAIN, OWN]))
    assert lines[0] == "batch 4, context 100: chain of 3 by small"
    assert "  a round yields 2.50 tokens per sequence in 12.50 ms:" in lines
    assert "    verify 10.00 ms (80%): 4 tokens of each sequence" in lines
    assert "    draft 2.00 ms (16%): 3 forwards of 1 node" in lines
    assert "    host 0.50 ms (4%)" in lines


def test_a_cell_says_what_leaves_its_speed_open() -> None:
    cell = cell_of([PLAIN, OWN])
    errors = ErrorParts(acceptance=0.1, surfaces=0.02, drift=0.05, optimism=0.0)
    lines = explain_cell(replace(cell, prediction=replace(cell.prediction, errors=errors)))
    assert "    the texts 16%, the timings 3%, the machine's pace 8% to either side" in lines


@pytest.mark.parametrize(("surfaces", "drift", "is_told"), [(0.02, 0.05, False), (0.4, 0.0, True), (0.0, 0.4, True)])
def test_a_speed_that_was_timed_on_a_busy_machine_is_said_to_mean_little(
    surfaces: float, drift: float, is_told: bool
) -> None:
    cell = cell_of([PLAIN, OWN])
    errors = ErrorParts(acceptance=0.9, surfaces=surfaces, drift=drift, optimism=0.0)
    told = "\n".join(explain_cell(replace(cell, prediction=replace(cell.prediction, errors=errors))))
    assert ("the machine had other work" in told) is is_told


def test_a_padded_verify_says_what_is_fed() -> None:
    cell = replace(cell_of([PLAIN, OWN]), run_tokens=(0, 1, 2, 8, 8))
    assert any("4 tokens of each sequence, fed as 8" in line for line in explain_cell(cell))


@pytest.mark.parametrize(
    ("own", "limit"),
    [
        (OWN, "limited by verification"),
        (priced(CHAIN, 3.5, draft=20.0), "limited by drafting"),
        (priced(CHAIN, 3.5, host=20.0), "limited by the host's share"),
        (priced(CHAIN, 2.2), "limited by acceptance: 1.20 of up to 3 drafts"),
        (priced(Eagle2Policy(verify_tokens=4, depth=7, top_k=2), 2.6), "limited by verification"),  # 1.6 of 3 nodes
    ],
)
def test_a_cell_says_what_limits_it(own: Candidate, limit: str) -> None:
    assert limit in text(own=own)


def test_neighbours_say_what_they_gain_and_what_that_costs() -> None:
    found = text(priced(LONGER, 2.7, draft=4.0), priced(CHAIN, 2.6, draft=4.5, by="medium"))
    assert "    deeper: chain of 5 by small, 6.9% slower; 2.70 tokens in 14.50 ms, draft +2.00 ms" in found
    assert "    another drafter: chain of 3 by medium, 13.3% slower; 2.60 tokens in 15.00 ms, draft +2.50 ms" in found


def test_one_policy_in_two_directions_is_one_line() -> None:
    both, smaller = (priced(Eagle2Policy(verify_tokens=6, depth=depth, top_k=3), 2.5 - depth / 4) for depth in (1, 2))
    lines = [
        line
        for line in text(both, smaller, own=priced(EAGLE, 2.5)).splitlines()
        if "tree of 6 nodes by small (EAGLE-2)" in line
    ]
    assert [line.split(":")[0].strip() for line in lines] == ["runner-up", "shallower and smaller"]


def test_a_faster_neighbour_is_within_noise() -> None:
    assert "chain of 5 by small, 0.8% faster, within noise, and less simple" in text(priced(LONGER, 2.52))


def test_without_an_outlook_the_alternatives_are_told() -> None:
    cell = replace(cell_of([PLAIN, OWN, priced(LONGER, 2.4), priced(EAGLE, 2.0)]), outlook=None)
    assert "    tree of 8 nodes by small (EAGLE-2), 20.0% slower" in explain_cell(cell)


def test_every_kind_says_how_many_drafts_it_may_lose() -> None:
    for policy in (CHAIN, ConfidentChainPolicy(length=3), EAGLE, TalonPolicy(nodes=8), OptTreePolicy(nodes=8), FORK):
        found = text(own=priced(policy, 2.5))
        assert "1.50 drafts are accepted a round; plain decoding is faster below 0.47 (69% fewer)" in found


def test_a_chain_says_it_per_token_too() -> None:
    facts = cell_facts(cell_of([PLAIN, priced(ChainPolicy(length=1), 1.8)]))
    assert facts.acceptance == pytest.approx(0.8)
    assert facts.break_even == pytest.approx(12.5 / 8.5 - 1.0)
    assert facts.break_even_accepted == pytest.approx(12.5 / 8.5 - 1.0)


def test_a_scenario_that_another_policy_wins_says_who_and_by_how_much() -> None:
    rival = priced(LONGER, 3.69, draft=8.0)
    assert "if drafting cost 10% less, chain of 5 by small would be fastest and the plan 2.5% behind" in text(rival)
    assert "it stays within 1%" not in text(rival)


def test_a_cell_that_nothing_shakes_says_so() -> None:
    assert "it stays within 1% of the fastest if verification, drafting, host or acceptance is 10% off" in text()


def test_plain_decoding_says_what_would_make_speculation_pay() -> None:
    found = "\n".join(explain_cell(cell_of([PLAIN, priced(CHAIN, 1.4)], chosen=0)))
    assert "batch 4, context 100: plain decoding; do not speculate" in found
    assert "speculation would pay if chain of 3 by small had 1.18 times its accepted drafts" in found
    hopeless = "\n".join(explain_cell(cell_of([PLAIN, priced(CHAIN, 1.4, verify=99.0)], chosen=0)))
    assert "no policy that was priced would pay even if all its drafts were accepted" in hopeless


def test_a_perfect_drafter_is_told_beside_what_better_ones_are_worth() -> None:
    cell = cell_of([PLAIN, OWN])
    assert isinstance(cell.outlook, Outlook)
    found = "\n".join(explain_cell(cell))
    assert "1% more accepted drafts would be worth 0.60% of speed" in found
    assert f"would reach {cell.outlook.perfect_tokens_per_s:,.1f} tokens/s" in found


PUBLISHED = (
    PublishedPrice(name="Old 60/7/10", drafter="small", tokens_per_s=200.0),
    PublishedPrice(name="chain of theirs", drafter="medium", tokens_per_s=640.0),
    PublishedPrice(name="another of theirs", drafter="medium", tokens_per_s=640.0),
    PublishedPrice(name="their lookup", drafter="lookup", tokens_per_s=None, reason="too wide"),
)


def test_published_defaults_are_marked_where_they_are_slower_than_plain_decoding() -> None:
    lines = explain_cell(cell_of([PLAIN, OWN], published=PUBLISHED))
    assert speed(OWN) == pytest.approx(800.0) and speed(PLAIN) == pytest.approx(470.6, abs=0.1)
    assert lines[lines.index("  published defaults, as shares of the plan's speed:") + 1 :][:3] == [
        "    0.80 chain of theirs, another of theirs by medium",
        "    0.25 Old 60/7/10 by small, slower than plain decoding",
        "    their lookup: not priced, too wide",
    ]


def test_a_plan_says_what_published_defaults_keep_over_all_cells() -> None:
    cells = [cell_of([PLAIN, OWN], published=PUBLISHED), cell_of([PLAIN, OWN], context=7, published=PUBLISHED[:2])]
    shares = {each.name: each for each in published_shares(plan_with(*cells))}
    old = shares["Old 60/7/10"]
    assert (old.least, old.middle, old.most, old.priced, old.slower_than_plain) == (0.25, 0.25, 0.25, 2, 2)
    lines = explain_plan(plan_with(*cells))
    assert "  Old 60/7/10: 0.25 to 0.25 of the plan's speed; slower than plain decoding in 2 of 2 cells" in lines
    assert "  their lookup: not priced in any cell" in lines


def test_a_modelled_stack_is_not_passed_off_as_replayed() -> None:
    stack = StackForecast(
        models=("tiny", "small"), thresholds=(1, 4), tokens_per_s=900.0, best_single_tokens_per_s=850.0
    )
    found = "\n".join(explain_cell(replace(cell_of([PLAIN, OWN]), stack=stack)))
    assert "a stack of drafters, modelled, not replayed, not chosen: 900.0 tokens/s" in found
    assert "tiny gathers 1 token, then small gathers 4 tokens; the best single drafter by the same model" in found


@pytest.mark.parametrize("models", [(), ("small",)])
def test_what_an_older_plan_says_of_fewer_than_two_drafters_is_no_stack(models: tuple[str, ...]) -> None:
    stack = StackForecast(
        models=models, thresholds=(4,) * len(models), tokens_per_s=900.0, best_single_tokens_per_s=900.0
    )
    assert "a stack of drafters" not in "\n".join(explain_cell(replace(cell_of([PLAIN, OWN]), stack=stack)))


def test_memory_and_the_bound_are_told_where_they_are_known() -> None:
    cell = replace(cell_of([PLAIN, OWN]), memory_bytes=3 * 2**30, keeps_bound=False)
    bound = LatencyBound(metric="itl", most_ms=4.0)
    found = "\n".join(explain_cell(cell, bound=bound, memory_bytes=8 * 2**30))
    assert "at its peak decoding takes 3.0 GiB of 8.0 GiB of memory" in found
    small = explain_cell(replace(cell, memory_bytes=33 * 2**20), bound=None, memory_bytes=0)
    assert "  at its peak decoding takes 33 MiB of memory" in small
    assert "does not keep, and no policy does, itl<=4ms; a sequence waits 5.0 ms per token on average" in found


def test_a_lookup_searches_the_text_and_is_by_nobody() -> None:
    found = text(own=priced(LookupPolicy(length=2), 1.8, draft=0.0, by="lookup"))
    assert "lookup of 2 after 3..1-grams" in found and "by lookup" not in found
    assert "no forward, the text itself is searched" in found


def test_what_choosing_flattered_is_told_and_taken_off_nobody_else() -> None:
    """Rivals and published defaults are set against the plan's speed as it was replayed, like their own."""
    cell = cell_of([PLAIN, OWN])
    replayed, errors = cell.prediction.tokens_per_s, cell.prediction.errors
    told, untold = (
        replace(
            cell,
            prediction=replace(
                cell.prediction,
                tokens_per_s=(1.0 - taken) * replayed,
                low=0.0,
                errors=replace(errors, optimism=taken),
            ),
            published=(PublishedPrice(name="a default", drafter=None, tokens_per_s=replayed),),
        )
        for taken in (0.2, 0.0)
    )
    assert [cell_facts(each).published[0].ratio for each in (told, untold)] == pytest.approx([1.0, 1.0])
    assert f"the recorded texts replay at {replayed:,.1f}: 20.0% is taken off" in "\n".join(explain_cell(told))
    assert "is taken off" not in "\n".join(explain_cell(untold))


# --- the plan as a whole


def ladder(*speeds: float) -> list[PlanCell]:
    """Return cells of batches 1, 2, 4, ...: each the fastest of plain decoding and a chain of such tokens per round."""
    cells = []
    for place, tokens in enumerate(speeds):
        chain = priced(CHAIN, tokens)
        is_faster = speed(chain) > speed(PLAIN)
        cells.append(cell_of([PLAIN, chain], chosen=int(is_faster), batch=2**place))
    return cells


def test_a_table_of_all_cells_comes_first() -> None:
    lines = explain_plan(plan_with(*ladder(3.4, 1.2)))
    assert cells_of(lines[2]) == ["batch", "context", "how to decode", "tokens/s", "x plain", "limited by"]
    assert cells_of(lines[3]) == ["1", "100", "chain of 3 by small", "272.0", "2.31", "verify"]
    assert cells_of(lines[4]) == ["2", "100", "plain decoding", "235.3", "1.00", "-"]


def cells_of(line: str) -> list[str]:
    return re.split(r"  +", line.strip())


def test_columns_of_the_table_stand_below_each_other() -> None:
    lines = explain_plan(plan_with(*ladder(3.4, 1.2)))[2:5]
    assert len({line.index(word) for line, word in zip(lines[1:], ("chain", "plain"), strict=True)}) == 1
    assert lines[0].index("how to decode") == lines[1].index("chain")


def test_speculation_ends_where_the_interpolated_speedup_is_one() -> None:
    even = 12.5 / 8.5  # tokens a round with which the chain is as fast as plain decoding
    (found,) = crossings(plan_with(*ladder(3.0, 2.0 * even, even / 2.0)))
    assert (found.last, found.first_plain) == (2, 4)
    assert found.batch == pytest.approx(2.0 * 2.0**0.5)  # 2 times as fast at 2, half as fast at 4
    lines = explain_plan(plan_with(*ladder(3.0, 2.0 * even, even / 2.0)))
    assert "  at context 100: up to a batch of about 3, between the planned batches 2 and 4" in lines


def test_where_requests_chose_speculation_ends_by_their_speed() -> None:
    """A token pays half as long for reading as for being decoded: the chain is 4 / 1.5 times as fast as plain."""
    even = 12.5 / 8.5
    first, second = ladder(4.0 * even, even / 2.0)
    read_ms = 0.5 * 1000.0 / first.prediction.tokens_per_s * 99
    reading = PromptReading(prompt_tokens=9, target_ms=1.0, drafter_ms=read_ms, pays_from=2.0, new_tokens=100)
    (found,) = crossings(plan_with(replace(first, reading=reading), second))
    assert found.batch == pytest.approx(2.0 ** (math.log(4.0 / 1.5) / math.log(2.0 * 4.0 / 1.5)))


def test_speculation_may_pay_everywhere_or_nowhere() -> None:
    (always,), (never,) = (crossings(plan_with(*ladder(*speeds))) for speeds in ((3.0, 3.0), (1.1, 1.1)))
    assert (always.last, always.first_plain, always.batch) == (2, None, None)
    assert (never.last, never.first_plain, never.batch) == (None, 1, None)
    assert "  at context 100: at every planned batch, up to 2" in explain_plan(plan_with(*ladder(3.0, 3.0)))
    assert "  at context 100: at no planned batch" in explain_plan(plan_with(*ladder(1.1, 1.1)))


@pytest.mark.parametrize(
    ("speeds", "line"),
    [
        ((1.1, 3.0), "at batch 2; plain decoding is faster at batch 1"),
        ((1.1, 1.2, 3.0), "at batch 4; plain decoding is faster at batches 1 and 2"),
        ((3.0, 1.1, 3.0, 3.0), "at batches 1, 4 and 8; plain decoding is faster at batch 2"),
        (
            (1.1, 2.0 * 12.5 / 8.5, 0.5 * 12.5 / 8.5),
            "at batch 2; plain decoding is faster at batch 1, and from a batch of about 3 on",
        ),
    ],
)
def test_batches_below_which_plain_decoding_wins_are_named(speeds: tuple[float, ...], line: str) -> None:
    assert f"  at context 100: {line}" in explain_plan(plan_with(*ladder(*speeds)))


def test_each_context_has_its_own_end() -> None:
    cells = [*ladder(3.0, 1.1), *(replace(cell, context=900) for cell in ladder(3.0, 3.0))]
    assert [(each.context, each.first_plain) for each in crossings(plan_with(*cells))] == [(100, 2), (900, None)]


def test_a_plan_of_one_batch_says_nothing_of_batches() -> None:
    assert "speculation pays" not in explain_plan(plan_with(*ladder(3.0)))


def test_a_plan_ends_with_what_it_rests_on() -> None:
    lines = explain_plan(plan_with(*ladder(3.0)))
    assert lines[-2] == "345 candidates were priced on 12 texts, 67 cannot win and were not replayed"
    plan = plan_with(*ladder(3.0))
    told = explain_plan(replace(plan, provenance=replace(plan.provenance, untried=8)))[-2]
    assert told == f"{lines[-2]}, 8 stacks promise less than those that were"
    assert lines[-1] == "note: the device was busy"


def test_the_bound_is_named_and_who_breaks_it_is_marked() -> None:
    cells = ladder(3.0, 3.0)
    plan = replace(
        plan_with(cells[0], replace(cells[1], keeps_bound=False)), bound=LatencyBound(metric="itl", most_ms=4.0)
    )
    lines = explain_plan(plan)
    assert lines[1] == "the fastest that keeps itl<=4ms"
    assert [line.endswith("breaks the bound") for line in lines[4:6]] == [False, True]


@pytest.mark.parametrize(
    "policy",
    [CHAIN, ConfidentChainPolicy(length=4), FORK, EAGLE, TalonPolicy(nodes=8), OptTreePolicy(nodes=8)],
    ids=lambda policy: policy.kind,
)
def test_every_policy_is_explained(policy: TreePolicy) -> None:
    assert name_of(policy.code, "small") in text(own=priced(policy, 2.2))


def test_cells_that_keep_a_bound_are_named_beside_those_that_do_not() -> None:
    one, two, four = ladder(3.0, 3.0, 3.0)
    bound = LatencyBound(metric="itl", most_ms=20.0)
    cells = [replace(one, latency_ms=12.0), replace(two, latency_ms=19.0), four]
    assert out_of_reach(replace(plan_with(*cells), bound=bound)) is None
    assert out_of_reach(plan_with(*cells)) is None
    cells[2] = replace(four, latency_ms=41.25, keeps_bound=False)
    assert out_of_reach(replace(plan_with(*cells), bound=bound)) == (
        "itl<=20ms cannot be reached in 1 of 3 cells (batch 4, context 100: 41.2 ms at best); it is kept at batch 1, "
        "context 100; batch 2, context 100; allow more, or plan smaller batches or shorter contexts"
    )
