"""Pairwise acceptance against sums over single tokens of transformers' own distributions, and against real stacks."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from spectune.planner.strategies.stack import StackPolicy
from spectune.profiler.records.acceptance import PairwiseAcceptance
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.drafters.stack import stack_drafter
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.sampling.noise import gumbel
from spectune.tuning.recording.agreement import pairwise_acceptance
from spectune.tuning.recording.continuations import continuations

from ...support.decoded_runs import CAPACITY, random_requests
from ...support.shelf import Shelf, StoppedError
from ...support.stack_family import MODELS as STACKED
from ...support.stack_family import TARGET
from ...support.tiny_models import perturbed, plain_logits, tiny_llama

MODELS = {
    "target": tiny_llama(layers=3, seed=0),
    "near": perturbed(tiny_llama(layers=3, seed=0), 0.05),
    "far": tiny_llama(layers=1, seed=7),
}
TEXTS = [((1, 2, 3), (4, 5, 6, 7)), ((9,), (0, 23)), ((8, 8, 1, 0), (3,))]


LEAN = {name: LeanModel(model) for name, model in MODELS.items()}


def asked(temperature: float) -> list[tuple[Request, tuple[int, ...]]]:
    """Return each text with its request; every one draws by a seed of its own."""
    return [
        (Request(prompt=prompt, max_new_tokens=9, temperature=temperature, seed=seed), continuation)
        for seed, (prompt, continuation) in enumerate(TEXTS)
    ]


@cache
def measured(temperature: float) -> PairwiseAcceptance:
    return pairwise_acceptance(LEAN, asked(temperature), target="hash", workload="prose")


def distributions(name: str, temperature: float) -> list[list[float]]:
    """One distribution per continuation token, each from a forward of its own."""
    found = []
    for prompt, continuation in TEXTS:
        for place in range(len(continuation)):
            logits = plain_logits(MODELS[name], [*prompt, *continuation[:place]])[-1].tolist()
            weights = [math.exp(logit / (temperature or 1.0)) for logit in logits]
            found.append([weight / sum(weights) for weight in weights])
    return found


def first_choices(name: str, temperature: float) -> list[int]:
    """Return one token per continuation token: the best, or at a temperature the best with its place's own noise."""
    found, every = [], iter(distributions(name, temperature))
    for seed, (prompt, continuation) in enumerate(TEXTS):
        for place in range(len(prompt), len(prompt) + len(continuation)):
            chances = next(every)
            noise = gumbel(torch.tensor(seed), torch.tensor(place), len(chances)).tolist()
            scores = [math.log(p) + (g if temperature else 0.0) for p, g in zip(chances, noise, strict=True)]
            found.append(scores.index(max(scores)))
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_overlap_and_agreement_equal_sums_over_single_tokens(temperature: float) -> None:
    each = [(distributions(name, temperature), first_choices(name, temperature)) for name in MODELS]
    for i, (left, said) in enumerate(each):
        for j, (right, answered) in enumerate(each):
            common = [sum(map(min, p, q)) for p, q in zip(left, right, strict=True)]
            same = [one == other for one, other in zip(said, answered, strict=True)]
            assert measured(temperature).overlap[i][j] == pytest.approx(sum(common) / 7, abs=1e-5)
            assert measured(temperature).greedy[i][j] == pytest.approx(sum(same) / 7)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_two_models_agree_as_often_as_one_of_a_stack_takes_what_the_other_says(temperature: float) -> None:
    """A chain of 2 over drafts of 1 runs the upper model once where it takes the draft, and twice elsewhere."""
    policy = StackPolicy(drafters=("medium", "small"), lengths=(2, 1))
    requests = random_requests(5, tokens=16, temperature=temperature)
    texts = list(zip(requests, continuations(TARGET, requests), strict=True))
    taken = []
    for request, text in texts:
        drafter = stack_drafter(policy, STACKED, slots=1, capacity=CAPACITY)
        sequence = Sequence(request, 0)
        drafter.admit(0, sequence)
        for token in text:
            taken.append(drafter.draft([sequence], policy).levels.count(0) == 1)
            sequence.tokens.append(token)
    found = pairwise_acceptance(STACKED, texts)
    assert found.positions == len(taken) and 0 < sum(taken) < len(taken)
    assert found.greedy[found.models.index("medium")][found.models.index("small")] == sum(taken) / len(taken)


def test_every_continuation_token_is_a_position() -> None:
    assert measured(0.0).positions == 7


def test_a_model_always_agrees_with_itself() -> None:
    for place in range(3):
        assert measured(0.0).greedy[place][place] == 1.0
        assert measured(0.0).overlap[place][place] == pytest.approx(1.0, abs=1e-6)


def test_agreement_is_the_same_both_ways() -> None:
    for matrix in (measured(0.6).greedy, measured(0.6).overlap):
        assert matrix == tuple(zip(*matrix, strict=True))


def test_the_nearer_drafter_overlaps_more() -> None:
    target = measured(0.0).overlap[measured(0.0).models.index("target")]
    assert target[1] > target[2]


def test_an_agreement_says_what_it_was_measured_on() -> None:
    found = measured(0.6)
    assert (found.target, found.workload, found.temperature) == ("hash", "prose", 0.6)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_texts_read_in_pieces_agree_as_texts_read_whole(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measured(0.6)
    monkeypatch.setattr("spectune.tuning.recording.agreement.PIECE_TOKENS", tokens)
    found = pairwise_acceptance(LEAN, asked(0.6))
    assert found.greedy == whole.greedy
    for row, expected in zip(found.overlap, whole.overlap, strict=True):
        assert row == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_a_stopped_comparison_reads_only_the_texts_it_lacks_and_ends_the_same(finished: int) -> None:
    shelf = Shelf(stop_after=finished)
    with pytest.raises(StoppedError):
        pairwise_acceptance(LEAN, asked(0.6), parts=shelf)
    again = Shelf(shelf.documents)
    found = pairwise_acceptance(LEAN, asked(0.6), target="hash", workload="prose", parts=again)
    assert found == measured(0.6)
    assert again.added == [f"agreement drawn {text}" for text in range(finished, 3)]
