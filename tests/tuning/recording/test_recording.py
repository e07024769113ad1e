"""What is recorded is what the drafter would have drawn; a recording that was stopped goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from spectune.errors import MeasurementError, NoRoomError
from spectune.planner.records.recording import RecordedScorer, recording_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.profiler.records.acceptance import MISS, AcceptanceTrace, PromptTrace
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.recording.portion import Portion
from spectune.tuning.recording.recipe import Recipe, recipe_of
from spectune.tuning.recording.record import Recorder, record_prompts

from ...support.limited_memory import Limit
from ...support.shelf import Shelf, StoppedError
from ...support.tiny_models import perturbed, tiny_llama

BEAMS = tuple(Eagle2Policy(top_k=width, depth=depth) for width, depth in ((1, 5), (2, 4), (4, 3), (5, 2)))
RECIPE = Recipe(children=5, trees=(*BEAMS, TalonPolicy(nodes=12, gate=0.1, top_k=3, children=5)))
ROOTS_ONLY = Recipe()
WEIGHTS = tiny_llama(layers=2, seed=0)
TARGET, DRAFTER = LeanModel(WEIGHTS), LeanModel(perturbed(WEIGHTS, 0.1))


def requests(temperature: float = 0.0) -> list[Request]:
    rng = np.random.default_rng(3)
    prompts = [tuple(rng.integers(0, 24, size).tolist()) for size in (1, 7, 30)]
    return [Request(prompt=p, max_new_tokens=25, seed=i, temperature=temperature) for i, p in enumerate(prompts)]


@cache
def texts(temperature: float = 0.0) -> list[tuple[Request, tuple[int, ...]]]:
    asked = requests(temperature)
    return list(zip(asked, continuations(TARGET, asked), strict=True))


def recorded(
    place: int = 1, recipe: Recipe = RECIPE, *, rows: int = 64, slots: int = 4, piece_tokens: int = 512
) -> PromptTrace:
    portion = Portion(rows=rows, slots=slots, piece_tokens=piece_tokens)
    return Recorder(DRAFTER, recipe, longest=80, portion=portion).record(*texts()[place])


def trace_of(prompts: tuple[PromptTrace, ...], temperature: float = 0.0) -> AcceptanceTrace:
    return AcceptanceTrace(
        target="t", drafter="d", drafter_name="d", workload="w", temperature=temperature, seed=0,
        children=prompts[0].children, prefix_exact=True, prompts=prompts,
    )  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "policy",
    [
        ChainPolicy(length=5),
        Eagle2Policy(verify_tokens=12, depth=3, top_k=4),
        Eagle2Policy(verify_tokens=9, depth=4, top_k=2),
    ],
    ids=lambda policy: policy.code,
)
def test_a_recorded_policy_draws_the_tree_the_drafter_draws(policy: TreePolicy, temperature: float) -> None:
    for (request, _), prompt in zip(
        texts(temperature), record_prompts(DRAFTER, texts(temperature), RECIPE), strict=True
    ):
        recording = recording_of(trace_of((prompt,), temperature))
        for t in range(prompt.positions):
            sequence = Sequence(request, 0)
            sequence.tokens = [*request.prompt, *prompt.continuation[: t + 1]]
            drafter = ModelDrafter(DRAFTER, slots=1, capacity=120)
            drafter.admit(0, sequence)
            live = drafter.draft([sequence], policy)
            scorer = RecordedScorer(recording, np.array([t]))
            replayed = grow(policy, scorer, 1)
            truth = [*prompt.continuation[t + 1 :], *([-2] * 10)]
            assert not scorer.censored.any()
            assert replayed.parents.tolist() == live.parents.tolist()
            assert replayed.tokens[0, 1:].sum() == accepted(live.tokens[0], live.parents[0], truth)


def accepted(tokens: np.ndarray, parents: np.ndarray, truth: list[int]) -> int:
    """Walk the tree token by token along the truth."""
    node, count = 0, 0
    while True:
        below = [c for c in range(1, len(tokens)) if parents[c] == node and tokens[c] == truth[count]]
        if not below:
            return count
        node, count = below[0], count + 1


@pytest.mark.parametrize(("rows", "slots"), [(3, 4), (64, 1), (64, 30), (7, 2)])
def test_pieces_of_any_size_record_the_same(rows: int, slots: int) -> None:
    small, large = recorded(rows=rows, slots=slots), recorded()
    assert np.array_equal(small.offsets, large.offsets)
    assert np.array_equal(small.parent, large.parent)
    assert np.array_equal(small.hit_rank, large.hit_rank)
    np.testing.assert_allclose(small.log_probs, large.log_probs, atol=1e-5)


def test_a_cache_too_small_for_the_trees_grows() -> None:
    deep = Recipe(children=10, trees=(Eagle2Policy(top_k=10, depth=7),))
    prompt = recorded(recipe=deep, slots=1)
    assert len(prompt.parent) > 400  # all in one slot
    assert np.array_equal(prompt.hit_rank, recorded(recipe=deep, slots=30).hit_rank)


def test_a_text_longer_than_what_is_read_at_once_is_read_whole() -> None:
    assert np.array_equal(recorded(2, piece_tokens=7).hit_rank, recorded(2).hit_rank)


def test_where_memory_is_short_less_is_recorded_at_once_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, limit = recorded(), Limit(monkeypatch, tokens=3 * 600)
    found = recorded(slots=8)
    assert found.offsets.tolist() == whole.offsets.tolist() and found.hit_rank.tolist() == whole.hit_rank.tolist()
    assert limit.refused == [9 * 592, 5 * 592] and limit.made == [3 * 592]


def test_a_position_s_tree_that_finds_no_memory_ends_the_recording_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    Limit(monkeypatch, tokens=0)
    with pytest.raises(NoRoomError, match=r"memory has no room for recording a text .*; free some, or ask for shorter"):
        recorded()


def test_below_the_targets_own_token_the_trees_of_neighbours_hold_the_very_same_scores() -> None:
    prompt = recorded()
    starts, shared = prompt.offsets[:-1], 0
    for t in np.flatnonzero(prompt.next_rank[:-1] != MISS):
        own = slice(prompt.offsets[t], prompt.offsets[t + 1])
        (child,) = np.flatnonzero((prompt.parent[own] == 0) & (prompt.rank[own] == prompt.next_rank[t])) or (None,)
        if child is not None:
            shared += 1
            assert np.array_equal(prompt.log_probs[own][child], prompt.log_probs[starts[t + 1]])
    assert shared > 5


def nodes_of(prompt: PromptTrace) -> list[set[tuple[int, ...]]]:
    """Return, per position, the expanded nodes as ranks from the root down."""
    found: list[list[tuple[int, ...]]] = []
    for parent, rank in zip(prompt.parent.tolist(), prompt.rank.tolist(), strict=True):
        if parent < 0:
            found.append([()])
        else:
            found[-1].append((*found[-1][parent], rank))
    return [set(nodes) for nodes in found]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_models_recording_holds_exactly_what_its_trees_alone_would_expand(place: int) -> None:
    beams = Eagle2Policy(top_k=1, depth=5), Eagle2Policy(top_k=4, depth=2)
    trees = (*beams, TalonPolicy(nodes=12, gate=0.1, top_k=3, children=5))
    alone = [nodes_of(recorded(place, Recipe(children=5, trees=(tree,)))) for tree in trees]
    together = nodes_of(recorded(place, Recipe(children=5, trees=trees)))
    assert together == [set().union(*sets) for sets in zip(*alone, strict=True)]


def test_the_next_rank_is_the_rank_of_the_targets_token() -> None:
    prompt = recorded(2, ROOTS_ONLY)
    request = requests()[2]
    text = [*request.prompt, *prompt.continuation]
    model = ModelDrafter(DRAFTER, slots=1, capacity=120)
    sequence = Sequence(request, 0)
    sequence.tokens = text[: len(request.prompt) + 4]
    model.admit(0, sequence)
    order = torch.argsort(model.catch_up([sequence])[0, 0], descending=True).tolist()
    rank = order.index(prompt.continuation[4])
    assert prompt.next_rank[3] == (rank if rank < 10 else MISS)


def test_elsewhere_than_at_the_wanted_positions_only_the_roots_are_recorded() -> None:
    everywhere = recorded()
    some = Recorder(DRAFTER, RECIPE, longest=80).record(*texts()[1], [2, 3, 9])
    sizes = np.diff(some.offsets)
    assert set(np.flatnonzero(sizes > 1)) == {2, 3, 9}
    assert np.array_equal(some.next_rank, everywhere.next_rank)
    assert sizes[9] == np.diff(everywhere.offsets)[9]


def test_a_recorded_tree_node_takes_at_most_eight_bytes() -> None:
    standard = trace_of(record_prompts(DRAFTER, texts(), recipe_of("standard")))
    assert standard.bytes_per_node <= 8.0
    nodes = sum(prompt.log_probs.size for prompt in standard.prompts)
    assert standard.bytes_per_position == pytest.approx(standard.bytes_per_node * nodes / standard.positions)


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_a_stopped_recording_goes_on_and_ends_the_same(finished: int) -> None:
    whole = record_prompts(DRAFTER, texts(), RECIPE)
    shelf = Shelf(stop_after=finished)
    with pytest.raises(StoppedError):
        record_prompts(DRAFTER, texts(), RECIPE, parts=shelf)
    kept = dict(shelf.documents)
    assert len(kept) == finished
    again = Shelf(kept)
    assert record_prompts(DRAFTER, texts(), RECIPE, parts=again) == whole
    assert again.added == [f"trace drafter {place}" for place in range(finished, 3)]


def test_drafters_keep_their_parts_apart() -> None:
    shelf = Shelf()
    for name in ("small", "medium"):
        record_prompts(DRAFTER, texts()[:1], ROOTS_ONLY, parts=shelf, name=name)
    assert shelf.added == ["trace small 0", "trace medium 0"]


def test_a_part_of_another_text_is_refused() -> None:
    shelf = Shelf()
    record_prompts(DRAFTER, texts()[:1], ROOTS_ONLY, parts=shelf)
    with pytest.raises(MeasurementError, match="another text"):
        record_prompts(DRAFTER, texts()[1:], ROOTS_ONLY, parts=shelf)


def test_progress_tells_the_share_of_prompts_done() -> None:
    told: list[float] = []
    watch: Callable[[float], None] = told.append
    record_prompts(DRAFTER, texts(), ROOTS_ONLY, progress=watch)
    assert told == [1 / 3, 2 / 3, 1.0]
