"""T1, T3, T4, T5, T7, T8, T9 for what is drafted from the text: the output is the target's own, token for token."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from torch import Tensor

from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.frozen_table import frozen_table
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.text import batch_of
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import Schedule, StepConfig, always
from spectune.runtime.drafters.hybrid import HybridDrafter
from spectune.runtime.drafters.lookup import LookupDrafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.sampling import acceptance as acceptance_module
from spectune.runtime.sampling.acceptance import Acceptance

from ..support.decoded_runs import BUSHY, CAPACITY, PADDED, RecordingDrafter, Run, in_slots, random_requests, run
from ..support.fresh_states import worst_difference
from ..support.pairwise import crossed
from ..support.tiny_models import perturbed, tiny_llama
from .test_identity import many_prompts, many_prompts_plainly

pytestmark = pytest.mark.lossless

LLAMA = tiny_llama(layers=2, seed=0)
TARGET = LeanModel(LLAMA)
FROZEN = frozen_table(
    np.random.default_rng(0).integers(0, 24, 400), leader_tokens=1, follower_tokens=3, leaders=20, followers=4
)
POLICIES: dict[str, TreePolicy] = {
    "first lookup": LookupPolicy(length=6, max_ngram=3, min_ngram=1, occurrence="first"),
    "suffix": SuffixPolicy(length=12),
    "last suffix": SuffixPolicy(length=5, factor=1, min_match=2, occurrence="last"),
    "suffix tree": SuffixTreePolicy(nodes=14, factor=4, offset=1, least_chance=0.05),
    "cacheback": CachebackPolicy(nodes=14),
    "frozen cacheback": CachebackPolicy(nodes=14, frozen=FROZEN),
    "small cacheback": CachebackPolicy(leader_tokens=2, follower_tokens=2, leaders=5, followers=2, nodes=9),
}
each = pytest.mark.parametrize("name", POLICIES)


HYBRIDS = {
    "chain": HybridPolicy(text=SuffixPolicy(length=5, min_match=2, occurrence="last"), model=ChainPolicy(length=3)),
    "tree": HybridPolicy(text=SuffixPolicy(min_match=3), model=StaticPolicy(tree=BUSHY)),
    "beam": HybridPolicy(text=SuffixPolicy(length=4), model=Eagle2Policy(verify_tokens=8, depth=2, top_k=3)),
    "copied trees": HybridPolicy(
        text=SuffixTreePolicy(nodes=9, factor=4, offset=1, least_chance=0.05, least_score=1.2),
        model=Eagle2Policy(verify_tokens=8, depth=2, top_k=3),
    ),
}


def drafting(name: str, **setup: tuple[int, ...]) -> Schedule:
    return always(StepConfig(policy=POLICIES[name], drafter="it", **setup))


def decoded(name: str, requests: Many[Request], slots: int = 3, **setup: tuple[int, ...]) -> Run:
    return run(TARGET, requests, drafting(name, **setup), {"it": LookupDrafter()}, slots=slots)


@lru_cache
def alone(requests: tuple[Request, ...]) -> list[tuple[int, ...]]:
    return run(TARGET, requests, slots=1).outputs


def plain(temperature: float) -> list[tuple[int, ...]]:
    return alone(tuple(some_requests(temperature)))


@lru_cache
def some_requests(temperature: float) -> list[Request]:
    return random_requests(11, tokens=40, temperature=temperature)


@pytest.mark.parametrize(
    "name", ["suffix", *(pytest.param(name, marks=pytest.mark.slow) for name in ("suffix tree", "cacheback"))]
)
def test_200_prompts_decode_to_what_transformers_generates(name: str) -> None:
    requests, expected = many_prompts("llama", 64, 20)
    done = decoded(name, requests, slots=8)
    assert done.outputs == expected
    assert done.target_forwards < 0.9 * many_prompts_plainly().target_forwards  # drafts were taken


@crossed(name=POLICIES, slots=(1, 3, 8), temperature=(0.0, 0.8))
def test_output_does_not_depend_on_policy_and_batch(name: str, slots: int, temperature: float) -> None:
    assert decoded(name, some_requests(temperature), slots).outputs == plain(temperature)


@each
def test_padding_the_verify_changes_no_output(name: str) -> None:
    assert decoded(name, some_requests(0.8), run_tokens=PADDED).outputs == plain(0.8)


def test_a_decoder_that_takes_drafts_unseen_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: what these tests compare does depend on verification."""

    def take_first_path(tokens: list[int], parents: list[int], size: int, draws: list[int]) -> Acceptance:
        nodes, drawn = [0], list[int]()
        for node in range(1, size):
            if parents[node] == nodes[-1]:
                nodes.append(node)
                drawn.append(tokens[node])
        return Acceptance(nodes=nodes, drawn=[*drawn, draws[nodes[-1]]])

    right = plain(0.8)
    monkeypatch.setattr(acceptance_module, "accept", take_first_path)
    for name in POLICIES:
        assert decoded(name, some_requests(0.8)).outputs != right


