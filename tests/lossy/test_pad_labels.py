"""What a pivot classifier learns from, held to brute force over a made-up model; and its measures, to counting."""

from __future__ import annotations

from collections.abc import Sequence as Many
from itertools import product

import numpy as np
import pytest
import torch

from spectune.errors import ModelError, TrainingError
from spectune.planner.lossy.quality import share_interval
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.generic import GenericModel
from spectune.training.pad_labels import RejectedToken, RolloutSettings, harvest, pivots_of, utilities
from spectune.training.pad_request import at_threshold, auroc, auroc_interval, threshold_of_recall

from ..support.decoded_runs import random_requests
from ..support.stack_family import LLAMA, MODELS, TARGET, next_token
from ..support.tiny_models import plain_logits, tiny_neox

REQUESTS = random_requests(5, tokens=14)
READS = 1


def said(text: Many[int]) -> int:
    return int(plain_logits(LLAMA, text)[-1].argmax())


def is_right(problem: int, tokens: Many[int]) -> bool:
    """A made-up task: the last token is of one half of the vocabulary."""
    return (tokens[-1] + problem) % 2 == 0


def rejected(requests: Many[Request], floor: float) -> list[tuple[RejectedToken, list[float]]]:
    """Return what strict decoding with drafts of one token rejects, by transformers over whole texts."""
    found = []
    for problem, request in enumerate(requests):
        text = [*request.prompt, said(request.prompt)]
        while (place := len(text) - len(request.prompt)) < request.max_new_tokens and text[-1] not in request.stop:
            drafted, own = next_token("small", tuple(text)), said(text)
            if drafted == own:
                text.append(own)
                if len(text) - len(request.prompt) < request.max_new_tokens and own not in request.stop:
                    text.append(said(text))
                continue
            shares = plain_logits(LLAMA, text)[-1].softmax(-1)
            if float(shares[drafted]) >= floor and drafted not in request.stop:
                with torch.no_grad():
                    out = LLAMA(torch.tensor([[*text, drafted]]), output_hidden_states=True)
                state = out.hidden_states[READS][0, -1].tolist()
                features = [*state, float(shares[drafted]), float(torch.special.entr(shares).sum())]
                before = tuple(text[len(request.prompt) :])
                assert len(before) == place
                found.append((RejectedToken(problem=problem, before=before, token=drafted), features))
            text.append(own)
    return found


@pytest.mark.parametrize("floor", [0.0, 0.02])
def test_the_harvest_is_what_strict_decoding_rejects_with_the_features_of_transformers(floor: float) -> None:
    found, features = harvest(TARGET, MODELS["small"], REQUESTS, reads=READS, floor=floor)
    expected = {(each.problem, each.before): (each.token, seen) for each, seen in rejected(REQUESTS, floor)}
    assert {(each.problem, each.before): each.token for each in found} == {
        place: token for place, (token, _) in expected.items()
    }
    assert len(found) == len(expected) > 3
    for each, row in zip(found, features, strict=True):
        assert row == pytest.approx(expected[each.problem, each.before][1], rel=1e-4, abs=1e-5)


def test_a_higher_floor_leaves_candidates_out_and_tokens_that_end_a_text_are_none() -> None:
    counts = [len(harvest(TARGET, MODELS["small"], REQUESTS, reads=READS, floor=floor)[0]) for floor in (0.0, 0.1, 1.0)]
    assert counts[0] > counts[1] >= counts[2] == 0
    tokens = {each.token for each, _ in rejected(REQUESTS, 0.0)}
    ending = [Request(prompt=each.prompt, max_new_tokens=14, stop=frozenset(tokens)) for each in REQUESTS]
    assert harvest(TARGET, MODELS["small"], ending, reads=READS, floor=0.0)[0] == []


def test_greedy_rollouts_are_the_target_s_own_continuations_token_by_token() -> None:
    found, _ = harvest(TARGET, MODELS["small"], REQUESTS, reads=READS, floor=0.0)
    settings = RolloutSettings(rollouts=1, temperature=0.0)
    shares = utilities(TARGET, REQUESTS, found, is_right, settings)
    expected = []
    for each in found:
        request, row = REQUESTS[each.problem], []
        for before in ((*each.before, each.token), each.before):
            text = [*request.prompt, *before]
            while len(text) - len(request.prompt) < request.max_new_tokens:
                text.append(said(text))
            row.append(float(is_right(each.problem, text[len(request.prompt) :])))
        expected.append(row)
    assert shares.tolist() == expected
    assert {0.0, 1.0} == set(shares[:, 0].tolist())


def test_sampled_rollouts_come_to_the_chances_of_all_continuations() -> None:
    """Two tokens are left behind the candidate: all 576 continuations are weighed."""
    rollouts, temperature = 800, 0.8
    request = Request(prompt=(5, 1, 9), max_new_tokens=4)
    before = (said(request.prompt),)
    candidate = RejectedToken(problem=0, before=before, token=7)
    ((with_it, _),) = utilities(
        TARGET, [request], [candidate], is_right, RolloutSettings(rollouts=rollouts, temperature=temperature)
    ).tolist()
    text = [*request.prompt, *before, 7]
    first = (plain_logits(LLAMA, text)[-1] / temperature).softmax(-1).tolist()
    chance = 0.0
    for one, share in enumerate(first):
        then = (plain_logits(LLAMA, [*text, one])[-1] / temperature).softmax(-1).tolist()
        chance += share * sum(each for other, each in enumerate(then) if is_right(0, (*before, 7, one, other)))
    assert 0.05 < chance < 0.95
    assert abs(with_it - chance) < 4 * np.sqrt(chance * (1 - chance) / rollouts)


