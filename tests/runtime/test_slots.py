"""Sequences in slots: who joins takes what is free, and only what a round needs is moved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spectune.planner.records.slots import Slots
from spectune.planner.strategies.chain import ChainPolicy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.request_state import sequences_of
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel

from ..support.decoded_runs import CAPACITY, random_requests
from ..support.tiny_models import tiny_llama

ROOM = 6


def sequence(index: int) -> Sequence:
    return Sequence(Request(prompt=(1,), max_new_tokens=1), index)


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "settle"]), st.integers(0, ROOM - 1)), max_size=60))
def test_whoever_comes_and_goes_each_lies_where_it_was_put_and_nobody_is_written_over(
    steps: list[tuple[str, int]],
) -> None:
    slots, lying = Slots[Sequence](), dict[int, int]()  # sequence by slot, as a cache has them
    for index, (what, place) in enumerate(steps):
        if what == "join" and len(slots.running) < ROOM:
            free = slots.next
            assert lying.get(free) not in {one.index for one in slots.running}
            assert slots.join(one := sequence(index)) == free and slots.running[free] is one
            lying[free] = index
        elif what == "leave" and slots.running:
            slots.leave(slots.running[place % len(slots.running)])
        elif what == "settle":
            for source, target, mover in slots.settle():
                assert lying[source] == mover.index and target < len(slots.running) <= source
                lying[target] = lying.pop(source)
            assert [lying[slot] for slot in range(len(slots.running))] == [one.index for one in slots.running]


@given(st.permutations(range(ROOM)), st.integers(0, ROOM))
def test_nothing_moves_where_as_many_join_as_have_left(order: list[int], count: int) -> None:
    slots = Slots[Sequence]()
    there = [sequence(index) for index in range(ROOM)]
    for one in there:
        slots.join(one)
    for index in order[:count]:
        slots.leave(there[index])
    for index in range(count):
        slots.join(sequence(ROOM + index))
    assert not list(slots.settle())
    assert all(slots.running[index] is there[index] for index in order[count:])


def test_a_move_that_is_broken_off_is_due_again() -> None:
    slots = Slots[Sequence]()
    first, _, last = there = [sequence(index) for index in range(3)]
    for one in there:
        slots.join(one)
    slots.leave(first)
    assert next(slots.settle()) == (2, 0, last)
    assert list(slots.settle()) == [(2, 0, last)] and not list(slots.settle())


class Counted(KeyValueCache):
    """A cache that counts how often a slot moves."""

    moves = 0

    def move_slot(self, source: int, target: int, tokens: int) -> None:
        self.moves += 1
        super().move_slot(source, target, tokens)


def test_a_batch_that_is_kept_full_moves_no_keys() -> None:
    """But where it empties in the end."""
    model = LeanModel(tiny_llama(layers=1, seed=0))
    for setup in (PLAIN, StepConfig(policy=ChainPolicy(length=2), drafter="it")):
        drafter = ModelDrafter(model, slots=3, capacity=CAPACITY)
        decoder = Engine(model, {"it": drafter}, always(setup), slots=3, capacity=CAPACITY)
        for cache in (decoder._cache, drafter._cache):
            cache.__class__ = Counted
        scheduler = Scheduler(decoder)
        states = [scheduler.add(request) for request in random_requests(9, tokens=8)]
        seen = list[int]()
        while scheduler.schedule():
            decoder.step()
            if len(sequences_of(states)) < 9:
                seen.append(decoder._cache.moves + drafter._cache.moves)  # type: ignore[attr-defined]
        assert len(seen) > 3 and not any(seen)
        assert all(one.is_finished for one in sequences_of(states))
