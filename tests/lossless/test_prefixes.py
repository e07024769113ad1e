"""Prompts that go on with what lies in a decoder's slots: it is not read anew, and no output or draft changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from torch import Tensor

from spectune.planner.records.draft import DraftBatch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.runtime.batch.faults import MOST_FAULTS, PATIENCE, Fault
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.block import BlockDrafter
from spectune.runtime.drafters.head import ExitDrafter, HeadDrafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.level import StackLevel
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.recycling import RecyclingDrafter
from spectune.runtime.drafters.stack import StackDrafter
from spectune.runtime.engine.drafting import Drafting
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.prefill import Prefill
from spectune.runtime.models.block import BlockHead
from spectune.runtime.models.forward import CausalModel, ForwardInput
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.tapped import tapped_for

from ..support.decoded_runs import CAPACITY, POLICIES, in_slots, run
from ..support.fresh_states import worst_difference
from ..support.pairwise import covering
from ..support.tiny_blocks import KINDS, block_weights, tiny_block
from ..support.tiny_exits import exit_weights, tiny_exit
from ..support.tiny_heads import head_weights, tiny_head
from ..support.tiny_models import perturbed, tiny_llama
from ..support.tiny_recycling import tiny_recycling

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=3, seed=0)
TARGET = LeanModel(LLAMA)
SMALL = perturbed(LLAMA, 0.06)
MODELS = [LeanModel(perturbed(LLAMA, spread)) for spread in (0.03, 0.06)]
HEAD = tiny_head("eagle3", LLAMA, head_weights("eagle3", LLAMA))
BLOCKS = {kind: tiny_block(kind, LLAMA, block_weights(kind, LLAMA)) for kind in KINDS}
EXIT = tiny_exit(TARGET, exit_weights(32), 1)
RECYCLING = tiny_recycling(LLAMA)
CHAIN = ChainPolicy(length=3)
COPIES = SuffixPolicy(length=5, min_match=2)
SYSTEM, TURNS, CHATS = 20, 3, 3  # tokens that all texts begin with; what every chat asks, and how many there are
PIECE = 5  # tokens of a prompt between two rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of drafting."""

    policy: TreePolicy
    drafter: Callable[[int], Drafter] | None = None  # of so many slots
    models: tuple[CausalModel, ...] = ()  # that read what the target keeps


def model_drafter(slots: int) -> ModelDrafter:
    return ModelDrafter(MODELS[1], slots=slots, capacity=CAPACITY)


def block_way(block: BlockHead) -> Way:
    return Way(
        policy=POLICIES["static"],
        drafter=lambda slots: BlockDrafter(block, slots=slots, capacity=CAPACITY),
        models=(block,),
    )


