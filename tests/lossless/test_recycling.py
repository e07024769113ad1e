"""Token Recycling changes no output; its trees replay from a recording; controls show that these tests could fail."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import cache

import numpy as np
import pytest
import torch

from spectune.planner.lockstep import replay_results
from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.recording import RecordedScorer, recording_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow, results_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.profiler.records.acceptance import PromptTrace
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.features import GivenFeatures
from spectune.runtime.drafters.recycling import RecyclingDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.recycling import RecyclingHead, SuccessorCache, Successors
from spectune.runtime.models.tapped import tapped_for
from spectune.tuning.recording.continuations import continuations
from spectune.tuning.recording.recipe import Recipe
from spectune.tuning.recording.record import record_prompts

from ..support.decoded_runs import CAPACITY, POLICIES, RecordingDrafter, in_slots, random_requests, run
from ..support.fresh_states import worst_difference
from ..support.replayed_drafts import (
    REPLAYED,
    accepted,
    decoded_alone,
    ending_requests,
    features_of_others,
    told_otherwise_later,
    trace_of,
)
from ..support.tiny_models import tiny_llama
from ..support.tiny_recycling import SUCCESSORS, counting, laws_of, rows_behind, tiny_recycling

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=2, seed=0)
TARGET = LeanModel(LLAMA)
HEAD = tiny_recycling(LLAMA)
RECIPE = Recipe(children=5, trees=tuple(Eagle2Policy(top_k=width, depth=4) for width in (1, 3, 4)))
TREES = [name for name in POLICIES if name != "lookup"]


@cache
def plain(temperature: float) -> list[tuple[int, ...]]:
    return run(TARGET, random_requests(7, tokens=24, temperature=temperature), slots=1).outputs


@pytest.mark.thinned
@pytest.mark.parametrize("policy", TREES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_trees_of_recycled_tokens_change_no_output(policy: str, temperature: float) -> None:
    """T1; and T8: what is emitted is what was accepted and one token a round."""
    drafter = RecyclingDrafter(HEAD, slots=3, capacity=CAPACITY)
    schedule = always(StepConfig(policy=POLICIES[policy], drafter="it"))
    requests = random_requests(7, tokens=24, temperature=temperature)
    found = run(tapped_for(TARGET, [HEAD]), requests, schedule, {"it": drafter})
    assert found.outputs == plain(temperature)
    assert sum(sum(done.kept) for done in found.rounds) == sum(len(text) - 1 for text in found.outputs)
    assert any(count > 1 for done in found.rounds for count in done.kept)  # some drafts are right


def test_texts_that_stop_or_begin_with_one_token_end_where_the_target_ends_them() -> None:
    """T7: a stop token inside a draft, and no room for a whole draft."""
    requests = ending_requests(plain(0.0))
    schedule = always(StepConfig(policy=POLICIES["eagle2"], drafter="it"))
    drafters = {"it": RecyclingDrafter(HEAD, slots=3, capacity=CAPACITY)}
    found = run(tapped_for(TARGET, [HEAD]), requests, schedule, drafters)
    assert found.outputs == run(TARGET, requests, slots=1).outputs


def test_a_text_that_goes_in_circles_is_foretold_whole_once_it_has_gone_round() -> None:
    """T4: every token's row is known then, and the likeliest successor is always the one that comes."""
    llama = counting(8)
    target, head = LeanModel(llama), tiny_recycling(llama)
    drafter = RecyclingDrafter(head, slots=1, capacity=CAPACITY)
    schedule = always(StepConfig(policy=ChainPolicy(length=4), drafter="it"))
    request = Request(prompt=(5,), max_new_tokens=60)
    found = run(tapped_for(target, [head]), [request], schedule, {"it": drafter}, slots=1)
    assert found.outputs == [tuple((6 + place) % 8 for place in range(60))]
    early, late = ([done.kept[0] for done in found.rounds if is_late(done.context)] for is_late in (_before, _behind))
    assert early[0] == 1 and len(late) > 5 and late[:-1] == [5] * (len(late) - 1)


def _before(context: int) -> bool:
    return context < 9


def _behind(context: int) -> bool:
    return context >= 9


class Liar(RecyclingDrafter):
    """Keeps the successors of other texts."""

    def features_in(self, cache: KeyValueCache) -> GivenFeatures:
        return features_of_others(cache)


