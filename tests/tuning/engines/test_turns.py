"""Settings take turns: where one may run at a time, those that are compared run back to back with few starts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spectune.engines.measured import EngineCounters
from spectune.tuning.engines.turns import Key, by_key, stable

from ...support.simulated_engine import SimulatedEngine

PROMPTS = [tuple(range(start, start + 9)) for start in range(8)]
TURNS = 4


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectune.tuning.engines.turns.SETTLE_S", 0.0)


def keys_of(engine: SimulatedEngine) -> list[Key]:
    return [(2, None), (2, engine.chain(engine.drafters[0], 2)), (2, engine.ngrams()[0])]


def test_alone_every_order_is_the_last_one_backwards_and_the_setting_at_the_seam_goes_on() -> None:
    engine = SimulatedEngine(right={"small": 0.6}, most_open=1)
    keys = keys_of(engine)
    with stable(engine, capacity=300, new_tokens=30) as stall:
        stall.take(keys, PROMPTS, turns=TURNS)
        order = [turn.key for turn in stall.turns]
    passes = [order[at : at + len(keys)] for at in range(0, len(order), len(keys))]
    assert all(set(one) == set(keys) for one in passes) and len(passes) == TURNS
    assert all(later == earlier[::-1] for earlier, later in pairwise(passes))
    assert len(engine.starts) == len(keys) * TURNS - (TURNS - 1)
    assert engine.most_running == 1 and not engine.running


@pytest.mark.parametrize("most", [1, None])
def test_what_a_setting_counts_is_of_its_turns_alone_however_often_it_is_started(most: int | None) -> None:
    engine = SimulatedEngine(right={"small": 0.6}, most_open=most)
    keys = keys_of(engine)
    with stable(engine, capacity=300, new_tokens=30) as stall:
        stall.take(keys, PROMPTS, turns=TURNS)
        for key, turns in by_key(stall.turns).items():
            found = stall.counted(key)
            texts = [text for turn in turns for text in turn.sample.texts]
            assert (found.drafted, found.accepted) == tuple(
                sum(getattr(text, name) for text in texts) for name in ("drafted", "accepted")
            )
            assert sum(found.by_position) == found.accepted
    assert (len(engine.starts) > len(keys)) == (most == 1)


def test_counts_add_up_by_position_and_are_unknown_where_one_is() -> None:
    one, other = (
        EngineCounters(drafts=2, drafted=5, accepted=3, by_position=(2, 1)),
        EngineCounters(drafts=1, drafted=4, accepted=3, by_position=(1, 1, 1)),
    )
    assert one.plus(other) == EngineCounters(drafts=3, drafted=9, accepted=6, by_position=(3, 2, 1))
    assert one.plus(EngineCounters(drafts=None, drafted=1, accepted=0)).drafts is None
