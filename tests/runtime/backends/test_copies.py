"""Rounds that copy out of the text run ahead of the host: the device finds what the host would find."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, cycle

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import ElsePolicy, HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.texts import TextState
from spectune.runtime.backends.captured_rounds import CapturedRounds, Ends, Launched
from spectune.runtime.backends.device_acceptance import ancestors_of
from spectune.runtime.backends.device_state import BatchState, Told
from spectune.runtime.backends.device_texts import TextsOnDevice, copied_as_tensors, drafting_by
from spectune.runtime.batch import sequence as text_module
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.sequence import Sequence as Decoded
from spectune.runtime.batch.step_config import PLAIN, Schedule, StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.growth.draft import batch_of
from spectune.runtime.growth.layout import tree_bits
from spectune.runtime.kernels.trees import agree_with_end
from spectune.runtime.models.drafter import BlindModel
from spectune.runtime.models.kernels.jitted import has_triton
from spectune.runtime.models.kernels.text_copies import copy_behind
from spectune.runtime.models.kernels.text_runs import HeldTexts
from spectune.runtime.models.kernels.text_trees import LONGEST, MOST_PLACES, Growing, grow_behind
from spectune.runtime.models.kernels.tree_sight import bits_of_parents
from spectune.runtime.models.regime import in_regime

from ...lossless.test_images import TARGET as SEES
from ...lossless.test_images import shown
from ...support.ahead_runs import LLAMA, SMALL, TARGET, Captured, plainly
from ...support.decoded_runs import CAPACITY, PADDED, Run, in_slots, random_requests, run
from ...support.fresh_states import worst_difference
from ...support.interpreted import launch
from ...support.pairwise import crossed
from ...support.slow_here import SLOW_HERE
from ...support.text_reference import let_the_cpu_grow_trees
from ...support.tiny_llava import PLACEHOLDER, seeing_requests
from .test_ahead import assert_ahead_without_waits, on_gpu

CPU = torch.device("cpu")
CopiedPolicy = SuffixPolicy | SuffixTreePolicy | LookupPolicy
SUFFIX = SuffixPolicy(length=5, min_match=2, factor=1, offset=1, occurrence="last")
CHAINS: dict[str, SuffixPolicy | LookupPolicy] = {
    "suffix": SUFFIX,
    "first suffix": replace(SUFFIX, occurrence="first", min_match=1, length=7, factor=4),
    "lookup": LookupPolicy(length=4, max_ngram=3, min_ngram=1),
    "first lookup": LookupPolicy(length=6, max_ngram=2, min_ngram=2, occurrence="first"),
}
TREES = {
    "tree": SuffixTreePolicy(nodes=6, factor=2, offset=1),
    "likely tree": SuffixTreePolicy(nodes=9, factor=4, least_chance=0.3, least_score=0.6),
}
TEXTS: dict[str, CopiedPolicy] = {**CHAINS, **TREES}
MODELS: dict[str, ElsePolicy] = {
    "chain": ChainPolicy(length=2),
    "static": StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1), ranks=(0, 0, 1, 0))),
    "eagle2": Eagle2Policy(verify_tokens=8, depth=2, top_k=3),
}
HYBRIDS = {
    **{kind: HybridPolicy(text=SUFFIX, model=model) for kind, model in MODELS.items()},
    "tree, else chain": HybridPolicy(text=TREES["likely tree"], model=MODELS["chain"]),
    "tree, else eagle2": HybridPolicy(text=replace(TREES["tree"], least_score=0.8), model=MODELS["eagle2"]),
}
KINDS = (*TEXTS, *HYBRIDS)


@pytest.fixture(autouse=True)
def _the_cpu_grows_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    let_the_cpu_grow_trees(monkeypatch)


def setup_of(kind: str, **more: tuple[int, ...]) -> StepConfig:
    """Return how rounds copy: alone, or else a model drafts."""
    policy = TEXTS[kind] if kind in TEXTS else HYBRIDS[kind]
    return StepConfig(policy=policy, drafter="text" if kind in TEXTS else "hybrid", **more)


def drafters_of(model: ModelDrafter) -> dict[str, Drafter]:
    """Return who copies."""
    return {"text": LookupDrafter(), "hybrid": HybridDrafter(model)}


def captured_run(
    requests: Sequence[Request], kind: str, slots: int, watch: Callable[[Engine], None] = lambda decoder: None
) -> tuple[Run, Captured]:
    captured = Captured(slots=slots)
    drafters = drafters_of(captured.drafter)
    schedule = always(setup_of(kind, run_tokens=PADDED))
    return captured.run(requests, schedule, drafters, watch=watch), captured


def eager_run(requests: Sequence[Request], kind: str, slots: int) -> Run:
    model = ModelDrafter(SMALL, slots=slots, capacity=CAPACITY, on_device=True)
    drafters = drafters_of(model)
    return run(TARGET, requests, always(setup_of(kind)), drafters, slots=slots, capacity=CAPACITY)


def told(done: Run) -> list[tuple[object, ...]]:
    """Return what rounds did; their forwards are those of the largest tree that might be."""
    return [(one.sequences, one.kept, one.context) for one in done.rounds]


def looping(requests: Sequence[Request]) -> list[Request]:
    """Return requests whose prompts go round in circles, so that there is something to copy."""
    return [replace(one, prompt=tuple(one.prompt[:4]) * 3) for one in requests]


@pytest.mark.lossless
@crossed(kind=KINDS, slots=(1, 3), ends=("by their limits", "by stop tokens"), loops=(False, True))
def test_the_text_and_the_rounds_are_those_of_a_host_that_searches(
    kind: str, slots: int, ends: str, loops: bool
) -> None:
    requests = random_requests(5, tokens=16)
    requests = looping(requests) if loops else list(requests)
    if ends == "by stop tokens":
        stops = [text[11:12] for text in plainly(requests)]
        requests = [replace(one, stop=frozenset(stop)) for one, stop in zip(requests, stops, strict=True)]
    found, captured = captured_run(requests, kind, slots)
    expected = eager_run(requests, kind, slots)
    assert found.outputs == expected.outputs == plainly(requests)
    assert told(found) == told(expected)
    assert captured.others == 0 and not any(one.faults for one in found.rounds)
    assert max(max(one.kept) for one in found.rounds) > 1


@pytest.mark.lossless
@pytest.mark.parametrize("kind", KINDS)
def test_after_every_round_the_caches_are_fresh_prefills(kind: str) -> None:
    verified: list[tuple[int, Tensor]] = []

    def watch(decoder: Engine) -> None:
        for slot, one in in_slots(decoder):
            verified.append((one.index, decoder._cache.states[:, slot, : one.context].clone()))

    requests = looping(random_requests(7, tokens=20))
    done, _ = captured_run(requests, kind, 3, watch=watch)
    texts = [(*request.prompt, *output) for request, output in zip(requests, done.outputs, strict=True)]
    assert len(verified) > 20 and worst_difference(LLAMA, texts, verified) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_is_launched_before_the_one_before_it_is_read(kind: str) -> None:
    captured, known = Captured(slots=1), list[int]()
    drafters = drafters_of(captured.drafter)
    decoder = captured.decoder(always(setup_of(kind)), drafters)
    sequence = decoder.admit(Request(prompt=(1, 2, 3, 1, 2), max_new_tokens=90))
    lengths = [len(sequence.tokens)]
    captured.targets.note = lambda: known.append(len(sequence.tokens))
    while decoder.running:
        decoder.step()
        lengths.append(len(sequence.tokens))
    assert 12 < len(lengths) - 1 <= len(known) <= len(lengths)  # the last may be launched in vain
    behind = [launched < begun for launched, begun in zip(known, lengths, strict=False)]
    assert not behind[0] and sum(behind) > len(behind) / 2
    assert all(launched in lengths for launched in known)


@pytest.mark.lossless
@pytest.mark.parametrize("kind", ["suffix", "lookup", "tree", "chain", "eagle2", "tree, else chain"])
def test_rounds_of_other_setups_in_between_change_nothing(kind: str) -> None:
    """The device's texts lack what others committed: a few tokens it is told, more it takes in anew."""
    requests = looping(random_requests(6, tokens=40))
    turns = [setup_of(kind)] * 3 + [PLAIN] * 2 + [setup_of(kind)] * 2 + [PLAIN] * 9 + [setup_of("static")]

    def in_turn() -> Schedule:
        rounds = cycle(turns)
        return lambda batch, context: next(rounds)

    captured = Captured(slots=2)
    found = captured.run(requests, in_turn(), drafters_of(captured.drafter))
    model = ModelDrafter(SMALL, slots=2, capacity=CAPACITY, on_device=True)
    expected = run(TARGET, requests, in_turn(), drafters_of(model), slots=2, capacity=CAPACITY)
    assert found.outputs == expected.outputs == plainly(requests)
    assert told(found) == told(expected) and not any(one.faults for one in found.rounds)


