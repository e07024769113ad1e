"""A fault beside the target costs drafts and is reported; the output stays the target's."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.errors import ModelError, RequestError
from spectune.planner.records.draft import DraftBatch, Ints, chains_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.runtime.batch.faults import MOST_FAULTS, PATIENCE, is_out_of_memory, require_sound
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.stack import stack_drafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.request_state import sequences_of
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel

from ...support.decoded_runs import BUSHY
from ...support.tiny_models import tiny_llama

pytestmark = pytest.mark.lossless

CHAIN = StepConfig(policy=ChainPolicy(length=3), drafter="own")
ROOM = 60


def model(seed: int = 0) -> LeanModel:
    return LeanModel(tiny_llama(layers=2, seed=seed).double())


def requests(count: int = 3, tokens: int = 20) -> list[Request]:
    draws = np.random.default_rng(5)
    return [
        Request(prompt=tuple(draws.integers(0, 24, 2 + n).tolist()), max_new_tokens=tokens + n) for n in range(count)
    ]


def drafter() -> ModelDrafter:
    return ModelDrafter(model(), slots=2, capacity=ROOM)


def decoded(
    drafters: dict[str, Drafter], setup: StepConfig = CHAIN, *, shortest_last: bool = False
) -> tuple[list[list[int]], list[StepOutput]]:
    """Return all texts of three requests in two slots, and the rounds; where the shortest is last, it moves."""
    decoder = Engine(model(), drafters, always(setup), slots=2, capacity=ROOM)
    scheduler, rounds = Scheduler(decoder), []
    states = [scheduler.add(request) for request in (requests()[::-1] if shortest_last else requests())]
    while scheduler.schedule():
        rounds.append(decoder.step())
    return [s.emitted for s in sequences_of(states)], rounds


PLAINLY = decoded({}, PLAIN)[0]


def reasons(rounds: Many[StepOutput]) -> list[str]:
    return [fault.reason for done in rounds for fault in done.faults]


class Broken(ModelDrafter):
    """Drafts rightly, but what it hands over is spoilt every second time."""

    calls = 0

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        self.calls += 1
        right = super().draft(sequences, policy)
        return self.spoil(right) if self.calls % 2 else right

    def spoil(self, draft: DraftBatch) -> DraftBatch:
        raise NotImplementedError


class Raising(Broken):
    def spoil(self, draft: DraftBatch) -> DraftBatch:
        raise ValueError("out of ideas")


class Short(Broken):
    def spoil(self, draft: DraftBatch) -> DraftBatch:
        tokens, parents, depths = (array[:0] for array in (draft.tokens, draft.parents, draft.depths))
        return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=draft.sizes[:0], widths=())


class Foreign(Broken):
    def spoil(self, draft: DraftBatch) -> DraftBatch:
        return replace(draft, tokens=draft.tokens + 1000)


class Cyclic(Broken):
    def spoil(self, draft: DraftBatch) -> DraftBatch:
        return replace(draft, parents=np.where(draft.parents >= 0, draft.parents + 1, -1))


class Oversized(Broken):
    def spoil(self, draft: DraftBatch) -> DraftBatch:
        return replace(draft, sizes=draft.sizes + 100)


class Flat(Broken):
    def spoil(self, draft: DraftBatch) -> DraftBatch:
        return replace(draft, depths=np.minimum(draft.depths, 1))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Raising, "ValueError: out of ideas"),
        (Short, "a draft for"),
        (Foreign, "outside the target's vocabulary of 24"),
        (Cyclic, "a node before its parent"),
        (Oversized, "says that it has"),
        (Flat, "one deeper than its parent"),
    ],
)
def test_a_spoilt_draft_costs_its_round_and_is_reported(kind: type[Broken], said: str) -> None:
    texts, rounds = decoded({"own": kind(model(), slots=2, capacity=ROOM)})
    assert texts == PLAINLY
    assert all(said in reason for reason in reasons(rounds))
    assert [len(done.faults) for done in rounds[:4]] == [1, 0, 1, 0]


def chain_batch(*lengths: int) -> DraftBatch:
    """Return chains of the tokens 1, 2, ..., padded to the longest."""
    longest = max(lengths)
    tokens = np.array([[-1, *range(1, length + 1), *[-1] * (longest - length)] for length in lengths])
    return chains_of(tokens, np.array(lengths), (1,) * longest)


def changed(array: Ints, row: int, node: int, value: int) -> Ints:
    """Return a copy with one entry changed."""
    copy = array.copy()
    copy[row, node] = value
    return copy


@pytest.mark.parametrize("lengths", [(3,), (3, 3), (3, 1), (1, 0), (0, 0), (0, 3)])
def test_chains_that_end_before_others_are_sound(lengths: tuple[int, ...]) -> None:
    require_sound(chain_batch(*lengths), len(lengths), 24, 4)


@pytest.mark.parametrize("lengths", [(3, 3), (3, 2)])  # all rows are chains to their ends; one is padded
@pytest.mark.parametrize(
    ("spoilt", "node", "value", "said"),
    [
        ("depths", 1, 2, "one deeper than its parent"),
        ("depths", 2, 1, "one deeper than its parent"),
        ("depths", 3, 7, "one deeper than its parent"),
        ("tokens", 1, 24, "outside the target's vocabulary of 24"),
        ("tokens", 3, -1, "outside the target's vocabulary of 24"),
        ("parents", 2, 2, "a node before its parent"),
        ("parents", 1, 3, "a node before its parent"),
        ("parents", 3, -1, "a node before its parent"),
    ],
)
def test_a_spoilt_chain_is_refused(lengths: tuple[int, ...], spoilt: str, node: int, value: int, said: str) -> None:
    whole = chain_batch(*lengths)
    parts = {name: getattr(whole, name) for name in ("tokens", "parents", "depths")}
    parts[spoilt] = changed(parts[spoilt], 0, node, value)
    broken = DraftBatch(**parts, sizes=whole.sizes, widths=())
    with pytest.raises(ModelError, match=said):
        require_sound(broken, len(lengths), 24, 4)


@pytest.mark.parametrize("lengths", [(1, 0), (3, 1)])  # padding right behind a root has a chain's parent
@pytest.mark.parametrize("token", [-1, 24, 10**6])
def test_a_token_behind_a_chain_s_end_may_be_foreign_and_its_last_may_not(lengths: tuple[int, ...], token: int) -> None:
    whole, longest = chain_batch(*lengths), max(lengths)
    require_sound(replace(whole, tokens=changed(whole.tokens, 1, longest, token)), 2, 24, 4)
    with pytest.raises(ModelError, match="outside"):
        require_sound(replace(whole, tokens=changed(whole.tokens, 0, longest, token)), 2, 24, 4)


class NotANumber(LeanModel):
    """A model whose logits are no numbers."""

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        return super().forward(step, cache) * torch.nan


def test_a_drafter_that_answers_nan_is_reported_and_then_no_longer_asked() -> None:
    nan = NotANumber(tiny_llama(layers=1, seed=1).double())
    texts, rounds = decoded({"own": ModelDrafter(nan, slots=2, capacity=ROOM)})
    assert texts == PLAINLY
    assert len(reasons(rounds)) == MOST_FAULTS
    assert "not asked again" in reasons(rounds)[-1]


@pytest.mark.parametrize("place", [0, 1])
def test_a_stack_one_of_whose_models_answers_nan_is_reported(place: int) -> None:
    models = [model(1), NotANumber(tiny_llama(layers=1, seed=1).double())][:: 1 if place else -1]
    stack = StackPolicy(drafters=("upper", "lower"), lengths=(3, 2))
    drafter = stack_drafter(stack, dict(zip(("upper", "lower"), models, strict=True)), slots=2, capacity=ROOM)
    texts, rounds = decoded({"upper+lower": drafter}, StepConfig(policy=stack, drafter="upper+lower"))
    assert texts == PLAINLY
    assert all("not numbers" in reason for reason in reasons(rounds)) and reasons(rounds)


def test_a_drafter_that_grows_on_its_device_and_answers_nan_is_reported() -> None:
    nan = NotANumber(tiny_llama(layers=1, seed=1).double())
    texts, rounds = decoded({"own": ModelDrafter(nan, slots=2, capacity=ROOM, on_device=True)})
    assert texts == PLAINLY
    assert "outside the target's vocabulary" in reasons(rounds)[0]


class Forgetful(ModelDrafter):
    def move(self, source: int, target: int) -> None:
        raise RuntimeError("where was it?")


class Filled(LeanModel):
    """A model that has no memory for some of its forwards, counted from 1."""

    def __init__(self, full: Many[int] = ()) -> None:
        super().__init__(tiny_llama(layers=2, seed=0).double())
        self.full, self.forwards = full, 0

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        self.forwards += 1
        if self.forwards in self.full:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(step, cache)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (lambda: Forgetful(model(), slots=2, capacity=ROOM), "RuntimeError: where was it?"),
        (lambda: ModelDrafter(Filled([1]), slots=2, capacity=ROOM), "OutOfMemoryError: CUDA out of memory."),
    ],
)
def test_a_text_that_a_drafter_could_not_take_or_move_is_read_anew(own: Callable[[], Drafter], said: str) -> None:
    texts, rounds = decoded({"own": own()}, shortest_last=True)
    whole = decoded({"own": drafter()}, shortest_last=True)[1]
    assert texts == PLAINLY[::-1] and [done.kept for done in rounds] == [done.kept for done in whole]
    (reason,) = reasons(rounds)
    assert reason.startswith(said) and "not asked again" not in reason


def test_a_drafter_that_finds_no_memory_three_times_is_asked_again_once_some_texts_have_left() -> None:
    short = [replace(request, max_new_tokens=4) for request in requests() * 7]
    own = ModelDrafter(Filled(range(7, 10)), slots=2, capacity=ROOM)
    decoder = Engine(model(), {"own": own}, always(CHAIN), slots=2, capacity=ROOM)
    scheduler, rounds, left = Scheduler(decoder), [], 0
    states = [scheduler.add(request) for request in short]
    while scheduler.schedule():
        rounds.append(decoder.step())
        if own.forwards == 9 and max(rounds[-1].kept) == 1:
            left += rounds[-1].left
    assert len(reasons(rounds)) == MOST_FAULTS and not any(fault.is_last for done in rounds for fault in done.faults)
    assert left == PATIENCE and max(rounds[-1].kept) > 1
    assert [s.emitted for s in sequences_of(states)[:3]] == [text[:4] for text in PLAINLY]


def test_what_cannot_forget_a_text_that_it_has_not_taken_is_not_asked_again() -> None:
    class Lost(LookupDrafter):
        def admit(self, slot: int, sequence: Sequence, held: int = 0) -> None:
            raise MemoryError

    setup = StepConfig(policy=LookupPolicy(length=3), drafter="own")
    texts, rounds = decoded({"own": Lost()}, setup)
    assert texts == PLAINLY and reasons(rounds) == ["MemoryError; it is not asked again"]


def test_a_round_that_names_no_known_drafter_is_plain_and_says_so() -> None:
    setup = replace(CHAIN, run_tokens=(0, 2, 2, 4, 4))
    texts, rounds = decoded({}, setup)
    assert texts == PLAINLY
    assert {(done.setup, done.instead_of) for done in rounds} == {(setup.plain, setup)}
    assert {done.verify_tokens for done in rounds} == {2}
    assert {fault.drafter for done in rounds for fault in done.faults} == {"own"}


class Cramped(LeanModel):
    """A model that has no memory for more than one new token per sequence once it decodes."""

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        if step.take is None and step.tokens.shape[1] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(step, cache)


def test_a_tree_that_does_not_fit_into_memory_is_left_out_and_reported() -> None:
    decoder = Engine(
        Cramped(tiny_llama(layers=2, seed=0).double()), {"own": drafter()}, always(CHAIN), slots=2, capacity=ROOM
    )
    scheduler, rounds = Scheduler(decoder), []
    states = [scheduler.add(request) for request in requests()]
    while scheduler.schedule():
        rounds.append(decoder.step())
    assert [s.emitted for s in sequences_of(states)] == PLAINLY
    assert all(fault.drafter is None and "out of memory" in fault.reason for r in rounds for fault in r.faults)


class Unmovable(KeyValueCache):
    """A cache that runs out of memory the first times that keys are to move, when some layers' have."""

    tries = 3

    def _move(self, moves: Ints) -> None:
        if self.tries:
            self.tries -= 1
            KeyValueCache._move(self.first(1), moves)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        super()._move(moves)


