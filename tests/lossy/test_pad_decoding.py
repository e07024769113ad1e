"""T10, decoding by PAD: strict ends give the target's own text, open ones do not, and the judge reads what it must."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from spectune.planner.records.pad_rule import PadRule
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lossy import LossyDraft
from spectune.planner.strategies.pad import PadPolicy
from spectune.planner.strategies.stack import StackPolicy, stack_name
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.drafters.base import Drafter
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.drafters.stack import stack_drafter
from spectune.runtime.engine.engine import Engine
from spectune.runtime.engine.pad import PivotJudge, Verified, accept_by_pivots
from spectune.runtime.engine.request_state import sequences_of
from spectune.runtime.engine.scheduler import Scheduler
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.pivots import PivotClassifier, PivotNet, PivotShape
from spectune.runtime.models.tapped import tapped_for

from ..support.decoded_runs import CAPACITY, random_requests
from ..support.lossy_rules import pad_accept
from ..support.stack_family import LLAMA, MODELS, TARGET, greedy_chain
from ..support.synthetic import model
from ..support.tiny_models import plain_logits

READS = 1
CHAIN = ChainPolicy(length=6)
STACK = StackPolicy(drafters=("small", "lookup"), lengths=(6, 3), max_ngram=4)
OPEN = PadRule(threshold=1.0, floor=0.0)
STRICT = {"threshold": PadRule(threshold=0.0, floor=0.0), "floor": PadRule(threshold=1.0, floor=1.0)}
REQUESTS = random_requests(6, tokens=24)
SAMPLED = random_requests(6, tokens=24, temperature=0.9)


def made_net(seed: int = 0) -> PivotNet:
    """Return a classifier that has learned nothing, with weights so large that it is decided."""
    torch.manual_seed(seed)
    net = PivotNet(32, 16)
    with torch.no_grad():
        net.last.weight.mul_(12.0)
    return net


NET = made_net()
SHAPE = PivotShape(reads=READS, hidden=32, width=16, target="0" * 64, threshold=0.5, floor=0.0)
JUDGE = PivotClassifier(NET, SHAPE, torch.device("cpu"))


class Noting:
    """Another judge, with everything it was asked."""

    def __init__(self, reads: int = READS) -> None:
        self.reads = reads
        self.features: list[Tensor] = []

    def chances(self, features: Tensor) -> list[float]:
        self.features.append(features)
        return JUDGE.chances(features)


def way(rule: PadRule, draft: LossyDraft = CHAIN) -> PadPolicy:
    return PadPolicy(draft=draft, rule=rule, classifier=model("pivots"))


def decoded(
    policy: PadPolicy | LossyDraft,
    requests: Many[Request] = REQUESTS,
    *,
    slots: int = 3,
    judge: PivotJudge | None = JUDGE,
    keeps: Many[int] = (READS,),
    allow_lossy: bool = True,
) -> tuple[list[Sequence], list[StepOutput]]:
    """Decode requests by one policy of the small drafter."""
    draft = policy.draft if isinstance(policy, PadPolicy) else policy
    drafter: Drafter
    if isinstance(draft, StackPolicy):
        name, drafter = stack_name(draft), stack_drafter(draft, MODELS, slots=slots, capacity=CAPACITY)
    else:
        name, drafter = "small", ModelDrafter(MODELS["small"], slots=slots, capacity=CAPACITY)
    decoder = Engine(
        tapped_for(TARGET, (), also=keeps),
        {name: drafter},
        always(StepConfig(policy=policy, drafter=name)),
        slots=slots,
        capacity=CAPACITY,
        allow_lossy=allow_lossy,
        judges={} if judge is None else {"pivots": judge},
    )
    scheduler, rounds = Scheduler(decoder), []
    states = [scheduler.add(request) for request in requests]
    while scheduler.schedule():
        rounds.append(decoder.step())
    return sequences_of(states), rounds


def texts(sequences: Many[Sequence]) -> list[list[int]]:
    return [sequence.emitted for sequence in sequences]


@cache
def strict(draft: LossyDraft, is_sampled: bool = False) -> tuple[list[list[int]], list[list[int]]]:
    """Return the texts of lossless decoding, and what every round kept."""
    sequences, rounds = decoded(draft, SAMPLED if is_sampled else REQUESTS)
    return texts(sequences), [done.kept for done in rounds]


@pytest.mark.thinned
@pytest.mark.parametrize("is_sampled", [False, True])
@pytest.mark.parametrize("end", STRICT)
@pytest.mark.parametrize("draft", [CHAIN, STACK], ids=["chain", "stack"])
def test_at_its_strict_ends_it_gives_the_lossless_text_in_the_same_rounds(
    draft: LossyDraft, end: str, is_sampled: bool
) -> None:
    sequences, rounds = decoded(way(STRICT[end], draft), SAMPLED if is_sampled else REQUESTS)
    assert (texts(sequences), [done.kept for done in rounds]) == strict(draft, is_sampled)
    assert not any(sequence.lossy for sequence in sequences)
    assert {count for done in rounds for count in done.lossy} == {0}


def test_the_lossless_text_is_the_target_s_own_by_transformers() -> None:
    for request, text in zip(REQUESTS, strict(CHAIN)[0], strict=True):
        said = plain_logits(LLAMA, [*request.prompt, *text]).argmax(-1).tolist()
        assert text == said[len(request.prompt) - 1 : -1]


@pytest.mark.parametrize("is_sampled", [False, True])
@pytest.mark.parametrize("draft", [CHAIN, STACK], ids=["chain", "stack"])
def test_negative_control_an_open_rule_gives_another_text_in_fewer_rounds(draft: LossyDraft, is_sampled: bool) -> None:
    sequences, rounds = decoded(way(OPEN, draft), SAMPLED if is_sampled else REQUESTS)
    own, kept = strict(draft, is_sampled)
    assert texts(sequences) != own and len(rounds) < len(kept)


def test_the_lossy_tokens_are_exactly_those_the_target_would_not_have_said() -> None:
    sequences, rounds = decoded(way(PadRule(threshold=0.6, floor=0.0)))
    for sequence in sequences:
        said = plain_logits(LLAMA, sequence.tokens).argmax(-1).tolist()
        first = len(sequence.request.prompt)
        foreign = [place for place, token in enumerate(sequence.emitted) if token != said[first + place - 1]]
        assert sequence.lossy == foreign
    assert sum(count for done in rounds for count in done.lossy) == sum(len(s.lossy) for s in sequences) > 0


def asked_by_hand(text: Many[int], chain: Many[int]) -> tuple[Tensor, list[int]]:
    """Return the features of every drafted token and the target's own tokens, by transformers over the whole text."""
    with torch.no_grad():
        out = LLAMA(torch.tensor([[*text, *chain]]), output_hidden_states=True)
    logits = out.logits[0, len(text) - 1 :]
    states = out.hidden_states[READS][0, len(text) :]
    shares = logits[:-1].softmax(-1)
    picked = shares[torch.arange(len(chain)), torch.tensor(list(chain))]
    entropies = torch.special.entr(shares).sum(-1)
    features = torch.cat((states, picked[:, None], entropies[:, None]), dim=-1).float()
    return features, logits.argmax(-1).tolist()


