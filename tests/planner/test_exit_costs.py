"""What the rounds of a target's own exit cost: first it reads one token, however many were committed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spectune.planner.lockstep import Replay
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import CellCosts, cell_costs
from spectune.profiler.records.role import require_role

from ..support.synthetic import Language, SkilledDrafter, every_node, inputs, record, texts
from .pricing.test_cost import DRAFT_MS, VERIFY_MS, one_round, overhead, surface


def costs(role: str) -> CellCosts:
    return cell_costs(
        Cell(batch=2, context=150), surface("verify", VERIFY_MS), {"it": surface(role, DRAFT_MS)}, overhead()
    )


def drafted_ms(role: str, replay: Replay) -> float:
    return float(costs(role).times(replay, "chain", "it").draft_ms[0])


def test_an_exit_reads_the_newest_token_alone_and_pays_for_every_layer() -> None:
    """At context 125 a forward of n tokens costs 1.25 n; three tokens were committed."""
    assert drafted_ms("self", one_round(125, widths=(1, 2, 2))) == 1.25 * (1 + 2 + 2)
    assert drafted_ms("draft", one_round(125, widths=(1, 2, 2))) == 1.25 * (3 + 2 + 2)
    assert drafted_ms("self", one_round(125, widths=(0, 0, 0))) == 0.0


def test_an_exit_far_behind_still_has_a_price() -> None:
    """After rounds that the text drafted, more may be committed than any measured forward of a drafter reads."""
    behind = one_round(100, catch_up=99, widths=(1, 2))
    assert drafted_ms("self", behind) == 1.0 + 2.0
    three_at_once, sequences = 3.0, 2
    assert drafted_ms("draft", behind) == sequences * (98 // 3 * three_at_once + 2.0) + 1.0 + 2.0


def test_what_the_target_has_read_is_never_counted_twice() -> None:
    table = costs("self").drafts["it"]
    assert table.caught_up(np.array([0, 1, 7])).tolist() == [0, 1, 1]
    assert costs("head").drafts["it"].caught_up(np.array([0, 1, 7])).tolist() == [0, 1, 7]


def test_an_exit_is_in_no_stack() -> None:
    language = Language(7)
    drafter, pairs = SkilledDrafter(language, 0.6), texts(language, 5, lambda text: 12 + text)
    model = inputs(record(drafter, pairs, every_node(3, 3))).drafters[0]
    own = replace(model, surface=replace(model.surface, role="self"))
    assert own.reads_features and not model.reads_features
    require_role("self")