class Liar(LookupDrafter):
    """Drafts from the text, every token replaced by another."""

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        draft = super().draft(sequences, policy)
        return replace(draft, tokens=np.where(draft.tokens < 0, draft.tokens, (draft.tokens + 7) % 24))


@each
def test_drafts_that_are_wrong_change_no_output(name: str) -> None:
    done = run(TARGET, some_requests(0.8), drafting(name), {"it": Liar()})
    assert done.outputs == plain(0.8)
    assert all(kept >= 1 for one in done.rounds for kept in one.kept)


@pytest.mark.parametrize(("name", "kept"), [("suffix", 13), ("last suffix", 6), ("cacheback", 7)])
def test_a_text_that_goes_round_in_circles_is_taken_whole(name: str, kept: int) -> None:
    looping = next(r for r in many_prompts("llama", 64, 20)[0] if is_loop(r))
    long = replace(looping, max_new_tokens=140)
    done = run(TARGET, [long], drafting(name), {"it": LookupDrafter()}, slots=1, capacity=200)
    assert max(one.kept[0] for one in done.rounds) == kept
    assert done.outputs == run(TARGET, [long], slots=1, capacity=200).outputs


def is_loop(request: Request) -> bool:
    """Say whether greedy decoding ends in a cycle of different tokens."""
    requests, expected = many_prompts("llama", 64, 20)
    text = expected[requests.index(request)]
    periods = [p for p in range(1, 9) if text[-3 * p :] == text[-p:] * 3]
    return bool(periods) and len(set(text[-periods[0] :])) == periods[0]


@each
def test_stop_tokens_and_limits_inside_a_draft_end_the_text(name: str) -> None:
    requests = [
        replace(request, stop=frozenset([3, 14]), max_new_tokens=1 + 3 * place)
        for place, request in enumerate(some_requests(0.8))
    ]
    assert decoded(name, requests).outputs == alone(tuple(requests))


@each
def test_a_prompt_of_one_token_decodes(name: str) -> None:
    requests = [Request(prompt=(token,), max_new_tokens=30) for token in range(5)]
    assert decoded(name, requests).outputs == alone(tuple(requests))


@each
def test_after_every_round_the_cache_is_that_of_the_text_read_at_once(name: str) -> None:
    requests, seen = some_requests(0.8)[:5], list[tuple[int, Tensor]]()

    def look(decoder: Engine) -> None:
        for slot, one in in_slots(decoder):
            seen.append((one.index, decoder._cache.states[:, slot, : one.context].clone()))

    done = run(TARGET, requests, drafting(name), {"it": LookupDrafter()}, watch=look)
    texts = [request.prompt + output for request, output in zip(requests, done.outputs, strict=True)]
    assert worst_difference(LLAMA, texts, seen) < 1e-9


@each
def test_kept_tokens_and_first_tokens_are_all_tokens_and_the_same_run_is_the_same(name: str) -> None:
    first, second = decoded(name, some_requests(0.8)), decoded(name, some_requests(0.8))
    assert sum(sum(one.kept) for one in first.rounds) == sum(len(text) - 1 for text in first.outputs)
    assert first.target_forwards == len(first.rounds)
    assert [one.kept for one in first.rounds] == [one.kept for one in second.rounds]


