"""The picture of a trace holds its shares, deeper and down the ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.report.figure import Figure, LineSeries
from spectune.report.picture import html_page
from spectune.report.trace import count_hits, trace_figure

from ..support.drawn_pages import parsed
from ..support.synthetic import Language, SkilledDrafter, every_node, record, texts

LANGUAGE = Language(seed=2)
TRACE = record(
    SkilledDrafter(LANGUAGE, 0.8), texts(LANGUAGE, 6, lambda place: 15), every_node(2, 3), children=3, name="small"
)


@pytest.fixture(scope="module")
def figure() -> Figure:
    return trace_figure(TRACE, target="large")


def heights(line: LineSeries) -> list[float]:
    return [mark.y for mark in line.marks if mark.y is not None]


def test_there_is_a_line_for_each_doubling_of_the_choices(figure: Figure) -> None:
    assert [line.label for line in figure.panels[0].lines] == ["1", "2", "3"]


def test_more_choices_never_hold_the_token_less_often(figure: Figure) -> None:
    first, two, all_three = (heights(line) for line in figure.panels[0].lines)
    assert all(a <= b <= c for a, b, c in zip(first, two, all_three, strict=True))


def test_the_first_choice_by_depth_is_counted_where_the_tree_holds_the_text(figure: Figure) -> None:
    found = count_hits(TRACE)
    shares = 100.0 * found.hits[:, :, 0].sum(axis=0) / found.positions.sum(axis=0)
    assert heights(figure.panels[0].lines[0]) == pytest.approx(shares[:3].tolist())


def test_shares_by_rank_are_those_of_the_trace(figure: Figure) -> None:
    (line,) = figure.panels[1].lines
    assert heights(line) == pytest.approx([100.0 * share for share in TRACE.rank_acceptance()])
    assert [mark.x for mark in line.marks] == [1, 2, 3]


def test_every_share_lies_in_its_interval(figure: Figure) -> None:
    marks = [mark for panel in figure.panels for mark in panel.marks]
    assert all(mark.low is not None and mark.y is not None and mark.low <= mark.y for mark in marks)
    assert all(mark.high is not None and mark.y is not None and mark.y <= mark.high for mark in marks)


def test_the_facts_say_what_was_recorded(figure: Figure) -> None:
    assert figure.facts == ("workload made up, greedy", "6 prompts, 84 positions, 3 choices recorded per node")


def test_depths_that_few_positions_reach_are_left_out_and_it_is_said() -> None:
    short = replace(TRACE, prompts=TRACE.prompts[:1])  # 14 positions, and fewer below
    found = trace_figure(short, target="large")
    assert len(found.panels[0].lines[0].marks) == 1
    assert "are left out: too few positions or prompts reach them" in found.facts[-1]


def test_the_table_has_a_row_per_mark(figure: Figure) -> None:
    assert len(figure.grid.rows) == sum(len(panel.marks) for panel in figure.panels)


def test_the_page_is_whole(figure: Figure) -> None:
    page = parsed(html_page(figure))
    assert page.is_whole
    assert len(page.all("g", "mark")) == len(figure.grid.rows)
