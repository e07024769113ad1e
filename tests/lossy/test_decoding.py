"""T10, decoding: neutral settings give the target's own text, open ones do not, and every token let be is told."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from functools import cache

import pytest
import torch

from spectune.planner.records.fly_rule import FlyRule
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.fly import FlyPolicy
from spectune.planner.strategies.lossy import LossyDraft
from spectune.planner.strategies.stack import StackPolicy, stack_name
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.stack import stack_drafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.fly import accept_loosely, entropies_of
from spectune.runtime.engine.request_state import sequences_of
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.engine.step_output import StepOutput

from ..support.decoded_runs import CAPACITY, random_requests
from ..support.lossy_rules import fly_accept
from ..support.stack_family import LLAMA, MODELS, TARGET, greedy_chain
from ..support.tiny_models import plain_logits

CHAIN = ChainPolicy(length=6)
STACK = StackPolicy(drafters=("small", "lookup"), lengths=(6, 3), max_ngram=4)
DRAFTS: Mapping[str, LossyDraft] = {"chain": CHAIN, "stack over lookup": STACK}
OPEN = FlyRule(threshold=0.0, window=1)
NEUTRAL = {"gate": FlyRule(threshold=1e6, window=1), "window": FlyRule(threshold=0.0, window=40)}
REQUESTS = random_requests(6, tokens=24)
SAMPLED = random_requests(6, tokens=24, temperature=0.9)


def decoded(
    policy: ChainPolicy | StackPolicy | FlyPolicy,
    requests: Many[Request] = REQUESTS,
    *,
    slots: int = 3,
    allow_lossy: bool = True,
) -> tuple[list[Sequence], list[StepOutput]]:
    """Decode requests by one policy of the small drafter."""
    draft = policy.draft if isinstance(policy, FlyPolicy) else policy
    drafter: Drafter
    if isinstance(draft, StackPolicy):
        name, drafter = stack_name(draft), stack_drafter(draft, MODELS, slots=slots, capacity=CAPACITY)
    else:
        name, drafter = "small", ModelDrafter(MODELS["small"], slots=slots, capacity=CAPACITY)
    schedule = always(StepConfig(policy=policy, drafter=name))
    decoder = Engine(TARGET, {name: drafter}, schedule, slots=slots, capacity=CAPACITY, allow_lossy=allow_lossy)
    scheduler, rounds = Scheduler(decoder), []
    states = [scheduler.add(request) for request in requests]
    while scheduler.schedule():
        rounds.append(decoder.step())
    return sequences_of(states), rounds


def texts(sequences: Many[Sequence]) -> list[list[int]]:
    """Return what the sequences emitted."""
    return [sequence.emitted for sequence in sequences]


@cache
def strict(name: str, is_sampled: bool = False) -> tuple[list[list[int]], list[list[int]]]:
    """Return the texts of lossless decoding, and what every round kept."""
    sequences, rounds = decoded(DRAFTS[name], SAMPLED if is_sampled else REQUESTS)
    return texts(sequences), [done.kept for done in rounds]


@pytest.mark.thinned
@pytest.mark.parametrize("is_sampled", [False, True])
@pytest.mark.parametrize("neutral", NEUTRAL)
@pytest.mark.parametrize("name", DRAFTS)
def test_a_neutral_rule_gives_the_lossless_text_in_the_same_rounds(name: str, neutral: str, is_sampled: bool) -> None:
    policy = FlyPolicy(draft=DRAFTS[name], rule=NEUTRAL[neutral])
    sequences, rounds = decoded(policy, SAMPLED if is_sampled else REQUESTS)
    assert (texts(sequences), [done.kept for done in rounds]) == strict(name, is_sampled)
    assert not any(sequence.lossy for sequence in sequences)
    assert {count for done in rounds for count in done.lossy} == {0}


@pytest.mark.parametrize("is_sampled", [False, True])
@pytest.mark.parametrize("name", DRAFTS)
def test_negative_control_an_open_rule_gives_another_text_in_fewer_rounds(name: str, is_sampled: bool) -> None:
    sequences, rounds = decoded(FlyPolicy(draft=DRAFTS[name], rule=OPEN), SAMPLED if is_sampled else REQUESTS)
    own, kept = strict(name, is_sampled)
    assert texts(sequences) != own
    assert len(rounds) < len(kept)
    assert all(sequence.lossy for sequence in sequences[:1])


@pytest.mark.parametrize("name", DRAFTS)
def test_the_lossy_tokens_are_exactly_those_the_target_would_not_have_said(name: str) -> None:
    """Checked by transformers' forward over each whole text, without a cache or our code."""
    sequences, rounds = decoded(FlyPolicy(draft=DRAFTS[name], rule=OPEN))
    for sequence in sequences:
        said = plain_logits(LLAMA, sequence.tokens).argmax(-1).tolist()
        first = len(sequence.request.prompt)
        foreign = [place for place, token in enumerate(sequence.emitted) if token != said[first + place - 1]]
        assert sequence.lossy == foreign
    counted = sum(count for done in rounds for count in done.lossy)
    assert counted == sum(len(sequence.lossy) for sequence in sequences) > 0


