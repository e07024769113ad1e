"""Whether promises were kept: what validations and decoders measured, beside the interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.planner.plans.observation import Observation
from spectune.report.site.cell import heat_table
from spectune.report.site.contents import Contents
from spectune.report.site.drift import standings
from spectune.report.site.kept import DRIFTED, KeptCell, Verdict, kept_cells
from spectune.report.site.links import SiteLinks
from spectune.service.plans import drift_of

from ...support.site_store import (
    PLACES,
    filled_store,
    nasty_plan,
    observation,
    stalled_validation,
    undated_observation,
    validation,
)

PLAN = nasty_plan(2.5)


def seen(factor: float, times: int, hour: int = 0) -> Observation:
    """Return an observation whose second cell ran at a multiple of its promise, in so many blocks."""
    made = observation(1, PLAN, hour)
    rate = factor * PLAN.cells[1].prediction.tokens_per_s
    first = replace(made.cells[0], block_tokens_per_s=(rate,) * times)
    return replace(made, cells=(first, *made.cells[1:]))


def second(*observations: Observation) -> KeptCell:
    return kept_cells(PLAN, [], observations)[1]


@pytest.mark.parametrize(
    ("factor", "times", "verdict"),
    [
        (1.0, 100, "kept"),
        (0.95, 100, "kept"),
        (0.8, 1, "below"),  # one block outside may be chance
        (1.3, 1, "above"),
        (0.8, 100, "slower"),
        (1.3, 100, "faster"),
    ],
)
def test_a_cell_has_drifted_once_chance_cannot_explain_it(factor: float, times: int, verdict: Verdict) -> None:
    assert second(seen(factor, times)).verdict == verdict


def test_evidence_adds_up_over_observations() -> None:
    assert second(seen(0.8, 3)).verdict == "below"
    assert second(*(seen(0.8, 3, hour) for hour in range(20))).verdict == "slower"


def test_what_was_never_measured_is_unseen() -> None:
    cells = kept_cells(PLAN, [], [])
    assert {cell.verdict for cell in cells} == {"unseen"}
    assert {cell.measured_speedup for cell in cells} == {None}


def test_a_validation_tells_where_decoders_have_not() -> None:
    cell = kept_cells(PLAN, [validation(1, PLAN)], [])[0]
    promise = cell.cell.prediction
    assert cell.verdict == "kept"
    assert cell.measured_speed == promise.tokens_per_s
    assert cell.measured_speedup == pytest.approx(promise.speedup_over_plain)


def test_tokens_of_a_round_are_those_that_decoders_saw_else_what_validations_counted() -> None:
    saw = seen(1.0, 2)
    first = replace(saw.cells[0], tokens=30, kept=(0, 2, 5, 6))  # 13 sequences in rounds
    assert second(replace(saw, cells=(first, *saw.cells[1:]))).tokens_per_round == pytest.approx(30 / 13)
    row = validation(1, PLAN).rows[0]
    counted = [replace(validation(1, PLAN), rows=(replace(row, tokens_per_round=kept),)) for kept in (2.0, 2.5, 4.0)]
    assert kept_cells(PLAN, [validation(1, PLAN), *counted], [])[0].tokens_per_round == 2.5
    assert kept_cells(PLAN, [validation(1, PLAN)], [])[0].tokens_per_round is None


def test_the_observed_speed_up_is_over_plain_blocks_and_not_over_plain_rounds_of_other_batches_near_it() -> None:
    made = seen(1.2, 5)
    crowd = replace(made.cells[1], tokens=1, round_ms=1e9)  # sums over all rounds of the cell; its blocks are its own
    cell = second(replace(made, cells=(made.cells[0], crowd)))
    assert cell.measured_speedup == pytest.approx(1.2 * cell.cell.prediction.speedup_over_plain)


def test_blocks_without_plain_blocks_tell_no_speed_up_and_borrow_none_from_another_day() -> None:
    made = seen(1.2, 5)
    older = replace(made.cells[1], block_tokens_per_s=())  # as decoders of older versions report
    report = replace(made, cells=(made.cells[0], older))
    rows = validation(1, replace(PLAN, cells=PLAN.cells[1:]))
    cell = kept_cells(PLAN, [rows], [report])[1]
    assert cell.validated and cell.measured_speed is not None and cell.measured_speedup is None


def test_blocks_count_in_the_order_of_time() -> None:
    cell = second(seen(1.0, 2), seen(0.5, 1, 5))
    promised = cell.cell.prediction.tokens_per_s
    assert cell.blocks == pytest.approx((promised, promised, 0.5 * promised))


def test_of_a_setup_the_plan_that_counts_stands() -> None:
    with filled_store() as store:
        (standing,) = standings(Contents(store), 10)
    assert standing.row is not None
    assert (standing.row.id, standing.row.state) == (1, "promoted")
    assert len(standing.cells) == len(PLACES)
    assert [kept.cell.batch for kept in standing.drifted] == [8]


def test_damaged_observations_hide_no_others() -> None:
    with filled_store() as store:
        for text in ("{}", undated_observation(1, PLAN)):
            store.add_observation(1, text)
        observed = Contents(store).observations(1)
    assert (len(observed.readable), observed.damaged) == (12, 2)


def test_damaged_validations_hide_no_others() -> None:
    with filled_store() as store:
        for text in ("{}", stalled_validation(1, PLAN)):
            store.add_validation(1, text)
        validated = Contents(store).validations(1)
    assert (len(validated.readable), validated.damaged) == (1, 2)


ELSEWHERE = [{"device": "another board"}, {"dtype": "bfloat16"}]


@pytest.mark.parametrize("change", ELSEWHERE)
def test_what_was_seen_where_a_plan_promises_nothing_is_not_held_against_it(change: dict[str, str]) -> None:
    own = seen(1.0, 100)
    elsewhere = [replace(seen(0.5, 100, hour), **change) for hour in range(1, 5)]  # type: ignore[arg-type]
    cell = second(own, *elsewhere)
    assert (cell.verdict, len(cell.seen)) == ("kept", 1)
    assert cell.measured_speed == pytest.approx(cell.cell.prediction.tokens_per_s)
    assert cell.measured_speedup == second(own).measured_speedup is not None


def test_rounds_of_a_cell_that_ran_another_way_are_not_held_against_it() -> None:
    made = seen(0.5, 100)
    assert made.cells[0].policy != "chain of 1"
    other = replace(made, cells=(replace(made.cells[0], policy="chain of 1"), *made.cells[1:]))
    assert second(other).verdict == "unseen"


@pytest.mark.parametrize("change", [{}, *ELSEWHERE])
def test_pages_and_the_service_tell_drift_of_the_same_cells(change: dict[str, str]) -> None:
    reports = [replace(seen(0.5, 100, hour), **change) for hour in range(3)]  # type: ignore[arg-type]
    on_pages = [kept.verdict in DRIFTED for kept in kept_cells(PLAN, [], reports)]
    assert on_pages == [cell.found is not None for cell in drift_of(1, PLAN, reports).cells]
    assert any(on_pages) == (not change)


def test_the_table_of_what_to_run_shows_drift_where_no_speed_up_was_measured() -> None:
    made = seen(0.5, 100)
    cells = kept_cells(PLAN, [], [replace(made, cells=made.cells[:1])])  # no plain blocks beside the planned ones
    assert cells[1].measured_speedup is None
    assert "drifted, slower" in heat_table(cells, SiteLinks(), "plans/1")


def test_the_service_judges_reports_in_the_order_of_time_whenever_they_came() -> None:
    late, early = seen(1.0, 200, hour=1), seen(0.5, 18, hour=0)
    assert (second(early, late).verdict, second(late, early).verdict) == ("slower", "kept")
    assert drift_of(1, PLAN, [late, early]).cells[1].found == "slower"


def test_blocks_of_a_rival_are_neither_the_plan_s_nor_plain_decoding_s() -> None:
    made = seen(1.2, 5)
    rival = replace(made.cells[1], policy="chain of 1", drafter="another", block_tokens_per_s=(1e9,) * 50)
    assert second(replace(made, cells=(*made.cells, rival))).measured_speedup == second(made).measured_speedup