class Stiff(LeanModel):
    """A model over such a cache."""

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        made = super().new_cache(slots, capacity)
        made.__class__ = Unmovable
        return made


def test_a_tree_whose_keys_find_no_memory_to_move_is_committed_by_its_root_alone() -> None:
    policy = StaticPolicy(tree=BUSHY)
    tree = StepConfig(policy=policy, drafter="own", run_tokens=tuple(range(policy.max_verify_tokens + 1)))
    target = Stiff(tiny_llama(layers=2, seed=0).double())
    decoder = Engine(target, {"own": drafter()}, always(tree), slots=2, capacity=ROOM)
    scheduler, rounds = Scheduler(decoder), []
    states = [scheduler.add(request) for request in requests()]
    while scheduler.schedule():
        rounds.append(decoder.step())
    assert [s.emitted for s in sequences_of(states)] == PLAINLY
    cramped = [done for done in rounds if done.faults]
    assert len(cramped) == 3 and all(max(done.kept) == 1 for done in cramped)
    assert max(max(done.kept) for done in rounds) > 1


def test_a_draft_larger_than_its_policy_is_refused() -> None:
    class Eager(ModelDrafter):
        def draft(self, batch: Many[Sequence], policy: TreePolicy) -> DraftBatch:
            return super().draft(batch, ChainPolicy(length=9))

    texts, rounds = decoded({"own": Eager(model(), slots=2, capacity=ROOM)})
    assert texts == PLAINLY
    assert all("10 nodes where its policy has 4 at most" in reason for reason in reasons(rounds)[:1])