def test_wrong_features_change_no_output_but_the_drafts() -> None:
    """T3, and the control of every test that compares drafts."""
    seen = []
    for made in (Liar, RecyclingDrafter):
        drafter = RecordingDrafter(made(HEAD, slots=1, capacity=CAPACITY))
        target, schedule = tapped_for(TARGET, [HEAD]), always(StepConfig(policy=POLICIES["chain"], drafter="it"))
        decoder = Engine(target, {"it": drafter}, schedule, slots=1, capacity=CAPACITY)
        drafter.drafter.attach(decoder._cache)
        assert [decoded_alone(decoder, request) for request in random_requests(7, tokens=24)] == plain(0.0)
        seen.append(drafter.rounds)
    assert seen[0] != seen[1]


Seen = list[tuple[int, torch.Tensor]]


def watched(policy: str) -> tuple[list[tuple[int, ...]], list[list[int]], RecordingDrafter, Seen, list[Sequence]]:
    """Return what a run did: its outputs, tokens kept, drafts, the target's cache after every round, and sequences."""
    own = RecyclingDrafter(HEAD, slots=3, capacity=CAPACITY)
    recorder, states, texts = RecordingDrafter(own), list[tuple[int, torch.Tensor]](), dict[int, Sequence]()

    def watch(decoder: Engine) -> None:
        for slot, sequence in in_slots(decoder):
            states.append((sequence.index, decoder._cache.states[:, slot, : sequence.context].clone()))
            texts[sequence.index] = sequence
            kept = own._cached[slot]
            assert isinstance(own._cache, SuccessorCache)
            assert own._cache.tokens[slot, :kept].tolist() == sequence.tokens[:kept]

    requests = random_requests(7, tokens=16, temperature=0.8)
    schedule = always(StepConfig(policy=POLICIES[policy], drafter="it"))
    done = run(tapped_for(TARGET, [HEAD]), requests, schedule, {"it": recorder}, watch=watch)
    return done.outputs, [each.kept for each in done.rounds], recorder, states, [texts[at] for at in sorted(texts)]


@pytest.mark.parametrize("policy", ["chain", "eagle2"])
def test_caches_are_those_of_a_fresh_reading_and_a_run_is_the_same_again(policy: str) -> None:
    """T5 and T9."""
    outputs, kept, recorder, states, _ = watched(policy)
    requests = random_requests(7, tokens=16, temperature=0.8)
    texts = [(*asked.prompt, *text) for asked, text in zip(requests, outputs, strict=True)]
    assert len(states) > 20 and worst_difference(LLAMA, texts, states) < 1e-9
    again = watched(policy)
    assert again[:2] == (outputs, kept) and again[2].rounds == recorder.rounds


class Keeping(RecyclingDrafter):
    """Remembers what it drew behind which text."""

    def __init__(self, head: RecyclingHead = HEAD) -> None:
        super().__init__(head, slots=1, capacity=CAPACITY)
        self.drawn: dict[int, DraftBatch] = {}

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        draft = super().draft(sequences, policy)
        self.drawn[len(sequences[0].tokens)] = draft
        return draft


class Hoarding(Keeping):
    """Learns from rejected nodes too, as published: rows of the nodes of the last tree count as the newest."""

    def looked_up(self, *_: object) -> None:
        """Leave all of it to `recall`."""

    def recall(self, tokens: np.ndarray, lengths: np.ndarray) -> Successors:
        known = super().recall(tokens, lengths)
        for place, token in np.ndenumerate(tokens):
            if int(token) in self.rejected:
                known.ids[place], known.log_probs[place] = self.rejected[int(token)]
        return known

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        draft, text = super().draft(sequences, policy), sequences[0].tokens
        for node in range(1, draft.tokens.shape[1]):
            path, at = list[int](), node
            while at > 0:
                path, at = [int(draft.tokens[0, at]), *path], int(draft.parents[0, at])
            row = rows_behind([*text, *path, 0], laws_of(LLAMA, [*text, *path]))[path[-1]]
            self.rejected[path[-1]] = torch.tensor([one for one, _ in row]), torch.tensor([lp for _, lp in row])
        return draft

    def __init__(self) -> None:
        super().__init__()
        self.rejected: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