@each
def test_a_drafter_that_goes_on_drafts_as_a_fresh_one_does(name: str) -> None:
    """So it learns from committed tokens alone: sequences leave, move to other slots, and reject drafts."""
    recorder = RecordingDrafter(Watched(POLICIES[name]))
    run(TARGET, some_requests(0.8), drafting(name), {"it": recorder})
    assert len(recorder.rounds) > 20


class Watched(LookupDrafter):
    """Compares each of its drafts with those of a drafter that never saw the sequences before."""

    def __init__(self, policy: TreePolicy) -> None:
        super().__init__()
        self.policy = policy

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        fresh = LookupDrafter()
        for slot, sequence in enumerate(sequences):
            fresh.admit(slot, sequence)
        own, other = super().draft(sequences, policy), fresh.draft(sequences, policy)
        assert own.tokens.tolist() == other.tokens.tolist() and own.parents.tolist() == other.parents.tolist()
        return own


def hybrid_of(model: CausalModel, slots: int) -> HybridDrafter:
    return HybridDrafter(ModelDrafter(model, slots=slots, capacity=CAPACITY))


@crossed(name=HYBRIDS, slots=(1, 3, 8), temperature=(0.0, 0.8))
def test_a_hybrid_changes_no_output(name: str, slots: int, temperature: float) -> None:
    schedule = always(StepConfig(policy=HYBRIDS[name], drafter="it"))
    drafter = hybrid_of(LeanModel(perturbed(LLAMA, 0.06)), slots)
    done = run(TARGET, some_requests(temperature), schedule, {"it": drafter}, slots=slots)
    assert done.outputs == plain(temperature)
    assert drafter.forwards > 0 and any(one.widths for one in done.rounds)
    has_copied = any(not one.widths and one.kept[0] > 1 for one in done.rounds)  # the text drafted, and rightly
    assert slots > 1 or temperature or has_copied


def test_a_hybrid_whose_model_is_garbage_changes_no_output() -> None:
    schedule = always(StepConfig(policy=HYBRIDS["tree"], drafter="it"))
    drafter = hybrid_of(LeanModel(tiny_llama(layers=1, seed=99)), 3)
    assert run(TARGET, some_requests(0.8), schedule, {"it": drafter}).outputs == plain(0.8)


def test_a_hybrid_drafter_drafts_all_that_its_model_does() -> None:
    model = LeanModel(perturbed(LLAMA, 0.06))
    schedule = always(StepConfig(policy=ChainPolicy(length=3), drafter="it"))
    alone = run(TARGET, some_requests(0.8), schedule, {"it": ModelDrafter(model, slots=3, capacity=CAPACITY)})
    both = run(TARGET, some_requests(0.8), schedule, {"it": hybrid_of(model, 3)})
    assert [one.kept for one in both.rounds] == [one.kept for one in alone.rounds]


def test_policies_may_take_turns_on_one_text() -> None:
    names = list(POLICIES)

    def schedule(batch: int, context: int) -> StepConfig:
        return StepConfig(policy=POLICIES[names[context % len(names)]], drafter="it")

    done = run(TARGET, some_requests(0.8), schedule, {"it": LookupDrafter()})
    assert done.outputs == plain(0.8)


def test_a_batch_of_trees_is_padded_to_the_largest() -> None:
    bare, chain = np.array([[-1], [-1], [0]]), np.array([[-1, 5, 6], [-1, 0, 1], [0, 1, 2]])
    draft = batch_of([bare, chain])
    assert draft.tokens.tolist() == [[-1, -1, -1], [-1, 5, 6]] and draft.sizes.tolist() == [1, 3]
    assert draft.parents.tolist() == [[-1, 0, 0], [-1, 0, 1]] and draft.depths.tolist() == [[0, 1, 1], [0, 1, 2]]