@pytest.mark.parametrize("kind", ["chain", "eagle2", "tree, else chain"])
def test_a_hybrid_s_model_that_has_fallen_behind_reads_first_and_runs_ahead(kind: str) -> None:
    """It would fall behind further with every copy that the host finds."""
    requests = looping(random_requests(2, tokens=40))
    rounds = cycle([PLAIN] * 12 + [setup_of(kind)] * 6)
    captured = Captured(slots=2)
    found = captured.run(requests, lambda batch, context: next(rounds), drafters_of(captured.drafter))
    hybrid = [one for one in found.rounds if one.setup != PLAIN]
    assert found.outputs == plainly(requests) and not any(one.faults for one in found.rounds)
    assert hybrid and all(one.is_ahead and one.widths for one in hybrid)
    assert max(one.uncached for one in hybrid) > HYBRIDS[kind].max_verify_tokens


def test_a_model_that_fails_to_read_what_it_lacks_is_told_of_and_asked_again() -> None:
    (request,) = looping(random_requests(1, tokens=60))
    rounds = cycle([PLAIN] * 12 + [setup_of("chain")] * 6)
    captured, failures = Captured(slots=1), iter(range(2))
    read = captured.drafter.read_up

    def read_up(sequences: Sequence[Decoded]) -> None:
        if next(failures, None) is not None:
            raise RuntimeError("lost its place")
        read(sequences)

    captured.drafter.read_up = read_up  # type: ignore[method-assign]
    found = captured.run([request], lambda batch, context: next(rounds), drafters_of(captured.drafter))
    hybrid = [one for one in found.rounds if one.setup != PLAIN]
    assert found.outputs == plainly([request]) and next(failures, None) is None
    assert not hybrid[0].is_ahead and hybrid[-1].is_ahead