@pytest.mark.parametrize("rule", [OPEN, PadRule(threshold=0.5, floor=0.0), PadRule(threshold=0.7, floor=0.03)])
def test_every_round_is_one_that_playing_the_rule_token_by_token_gives(rule: PadRule) -> None:
    """The oracle drafts and verifies by transformers over whole texts, one sequence, one token at a time."""
    request = Request(prompt=(5, 1, 9, 2), max_new_tokens=24)
    (sequence,), rounds = decoded(way(rule), [request], slots=1)
    text = [*request.prompt, int(plain_logits(LLAMA, request.prompt)[-1].argmax())]
    kept = []
    while len(text) - len(request.prompt) < request.max_new_tokens:
        chain = greedy_chain("small", tuple(text), CHAIN.length)
        features, said = asked_by_hand(text, chain)
        with torch.no_grad():
            chances = NET(features).sigmoid().tolist()
        matches = [token == own for token, own in zip(chain, said, strict=False)]
        count = pad_accept(matches, features[:, -2].tolist(), chances, rule)
        room = request.max_new_tokens - (len(text) - len(request.prompt))
        new = [*chain[:count], said[count]][:room]
        text += new
        kept.append(len(new))
    assert sequence.tokens == text
    assert [done.kept[0] for done in rounds] == kept