@pytest.mark.parametrize(
    "said", ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"]
)
def test_what_cudas_libraries_say_of_lacking_memory_is_understood(said: str) -> None:
    assert is_out_of_memory(RuntimeError(said)) and not is_out_of_memory(ValueError(said))


def test_an_error_that_is_no_lack_of_memory_is_not_swallowed() -> None:
    class Failing(LeanModel):
        def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
            if step.take is None:
                raise RuntimeError("device-side assert")
            return super().forward(step, cache)

    decoder = Engine(Failing(tiny_llama(layers=2, seed=0)), {}, always(PLAIN), slots=2, capacity=ROOM)
    decoder.admit(requests(1)[0])
    with pytest.raises(RuntimeError, match="device-side"):
        decoder.step()


def test_a_cancelled_request_leaves_the_others_as_they_were() -> None:
    decoder = Engine(model(), {"own": drafter()}, always(CHAIN), slots=2, capacity=ROOM)
    scheduler = Scheduler(decoder)
    states = [scheduler.add(request) for request in requests()]
    scheduler.schedule()
    decoder.step()
    decoder.cancel(sequences_of(states)[0])
    while scheduler.schedule():
        decoder.step()
    assert [s.emitted for s in sequences_of(states)[1:]] == PLAINLY[1:]
    first = sequences_of(states)[0]
    assert first.emitted == PLAINLY[0][: len(first.emitted)]