@pytest.mark.parametrize("kind", TEXTS)
def test_what_is_copied_behind_sampled_texts_is_verified_ahead_too(kind: str) -> None:
    requests = [replace(one, temperature=0.8, seed=place) for place, one in enumerate(random_requests(3, tokens=12))]
    found, captured = captured_run(requests, kind, 1)
    assert found.outputs == eager_run(requests, kind, 1).outputs
    assert len({one.verify_tokens for one in found.rounds}) == 1 and captured.others == 0  # as large as any may be


@pytest.mark.parametrize("kind", TEXTS)
def test_where_a_penalty_is_asked_for_the_host_searches(kind: str) -> None:
    requests = [replace(one, repetition_penalty=0.8) for one in random_requests(3, tokens=12)]
    found, _ = captured_run(requests, kind, 1)
    assert found.outputs == eager_run(requests, kind, 1).outputs
    assert len({one.verify_tokens for one in found.rounds}) > 1  # as large as what was found


def test_what_cannot_be_recorded_is_told_once_and_the_host_searches() -> None:
    requests = looping(random_requests(3, tokens=20))
    captured, tries = Captured(slots=1), count()
    captured.targets.fails = lambda recordings: next(tries) == 0
    done = captured.run(requests, always(setup_of("suffix")), {"text": LookupDrafter()}, may_fail=True)
    assert done.outputs == plainly(requests)
    assert ["copy from the text" in fault.reason for one in done.rounds for fault in one.faults] == [True]