@pytest.mark.parametrize("keeps", [(READS,), (0, READS, 2)], ids=["alone", "beside a head's states"])
def test_the_judge_is_asked_the_features_that_transformers_computes(keeps: tuple[int, ...]) -> None:
    """Parity: what it learned from is what it is asked, whoever else reads hidden states too."""
    notes = Noting()
    (sequence,), rounds = decoded(way(STRICT["threshold"]), REQUESTS[3:4], slots=1, judge=notes, keeps=keeps)
    place, asked = len(sequence.request.prompt) + 1, iter(notes.features)
    compared = 0
    for done in rounds:
        for token in done.gates[0].asked[:1]:
            chain = greedy_chain("small", tuple(sequence.tokens[:place]), CHAIN.length)
            features, said = asked_by_hand(sequence.tokens[:place], chain)
            first = next(at for at, drafted in enumerate(chain) if drafted != said[at])
            assert chain[first] == token
            torch.testing.assert_close(next(asked)[0], features[first], rtol=1e-4, atol=1e-5)
            compared += 1
        place += done.kept[0]
    assert compared > 5


def test_sampling_settings_do_not_change_what_the_judge_is_asked() -> None:
    """At the first round both texts may be the same; then the features are those of the logits as they come."""
    prompt = REQUESTS[3].prompt
    greedy, warm = Noting(), Noting()
    decoded(way(STRICT["threshold"]), [Request(prompt=prompt, max_new_tokens=24)], slots=1, judge=greedy)
    cold = Request(prompt=prompt, max_new_tokens=24, temperature=1e-4, seed=5)  # as good as greedy, scores far apart
    decoded(way(STRICT["threshold"]), [cold], slots=1, judge=warm)
    for one, other in zip(greedy.features[:3], warm.features[:3], strict=True):
        torch.testing.assert_close(one, other)


def test_a_batch_emits_what_each_request_alone_emits() -> None:
    policy = way(PadRule(threshold=0.6, floor=0.01))
    together, _ = decoded(policy, slots=4)
    alone = [decoded(policy, [request], slots=1)[0][0] for request in REQUESTS]
    assert texts(together) == texts(alone)
    assert [s.lossy for s in together] == [s.lossy for s in alone] != [[]] * len(alone)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"allow_lossy": False}, "lossy decoding was not allowed"),
        ({"judge": None}, "there is no classifier called pivots here"),
        ({"keeps": ()}, r"reads hidden states after 1 layers, and the target keeps those after \(\)"),
        ({"keeps": (2,)}, r"keeps those after \(2,\)"),
    ],
)
def test_without_what_it_needs_it_verifies_without_loss_and_says_so(options: dict[str, object], complaint: str) -> None:
    sequences, rounds = decoded(way(OPEN), **options)  # type: ignore[arg-type]
    assert texts(sequences) == strict(CHAIN)[0]
    for done in rounds:
        with pytest.raises(AssertionError, match=complaint):
            raise AssertionError(done.faults[0].reason)
    assert not any(done.lossy for done in rounds)


# --- one chain


def verified(draws: Many[int], vocabulary: int = 8) -> Verified:
    """Return states that are the place of each node, and logits in which each drawn token is best by little."""
    size = len(draws)
    logits = torch.zeros(size, vocabulary)
    logits[torch.arange(size), torch.tensor(list(draws))] = 0.1
    return Verified(states=torch.arange(size, dtype=torch.float32)[:, None], logits=logits, scores=logits)