@pytest.mark.parametrize("rule", [OPEN, FlyRule(threshold=0.5, window=2), FlyRule(threshold=0.2, window=2, top=2)])
def test_every_round_is_one_that_playing_the_rule_token_by_token_gives(rule: FlyRule) -> None:
    """The oracle drafts and verifies by transformers over whole texts, one sequence, one token at a time."""
    request = Request(prompt=(5, 1, 9, 2), max_new_tokens=20)
    (sequence,), rounds = decoded(FlyPolicy(draft=CHAIN, rule=rule), [request], slots=1)
    text = [*request.prompt, int(plain_logits(LLAMA, request.prompt)[-1].argmax())]
    kept = []
    while len(text) - len(request.prompt) < request.max_new_tokens:
        chain = greedy_chain("small", tuple(text), CHAIN.length)
        logits = plain_logits(LLAMA, [*text, *chain])[len(text) - 1 :]
        said = logits.argmax(-1).tolist()
        matches = [token == own for token, own in zip(chain, said, strict=False)]
        entropies = []
        for row in logits[: len(chain)].softmax(-1):
            best = row.sort(descending=True).values[: rule.top]
            entropies.append(float(-(best * best.log()).sum()))
        count = fly_accept(matches, entropies, rule)
        room = request.max_new_tokens - (len(text) - len(request.prompt))
        new = [*chain[:count], said[count]][:room]
        text += new
        kept.append(len(new))
    assert sequence.tokens == text
    assert [done.kept[0] for done in rounds] == kept


def test_a_batch_emits_what_each_request_alone_emits() -> None:
    policy = FlyPolicy(draft=CHAIN, rule=FlyRule(threshold=0.3, window=2))
    together, _ = decoded(policy, slots=4)
    alone = [decoded(policy, [request], slots=1)[0][0] for request in REQUESTS]
    assert texts(together) == texts(alone)
    assert [s.lossy for s in together] == [s.lossy for s in alone]


def test_a_decoder_that_was_not_allowed_verifies_without_loss_and_says_so() -> None:
    sequences, rounds = decoded(FlyPolicy(draft=CHAIN, rule=OPEN), allow_lossy=False)
    assert texts(sequences) == strict("chain")[0]
    assert all("lossy decoding was not allowed" in done.faults[0].reason for done in rounds)
    assert not any(done.lossy for done in rounds)


# --- one chain


def scores_of(size: int, drawn: Many[int]) -> torch.Tensor:
    """Return scores of 8 tokens in which each drawn one is best by little."""
    scores = torch.zeros(size, 8)
    scores[torch.arange(size), torch.tensor(list(drawn))] = 0.1
    return scores


def accepted(tokens: list[int], draws: list[int], **options: object) -> tuple[list[int], tuple[int, ...]]:
    size = len(tokens)
    parents = list(range(-1, size - 1))
    scores = options.pop("scores", scores_of(size, draws))
    found, _ = accept_loosely(tokens, parents, size, draws, rule=OPEN, scores=scores, **options)  # type: ignore[arg-type]
    return found.drawn, found.lossy


def test_what_stays_is_the_draft_and_then_the_targets_own_token() -> None:
    assert accepted([-1, 3, 4, 5], [2, 4, 5, 7]) == ([3, 4, 5, 7], (0,))
    assert accepted([-1, 3, 4, 5], [3, 4, 6, 7]) == ([3, 4, 6], ())


def test_a_token_that_ends_the_text_stays_only_where_the_target_says_it() -> None:
    assert accepted([-1, 3, 4, 5], [2, 4, 5, 7], stop={3}) == ([2], ())
    assert accepted([-1, 3, 4, 5], [3, 4, 5, 7], stop={3}) == ([3, 4, 5, 7], ())


def test_a_token_that_is_never_drawn_does_not_stay() -> None:
    scores = scores_of(4, [2, 4, 5, 7])
    scores[0, 3] = -torch.inf
    assert accepted([-1, 3, 4, 5], [2, 4, 5, 7], scores=scores) == ([2], ())


def test_a_tree_is_accepted_without_loss() -> None:
    found, gates = accept_loosely([-1, 3, 4], [-1, 0, 0], 3, [2, 0, 0], rule=OPEN, scores=scores_of(3, [2, 0, 0]))
    assert (found.drawn, found.lossy, gates.entropies) == ([2], (), ())


def test_gates_tell_what_the_rule_met() -> None:
    scores = scores_of(5, [2, 4, 5, 1, 0])
    _, gates = accept_loosely([-1, 3, 4, 5, 6], [-1, 0, 1, 2, 3], 5, [2, 4, 5, 1, 0], rule=OPEN, scores=scores)
    assert (gates.matched, gates.mismatched) == (2, 2)
    assert gates.entropies == pytest.approx(entropies_of(scores[:1], OPEN).tolist())


def test_only_chains_are_drafted_for_the_rule() -> None:
    with pytest.raises(Exception, match="take one without siblings"):
        FlyPolicy(draft=StackPolicy(drafters=("a",), lengths=(3,), siblings=1), rule=OPEN)
    with pytest.raises(TypeError):
        FlyPolicy(Eagle2Policy(), OPEN)  # type: ignore[call-arg, arg-type]
