"""What rounds cost by their shape alone: what they cost in a replay, and never less than the least."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spectune.planner.lockstep import Replay
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import CellCosts, cell_costs
from spectune.profiler.records.host_line import HostLine

from .test_cost import overhead, surface

ROUNDS, MOST_NODES, MOST_WIDTH = 300, 6, 3
FALLING_MS = {  # a forward of one token is dearer than one of two, and long contexts are not dearer everywhere
    (context, tokens): ms
    for context, row in ((100, (9.0, 4.0, 5.0, 8.0)), (200, (7.0, 6.0, 3.0, 9.0)), (400, (8.0, 9.0, 8.5, 7.0)))
    for tokens, ms in zip((1, 2, 3, 6), row, strict=True)
}
WAYS = [("plain", None), ("chain", "model"), ("chain", "block"), ("chain", "exit"), ("resumed", "exit")]


def made(context: int = 150) -> CellCosts:
    known, roles = surface("verify", FALLING_MS), {"model": "draft", "block": "block", "exit": "self"}
    drafts = {name: surface(role, FALLING_MS) for name, role in roles.items()}
    resumed = surface("resume", {place: 0.7 * ms for place, ms in FALLING_MS.items()})
    return cell_costs(Cell(batch=2, context=context), known, drafts, overhead(), {"exit": resumed})


def some_rounds(contexts: np.ndarray) -> Replay:
    draw = np.random.default_rng(7)
    return Replay(
        contexts=contexts,
        nodes=draw.integers(1, MOST_NODES + 1, ROUNDS),
        catch_up=draw.integers(1, 60, ROUNDS),  # more than are read together
        widths=draw.integers(0, MOST_WIDTH + 1, (ROUNDS, 4)),
        texts=np.zeros((ROUNDS, 2), dtype=np.int64),
        kept=np.ones((ROUNDS, 2), dtype=np.int64),
        censored=0,
    )


def test_longer_drafts_are_not_priced_below_the_least_where_their_forwards_take_less_than_alone() -> None:
    known = made()
    falling = replace(known, host={"chain": HostLine(2.0, -50.0, 0.0), "hybrid": HostLine(2.0, -50.0, 0.0, 3.0)})
    for kind in ("chain", "hybrid"):
        replay, least = some_rounds(np.full(ROUNDS, 150)), falling.at_least(kind, "model")
        found = falling.times(replay, kind, "model").total_ms
        assert falling.at_context(kind, "model").ms(replay.nodes, replay.catch_up, replay.widths) == pytest.approx(
            found
        )
        fewer = np.minimum(replay.nodes, 2), np.ones(ROUNDS, dtype=np.int64), replay.widths[:, :1]
        assert (least.ms(*fewer) <= found + 1e-9).all()


@pytest.mark.parametrize(("kind", "drafter"), WAYS)
def test_a_round_costs_by_its_shape_what_it_costs_in_a_replay(kind: str, drafter: str | None) -> None:
    known, replay = made(), some_rounds(np.full(ROUNDS, 150))
    found = known.at_context(kind, drafter).ms(replay.nodes, replay.catch_up, replay.widths)
    assert found == pytest.approx(known.times(replay, kind, drafter).total_ms)


@pytest.mark.parametrize(("kind", "drafter"), WAYS)
def test_no_round_costs_less_than_the_least_of_shapes_that_it_exceeds(kind: str, drafter: str | None) -> None:
    known, least = made(), made().at_least(kind, drafter)
    replay = some_rounds(np.random.default_rng(3).integers(50, 500, ROUNDS))
    fewer = np.minimum(replay.nodes, 2), np.ones(ROUNDS, dtype=np.int64), np.minimum(replay.widths, 1)
    found = known.times(replay, kind, drafter).total_ms
    assert (least.ms(*fewer) <= found + 1e-9).all()
    assert (least.ms(replay.nodes, replay.catch_up, replay.widths) <= found + 1e-9).all()


@pytest.mark.parametrize("lengths", [[1], [3, 1, 5], []])
def test_a_chain_drafts_a_token_by_each_layer(lengths: list[int]) -> None:
    rounds, read = made().at_context("chain", "model"), np.full(len(lengths), 3)
    told = rounds.chains_ms(np.array(lengths, dtype=np.int64), read)
    for length, ms in zip(lengths, told, strict=True):
        one = np.array([length + 1]), np.array([3]), np.ones((1, length), dtype=np.int64)
        assert ms == pytest.approx(rounds.ms(*one)[0])


def test_what_is_larger_than_all_that_was_measured_takes_forever() -> None:
    rounds = made().at_context("chain", "model")
    wide, one = np.array([[1, MOST_NODES + 1]]), np.ones(1, dtype=np.int64)
    assert rounds.ms(one + MOST_NODES, one, np.ones((1, 1), dtype=np.int64)) == [np.inf]
    assert rounds.ms(one, one, wide) == [np.inf]


def test_a_line_is_for_one_round_and_for_many() -> None:
    line = HostLine(round_ms=1.0, forward_ms=0.5, node_ms=0.25)
    assert line.at(2, 4) == 3.0
    assert line.at(np.array([0, 2]), np.array([1, 4])).tolist() == [1.25, 3.0]
    asking = line._replace(drafted_ms=8.0)
    assert asking.at(np.array([0, 2]), np.array([1, 4])).tolist() == [1.25, 11.0] == [asking.at(0, 1), asking.at(2, 4)]