def test_a_request_cannot_be_cancelled_twice() -> None:
    decoder = Engine(model(), {}, always(PLAIN), slots=2, capacity=ROOM)
    sequence = decoder.admit(requests(1)[0])
    decoder.cancel(sequence)
    with pytest.raises(RequestError, match="is not being decoded"):
        decoder.cancel(sequence)


def test_a_round_tells_how_long_its_parts_took() -> None:
    for done in decoded({"own": drafter()})[1]:
        assert 0.0 < done.verify_ms < done.round_ms
        assert 0.0 < done.draft_ms < done.round_ms


def test_forwards_of_a_captured_model_see_few_different_numbers_of_positions() -> None:
    seen = []

    class Captured(LeanModel):
        regime = "cuda-graph"

        def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
            if step.take is None:
                seen.append(step.seen)
            return super().forward(step, cache)

    decoder = Engine(
        Captured(tiny_llama(layers=2, seed=0).double()), {"own": drafter()}, always(CHAIN), slots=2, capacity=ROOM
    )
    scheduler = Scheduler(decoder)
    states = [scheduler.add(request) for request in requests()]
    while scheduler.schedule():
        decoder.step()
    assert [s.emitted for s in sequences_of(states)] == PLAINLY
    assert set(seen) == {ROOM}
