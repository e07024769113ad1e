"""Pairwise acceptance against sums over single tokens of transformers' own distributions."""

from __future__ import annotations

import math
from functools import cache

import pytest

from spectune.profiler.records.acceptance import PairwiseAcceptance
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.recording.agreement import pairwise_acceptance

from .shelf import Shelf, StoppedError
from .tiny_models import perturbed, plain_logits, tiny_llama

MODELS = {
    "target": tiny_llama(layers=3, seed=0),
    "near": perturbed(tiny_llama(layers=3, seed=0), 0.05),
    "far": tiny_llama(layers=1, seed=7),
}
TEXTS = [((1, 2, 3), (4, 5, 6, 7)), ((9,), (0, 23)), ((8, 8, 1, 0), (3,))]


LEAN = {name: LeanModel(model) for name, model in MODELS.items()}


@cache
def measured(temperature: float) -> PairwiseAcceptance:
    return pairwise_acceptance(LEAN, TEXTS, temperature, target="hash", workload="prose")


def distributions(name: str, temperature: float) -> list[list[float]]:
    """One distribution per continuation token, each from a forward of its own."""
    found = []
    for prompt, continuation in TEXTS:
        for place in range(len(continuation)):
            logits = plain_logits(MODELS[name], [*prompt, *continuation[:place]])[-1].tolist()
            weights = [math.exp(logit / (temperature or 1.0)) for logit in logits]
            found.append([weight / sum(weights) for weight in weights])
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_overlap_and_agreement_equal_sums_over_single_tokens(temperature: float) -> None:
    each = [distributions(name, temperature) for name in MODELS]
    for i, left in enumerate(each):
        for j, right in enumerate(each):
            common = [sum(map(min, p, q)) for p, q in zip(left, right, strict=True)]
            same = [p.index(max(p)) == q.index(max(q)) for p, q in zip(left, right, strict=True)]
            assert measured(temperature).overlap[i][j] == pytest.approx(sum(common) / 7, abs=1e-5)
            assert measured(temperature).greedy[i][j] == pytest.approx(sum(same) / 7)


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
    found = pairwise_acceptance(LEAN, TEXTS, 0.6)
    assert found.greedy == whole.greedy
    for row, expected in zip(found.overlap, whole.overlap, strict=True):
        assert row == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_a_stopped_comparison_reads_only_the_texts_it_lacks_and_ends_the_same(finished: int) -> None:
    shelf = Shelf(stop_after=finished)
    with pytest.raises(StoppedError):
        pairwise_acceptance(LEAN, TEXTS, 0.6, parts=shelf)
    again = Shelf(shelf.documents)
    found = pairwise_acceptance(LEAN, TEXTS, 0.6, target="hash", workload="prose", parts=again)
    assert found == measured(0.6)
    assert again.added == [f"agreement {text}" for text in range(finished, 3)]
