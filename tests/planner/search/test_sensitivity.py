"""What would change a cell's answer, against closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.plans.outlook import Outlook, Scenario
from spectune.planner.pricing.cost import CellCosts
from spectune.planner.pricing.table import Verification
from spectune.planner.records.tree import TokenTree
from spectune.planner.search.candidate import Candidate
from spectune.planner.search.sensitivity import outlook_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.profiler.records.host_line import HostLine

from ...support.priced_cells import BATCH, PLAIN, costs, priced

CHAIN, LONGER = ChainPolicy(length=2), ChainPolicy(length=4)
FORK = StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 0, 1, 0)))


def outlook(*candidates: Candidate, chosen: int = 1, optimism: float = 0.0) -> Outlook:
    return outlook_of([PLAIN, *candidates], chosen, 0, costs(), optimism=optimism)


def scenario(found: Outlook, change: str, factor: float) -> Scenario:
    (one,) = (each for each in found.scenarios if (each.change, each.factor) == (change, factor))
    return one


def test_there_is_a_scenario_for_each_part_and_direction() -> None:
    seen = [(each.change, each.factor) for each in outlook(priced(CHAIN, 2.0)).scenarios]
    assert seen == [(change, factor) for change in ("verify", "draft", "host", "acceptance") for factor in (0.9, 1.1)]


PARTS = {"verify": (0.0, 1.0, 0.0), "draft": (1.0, 0.0, 0.0), "host": (0.0, 0.0, 1.0)}


@pytest.mark.parametrize("change", PARTS)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_dearer_part_scales_its_share_of_every_round(change: str, factor: float) -> None:
    found = scenario(outlook(priced(CHAIN, 2.0)), change, factor)
    more = [1.0 + (factor - 1.0) * share for share in PARTS[change]]
    own, plain = 2.0 / np.dot([2.0, 10.0, 0.5], more), 1.0 / np.dot([0.0, 8.0, 0.5], more)
    assert found.speedup == pytest.approx(own / plain)
    assert (found.label, found.loss) == (CHAIN.code, 0.0)


def test_more_accepted_drafts_are_added_to_the_target_s_own_token() -> None:
    found = scenario(outlook(priced(LONGER, 3.0)), "acceptance", 1.1)
    assert found.speedup == pytest.approx((1.0 + 1.1 * 2.0) / 12.5 * 8.5)


def test_nothing_accepts_more_drafts_than_it_is_deep() -> None:
    found = scenario(outlook(priced(CHAIN, 2.95)), "acceptance", 1.1)
    assert found.speedup == pytest.approx(3.0 / 12.5 * 8.5)


def test_a_saturated_policy_loses_to_one_that_has_room() -> None:
    found = outlook(priced(CHAIN, 2.95), priced(LONGER, 3.2, draft=3.5))
    assert scenario(found, "acceptance", 0.9).label == CHAIN.code
    better = scenario(found, "acceptance", 1.1)
    assert better.label == LONGER.code
    assert better.loss == pytest.approx(1.0 - (3.0 / 12.5) / (3.42 / 14.0))


def test_dearer_drafting_favours_who_drafts_less() -> None:
    found = scenario(outlook(priced(LONGER, 3.0, draft=4.0), priced(CHAIN, 2.58)), "draft", 1.1)
    assert found.label == CHAIN.code
    assert found.loss == pytest.approx(1.0 - (3.0 / 14.9) / (2.58 / 12.7))


def test_optimism_is_taken_off_the_speedup_and_not_off_the_contest() -> None:
    plain, doubtful = outlook(priced(CHAIN, 2.0)), outlook(priced(CHAIN, 2.0), optimism=0.1)
    for one, other in zip(plain.scenarios, doubtful.scenarios, strict=True):
        assert other.speedup == pytest.approx(0.9 * one.speedup)
        assert other.loss == one.loss


def test_at_break_even_both_are_as_fast() -> None:
    found = outlook(priced(CHAIN, 2.2))
    assert found.break_even is not None
    tokens = 1.0 + (1.0 - found.break_even) * 1.2
    assert tokens / 12.5 == pytest.approx(1.0 / 8.5)


def test_optimism_leaves_less_to_lose() -> None:
    found = outlook(priced(CHAIN, 2.2), optimism=0.1)
    assert found.break_even == pytest.approx(1.0 - (12.5 / 8.5 - 1.0) / (0.9 * 2.2 - 1.0))


def test_a_round_as_cheap_as_a_plain_one_may_lose_all_its_drafts() -> None:
    assert outlook(priced(LookupPolicy(length=3), 1.3, draft=0.0, verify=7.9, by="lookup")).break_even == 1.0


def test_a_plan_slower_than_plain_decoding_has_nothing_to_lose() -> None:
    assert outlook(priced(CHAIN, 1.1)).break_even == 0.0
    assert outlook(priced(CHAIN, 1.0)).break_even == 0.0


def test_plain_decoding_names_who_lacks_least() -> None:
    found = outlook(priced(CHAIN, 1.2), priced(LONGER, 1.4, draft=3.0), chosen=0)
    assert found.needed is not None
    assert found.break_even is None
    assert (found.needed.label, found.needed.drafter) == (LONGER.code, "small")
    assert found.needed.factor == pytest.approx((13.5 / 8.5 - 1.0) / 0.4)


def test_who_would_need_more_than_all_its_drafts_is_passed_over() -> None:
    near = priced(ChainPolicy(length=1), 1.9, verify=20.0)  # needs 2.65 tokens and can yield 2
    found = outlook(near, priced(LONGER, 1.3, draft=3.0), chosen=0)
    assert found.needed is not None and found.needed.label == LONGER.code


def test_where_nothing_can_pay_nobody_is_named() -> None:
    assert outlook(priced(CHAIN, 2.0, verify=90.0), priced(CHAIN, 1.0), chosen=0).needed is None


def test_who_is_as_fast_already_needs_no_more() -> None:
    found = outlook(priced(CHAIN, 1.6), chosen=0)
    assert found.needed is not None and 0.0 < found.needed.factor < 1.0


def test_a_percent_of_drafts_is_worth_a_percent_of_their_share_of_tokens() -> None:
    assert outlook(priced(LONGER, 4.0)).worth_per_percent == pytest.approx(0.0075)
    assert outlook(priced(CHAIN, 2.0), chosen=0).worth_per_percent == 0.0


def perfect(length: int) -> float:
    draft = (1.0 + 0.01 * (length + 1)) + (length - 1) * 1.01
    verify, host = 8.0 + 0.1 * (length + 1), 0.3 + 0.1 * length + 0.01 * (length + 1)
    return 1000.0 * BATCH * (length + 1) / (draft + verify + host)


def test_a_perfect_drafter_has_the_best_chain_of_the_measured_ones() -> None:
    found = outlook(priced(CHAIN, 2.0))
    assert found.perfect_length is not None
    assert found.perfect_tokens_per_s == pytest.approx(max(perfect(length) for length in range(1, 16)))
    assert found.perfect_tokens_per_s == pytest.approx(perfect(found.perfect_length))


def test_a_perfect_lookup_drafts_for_nothing() -> None:
    found = outlook(priced(LookupPolicy(length=3), 1.3, draft=0.0, by="lookup"))
    assert found.perfect_tokens_per_s == pytest.approx(1000.0 * BATCH * 16 / (9.6 + 0.3 + 0.16))


def test_plain_decoding_is_told_of_the_fastest_perfect_drafter() -> None:
    table = costs()
    slow = replace(table.drafts["small"], ms=10.0 * table.drafts["small"].ms)
    both = replace(table, drafts={"medium": slow, "small": table.drafts["small"]})
    found = outlook_of([PLAIN], 0, 0, both)
    assert found.perfect_tokens_per_s == pytest.approx(max(perfect(length) for length in range(1, 16)))


RESUMED = ResumedPolicy(draft=CHAIN)


def exit_costs() -> CellCosts:
    """Return costs where "small" is an exit: from its states n tokens cost 4 + n / 5 ms, and 0.2 of the host."""
    table = costs()
    ms = np.array([[0.0, *(4.0 + 0.2 * tokens for tokens in range(1, 22))]])
    own = Verification(table=replace(table.verify, ms=ms), run_tokens=tuple(range(22)))
    return replace(
        table,
        drafts=table.drafts | {"small": replace(table.drafts["small"], reads_newest=True)},
        host=table.host | {"resumed": HostLine(0.2, 0.0, 0.0)},
        resumed={"small": own},
    )


def perfect_exit(length: int, *, is_resumed: bool) -> float:
    """Return its speed: every forward of it reads one token, however many were committed."""
    draft, tokens = length * 1.01, length + 1
    if is_resumed:
        return 1000.0 * BATCH * tokens / (draft + 4.0 + 0.2 * tokens + 0.2)
    return 1000.0 * BATCH * tokens / (draft + 8.0 + 0.1 * tokens + 0.3 + 0.1 * length + 0.01 * tokens)


@pytest.mark.parametrize(("policy", "longest"), [(CHAIN, 15), (FORK, 15), (RESUMED, 20)])
def test_a_perfect_exit_is_verified_as_the_planned_one_is_and_reads_one_token(policy: TreePolicy, longest: int) -> None:
    found = outlook_of([PLAIN, priced(policy, 2.0)], 1, 0, exit_costs())
    speeds = [perfect_exit(length, is_resumed=policy == RESUMED) for length in range(1, longest + 1)]
    assert found.perfect_tokens_per_s == pytest.approx(max(speeds))
    assert found.perfect_length == 1 + int(np.argmax(speeds))


@pytest.mark.parametrize("layers", [1, 4])
def test_a_perfect_block_drafts_all_its_layers_in_one_forward(layers: int) -> None:
    table = costs()
    block = replace(table, drafts={"small": replace(table.drafts["small"], is_block=True)})
    found = outlook_of([PLAIN, priced(CHAIN, 2.0)], 1, 0, block, {"small": layers})
    tokens = layers + 1
    ms = (1.0 + 0.01 * tokens) + (8.0 + 0.1 * tokens) + (0.3 + 0.1 * layers + 0.01 * tokens)
    assert found.perfect_length == layers
    assert found.perfect_tokens_per_s == pytest.approx(1000.0 * BATCH * tokens / ms)


def test_plain_decoding_is_told_of_a_perfect_exit_verified_either_way() -> None:
    fast = max(perfect_exit(length, is_resumed=True) for length in range(1, 21))
    assert outlook_of([PLAIN], 0, 0, exit_costs()).perfect_tokens_per_s == pytest.approx(fast)
    dear = replace(exit_costs(), host=exit_costs().host | {"resumed": HostLine(90.0, 0.0, 0.0)})
    slow = max(perfect_exit(length, is_resumed=False) for length in range(1, 16))
    assert outlook_of([PLAIN], 0, 0, dear).perfect_tokens_per_s == pytest.approx(slow)


@pytest.mark.parametrize("table", [costs(drafts=()), costs(kinds=("plain",))])
def test_where_no_chain_was_measured_there_is_no_perfect_drafter(table) -> None:
    found = outlook_of([PLAIN], 0, 0, table)
    assert (found.perfect_tokens_per_s, found.perfect_length) == (None, None)


def test_neighbours_are_the_fastest_in_every_direction() -> None:
    policies = [Eagle2Policy(verify_tokens=size, depth=2, top_k=4) for size in (4, 8, 12)]
    policies += [Eagle2Policy(verify_tokens=8, depth=depth, top_k=top_k) for depth, top_k in ((1, 4), (3, 4), (2, 6))]
    found = outlook(*(priced(policy, 3.0 - 0.1 * place) for place, policy in enumerate(policies)), chosen=2)
    assert {(each.step, each.label) for each in found.neighbours} == {
        ("smaller", "EAGLE-2 4/2/4"),
        ("larger", "EAGLE-2 12/2/4"),
        ("shallower", "EAGLE-2 8/1/4"),
        ("deeper", "EAGLE-2 8/3/4"),
        ("wider", "EAGLE-2 8/2/6"),
    }


def test_depth_and_size_of_a_chain_are_told_once() -> None:
    chains = [priced(ChainPolicy(length=length), 2.0 + 0.1 * length) for length in (1, 2, 3)]
    assert [each.step for each in outlook(*chains, chosen=2).neighbours] == ["shallower", "deeper"]


def test_neighbours_of_other_kinds_have_the_same_drafter_and_other_drafters_any_kind() -> None:
    rivals = [priced(FORK, 2.4), priced(FORK, 2.9, by="medium"), priced(CHAIN, 2.8, by="medium")]
    found = outlook(priced(CHAIN, 2.5), *rivals).neighbours
    assert [(each.step, each.label, each.drafter) for each in found] == [
        ("drafter", FORK.code, "medium"),
        ("kind", FORK.code, "small"),
    ]
    assert found[1].tokens_per_s == pytest.approx(1000.0 * BATCH * 2.4 / 12.5)
    assert found[1].round_ms == pytest.approx(12.5)


def test_plain_decoding_is_beside_the_best_of_every_drafter() -> None:
    found = outlook(priced(CHAIN, 1.1), priced(FORK, 1.2), priced(FORK, 1.0, by="medium"), chosen=0).neighbours
    assert [(each.step, each.label, each.drafter) for each in found] == [
        ("drafter", FORK.code, "medium"),
        ("drafter", FORK.code, "small"),
    ]


def test_the_place_of_plain_decoding_must_hold_it() -> None:
    with pytest.raises(PlanError, match="pass the place of plain decoding"):
        outlook_of([PLAIN, priced(CHAIN, 2.0)], 1, 1, costs())
