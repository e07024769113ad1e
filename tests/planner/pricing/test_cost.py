"""The cost of a round, by hand on a surface small enough to add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spectune.errors import MeasurementError, PlanError
from spectune.planner.lockstep import Replay
from spectune.planner.pricing.cells import Cell, cells_of
from spectune.planner.pricing.cost import CellCosts, cell_costs
from spectune.planner.pricing.fed import captured_size
from spectune.planner.pricing.table import cost_table
from spectune.planner.records.room import READ_TOGETHER
from spectune.planner.search.candidate import times_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.profiler.records.host_line import HostLine
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.overhead import OverheadSample, RoundOverhead
from spectune.profiler.records.role import CAPTURED
from spectune.profiler.records.surface import LatencySurface

from ...support.synthetic import DEVICE, TARGET

VERIFY_MS = {(100, 1): 10.0, (100, 2): 12.0, (100, 4): 11.0, (200, 1): 20.0, (200, 2): 24.0, (200, 4): 22.0}
DRAFT_MS = {(context, tokens): context / 100.0 * tokens for context in (100, 200) for tokens in (1, 2, 3)}


def surface(role: str, ms: dict[tuple[int, int], float], batch: int = 2) -> LatencySurface:
    cells = [
        Measurement(batch=batch, context_tokens=context, tokens=tokens, repeats_ms=(cost,) * 2)
        for (context, tokens), cost in ms.items()
    ]
    return LatencySurface(
        device=DEVICE.fingerprint,
        model=TARGET.key,
        role=role,
        regime="eager",
        dtype="float32",
        measurements=tuple(cells),
    )


def overhead() -> RoundOverhead:
    chains = [(1, 2), (2, 3), (2, 6)]
    samples = [
        OverheadSample(kind="chain", batch=2, draft_forwards=f, nodes=nodes, host_ms=(0.5 + 0.25 * f + 0.125 * nodes,))
        for f, nodes in chains
    ]
    samples.append(OverheadSample(kind="plain", batch=2, draft_forwards=0, nodes=1, host_ms=(0.5 + 0.125,)))
    return RoundOverhead(device=DEVICE.fingerprint, target=TARGET.key, dtype="float32", samples=tuple(samples))


def costs(cell: Cell) -> CellCosts:
    return cell_costs(cell, surface("verify", VERIFY_MS), {"small": surface("draft", DRAFT_MS)}, overhead())


def one_round(context: int, nodes: int = 2, catch_up: int = 3, widths: tuple[int, ...] = (1, 2)) -> Replay:
    return Replay(
        contexts=np.array([context]),
        nodes=np.array([nodes]),
        catch_up=np.array([catch_up]),
        widths=np.array([widths], dtype=np.int64),
        texts=np.array([[0, 1]]),
        kept=np.array([[1, 2]]),
        censored=0,
    )


def stalling(calm: LatencySurface) -> LatencySurface:
    """Return a surface two in ten of whose repeats took three times as long."""
    cells = [replace(cell, repeats_ms=(cell.median_ms,) * 8 + (cell.median_ms * 3,) * 2) for cell in calm.measurements]
    return replace(calm, measurements=tuple(cells))


def test_forwards_cost_their_mean_which_all_calls_of_a_session_tell_together() -> None:
    calm, fed = surface("verify", VERIFY_MS), [0, 1, 2, 4]
    found, medians = (cost_table(each, 2, 100, fed).ms for each in (stalling(calm), calm))
    assert found == pytest.approx(1.4 * medians)


def test_a_drafter_that_was_timed_too_seldom_stalls_as_often_as_its_target() -> None:
    calm, drafts = surface("verify", VERIFY_MS), {"small": surface("draft", DRAFT_MS)}
    found, usual = (
        cell_costs(Cell(batch=2, context=150), verify, drafts, overhead()).drafts["small"].ms
        for verify in (stalling(calm), calm)
    )
    assert found == pytest.approx(1.4 * usual)


def test_a_hybrid_s_rounds_are_priced_by_what_its_model_drafts_where_that_was_timed() -> None:
    eagle2 = Eagle2Policy(verify_tokens=6, depth=1, top_k=3)
    hybrid = HybridPolicy(text=SuffixPolicy(), model=eagle2)
    of_chains = HybridPolicy(text=SuffixPolicy(), model=ChainPolicy(length=2))
    of_chain, of_hybrid, of_eagle2 = HostLine(0.5, 0.2, 0.0), HostLine(0.6, 0.3, 0.0), HostLine(0.6, 0.7, 0.0)
    host = {"chain": of_chain, "hybrid": of_hybrid, "hybrid of eagle2": of_eagle2}
    known = replace(costs(Cell(batch=2, context=150)), host=host)
    assert [known.kind_of(each) for each in (hybrid, of_chains)] == ["hybrid of eagle2", "hybrid"]
    assert replace(known, host={"hybrid": of_hybrid}).kind_of(hybrid) == "hybrid"  # older profiles
    over_trees = replace(hybrid, text=SuffixTreePolicy())
    assert known.kind_of(over_trees) == "hybrid of eagle2"  # older profiles
    asked = replace(known, host={**host, "hybrid of eagle2 over suffix trees": of_eagle2})
    assert asked.kind_of(over_trees) == "hybrid of eagle2 over suffix trees"
    replayed = one_round(150)
    dearer, cheaper = (float(times_of(each, "small", replayed, known).host_ms[0]) for each in (hybrid, of_chains))
    assert dearer == pytest.approx(cheaper + 2 * 0.4)


def test_rounds_with_a_head_are_priced_by_those_that_were_timed_with_one() -> None:
    known = overhead()
    heads = [replace(s, role="head", host_ms=(10.0 + s.host_ms[0],)) for s in known.samples]
    both = replace(known, samples=(*known.samples, *heads))
    drafts = {"small": surface("draft", DRAFT_MS), "head": surface("head", DRAFT_MS), "exit": surface("self", DRAFT_MS)}
    cell, verify = Cell(batch=2, context=150), surface("verify", VERIFY_MS)
    found = cell_costs(cell, verify, drafts, both)
    host_ms = {name: float(found.times(one_round(125), "chain", name).host_ms[0]) for name in drafts}
    assert host_ms["head"] == pytest.approx(10.0 + host_ms["small"])
    assert host_ms["exit"] == pytest.approx(host_ms["small"])  # no rounds with an exit were timed
    alone = cell_costs(cell, verify, {"head": drafts["head"]}, replace(both, samples=tuple(heads)))
    assert alone.times(one_round(125), "chain", "head").host_ms == pytest.approx(host_ms["head"])
    assert both.residuals(2) == pytest.approx([0.0] * len(both.samples), abs=1e-9)


def test_what_drafts_eagerly_beside_a_captured_target_is_priced_by_rounds_of_its_own_or_not_at_all() -> None:
    known, cell = overhead(), Cell(batch=2, context=150)
    blocks = [replace(s, role="block", drafter="medusa", host_ms=(10.0 + s.host_ms[0],)) for s in known.samples]
    verify = replace(surface("verify", VERIFY_MS), regime=CAPTURED)
    drafts = {
        "small": replace(surface("draft", DRAFT_MS), regime=CAPTURED),
        "medusa": replace(surface("block", DRAFT_MS), model="medusa"),
        "exit": surface("self", DRAFT_MS),
    }
    found = cell_costs(cell, verify, drafts, replace(known, samples=(*known.samples, *blocks)), device_kind="cuda")
    assert set(found.drafts) == {"small", "medusa"} and "profile all drafters together" in found.undrafted["exit"]
    host_ms = {name: float(found.times(one_round(125), "chain", name).host_ms[0]) for name in found.drafts}
    assert host_ms["medusa"] == pytest.approx(10.0 + host_ms["small"])
    assert [found.captures(name) for name in (None, "small", "medusa")] == [True, True, False]
    eager = cell_costs(cell, surface("verify", VERIFY_MS), drafts, known)
    assert set(eager.drafts) == set(drafts) and not eager.captures("small")


def test_a_block_drafter_s_rounds_are_priced_by_its_own_and_without_these_by_another_s() -> None:
    known = overhead()
    blocks = {
        name: [replace(s, role="block", drafter=name, host_ms=(ms + s.host_ms[0],)) for s in known.samples]
        for name, ms in (("medusa", 10.0), ("ctc", 20.0))
    }
    samples = (*known.samples, *blocks["medusa"], *blocks["ctc"])
    drafts = {name: replace(surface("block", DRAFT_MS), model=name) for name in ("medusa", "ctc", "another")}
    cell, verify = Cell(batch=2, context=150), surface("verify", VERIFY_MS)
    found = cell_costs(cell, verify, {"small": surface("draft", DRAFT_MS), **drafts}, replace(known, samples=samples))
    host_ms = {name: float(found.times(one_round(125), "chain", name).host_ms[0]) for name in ("small", *drafts)}
    apart = {name: ms - host_ms["small"] for name, ms in host_ms.items()}
    assert apart == pytest.approx({"small": 0.0, "medusa": 10.0, "ctc": 20.0, "another": 10.0})
    older = [replace(s, role="block", host_ms=(7.0 + s.host_ms[0],)) for s in known.samples]  # of any block drafter
    before = cell_costs(cell, verify, drafts, replace(known, samples=(*known.samples, *older)))
    told = {name: float(before.times(one_round(125), "chain", name).host_ms[0]) for name in drafts}
    assert len(set(told.values())) == 1


def test_no_forward_of_a_draft_takes_less_than_nothing_however_much_less_it_takes_than_alone() -> None:
    drafts = {"small": surface("draft", DRAFT_MS), "block": surface("block", DRAFT_MS)}
    known = cell_costs(Cell(batch=2, context=150), surface("verify", VERIFY_MS), drafts, overhead())
    falling = replace(known, host={"chain": HostLine(9.0, -100.0, 0.0)})
    least = min(DRAFT_MS.values())
    assert [falling.host_of("chain", name).forward_ms for name in drafts] == [-least, 0.0]
    assert falling.host_of("chain").forward_ms == -least  # no block drafter is in a stack
    steady = replace(known, host={"chain": HostLine(9.0, -least / 2.0, 0.0)})
    assert steady.host_of("chain", "small").forward_ms == -least / 2.0


def test_verify_runs_the_cheapest_shape_that_holds_the_tree() -> None:
    known = costs(Cell(batch=2, context=150))
    assert known.run_tokens == (0, 1, 4, 4, 4)
    assert known.times(one_round(125), "chain", "small").verify_ms.tolist() == [11.0 + 0.25 * 11.0]


def test_the_first_drafter_forward_feeds_what_was_committed_and_the_others_their_width() -> None:
    times = costs(Cell(batch=2, context=150)).times(one_round(125), "chain", "small")
    assert times.draft_ms.tolist() == [1.25 * 3 + 1.25 * 2]


def test_a_forward_that_did_not_run_costs_nothing() -> None:
    times = costs(Cell(batch=2, context=150)).times(one_round(100, widths=(1, 0, 0)), "chain", "small")
    assert times.draft_ms.tolist() == [3.0]


def test_host_time_follows_forwards_and_nodes() -> None:
    times = costs(Cell(batch=2, context=150)).times(one_round(125, nodes=4), "chain", "small")
    assert times.host_ms == pytest.approx([0.5 + 0.25 * 2 + 0.125 * 4])


def test_a_hybrid_s_round_is_one_of_the_text_s_where_no_drafter_ran() -> None:
    known, cell = overhead(), Cell(batch=2, context=150)
    textual = [
        OverheadSample(kind=kind, batch=2, draft_forwards=f, nodes=n, host_ms=(0.5 + 1.0 + 0.25 * f + 0.125 * n,))
        for kind, f, n in (("suffix", 0, 2), ("suffix", 0, 4), ("hybrid", 1, 2), ("hybrid", 2, 4))
    ]
    host = replace(known, samples=(*known.samples, *textual))
    found = cell_costs(cell, surface("verify", VERIFY_MS), {"small": surface("draft", DRAFT_MS)}, host)
    copied, drafted = (found.times(one_round(100, widths=widths), "hybrid", "small") for widths in ((0, 0), (1, 2)))
    assert copied.draft_ms.tolist() == [0.0]
    assert copied.host_ms == pytest.approx(found.times(one_round(100, widths=()), "suffix", None).host_ms)
    assert copied.host_ms == pytest.approx([0.5 + 1.0 + 0.125 * 2])
    assert drafted.host_ms == pytest.approx([0.5 + 1.0 + 0.25 * 2 + 0.125 * 2])


def test_a_round_costs_the_sum_of_its_parts() -> None:
    times = costs(Cell(batch=2, context=150)).times(one_round(100), "chain", "small")
    assert times.total_ms == pytest.approx([3.0 + 2.0 + 11.0 + 0.5 + 0.25 * 2 + 0.125 * 2])


def test_without_a_drafter_nothing_is_drafted() -> None:
    times = costs(Cell(batch=2, context=150)).times(one_round(100, nodes=1, widths=()), "plain", None)
    assert times.draft_ms.tolist() == [0.0]
    assert times.verify_ms.tolist() == [10.0]


@pytest.mark.parametrize(("context", "priced"), [(50, 11.0), (100, 11.0), (200, 22.0), (900, 22.0)])
def test_contexts_beyond_the_measured_ones_are_priced_at_the_nearest(context: int, priced: float) -> None:
    assert costs(Cell(batch=2, context=150)).times(one_round(context), "chain", "small").verify_ms[0] == priced


def test_rounds_outside_the_measured_contexts_are_counted() -> None:
    known = costs(Cell(batch=2, context=150))
    assert [known.clipped_share(one_round(context)) for context in (50, 100, 200, 201)] == [1.0, 0.0, 0.0, 1.0]


def test_a_round_outside_the_span_of_its_cell_is_priced_at_the_cell() -> None:
    known = costs(Cell(batch=2, context=190, low=160))
    assert known.times(one_round(120), "chain", "small").verify_ms == pytest.approx([11.0 + 0.9 * 11.0])


def test_a_context_where_a_shape_failed_is_bridged() -> None:
    failed = Measurement(batch=2, context_tokens=150, tokens=4, failure="out of memory")
    cells = surface("verify", VERIFY_MS | {(150, 1): 99.0, (150, 2): 99.0, (150, 3): 99.0}).measurements
    verify = LatencySurface(
        device=DEVICE.fingerprint,
        model=TARGET.key,
        role="verify",
        regime="eager",
        dtype="float32",
        measurements=(*cells, failed),
    )
    known = cell_costs(Cell(batch=2, context=100), verify, {}, overhead())
    assert known.times(one_round(150, widths=()), "chain", None).verify_ms == pytest.approx([16.5])


def test_a_shape_that_failed_at_a_long_context_leaves_the_others_their_price_there() -> None:
    ran = {(context, tokens): context / 10 + tokens for context in (100, 200, 400) for tokens in (1, 2, 4)}
    del ran[400, 4]
    known = surface("verify", ran)
    failed = Measurement(batch=2, context_tokens=400, tokens=4, failure="out of memory")
    verify = replace(known, measurements=(*known.measurements, failed))
    found = cell_costs(Cell(batch=2, context=200), verify, {}, overhead())
    told = [found.times(one_round(300, nodes=nodes, widths=()), "chain", None).verify_ms[0] for nodes in (1, 2, 4)]
    grown = 24.0 * 42.0 / 22.0  # as the next smaller shape does from context 200 to 400
    assert told == pytest.approx([31.0, 32.0, (24.0 + grown) / 2])
    assert found.clipped_share(one_round(300)) == 0.0


def test_the_smallest_shape_costs_the_same_beyond_the_contexts_where_it_ran() -> None:
    known = surface("draft", {(100, 1): 10.0, (200, 1): 20.0, (200, 2): 24.0, (400, 2): 48.0})
    table = cost_table(known, 2, 200, range(3))
    assert table.contexts.tolist() == [100.0, 200.0, 400.0]
    assert table.ms == pytest.approx(np.array([[0.0, 10.0, 12.0], [0.0, 20.0, 24.0], [0.0, 20.0, 48.0]]))


def test_a_larger_tree_than_measured_is_refused() -> None:
    with pytest.raises(PlanError, match="verify of 5 tokens was not measured, at most 4"):
        costs(Cell(batch=2, context=150)).times(one_round(100, nodes=5), "chain", "small")


def test_a_wider_draft_than_measured_is_refused() -> None:
    with pytest.raises(PlanError, match="draft of small of 4 tokens was not measured, at most 3"):
        costs(Cell(batch=2, context=150)).times(one_round(100, widths=(1, 4)), "chain", "small")


@pytest.mark.parametrize(
    ("committed", "ms"),
    [
        (3, 3.0),
        (4, 3.0 + 1.0),
        (READ_TOGETHER, 10 * 3.0 + 2.0),  # 3 of 32 at once, ten times, and two
        (READ_TOGETHER + 1, 2 * (10 * 3.0 + 2.0) + 1.0),  # two sequences one by one, then the newest of both
    ],
)
def test_what_was_committed_since_the_drafter_ran_is_read_as_the_decoder_reads_it(committed: int, ms: float) -> None:
    found = costs(Cell(batch=2, context=150)).times(one_round(100, catch_up=committed, widths=(1,)), "chain", "small")
    assert found.draft_ms.tolist() == [ms]


def test_a_kind_without_host_time_is_refused() -> None:
    with pytest.raises(PlanError, match="no host time for 'eagle2' at batch 2, measured: chain, plain"):
        costs(Cell(batch=2, context=150)).times(one_round(100), "eagle2", "small")


def test_a_batch_that_was_not_measured_is_refused() -> None:
    with pytest.raises(MeasurementError, match="batch 3 was not measured"):
        costs(Cell(batch=3, context=150))


def test_cells_are_priced_by_rounds_from_half_to_twice_their_context_whatever_other_cells_there_are() -> None:
    spans = [(cell.batch, cell.context, cell.low, cell.high) for cell in cells_of([8, 1], [300, 100])]
    assert spans == [(1, 100, 50, 200), (8, 100, 50, 200), (1, 300, 150, 600), (8, 300, 150, 600)]
    assert cells_of([1], [300]) == (Cell(batch=1, context=300, low=150, high=600),)


def test_a_plan_without_cells_is_refused() -> None:
    with pytest.raises(PlanError, match="needs batches and contexts"):
        cells_of([], [100])


def test_captured_verifies_have_few_sizes_none_of_them_too_small() -> None:
    sizes = [captured_size(tokens) for tokens in range(1, 65)]
    assert sizes == sorted(sizes) and all(size >= tokens for tokens, size in enumerate(sizes, start=1))
    assert sorted(set(sizes)) == [1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]
    assert [captured_size(size) for size in sizes] == sizes


def test_where_forwards_are_captured_a_verify_runs_and_costs_what_its_size_does() -> None:
    ms = {(100, tokens): 10.0 + tokens for tokens in range(1, 8)}
    eager = surface("verify", ms)
    captured = cell_costs(Cell(batch=2, context=100), replace(eager, regime=CAPTURED), {}, overhead())
    assert captured.run_tokens == (0, 1, 2, 4, 4, 6, 6, 7)  # 8 was not measured
    assert captured.verify.row(100)[[3, 5]].tolist() == [14.0, 16.0]
    assert cell_costs(Cell(batch=2, context=100), eager, {}, overhead()).run_tokens == tuple(range(8))
