"""Lossy ways in plans: only where they are allowed and measured, labelled, and never run by who does not know them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spectune.errors import PlanError, RequestError
from spectune.planner.kernels.slots import NOBODY
from spectune.planner.lossy.run import LossyRun, read_runs, write_runs
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.plans.plan import LOSSY_VERSION, VERSION, Plan
from spectune.planner.pricing.cells import cells_of
from spectune.planner.pricing.cost import CellCosts
from spectune.planner.reasons.explain import explain_plan
from spectune.planner.records.fly_rule import FlyRule, expected_accepted
from spectune.planner.replay.shortened import shortened
from spectune.planner.search.lossy_search import expected_tokens, forecasts, with_lossy_runs
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import solve
from spectune.planner.strategies import policy_from_json, policy_to_json
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.fly import FlyPolicy
from spectune.tuning.request import PlanRequest

from ..support.lossy_runs import LENGTH, QUALITY, WAY, made_inputs, made_run, of_loss
from ..support.priced_cells import costs as priced_costs
from ..support.synthetic import DEVICE, TARGET


def planned(runs: Sequence[LossyRun] = (), batches: Sequence[int] = (1,), **options: object) -> Plan:
    """Solve a plan; lossy where there are runs."""
    measured = with_lossy_runs(made_inputs(), runs) if runs else made_inputs()
    wanted = SearchOptions(trials=0, allow_lossy=bool(runs), **options)  # type: ignore[arg-type]
    cells = cells_of(batches, [20])
    return solve(measured, cells, created="2026-01-01T00:00:00Z", spectune="0.1", options=wanted)


@pytest.fixture(scope="module")
def lossy() -> Plan:
    return planned([made_run()])


@pytest.fixture(scope="module")
def lossless() -> Plan:
    return planned()


def test_a_fast_lossy_way_is_chosen_where_it_is_allowed(lossy: Plan) -> None:
    (cell,) = lossy.cells
    assert cell.policy == WAY and cell.quality == QUALITY
    assert lossy.is_lossy and lossy.version == LOSSY_VERSION


def test_its_price_is_that_of_the_rounds_it_ran(lossy: Plan) -> None:
    """Five tokens a round: four draft forwards of 1 ms, a verify of 5 tokens and 0.1 ms of the host."""
    promise = lossy.cells[0].prediction
    round_ms = 4 * 1.0 + (10.0 + 0.1 * 5) + 0.1
    assert promise.round_ms == pytest.approx(round_ms)
    assert promise.tokens_per_s == pytest.approx(1000 * 5 / round_ms * (1 - promise.errors.optimism))


def test_a_slow_one_is_not() -> None:
    assert not planned([made_run(kept=1)]).is_lossy


def test_nothing_lossy_competes_unless_allowed(lossless: Plan) -> None:
    measured = with_lossy_runs(made_inputs(), [made_run()])
    made = solve(measured, cells_of([1], [20]), created="", spectune="", options=SearchOptions(trials=0))
    assert [cell.policy for cell in made.cells] == [cell.policy for cell in lossless.cells]
    assert made.version == VERSION and not any(cell.names_lossy for cell in made.cells)


def test_runs_count_at_their_own_batch_alone() -> None:
    made = planned([made_run()], batches=[1, 3])
    assert [cell.is_lossy for cell in made.cells] == [True, False]


# --- the limit on the loss


@pytest.mark.parametrize(("most", "is_taken"), [(0.06, True), (0.05, True), (0.04, False), (0.0, False)])
def test_the_limit_is_on_the_upper_end_of_the_loss(most: float, is_taken: bool) -> None:
    made = planned([of_loss(0.05)], max_quality_loss=most)
    assert made.is_lossy == is_taken
    if not is_taken:
        assert any("0.05" in gone.reason and "is allowed" in gone.reason for gone in made.provenance.censored)


def test_of_two_ways_the_limit_takes_the_slower_and_better() -> None:
    slower = replace(WAY, rule=FlyRule(threshold=0.9, window=2))
    runs = [of_loss(0.2), replace(of_loss(0.01, policy=slower), kept=np.full((60, 1), LENGTH, dtype=np.int32))]
    assert planned(runs).cells[0].policy == WAY
    assert planned(runs, max_quality_loss=0.02).cells[0].policy == slower


def test_a_limit_without_permission_is_refused() -> None:
    with pytest.raises(PlanError, match="nothing lossy is allowed"):
        SearchOptions(max_quality_loss=0.1)


def test_a_lossy_cell_needs_its_quality(lossy: Plan) -> None:
    with pytest.raises(PlanError, match="measured quality belongs"):
        replace(lossy.cells[0], quality=None)


def test_a_lossless_cell_has_none(lossless: Plan) -> None:
    with pytest.raises(PlanError, match="measured quality belongs"):
        replace(lossless.cells[0], quality=QUALITY)


# --- inputs that do not belong together


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"target": "another"}, "target is 'another'"),
        ({"dtype": "bfloat16"}, "dtype is 'bfloat16'"),
        ({"workload": "chat"}, "workload is 'chat'"),
        ({"temperature": 0.5}, "temperature is 0.5"),
        ({"drafters": (("small", "other weights"),)}, "other weights.*not profiled"),
        ({"prompts": ((1, 2),) * 6}, "other prompts than the traces"),
        ({"max_new_tokens": 19}, "at most 19 tokens, and 20 are planned for.*--max-new-tokens 20"),
    ],
)
def test_a_run_of_another_setup_is_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        with_lossy_runs(made_inputs(), [replace(made_run(), **change)])  # type: ignore[arg-type]


def test_a_run_of_shorter_answers_is_enough_for_a_plan_of_answers_as_short() -> None:
    run = replace(made_run(), max_new_tokens=8)
    assert with_lossy_runs(made_inputs(), [run], new_tokens=8).lossy == (run,)


@pytest.mark.parametrize(("new_tokens", "kept"), [(8, [5, 2]), (None, [5, 5, 5, 4])])
def test_a_longer_run_is_cut_to_the_answers_that_it_is_compared_with(new_tokens: int | None, kept: list[int]) -> None:
    """A round of five tokens: of 20 tokens, the first of which comes with the prompt, the fourth round keeps four."""
    measured = with_lossy_runs(made_inputs(), [replace(made_run(), max_new_tokens=128)], new_tokens)
    (run,) = shortened(measured, new_tokens).lossy
    for text in range(len(run.prompts)):
        assert run.kept[run.texts == text].tolist() == kept


def test_a_slot_whose_text_is_cut_keeps_the_others_company() -> None:
    slow = np.array([[0, 1]] * 4, dtype=np.int32)
    run = replace(made_run(batch=2, rounds=4), max_new_tokens=128, texts=slow, kept=np.array([[5, 2]] * 4, np.int32))
    cut = run.shortened(8)
    assert cut.texts.tolist() == [[0, 1], [0, 1], [NOBODY, 1], [NOBODY, 1]]
    assert cut.kept.tolist() == [[5, 2], [2, 2], [5, 2], [5, 1]]


def test_permission_without_runs_says_how_to_make_some() -> None:
    with pytest.raises(PlanError, match="make some with: spectune lossy"):
        with_lossy_runs(made_inputs(), [])


def test_runs_without_permission_are_refused() -> None:
    with pytest.raises(RequestError, match="pass --allow-lossy too"):
        PlanRequest(target=TARGET, device=DEVICE, lossy=(made_run(),))


# --- documents


def test_a_lossy_plan_says_so_first_and_comes_back(lossy: Plan) -> None:
    document = json.loads(plan_to_json(lossy))
    assert list(document)[:2] == ["version", "lossy"]
    assert (document["version"], document["lossy"], document["cells"][0]["lossy"]) == (LOSSY_VERSION, True, True)
    assert document["cells"][0]["policy"]["rule"]["threshold"] == WAY.rule.threshold
    assert document["cells"][0]["quality"]["high"] == QUALITY.high
    assert plan_from_json(plan_to_json(lossy)) == lossy


def test_a_lossless_plan_is_written_as_before(lossless: Plan) -> None:
    """What reads plans and knows nothing lossy finds no field it would refuse."""
    document = json.loads(plan_to_json(lossless))
    assert document["version"] == VERSION
    assert "lossy" not in document and not {"lossy", "quality"} & set(document["cells"][0])


@pytest.mark.parametrize("at", ["plan", "cell"])
def test_a_label_that_was_taken_off_is_noticed(lossy: Plan, at: str) -> None:
    document = json.loads(plan_to_json(lossy))
    del (document if at == "plan" else document["cells"][0])["lossy"]
    with pytest.raises(PlanError, match="again"):
        plan_from_json(json.dumps(document))


def test_a_lossy_plan_under_the_lossless_version_is_refused(lossy: Plan) -> None:
    document = json.loads(plan_to_json(lossy)) | {"version": VERSION}
    with pytest.raises(PlanError, match="what it holds is of 3"):
        plan_from_json(json.dumps(document))


def test_an_older_reader_refuses_it_by_its_version_before_it_reads_on(lossy: Plan) -> None:
    """What readers of version 2 do: compare the number, and else refuse."""
    assert json.loads(plan_to_json(lossy))["version"] not in (1, 2)


def test_labels_say_lossy(lossy: Plan) -> None:
    assert lossy.cells[0].policy.code.startswith("LOSSY chain of 4 by FLy, gate 0.2 nats of the best 3, window 2")
    assert any("LOSSY" in line for line in explain_plan(lossy))
    assert policy_from_json(policy_to_json(WAY)) == WAY


def test_runs_come_back_from_their_file(tmp_path: Path) -> None:
    write_runs(tmp_path / "lossy.json", [made_run()])
    (found,) = read_runs(tmp_path / "lossy.json")
    assert (found.policy, found.quality, found.prompts) == (WAY, QUALITY, made_run().prompts)
    assert found.kept.tolist() == made_run().kept.tolist()
    with pytest.raises(PlanError, match=r"none\.json.*spectune lossy -o FILE"):
        read_runs(tmp_path / "none.json")


# --- forecasts


def test_the_forecast_is_the_recurrence_of_what_was_counted() -> None:
    expected = 1 + expected_accepted(8, 0.8, 0.75, FlyRule(window=2))  # 80 of 100 matched, 3 of 4 gates were open
    assert expected_tokens(made_run(), 8, WAY.rule) == pytest.approx(expected)


def forecast_ms(costs: CellCosts, layers: int | None = None) -> dict[int, tuple[int, float]]:
    """Return, by length, what a round of the last forecast chain is taken to keep and to last."""
    return {
        one.policy.draft.draft_forwards: (
            round(one.tokens_per_round),
            1000.0 * costs.cell.batch * one.tokens_per_round / one.tokens_per_s,
        )
        for one in forecasts(made_run(), costs, layers)
    }


def test_a_block_drafter_is_foretold_as_it_drafts_one_forward_for_as_many_tokens_as_it_has_layers() -> None:
    table = priced_costs()
    block = replace(table, drafts={"small": replace(table.drafts["small"], is_block=True)})
    ((length, (kept, ms)),) = forecast_ms(block, layers=4).items()
    assert length == 4
    assert ms == pytest.approx((1.0 + 0.01 * kept) + (8.0 + 0.1 * 5) + (0.3 + 0.1 * 4 + 0.01 * 5))


def test_an_exit_is_foretold_to_read_one_token() -> None:
    table = priced_costs()
    own = replace(table, drafts={"small": replace(table.drafts["small"], reads_newest=True)})
    found = forecast_ms(own)
    assert max(found) == 15
    for length, (_, ms) in found.items():
        tokens = length + 1
        assert ms == pytest.approx(length * 1.01 + (8.0 + 0.1 * tokens) + (0.3 + 0.1 * length + 0.01 * tokens))


def test_notes_tell_the_recurrence_beside_the_run_and_what_was_not_run(lossy: Plan) -> None:
    notes = [note for note in lossy.provenance.notes if "LOSSY" in note]
    assert "kept 5.00 tokens per round, the recurrence says" in notes[0] and "loss 0.02" in notes[0]
    assert "not run, so not chosen" in notes[1]


def test_a_run_without_rounds_is_refused() -> None:
    with pytest.raises(PlanError, match="needs rounds"):
        replace(made_run(), contexts=np.zeros(0, dtype=np.int32))


def test_an_alternative_may_be_lossy_and_marks_the_plan() -> None:
    made = planned([made_run(kept=3)])
    names = [other.policy for other in made.cells[0].alternatives]
    assert made.cells[0].is_lossy or WAY in names
    assert made.version == LOSSY_VERSION
    assert plan_from_json(plan_to_json(made)) == made


def test_a_chain_is_no_lossy_policy() -> None:
    assert not isinstance(ChainPolicy(length=4), FlyPolicy)