class AtPlace:
    """Gives every node a chance of its own: the state is its place."""

    reads = 0

    def __init__(self, *chances: float) -> None:
        self.by_node = chances

    def chances(self, features: Tensor) -> list[float]:
        return [self.by_node[int(place)] for place in features[:, 0].tolist()]


def accepted(
    tokens: list[int],
    draws: list[int],
    judge: PivotJudge,
    **options: Any,  # of accept_by_pivots
) -> tuple[list[int], tuple[int, ...]]:
    rule = options.pop("rule", PadRule(threshold=0.5, floor=0.0))
    said = options.pop("verified", verified(draws))
    found, _ = accept_by_pivots(
        tokens, range(-1, len(tokens) - 1), len(tokens), draws, rule=rule, judge=judge, verified=said, **options
    )
    return found.drawn, found.lossy


def test_a_token_is_judged_by_the_state_at_itself() -> None:
    """Drafted 3 at node 1 and 5 at node 3 are foreign; node 1 is no pivot, node 3 is one."""
    judge = AtPlace(0.9, 0.1, 0.9, 0.8)
    assert accepted([-1, 3, 4, 5], [2, 4, 6, 7], judge) == ([3, 4, 6], (0,))
    assert accepted([-1, 3, 4, 5], [2, 4, 6, 7], AtPlace(0.9, 0.1, 0.9, 0.2)) == ([3, 4, 5, 7], (0, 2))
    assert accepted([-1, 3, 4, 5], [2, 4, 6, 7], AtPlace(0.1, 0.9, 0.1, 0.1)) == ([2], ())


def test_what_the_target_says_stays_whatever_the_judge_thinks() -> None:
    assert accepted([-1, 3, 4], [3, 4, 6], AtPlace(1.0, 1.0, 1.0)) == ([3, 4, 6], ())


def test_a_token_that_ends_the_text_stays_only_where_the_target_says_it() -> None:
    assert accepted([-1, 3, 4], [2, 4, 5], AtPlace(0, 0, 0), stop={3}) == ([2], ())
    assert accepted([-1, 3, 4], [3, 4, 5], AtPlace(0, 0, 0), stop={3}) == ([3, 4, 5], ())


def test_a_token_below_the_floor_or_never_drawn_does_not_stay() -> None:
    draws = [2, 4, 5]
    assert accepted([-1, 3, 4], draws, AtPlace(0, 0, 0), rule=PadRule(floor=0.13)) == ([2], ())
    assert accepted([-1, 3, 4], draws, AtPlace(0, 0, 0), rule=PadRule(floor=0.12)) == ([3, 4, 5], (0,))
    never = verified(draws)
    scores = never.scores.clone()
    scores[0, 3] = -torch.inf
    assert accepted([-1, 3, 4], draws, AtPlace(0, 0, 0), verified=replace(never, scores=scores)) == ([2], ())


def test_a_tree_is_accepted_without_loss() -> None:
    found, gates = accept_by_pivots(
        [-1, 3, 4], [-1, 0, 0], 3, [2, 0, 0], rule=OPEN, judge=AtPlace(0, 0, 0), verified=verified([2, 0, 0])
    )
    assert (found.drawn, found.lossy, gates.asked) == ([2], (), ())


def test_gates_tell_what_the_rule_met() -> None:
    draws = [2, 4, 6, 7, 1]
    _, gates = accept_by_pivots(
        [-1, 3, 4, 5, 6], range(-1, 4), 5, draws, rule=PadRule(threshold=0.5, floor=0.0),
        judge=AtPlace(0, 0.25, 0, 0.75, 0.125), verified=verified(draws),
    )  # fmt: skip
    assert (gates.matched, gates.mismatched, gates.asked, gates.pivots) == (1, 2, (3, 5), (0.25, 0.75))
