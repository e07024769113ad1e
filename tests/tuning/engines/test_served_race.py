"""The race of `validate` in scripted worlds: the sentinel takes a moving pace out of the gain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean

import numpy as np

from spectune.engines.server_engine import Start
from spectune.planner.engines.served import PLAIN
from spectune.tuning.engines.served_race import ServedRace, race

from ...support.scripted_serving import Scripted
from ...support.served_worlds import world_of

CONCURRENCIES, REQUESTS, LENGTH = (1, 4), 16, 3
COMMANDS = {"as it was": Start.of(PLAIN, dict.fromkeys(CONCURRENCIES, 0))}
COMMANDS |= {"faster": Start.of("small", dict.fromkeys(CONCURRENCIES, LENGTH))}


@dataclass
class Commands:
    """A world's server, started by the names of its starts."""

    scripted: Scripted

    @contextmanager
    def running(self, command: Sequence[str]) -> Iterator[Scripted]:
        with self.scripted.started(COMMANDS[command[0]]) as loaded:
            yield loaded

    def drafter_in(self, command: Sequence[str]) -> str:
        return "" if COMMANDS[command[0]].source == PLAIN else "small"


def scripted_of(seed: int, *, moves: float, tells_pace: bool) -> Scripted:
    found = Scripted(world_of(seed, prompts=REQUESTS * 5), REQUESTS, dialect="vllm")
    found.moves, found.tells_pace, found.drawn = moves, tells_pace, np.random.default_rng(seed)
    return found


def raced(scripted: Scripted, before: str = "as it was", after: str = "faster", *, rounds: int = 3) -> ServedRace:
    return race(Commands(scripted), [before], [after], CONCURRENCIES, rounds=rounds, progress=lambda what, share: None)


def truth(scripted: Scripted, concurrency: int) -> float:
    prompts = scripted.prompts_at(concurrency)
    fast = scripted.world.speed(concurrency, "small", LENGTH, prompts)
    return fast / scripted.world.speed(concurrency, PLAIN, 0, prompts)


def test_gains_where_the_pace_moves_are_nearer_to_the_truth_by_the_sentinel() -> None:
    errors: dict[bool, list[float]] = {True: [], False: []}
    held = rows = 0
    for seed in range(12):
        for tells_pace, own in errors.items():
            scripted = scripted_of(seed, moves=0.25, tells_pace=tells_pace)
            for row in raced(scripted).rows:
                true = truth(scripted, row.concurrency)
                own.append(abs(math.log(row.gain / true)))
                if tells_pace:
                    held += row.interval[0] <= true <= row.interval[1]
                    rows += 1
    assert mean(errors[True]) < 0.7 * mean(errors[False])
    assert held >= 0.9 * rows


def test_starts_are_paired_in_turns_and_every_pair_has_a_gain() -> None:
    scripted = scripted_of(1, moves=0.0, tells_pace=True)
    found = raced(scripted, rounds=2)
    slow, fast = COMMANDS.values()
    assert scripted.starts == [slow, fast, fast, slow]
    assert [len(row.rounds_gain) for row in found.rows] == [2, 2]
    assert all(
        min(row.rounds_gain) >= row.interval[0] and max(row.rounds_gain) <= row.interval[1] for row in found.rows
    )
    assert found.notes == ()


def test_a_pace_that_moved_is_told() -> None:
    assert any("pace moved between loads" in note for note in raced(scripted_of(2, moves=0.25, tells_pace=True)).notes)


def test_a_choice_is_worth_it_where_it_is_surely_faster() -> None:
    found: dict[bool, set[bool]] = {True: set(), False: set()}
    for seed in range(8):
        scripted = scripted_of(seed, moves=0.0, tells_pace=True)
        assert not any(row.is_worth for row in raced(scripted, after="as it was").rows)
        for row in raced(scripted).rows:
            true = truth(scripted, row.concurrency)
            if not 1.0 < true < 1.3:
                found[true > 1.0].add(row.is_worth)
    assert found == {True: {True}, False: {False}}