@pytest.mark.parametrize("failing", [{1}, {1, 2}, {5}, {5, 6}])
def test_rounds_that_cannot_be_launched_are_given_up_and_told_once(
    failing: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    launches, launch_round = count(), CapturedRounds.launch

    def launch(rounds: CapturedRounds, context: int) -> Launched:
        if next(launches) in failing:
            raise MemoryError("no room")
        return launch_round(rounds, context)

    monkeypatch.setattr(CapturedRounds, "launch", launch)
    captured, requests = Captured(slots=1), looping(random_requests(1, tokens=40))
    done = captured.run(requests, always(setup_of("suffix")), {"text": LookupDrafter()}, may_fail=True)
    assert done.outputs == plainly(requests) and sum(len(one.faults) for one in done.rounds) == 1
    assert next(launches) == min(failing) + 1  # nobody tries again


def test_a_round_that_is_stopped_while_it_is_heard_leaves_texts_to_be_taken_in_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captured, (request,) = Captured(slots=1), looping(random_requests(1, tokens=40))
    decoder = captured.decoder(always(setup_of("suffix")), {"text": LookupDrafter()})
    sequence, hears, taken = decoder.admit(request), Launched.told, list[int]()
    decoder.step()

    def stopped(launched: Launched) -> Told:
        monkeypatch.setattr(Launched, "told", hears)
        raise KeyboardInterrupt

    def noted(texts: TextsOnDevice, slot: int, sequence: text_module.Sequence) -> None:
        taken.append(len(sequence.tokens))
        takes(texts, slot, sequence)

    monkeypatch.setattr(Launched, "told", stopped)
    with pytest.raises(KeyboardInterrupt):
        decoder.step()
    before, takes = len(sequence.tokens), TextsOnDevice._take
    monkeypatch.setattr(TextsOnDevice, "_take", noted)
    while not sequence.is_finished:
        decoder.step()
    assert taken[0] == before and tuple(sequence.emitted) == plainly([request])[0]


def test_rounds_ahead_forgive_what_a_text_could_not_draft_before(monkeypatch: pytest.MonkeyPatch) -> None:
    captured, requests = Captured(slots=1), looping(random_requests(2, tokens=12))
    decoder = captured.decoder(always(setup_of("suffix")), {"text": LookupDrafter()})
    monkeypatch.setattr(LookupDrafter, "draft", lambda *asked: 1 / 0)
    sequence = decoder.admit(replace(requests[0], repetition_penalty=1.3))  # which the host searches for
    assert decoder.step().faults and not decoder.is_faultless
    decoder.cancel(sequence)
    decoder.admit(requests[1])
    assert decoder.step().is_ahead and decoder.is_faultless


def test_a_text_that_finds_no_memory_beside_its_prompt_has_joined_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = Captured(slots=2)
    decoder = captured.decoder(always(setup_of("suffix")), drafters_of(captured.drafter))
    waiting = looping(random_requests(3, tokens=20))
    sequences = [decoder.admit(request, index) for index, request in enumerate(waiting[:2])]
    while len(decoder.running) == 2:
        decoder.step()

    def short(texts: TextsOnDevice, slot: int, sequence: text_module.Sequence) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(TextsOnDevice, "_take", short)
        decoder.cancel(decoder.running[0])
        while len(decoder.running) < 2:
            sequences.append(decoder.admit(waiting[2], len(sequences)))
    while decoder.running:
        assert not decoder.step().faults  # by then there is some
    whole = [one for one in sequences if one.is_finished]
    assert len(whole) >= 3 and [tuple(one.emitted) for one in whole] == plainly([one.request for one in whole])


@pytest.mark.lossless
@pytest.mark.parametrize("kind", ["suffix", "lookup", "tree", "chain"])
def test_texts_with_images_are_searched_by_the_host_and_without_them(kind: str) -> None:
    captured = Captured(slots=2, target_model=SEES, drafter_model=BlindModel(SMALL, PLACEHOLDER))
    requests = shown([replace(one, max_new_tokens=20) for one in seeing_requests(5, tokens=12)])
    done = captured.run(requests, always(setup_of(kind)), drafters_of(captured.drafter))
    assert done.outputs == run(SEES, requests).outputs
    assert max(max(one.kept) for one in done.rounds) > 1 and captured.others > 0


def drawn_text(seed: int, length: int, kinds: int) -> list[int]:
    return random.Random(seed).choices(range(kinds), k=length)


@pytest.mark.parametrize("kinds", [1, 2, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 40, 130])
def test_agreement_with_the_end_is_what_comparing_finds(length: int, kinds: int) -> None:
    text = drawn_text(length, length, kinds)
    runs = np.full(length, -1, dtype=np.int32)
    agree_with_end(np.array(text, dtype=np.int32), runs)
    expected = [
        next((back for back in range(place + 1) if text[place - back] != text[-1 - back]), place + 1)
        for place in range(length - 1)
    ]
    assert runs.tolist() == [*expected, 0]


ROOM = 9  # newest tokens that are told of a text


def found_behind(
    tokens: Tensor, runs: Tensor, lengths: Tensor, state: Tensor, is_live: Tensor, drafted: Tensor | None,
    *, policy: CopiedPolicy, nodes: int, by_kernel: bool,
) -> Tensor:  # fmt: skip
    """Return the numbers of copies; texts are written."""
    texts, by = HeldTexts(tokens=tokens, runs=runs, lengths=lengths), drafting_by(policy)
    if isinstance(by, Growing):
        return grow_behind(by, texts, state, is_live, drafted, nodes)
    find = copy_behind if by_kernel else copied_as_tensors
    return find(by, texts, state, is_live, drafted, nodes)


class OnDevice:
    """Texts that a device holds and takes in bit by bit."""

    def __init__(self, texts: Sequence[Sequence[int]], *, by_kernel: bool) -> None:
        self._by_kernel, batch = by_kernel, len(texts)
        room = max(map(len, texts)) + 3
        self.tokens, self.runs = torch.zeros((2, batch, room), dtype=torch.int32)
        self.lengths = torch.tensor([len(text) for text in texts])
        for row, text in enumerate(texts):
            self.tokens[row, : len(text)] = torch.tensor(text, dtype=torch.int32)

    def cut(self, lengths: Sequence[int]) -> None:
        """Hold the first tokens of each alone."""
        self.lengths = torch.tensor(lengths)
        for row, length in enumerate(lengths):
            agree_with_end(self.tokens[row, :length].numpy(), self.runs[row, :length].numpy())
            self.runs[row, length:] = 7  # anything

    def copies(
        self,
        policy: CopiedPolicy,
        texts: Sequence[Sequence[int]],
        *,
        drafted: Tensor | None = None,
        nodes: int,
        is_live: bool = True,
    ) -> Tensor:
        state = BatchState(len(texts), ROOM, CPU)
        unread = [list(text[int(held) :]) or list(text[-1:]) for text, held in zip(texts, self.lengths, strict=True)]
        state.put([len(text) - 1 for text in texts], unread)
        given = self.tokens, self.runs, self.lengths, state.numbers, torch.tensor(is_live), drafted
        if not self._by_kernel:
            return found_behind(*given, policy=policy, nodes=nodes, by_kernel=False)
        found, *kept = launch(found_behind, *given, policy=policy, nodes=nodes, by_kernel=True)
        self.tokens, self.runs, self.lengths = (part for part in kept[:3] if part is not None)
        assert found is not None
        return found


def assert_copied(held: OnDevice, policy: CopiedPolicy, texts: Sequence[Sequence[int]], nodes: int) -> int:
    """Assert that trees are those of the planner's search, in order; return how many nodes they have."""
    found = batch_of(held.copies(policy, texts, nodes=nodes).numpy(), ())
    for row, tree in enumerate(TextState().draft(text, policy) for text in texts):
        size = tree.shape[1]
        assert found.sizes[row] == size
        assert [part[row, :size].tolist() for part in (found.tokens, found.parents, found.depths)] == tree.tolist()
        assert (found.tokens[row, size:] == -1).all()
    return int(found.sizes.sum()) - len(texts)


WAYS = [False, pytest.param(True, marks=pytest.mark.skipif(not has_triton(), reason="needs triton"))]


@pytest.mark.thinned
@pytest.mark.parametrize("by_kernel", WAYS)
@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("kinds", [1, 2, 4, 30])
def test_the_device_copies_what_the_planner_s_search_does(kind: str, kinds: int, by_kernel: bool) -> None:
    policy, rng = CHAINS[kind], random.Random(kinds)
    whole = [drawn_text(seed, 60 + 9 * seed, kinds) for seed in range(3)]
    held = OnDevice(whole, by_kernel=by_kernel)
    ends = [rng.randint(1, 20) for _ in whole]
    held.cut(ends)
    for turn in range(6):
        texts = [text[:end] for text, end in zip(whole, ends, strict=True)]
        if turn == 3:
            before = held.tokens.clone(), held.runs.clone(), held.lengths.clone()
            held.copies(policy, texts, nodes=policy.length + 1, is_live=False)  # work that is recorded leaves no trace
            assert all(torch.equal(a, b) for a, b in zip(before, (held.tokens, held.runs, held.lengths), strict=True))
        assert_copied(held, policy, texts, policy.length + 1)
        ends = [end + rng.randint(1, ROOM) for end in ends]
    assert held.lengths.tolist() == [len(text) for text in texts]


@pytest.mark.parametrize("by_kernel", WAYS)
def test_where_nothing_is_copied_stands_what_a_model_drafted(by_kernel: bool) -> None:
    texts, nodes = [[1, 2, 3, 1, 2], [1, 2, 3, 4, 5], [5, 5, 5, 5]], 9
    held = OnDevice(texts, by_kernel=by_kernel)
    held.cut([len(text) for text in texts])
    drafted = torch.tensor([[-1, 8, 9, -1, 0, 0, 0, 1, 1, 3]] * 3)
    found = held.copies(SUFFIX, texts, drafted=drafted, nodes=nodes)
    tokens, parents, depths = found[:, :-1].chunk(3, dim=1)
    assert found[:, -1].tolist() == [4, 3, 5]  # a match of two, none, one of three
    assert tokens[0].tolist() == [-1, 3, 1, 2, -1, -1, -1, -1, -1]
    assert tokens[1].tolist() == [-1, 8, 9, -1, -1, -1, -1, -1, -1]
    assert parents[1].tolist() == [-1, 0, 0, 0, 0, 0, 0, 0, 0] and depths[1].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert tokens[2].tolist() == [-1, 5, 5, 5, 5, -1, -1, -1, -1]


GROWN = [
    SuffixTreePolicy(nodes=10, factor=4, offset=1, least_chance=0.02),
    SuffixTreePolicy(nodes=48, factor=8, least_chance=0.0, min_match=2, least_score=0.5),
    SuffixTreePolicy(nodes=25, least_chance=0.1),
    SuffixTreePolicy(nodes=3, factor=0, offset=9, least_chance=0.5, least_score=1.9),
    SuffixTreePolicy(nodes=20, factor=4, offset=1, least_chance=0.2, min_match=3),
]
HERE = [(GROWN[0], 3), (GROWN[1], 30)]
ELSEWHERE = [(policy, kinds) for policy in GROWN for kinds in (1, 2, 3, 5, 8, 30) if (policy, kinds) not in HERE]


def repetitive_text(seed: int, length: int, kinds: int) -> list[int]:
    """Return a text that says what it said before again and again, not always to the end."""
    rng, text = random.Random(seed), drawn_text(seed, 4, kinds)
    while len(text) < length:
        start = rng.randrange(len(text))
        text += [*text[start : start + rng.randint(1, 12)], *rng.choices(range(kinds), k=rng.randint(0, 1))]
    return text[:length]


@pytest.mark.skipif(not has_triton(), reason="needs triton")
@pytest.mark.parametrize(("policy", "kinds"), [*HERE, *(pytest.param(*case, marks=SLOW_HERE) for case in ELSEWHERE)])
def test_the_device_grows_the_trees_of_the_planner_s_search(policy: SuffixTreePolicy, kinds: int) -> None:
    rng = random.Random(kinds)
    whole = [repetitive_text(seed, 150, kinds) for seed in range(2)]
    held = OnDevice(whole, by_kernel=True)
    ends, nodes = [rng.randint(30, 50) for _ in whole], 0
    held.cut([end - rng.randint(0, ROOM) for end in ends])
    for _ in range(10 if torch.cuda.is_available() else 2):  # an interpreter takes seconds for each
        texts = [text[:end] for text, end in zip(whole, ends, strict=True)]
        nodes += assert_copied(held, policy, texts, policy.nodes + rng.choice([0, 3]))
        ends = [end + rng.randint(1, ROOM) for end in ends]
    assert nodes > 0 and held.lengths.tolist() == [len(text) for text in texts]


@pytest.mark.skipif(not has_triton(), reason="needs triton")
def test_of_an_end_that_occurred_often_the_newest_places_are_counted() -> None:
    """Of all places 40 go on otherwise, of the newest none; a longer end than the last token never occurred before."""
    policy = SuffixTreePolicy(nodes=4, factor=0, offset=3, least_chance=0.1)
    once = count(10)
    text = [token for _ in range(40) for token in (next(once), 1, 2)]
    text += [token for _ in range(MOST_PLACES) for token in (next(once), 1, 3)]
    text += [next(once), 1]
    held = OnDevice([text], by_kernel=True)
    held.cut([len(text) - 1])
    found = batch_of(held.copies(policy, [text], nodes=4).numpy(), ())
    assert found.tokens[0].tolist() == [-1, 3] and TextState().draft(text, policy)[0].tolist() == [-1, 3, 2]


@pytest.mark.skipif(not has_triton(), reason="needs triton")
def test_an_end_longer_than_any_that_is_looked_at_counts_as_the_longest() -> None:
    policy = SuffixTreePolicy(nodes=12, factor=1, least_chance=0.1)
    said = drawn_text(1, LONGEST + 6, 9)
    text = [*said, 20, 21, *said, 20, 22, *said]
    held = OnDevice([text], by_kernel=True)
    held.cut([len(text) - 2])
    assert assert_copied(held, policy, [text], 12) == 11


@pytest.mark.skipif(not has_triton(), reason="needs triton")
def test_where_no_tree_is_likely_enough_stands_what_a_model_drafted() -> None:
    policy = SuffixTreePolicy(nodes=6, factor=2, offset=1, least_chance=0.1, least_score=2.0)
    texts, nodes = [[1, 2, 3, 1, 2], [1, 2, 3, 4, 5], [1, 2, 1, 3, 1]], 9
    held = OnDevice(texts, by_kernel=True)
    held.cut([len(text) for text in texts])
    drafted = torch.tensor([[-1, 8, 9, -1, 0, 0, 0, 1, 1, 3]] * 3)
    found = batch_of(held.copies(policy, texts, drafted=drafted, nodes=nodes).numpy(), ())
    assert found.sizes.tolist() == [4, 3, 3]  # a chain that is certain, none, two ways that are half as likely
    assert found.tokens.tolist() == [[-1, 3, 1, 2], [-1, 8, 9, -1], [-1, 8, 9, -1]]
    for row in (1, 2):
        assert found.parents[row, :3].tolist() == [-1, 0, 0] and found.depths[row, :3].tolist() == [0, 1, 1]


@pytest.mark.parametrize("by_kernel", WAYS)
@pytest.mark.parametrize("length", [1024, 1026, 2200])
def test_long_texts_are_searched_part_by_part(length: int, by_kernel: bool) -> None:
    text = drawn_text(length, length, 3)
    held = OnDevice([text], by_kernel=by_kernel)
    held.cut([length - 4])
    for kind in ("suffix", "first suffix"):
        policy = CHAINS[kind]
        found = batch_of(held.copies(policy, [text], nodes=policy.length + 1).numpy(), ())
        assert found.tokens[0, : found.sizes[0]].tolist() == TextState().draft(text, policy)[0].tolist()


@pytest.mark.skipif(not has_triton(), reason="needs triton")
@pytest.mark.parametrize("nodes", [1, 5, 16, 64, 65, 100])
def test_the_kernel_tells_what_nodes_see(nodes: int) -> None:
    rng = random.Random(nodes)
    parents = torch.tensor([[-1, *(rng.randrange(place) for place in range(1, nodes))] for _ in range(3)])
    wide = torch.cat((parents, parents), dim=1)[:, :nodes]  # rows that lie apart
    (found, _) = launch(bits_of_parents, wide, deepest=nodes)
    assert found is not None and torch.equal(found, tree_bits(ancestors_of(parents, nodes)))


def test_ends_are_likely_where_such_rounds_are_frequent() -> None:
    ends = Ends(5)
    assert ends.are_likely([5]) and not ends.are_likely([6])  # nothing is known: it may end
    for _ in range(80):
        ends.note([1, 3])
    assert not ends.are_likely([4, 4]) and ends.are_likely([3])
    assert not ends.are_likely([4] * 3) and ends.are_likely([4] * 4)  # each is unlikely to end, one of all is not


def test_a_row_whose_text_is_another_s_is_taken_in_anew() -> None:
    texts, room = TextsOnDevice(2, 40, CPU), 4
    batch = [
        text_module.Sequence(request=Request(prompt=(1, 2, 1, 2), max_new_tokens=9), index=index) for index in range(2)
    ]
    assert texts.begin(batch, None, room) == [[2], [2]]
    batch[0].tokens += [1, 2]
    assert texts.begin(batch, None, room) == [[1, 2], [2]]  # the device takes these in itself
    assert texts._held.lengths.tolist() == [4, 4]  # it does so when the round searches
    texts.note([8, 4])  # what the next one, which is under way, knows
    batch[0].tokens += [1, 2]
    batch[1].tokens += [3] * 5
    assert texts.begin(batch, None, room) == [[2], [3]]  # more than a round keeps
    assert texts._held.lengths.tolist() == [4, 9] and texts._held.tokens[1, :9].tolist() == batch[1].tokens
    batch[0], batch[1] = batch[1], batch[0]
    assert texts.begin(batch, None, room) == [[3], [2]] and texts._held.lengths.tolist() == [9, 8]
    assert texts._held.tokens[0, :9].tolist() == batch[0].tokens
    batch[1].tokens += [7]
    assert texts.begin(batch, [[9, 9], []], room) == [
        [9, 9],
        [],
    ]  # it is not told what the model has read
    assert texts._held.lengths.tolist() == [9, 9] and texts._held.tokens[1, :9].tolist() == batch[1].tokens


def test_a_text_that_joins_is_sent_before_a_round_begins_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    captured, taken, is_step = Captured(slots=2), list[bool](), [False]
    decoder = captured.decoder(always(setup_of("suffix")), drafters_of(captured.drafter))
    take = TextsOnDevice._take

    def noted(texts: TextsOnDevice, slot: int, sequence: text_module.Sequence) -> None:
        taken.append(is_step[0])
        take(texts, slot, sequence)

    monkeypatch.setattr(TextsOnDevice, "_take", noted)
    waiting = looping(random_requests(6, tokens=20))
    sequences: list[text_module.Sequence] = []
    while waiting or decoder.running:
        while waiting and decoder.has_room:
            sequences.append(decoder.admit(waiting.pop(), len(sequences)))
        is_step[0] = True
        assert not decoder.step().faults
        is_step[0] = False
    assert [tuple(one.emitted) for one in sequences] == plainly([one.request for one in sequences])
    assert taken[:2] == [True, True] and False in taken  # before the first round nobody knows who asks


@pytest.mark.lossless
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_rounds_copy_ahead_and_wait_for_their_own_results_alone(kind: str, slots: int) -> None:
    target, model = (in_regime(on_gpu(scale), "cuda-graph") for scale in (0.0, 0.06))
    drafters = drafters_of(ModelDrafter(model, slots=slots, capacity=CAPACITY))
    decoder = Engine(target, drafters, always(setup_of(kind)), slots=slots, capacity=CAPACITY)
    requests = [replace(one, max_new_tokens=60) for one in looping(random_requests(slots, tokens=1))]
    assert_ahead_without_waits(decoder, requests)