@cache
def texts(temperature: float) -> list[tuple[Request, tuple[int, ...]]]:
    asked = random_requests(3, tokens=30, temperature=temperature)
    return list(zip(asked, continuations(TARGET, asked), strict=True))


@cache
def recorded(temperature: float) -> tuple[PromptTrace, ...]:
    return record_prompts(HEAD, texts(temperature), RECIPE)


def mistaken(policy: TreePolicy, temperature: float, made: type[Keeping] = Keeping) -> tuple[int, int, int]:
    """Return how many trees were compared, how many replayed otherwise, and how many drafts were right."""
    compared = wrong = right = 0
    for (request, text), prompt in zip(texts(temperature), recorded(temperature), strict=True):
        drafter, recording = made(), recording_of(trace_of("r", (prompt,), temperature))
        schedule = always(StepConfig(policy=policy, drafter="it"))
        decoder = Engine(tapped_for(TARGET, [HEAD]), {"it": drafter}, schedule, slots=1, capacity=CAPACITY)
        assert decoded_alone(decoder, request) == text
        results = results_of(policy, recording)
        for length, live in drafter.drawn.items():
            place = length - len(request.prompt) - 1
            scorer = RecordedScorer(recording, np.array([place]))
            replayed = grow(policy, scorer, 1)
            assert not scorer.censored.any()
            took = accepted(live, [*text[length - len(request.prompt) :], *([-2] * 9)])
            is_same = replayed.parents.tolist() == live.parents.tolist() and replayed.widths == live.widths
            is_same &= bool(replayed.tokens[0, 1:].sum() == took == results.accepted[place])
            compared, wrong, right = compared + 1, wrong + (not is_same), right + took
    return compared, wrong, right


@pytest.mark.thinned
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", REPLAYED, ids=str)
def test_a_replay_draws_the_trees_that_decoding_drew(policy: TreePolicy, temperature: float) -> None:
    compared, wrong, right = mistaken(policy, temperature)
    assert compared > 25 and right > 5 and wrong == 0


def test_learning_from_rejected_nodes_would_not_replay() -> None:
    """The control, and why only committed places teach: the published table hangs on the trees verified before."""
    compared, wrong, _ = mistaken(Eagle2Policy(verify_tokens=7, depth=3, top_k=3), 0.0, Hoarding)
    assert compared > 25 and wrong > 5


@pytest.mark.parametrize("policy", REPLAYED, ids=str)
def test_a_replay_counts_the_rounds_that_decoding_runs(policy: TreePolicy) -> None:
    recording = recording_of(trace_of("r", recorded(0.0), 0.0))
    replay = replay_results(results_of(policy, recording), recording.rows, 1)
    drafter = RecyclingDrafter(HEAD, slots=1, capacity=CAPACITY)
    schedule = always(StepConfig(policy=policy, drafter="it"))
    asked = [request for request, _ in texts(0.0)]
    live = run(tapped_for(TARGET, [HEAD]), asked, schedule, {"it": drafter}, slots=1)
    assert replay.kept[:, 0].tolist() == [done.kept[0] for done in live.rounds]
    assert [tuple(w for w in row if w) for row in replay.widths.tolist()] == [done.widths for done in live.rounds]


def test_recorded_trees_hold_the_rows_of_their_own_place() -> None:
    """Roots and children of every recorded position, against the dictionary of its own prefix."""
    for (request, text), prompt in zip(texts(0.0), recorded(0.0), strict=True):
        whole = [*request.prompt, *text]
        laws = laws_of(LLAMA, whole)
        for place in range(len(text) - 1):
            committed = whole[: len(request.prompt) + 1 + place]
            row = rows_behind(committed, laws).get(committed[-1])
            root = prompt.log_probs[prompt.offsets[place]]
            if row is None:
                np.testing.assert_allclose(root, -np.log(24), atol=1e-2)
            else:
                np.testing.assert_allclose(root[:SUCCESSORS], [chance for _, chance in row], atol=1e-5)


def test_recorded_as_if_it_were_a_model_it_would_replay_wrongly() -> None:
    """The control: one token on, one row more is known, so the tree below is not the next position's tree."""
    assert sum(told_otherwise_later(prompt) for prompt in recorded(0.0)) > 0