WAYS: dict[str, Way] = {
    "plain": Way(policy=PlainPolicy()),
    "chain": Way(policy=CHAIN, drafter=model_drafter),
    "eagle2": Way(policy=POLICIES["eagle2"], drafter=model_drafter),
    "copies": Way(policy=COPIES, drafter=lambda slots: LookupDrafter()),
    "hybrid": Way(
        policy=HybridPolicy(text=COPIES, model=CHAIN), drafter=lambda slots: HybridDrafter(model_drafter(slots))
    ),
    "stack": Way(
        policy=StackPolicy(drafters=("a", "b", "lookup"), lengths=(4, 2, 2)),
        drafter=lambda slots: StackDrafter(MODELS, slots=slots, capacity=CAPACITY),
    ),
    "head": Way(
        policy=POLICIES["eagle2"],
        drafter=lambda slots: HeadDrafter(HEAD, slots=slots, capacity=CAPACITY),
        models=(HEAD,),
    ),
    **{kind: block_way(block) for kind, block in BLOCKS.items()},
    "recycling": Way(
        policy=POLICIES["static"],
        drafter=lambda slots: RecyclingDrafter(RECYCLING, slots=slots, capacity=CAPACITY),
        models=(RECYCLING,),
    ),
    "resumed": Way(
        policy=ResumedPolicy(draft=CHAIN), drafter=lambda slots: ExitDrafter(EXIT, slots=slots, capacity=CAPACITY)
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of some chats."""

    way: str
    slots: int
    spare: int  # slots in which nothing runs
    temperature: float
    reading: str
    is_cancelled: bool


CASES = [
    Case(**row)
    for row in covering(
        {
            "way": tuple(WAYS),
            "slots": (1, 2, 4),
            "spare": (0, 1, 3),
            "temperature": (0.0, 0.8),
            "reading": ("at once", "in pieces"),
            "is_cancelled": (False, True),
        }
    )
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, vars_of(case))))


def vars_of(case: Case) -> tuple[object, ...]:
    return case.way, case.slots, case.spare, case.temperature, case.reading, case.is_cancelled


@dataclass(slots=True)
class Played:
    """What a run did."""

    sequences: list[Sequence] = field(default_factory=list)
    kept: dict[int, list[int]] = field(default_factory=dict)  # of every sequence, round by round
    cached: list[tuple[int, Tensor]] = field(default_factory=list)  # after every round: index, states of the target
    cancelled: set[int] = field(default_factory=set)


class Chats:
    """Chats that begin alike, each of which asks anew behind every answer, and another text that begins otherwise."""

    def __init__(self, temperature: float) -> None:
        rng = np.random.default_rng(0)
        self._rng, self._temperature = rng, temperature
        system = rng.integers(0, 24, SYSTEM).tolist()
        self.waiting: list[tuple[int, list[int]]] = [
            (chat, [*system, *rng.integers(0, 24, 4).tolist()]) for chat in range(CHATS)
        ]
        self.waiting.insert(2, (CHATS, rng.integers(0, 24, SYSTEM).tolist()))
        self.asked = Counter[int]()
        self._chat_of: dict[int, int] = {}

    def next(self, index: int) -> Request:
        """Return what is asked next."""
        chat, prompt = self.waiting.pop(0)
        self.asked[chat] += 1
        self._chat_of[index] = chat
        tokens = 5 + (chat + self.asked[chat]) % 3
        return Request(prompt=tuple(prompt), max_new_tokens=tokens, temperature=self._temperature, seed=chat)

    def answer(self, sequence: Sequence) -> None:
        """Let a chat ask again behind an answer; a few tokens that are no function of it."""
        chat = self._chat_of[sequence.index]
        if self.asked[chat] < TURNS:
            asked = [(7 * chat + 5 * self.asked[chat] + place) % 24 for place in range(3)]
            self.waiting.append((chat, [*sequence.tokens, *asked]))


@cache
def played(case: Case, prefix_caching: bool = True) -> Played:
    """Decode all chats; turns join in the order in which they are asked."""
    way, done, chats = WAYS[case.way], Played(), Chats(case.temperature)
    setup = PLAIN if way.drafter is None else StepConfig(policy=way.policy, drafter="it")
    drafters = {} if way.drafter is None else {"it": way.drafter(case.slots + case.spare)}
    decoder = Engine(
        tapped_for(TARGET, way.models), drafters, always(setup),
        slots=case.slots, spare_slots=case.spare, capacity=CAPACITY, prefix_caching=prefix_caching,
    )  # fmt: skip
    reading: Prefill | None = None
    rounds = 0

    def joined(sequence: Sequence) -> None:
        done.sequences.append(sequence)
        if sequence.is_finished:
            chats.answer(sequence)

    while chats.waiting or decoder.running or reading is not None:
        while reading is None and chats.waiting and decoder.has_room:
            request = chats.next(len(done.sequences))
            if case.reading == "at once" or not decoder.running:
                joined(decoder.admit(request, len(done.sequences)))
            else:
                reading = decoder.begin(request, len(done.sequences))
        if reading is not None:
            decoder.read_on(reading, PIECE)
            if not reading.left:
                joined(reading.sequence)
                reading = None
        if not decoder.running:
            continue
        batch = list(decoder.running)
        one = decoder.step()
        assert not one.faults, one.faults
        rounds += 1
        for sequence, kept in zip(batch, one.kept, strict=True):
            done.kept.setdefault(sequence.index, []).append(kept)
        done.cached += [(s.index, decoder._cache.states[:, i, : s.context].clone()) for i, s in in_slots(decoder)]
        for sequence in one.finished:
            chats.answer(sequence)
        if case.is_cancelled and decoder.running and rounds % 4 == 0:
            last = decoder.running[0]
            decoder.cancel(last)
            done.cancelled.add(last.index)
            chats.answer(last)
    return done


@cache
def alone(request: Request) -> tuple[int, ...]:
    """Return what plain decoding makes of a request by itself, read from its first token."""
    return run(TARGET, [request], slots=1).outputs[0]


@every_case
def test_chats_are_answered_as_if_every_prompt_was_read(case: Case) -> None:
    """Outputs, the target's cache after every round, and, where it tells, what was drafted: by what was accepted."""
    done = played(case)
    assert len(done.sequences) == TURNS * (CHATS + 1)
    for sequence in done.sequences:
        truth, emitted = alone(sequence.request), tuple(sequence.emitted)
        assert emitted == (truth[: len(emitted)] if sequence.index in done.cancelled else truth)
    assert done.cached and worst_difference(LLAMA, [s.tokens for s in done.sequences], done.cached) < 1e-9
    cached = [sequence.cached for sequence in done.sequences]
    assert cached[:2] == [0, SYSTEM] and sum(tokens >= SYSTEM for tokens in cached) >= 5
    assert all(sequence.cached < len(sequence.request.prompt) for sequence in done.sequences)
    if case.reading == "at once":  # else prompts take other rounds' time, and others are cancelled
        anew = played(case, prefix_caching=False)
        assert done.kept == anew.kept and all(sequence.cached == 0 for sequence in anew.sequences)


def test_turns_go_on_behind_their_own_answers_where_there_is_room_for_all_texts() -> None:
    roomy = [case for case in CASES if case.slots + case.spare > CHATS]
    assert roomy and all(max(s.cached for s in played(case).sequences) > SYSTEM for case in roomy)


class Counting(LeanModel):
    """A model that counts the tokens that it reads of prompts."""

    read = 0

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        if step.take is not None:
            self.read += step.tokens.shape[1]
        return super().forward(step, cache)


def text(first: int, length: int) -> list[int]:
    """Return tokens, texts of other firsts none of whose beginnings are alike."""
    return [(first + place * (1 + first)) % 24 for place in range(length)]


class Served:
    """A decoder that says what of each prompt it had, and what its target has read."""

    def __init__(self, slots: int, drafter: Drafter | None = None, *, spare: int = 0) -> None:
        self.target = Counting(LLAMA)
        setup = PLAIN if drafter is None else StepConfig(policy=CHAIN, drafter="it")
        drafters = {} if drafter is None else {"it": drafter}
        self.decoder = Engine(
            self.target, drafters, always(setup),
            slots=slots, spare_slots=spare, capacity=CAPACITY, prefix_caching=True,
        )  # fmt: skip

    def joined(self, prompt: Many[int], tokens: int = 4) -> Sequence:
        """Let a text join, and check that nothing that it is said to have had was read."""
        before = self.target.read
        request = Request(prompt=tuple(prompt), max_new_tokens=tokens)
        unread = self.decoder.unread(request)
        sequence = self.decoder.admit(request)
        assert self.target.read - before == unread == len(prompt) - sequence.cached
        return sequence

    def ended(self, *sequences: Sequence) -> None:
        while not all(sequence.is_finished for sequence in sequences):
            self.decoder.step()
        for sequence in sequences:
            assert tuple(sequence.emitted) == alone(sequence.request)

    def answered(self, prompt: Many[int]) -> Sequence:
        sequence = self.joined(prompt)
        self.ended(sequence)
        return sequence


def test_a_chat_alone_reads_what_is_new_and_its_drafter_does_too() -> None:
    model = Counting(SMALL)
    served = Served(1, ModelDrafter(model, slots=1, capacity=CAPACITY))
    first = served.answered(text(1, 30))
    read = model.read
    second = served.answered([*first.tokens, 3, 4, 5])
    assert second.cached == first.context
    rounds = model.read - read  # the drafter reads what is new of the prompt, and then each token once or twice
    assert rounds < 20


def test_a_prompt_that_was_answered_before_is_read_for_its_last_token_alone() -> None:
    served = Served(1)
    prompt = text(1, 30)
    assert [served.answered(prompt).cached for _ in range(2)] == [0, 29]


def test_beginnings_too_short_to_matter_are_read_again() -> None:
    served = Served(2)
    served.answered(text(1, 30))
    assert served.answered([*text(1, 15), *text(2, 15)]).cached == 0
    assert served.answered([*text(1, 16), *text(2, 15)]).cached == 16


def test_chats_that_take_turns_all_keep_their_texts_as_long_as_slots_stand_free() -> None:
    served = Served(3)
    texts = [served.answered(text(first, 20)) for first in (1, 2, 3)]
    for _ in range(2):
        found = [served.answered([*old.tokens, 7]) for old in texts]
        assert [new.cached for new in found] == [old.context for old in texts]
        texts = found


def test_texts_are_kept_in_spare_slots_while_all_others_are_taken() -> None:
    served = Served(2, spare=2)
    found = [served.answered(text(first, 20)) for first in (1, 2)]
    busy = [served.joined(text(first, 20), 40) for first in (3, 4)]
    assert not served.decoder.has_room
    served.decoder.cancel(busy.pop())
    again = served.joined([*found[0].tokens, 7])
    assert again.cached == found[0].context and not served.decoder.has_room
    served.ended(again)
    assert served.answered([*found[1].tokens, 7]).cached == found[1].context
    served.ended(*busy)


def test_the_text_that_was_not_used_for_longest_makes_room() -> None:
    served = Served(3)
    old = [served.answered(text(first, 20)) for first in (1, 2, 3)]
    newer = served.answered([*old[0].tokens, 7])
    served.answered(text(4, 20))
    assert served.answered([*newer.tokens, 9]).cached == newer.context
    assert served.answered([*old[2].tokens, 9]).cached == old[2].context
    assert served.answered([*old[1].tokens, 9]).cached == 0


def test_a_text_whose_slot_another_one_moves_to_is_kept_elsewhere() -> None:
    served = Served(4)
    first, second, third = (served.joined(text(first, 20), tokens) for first, tokens in ((1, 3), (2, 30), (3, 30)))
    served.ended(first)
    served.decoder.step()  # the last one moves to the first slot
    again = served.joined([*first.tokens, 7], 3)
    assert again.cached == first.context
    served.ended(again, second, third)


@pytest.mark.parametrize("tokens", [25, 30])
def test_a_text_that_still_runs_lends_its_prompt_or_some_of_it(tokens: int) -> None:
    served = Served(3)
    running = served.joined(text(1, 30), 20)
    served.decoder.step()
    other = served.joined([*text(1, tokens), *text(2, 9)], 20)
    assert other.cached == tokens
    served.ended(running, other)


def test_what_was_read_of_a_prompt_that_was_given_up_is_kept() -> None:
    served = Served(3)
    running = served.joined(text(2, 20), 20)
    prompt = text(1, 30)
    reading = served.decoder.begin(Request(prompt=tuple(prompt), max_new_tokens=4))
    served.decoder.read_on(reading, 20)
    served.decoder.abandon(reading)
    again = served.joined(prompt)
    assert again.cached == 20
    served.ended(running, again)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_reading_that_fails_leaves_what_is_there_and_nothing_that_is_not(slots: int) -> None:
    served = Served(slots)
    old = served.answered(text(1, 60))

    def failing(step: ForwardInput, cache: KeyValueCache) -> Tensor:
        cache.states[:, step.first_slot, int(step.positions.min()) :] = 1e9
        raise MemoryError

    served.target.forward = failing  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        served.decoder.admit(Request(prompt=(*old.tokens[:25], *text(2, 9)), max_new_tokens=4))
    del served.target.forward
    assert served.answered([*old.tokens, 7]).cached == (25 if slots == 1 else old.context)
    assert served.answered([*old.tokens[:25], *text(2, 9)]).cached == 25


def test_where_a_prompt_was_read_in_pieces_is_free_again() -> None:
    served = Served(3)
    running = served.joined(text(1, 20), 30)
    reading = served.decoder.begin(Request(prompt=(*text(1, 20), *text(2, 9)), max_new_tokens=30))
    served.decoder.read_on(reading, 9)
    assert [served.decoder._slots._prefixes.length(slot) for slot in range(3)] == [20, 29, 0]
    served.ended(running, reading.sequence)


def took_turns(
    decoder: Engine, rounds: int, tokens: int = 9, firsts: tuple[int, int] = (1, 2)
) -> list[tuple[int, list[int]]]:
    """Let two chats take turns; return how much of every prompt was not read, and what each round kept."""
    found, texts, faults = [], [text(first, 20) for first in firsts], list[Fault]()
    for turn in range(rounds):
        for place, prompt in enumerate(texts):
            sequence = decoder.admit(Request(prompt=tuple(prompt), max_new_tokens=tokens, seed=place))
            kept = []
            while not sequence.is_finished:
                done = decoder.step()
                kept += done.kept
                faults += done.faults
            assert tuple(sequence.emitted) == alone(sequence.request)
            found.append((sequence.cached, kept))
            texts[place] = [*sequence.tokens, turn, place, turn]
    assert all(fault.is_memory for fault in faults), faults  # which a test has made
    return found


def taking_turns(way: Way, *, prefix_caching: bool) -> list[tuple[int, list[int]]]:
    setup = PLAIN if way.drafter is None else StepConfig(policy=way.policy, drafter="it")
    drafters = {} if way.drafter is None else {"it": way.drafter(2)}
    return took_turns(
        Engine(
            tapped_for(TARGET, way.models), drafters, always(setup),
            slots=2, capacity=CAPACITY, prefix_caching=prefix_caching,
        ),
        rounds=3,
    )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_texts_that_exchange_their_slots_keep_what_their_drafters_know(way: str) -> None:
    cached, anew = (taking_turns(WAYS[way], prefix_caching=is_on) for is_on in (True, False))
    assert [kept for _, kept in cached] == [kept for _, kept in anew]
    assert [tokens > 0 for tokens, _ in cached] == [False, False, True, True, True, True]


class Cramped(ModelDrafter):
    """A drafter that finds no memory for some drafts."""

    missing = 0

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        if self.missing:
            self.missing -= 1
            raise MemoryError
        return super().draft(sequences, policy)


def test_a_drafter_that_has_rested_knows_nothing_of_the_texts_that_came_meanwhile() -> None:
    found = []
    for prefix_caching in (True, False):
        drafter = Cramped(MODELS[1], slots=2, capacity=CAPACITY)
        decoder = Engine(
            TARGET, {"it": drafter}, always(StepConfig(policy=CHAIN, drafter="it")),
            slots=2, capacity=CAPACITY, prefix_caching=prefix_caching,
        )  # fmt: skip
        turns = took_turns(decoder, rounds=1)
        drafter.missing = MOST_FAULTS
        turns += took_turns(decoder, rounds=PATIENCE // 2 + 3, tokens=5, firsts=(3, 4))
        found.append([kept for _, kept in turns])
    assert found[0] == found[1]
    assert [max(kept) > 1 for kept in found[0][4:8]] == [False] * 4  # it rests
    assert any(max(kept) > 1 for kept in found[0][-4:])  # and drafts again


def test_a_move_that_is_broken_off_leaves_no_text_believed_where_another_one_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(2)
    first, second = served.joined(text(1, 30), 2), served.joined(text(2, 30), 20)
    served.ended(first)

    def stopped(self: Drafting, source: int, target: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Drafting, "move", stopped)
        with pytest.raises(KeyboardInterrupt):
            served.decoder.step()  # nobody else is there: the second one moves to the first one's slot
    again = served.joined([*first.tokens, 7])
    served.ended(again, second)


def test_a_stack_that_fails_at_an_exchange_reads_both_texts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    swap = StackLevel.swap_prefixes
    missing = [0]

    def cramped(self: StackLevel, one: int, other: int) -> None:
        missing[0] += 1
        if missing[0] == 1:  # the first exchange of the level that hands up
            raise MemoryError
        swap(self, one, other)

    monkeypatch.setattr(StackLevel, "swap_prefixes", cramped)
    cached, anew = (taking_turns(WAYS["stack"], prefix_caching=is_on) for is_on in (True, False))
    assert missing[0] > 2 and [kept for _, kept in cached] == [kept for _, kept in anew]