def test_both_sides_draw_the_same_noise_so_that_the_target_s_own_token_changes_nothing() -> None:
    """With the token that the target draws greedily anyway, rollouts that begin with it are the same text."""
    request = Request(prompt=(5, 1, 9), max_new_tokens=8)
    seeds = RolloutSettings(rollouts=6, temperature=0.3)
    texts: list[tuple[int, ...]] = []

    def noted(problem: int, tokens: Many[int]) -> bool:
        texts.append(tuple(tokens))
        return True

    utilities(TARGET, [request], [RejectedToken(problem=0, before=(), token=said(request.prompt))], noted, seeds)
    own = [text for text in texts[6:] if text[0] == said(request.prompt)]
    assert own and set(own) <= set(texts[:6])


def test_a_candidate_at_the_very_end_is_judged_as_it_is() -> None:
    request = Request(prompt=(5, 1, 9), max_new_tokens=1)
    for token, share in ((4, 1.0), (5, 0.0)):
        candidate = RejectedToken(problem=0, before=(), token=token)
        settings = RolloutSettings(rollouts=1, temperature=0.0)
        assert utilities(TARGET, [request], [candidate], is_right, settings)[0, 0] == share


def test_a_pivot_makes_the_answer_worse_by_more_than_its_share() -> None:
    shares = np.array([[0.0, 0.5], [0.45, 0.5], [0.44, 0.5], [0.5, 0.25], [0.0, 0.0], [1.0, 1.0]])
    assert pivots_of(shares, 0.9).tolist() == [True, False, True, False, False, False]


def test_impossible_rollouts_are_refused() -> None:
    with pytest.raises(TrainingError, match="at least 1"):
        RolloutSettings(rollouts=0)
    with pytest.raises(TrainingError, match="one and the same"):
        RolloutSettings(rollouts=8, temperature=0.0)


def test_a_target_that_hides_its_states_is_refused() -> None:
    with pytest.raises(ModelError, match="lean forward"):
        harvest(GenericModel(tiny_neox(layers=1, seed=0)), MODELS["small"], REQUESTS, reads=1, floor=0.0)


# --- measures


def labelled(seed: int, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    is_pivot = rng.random(count) < 0.4
    return np.round(0.3 * is_pivot + rng.random(count), 1), is_pivot  # rounded, so that there are ties


@pytest.mark.parametrize("seed", range(5))
def test_auroc_is_the_share_of_pairs_in_order(seed: int) -> None:
    chances, is_pivot = labelled(seed)
    pairs = [(a > b) + 0.5 * (a == b) for a, b in product(chances[is_pivot], chances[~is_pivot])]
    assert auroc(chances, is_pivot) == pytest.approx(float(np.mean(pairs)))


def test_auroc_of_one_class_is_not_known() -> None:
    ones = np.ones(3, dtype=np.bool_)
    assert auroc(np.arange(3.0), ones) is None and auroc(np.arange(3.0), ~ones) is None
    assert auroc_interval(np.arange(3.0), ones, np.arange(3), seed=0) is None


def test_the_interval_of_an_auroc_holds_the_truth_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pivots' chances are normal around 1, the others' around 0: a pivot's is higher with Phi(1 / sqrt 2)."""
    monkeypatch.setattr("spectune.training.pad_request.RESAMPLES", 200)
    rng, held = np.random.default_rng(1), 0
    for trial in range(40):
        is_pivot = rng.random(120) < 0.5
        low, high = auroc_interval(is_pivot + rng.normal(size=120), is_pivot, np.arange(120), seed=trial) or (0, 0)
        held += low <= 0.7602 <= high
    assert held >= 34


def test_tokens_of_one_problem_are_drawn_together() -> None:
    """Every problem five times over tells no more than once."""
    chances, is_pivot = labelled(2)
    own = np.arange(60)
    once = auroc_interval(chances, is_pivot, own, seed=0)
    assert once == auroc_interval(np.tile(chances, 5), np.tile(is_pivot, 5), np.tile(own, 5), seed=0)


@pytest.mark.parametrize("recall", [0.5, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_is_the_largest_that_rejects_so_many_pivots(seed: int, recall: float) -> None:
    chances, is_pivot = labelled(seed)
    found = threshold_of_recall(chances, is_pivot, recall)
    candidates = [*np.unique(chances), 2.0]
    keeping = [each for each in candidates if (chances[is_pivot] >= each).mean() >= recall]
    assert found == max(keeping)


@pytest.mark.parametrize("chance", [0.49961, 0.499649, 0.0004, 3.21487e-7, 1.0, 0.1, float(np.float32(0.7))])
def test_a_threshold_that_is_written_down_rejects_what_it_was_chosen_for(chance: float) -> None:
    found = threshold_of_recall(np.array([chance]), np.ones(1, dtype=np.bool_), 1.0)
    assert float(f"{found:.4g}") == found <= chance < found * 1.001


def test_without_pivots_the_threshold_lets_nothing_be() -> None:
    assert threshold_of_recall(np.ones(4), np.zeros(4, dtype=np.bool_), 0.95) == 0.0
    with pytest.raises(TrainingError, match="recall"):
        threshold_of_recall(np.ones(4), np.ones(4, dtype=np.bool_), 0.0)


def test_what_a_threshold_does_is_counted_with_intervals() -> None:
    chances, is_pivot = np.array([0.1, 0.5, 0.6, 0.9, 0.2]), np.array([False, True, True, True, True])
    found = at_threshold(chances, is_pivot, 0.5)
    assert (found.recall, found.recall_95) == (0.75, share_interval(3, 4))
    assert (found.passed, found.passed_95) == (1.0, share_interval(1, 1))
    assert at_threshold(chances[:1], is_pivot[:1], 0.5).recall is None
