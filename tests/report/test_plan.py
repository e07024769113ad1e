"""The picture of a plan holds what the plan promises, and what stands beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spectune.planner.plans.objective import LatencyBound
from spectune.planner.plans.plan import PlanCell, PublishedPrice
from spectune.planner.records.tree import ShapeFacts
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.report.figure import Figure, LineSeries, Panel
from spectune.report.picture import html_page, write_picture
from spectune.report.plan import plan_figure

from ..support.drawn_pages import parsed
from ..support.priced_cells import PLAIN, cell_of, plan_with, priced, speed

OWN, EAGLE = priced(ChainPolicy(length=3), 2.5), priced(Eagle2Policy(verify_tokens=8, depth=2, top_k=3), 2.2)
SHAPE = ShapeFacts(verified=(1.0, 1.0, 1.0), reached=(0.8, 0.5, 0.2), taken=(1.0, 0.8, 0.5, 0.2))


def published(name: str, speedup: float | None, batch: int) -> PublishedPrice:
    if speedup is None:
        return PublishedPrice(name=name, drafter=None, tokens_per_s=None, reason="too wide")
    return PublishedPrice(name=name, drafter="small", tokens_per_s=speedup * speed(PLAIN, batch))


def cell(batch: int, context: int, **prices: float | None) -> PlanCell:
    named = [published(name.replace("_", " "), price, batch) for name, price in prices.items()]
    return cell_of([PLAIN, OWN, EAGLE], batch=batch, context=context, published=named, shape=SHAPE)


PLAN = plan_with(
    cell(1, 50, theirs=1.2, same_as_theirs=1.2, slow=0.8, gone=None),
    cell(8, 50, theirs=0.9, same_as_theirs=0.9, slow=0.5, gone=None),
    cell(2, 50, theirs=1.1, same_as_theirs=1.1, slow=None, gone=None),
    cell(1, 900, theirs=1.3, same_as_theirs=1.2, slow=0.7, gone=None),
)


@pytest.fixture(scope="module")
def figure() -> Figure:
    return plan_figure(PLAN)


def line(panel: Panel, label: str) -> LineSeries:
    (found,) = (each for each in panel.lines if each.label == label)
    return found


def test_there_is_a_panel_per_context_with_one_pair_of_axes(figure: Figure) -> None:
    first, second = figure.panels[:2]
    assert (first.title, second.title) == ("context 50", "context 900")
    assert (first.x, first.y) == (second.x, second.y)
    assert first.x.ticks == (1, 2, 8)


def test_the_plan_stands_at_its_speedup_with_its_interval(figure: Figure) -> None:
    own = line(figure.panels[0], "the plan")
    promise = PLAN.cells[0].prediction
    assert [mark.x for mark in own.marks] == [1, 2, 8]
    assert (own.marks[0].y, own.marks[0].low, own.marks[0].high) == (
        promise.speedup_over_plain,
        promise.speedup_low,
        promise.speedup_high,
    )
    assert own.strokes[0][-1] == (8, PLAN.cells[1].prediction.speedup_over_plain)


def test_the_plan_lies_on_top_and_is_the_boldest(figure: Figure) -> None:
    lines = figure.panels[0].lines
    assert lines[-1].label == "the plan"
    assert lines[-1].weight == max(each.weight for each in lines)


def test_plain_decoding_is_a_dashed_line_at_one(figure: Figure) -> None:
    plain = line(figure.panels[0], "plain decoding")
    assert plain.is_dashed
    assert plain.strokes == (((1, 1.0), (8, 1.0)),)


def test_the_runner_up_is_named_under_its_marks(figure: Figure) -> None:
    mark = line(figure.panels[0], "runner-up").marks[0]
    assert mark.y == pytest.approx(2.2 / 12.5 * 8.5)
    assert "runner-up: tree of 8 nodes by small (EAGLE-2)" in mark.text
    assert "0.88 of the plan's speed" in mark.text


def test_published_defaults_that_are_one_policy_share_a_line(figure: Figure) -> None:
    assert [each.label for each in figure.panels[0].lines[:2]] == ["slow", "theirs, +1 alike"]
    assert {each.label for each in figure.panels[1].lines[:3]} == {"slow", "theirs", "same as theirs"}


def test_a_line_breaks_where_a_default_has_no_price(figure: Figure) -> None:
    slow = line(figure.panels[0], "slow")
    assert [[point[0] for point in stroke] for stroke in slow.strokes] == [[1], [8]]
    assert [mark.y for mark in slow.marks] == pytest.approx([0.8, 0.5])


def test_a_default_without_any_price_is_named_in_the_facts(figure: Figure) -> None:
    assert any(fact == "published defaults without a price somewhere: gone, slow" for fact in figure.facts)


def test_the_trees_stand_below_and_every_policy_once(figure: Figure) -> None:
    assert [panel.title for panel in figure.panels[2:]] == ["chain of 3 by small"]
    assert figure.panels[2].starts_row
    assert "batch 1, context 50 and 3 more" in figure.panels[2].y.title


def test_one_panel_of_speeds_shares_its_row_with_a_tree() -> None:
    assert not any(panel.starts_row for panel in plan_figure(plan_with(cell(1, 50), cell(4, 50))).panels)


def test_a_plan_of_one_cell_is_drawn() -> None:
    found = plan_figure(plan_with(cell(4, 50, theirs=1.1)))
    assert len(found.panels[0].marks) == 3


def test_the_table_has_a_row_per_speed_and_per_depth(figure: Figure) -> None:
    speeds = sum(1 for each in PLAN.cells for price in each.published if price.tokens_per_s) + 2 * len(PLAN.cells)
    assert len(figure.grid.rows) == speeds + 3
    assert figure.grid.rows[0][:5] == ("1", "50", "the plan", "chain of 3 by small", "small")
    assert figure.grid.rows[-1][-2:] == ("1.00", "20.0%")


def test_the_facts_say_what_was_asked_for_and_who_breaks_it() -> None:
    cells = (replace(PLAN.cells[0], keeps_bound=False), *PLAN.cells[1:])
    facts = plan_figure(replace(PLAN, cells=cells, bound=LatencyBound(metric="itl", most_ms=9.0))).facts
    assert facts[:2] == (
        "large on Abacus (cpu, 2 cores, 2 threads), float32, made up, greedy",
        "the fastest that keeps itl<=9ms; 1 cells have none",
    )


def test_a_plan_without_published_defaults_has_no_legend_for_them() -> None:
    found = plan_figure(plan_with(cell(1, 50), cell(2, 50)))
    assert [symbol for symbol, _ in found.legend] == ["predicted"]


def test_the_page_is_whole_and_lists_every_mark(figure: Figure) -> None:
    page = parsed(html_page(figure))
    assert page.is_whole
    assert len(page.all("g", "mark")) == sum(len(panel.marks) for panel in figure.panels)


def test_long_labels_get_the_room_they_need() -> None:
    name = "a_default_with_a_name_that_is_rather_long"
    narrow, wide = (parsed(html_page(plan_figure(plan_with(cell(1, 50, **{key: 1.1}))))) for key in ("short", name))
    charts = [next(each for each in page.all("svg") if "data-frame" in each.attributes) for page in (narrow, wide)]
    widths = [float(chart.attributes["viewbox"].split()[2]) for chart in charts]
    assert widths[1] - widths[0] > 150.0


def test_it_is_drawn_as_png_too(figure: Figure, tmp_path: Path) -> None:
    write_picture(tmp_path / "plan.png", figure)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
