"""transformers' `generate` under our ruler: the same texts, counted without each sequence's first token."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest
import torch

from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.measuring import baseline
from spectune.tuning.measuring.baseline import GenerateEntrant
from spectune.tuning.recording.continuations import continuations

from ...support.tiny_models import tiny_llama

MODEL = tiny_llama(layers=2, seed=4)
PROMPTS = [(1, 2, 3), (7,), (5, 5, 9, 11, 0, 3, 2), (23, 1), (4, 8)]


def requests(tokens: int = 12, temperature: float = 0.0, stop: frozenset[int] = frozenset()) -> list[Request]:
    return [Request(prompt=p, max_new_tokens=tokens, temperature=temperature, stop=stop) for p in PROMPTS]


def generated(asked: list[Request], batch: int) -> GenerateEntrant:
    entrant = GenerateEntrant("generate", MODEL, asked, batch)
    entrant.advance(1.0)
    return entrant


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_texts_equal_our_plain_decoders(batch: int, dtype: str) -> None:
    model = getattr(tiny_llama(layers=2, seed=4), dtype)()
    entrant = GenerateEntrant("generate", model, requests(), batch)
    entrant.advance(1.0)
    assert entrant.texts == continuations(LeanModel(model), requests())


@pytest.mark.parametrize("batch", [1, 3])
def test_a_text_ends_with_its_stop_token(batch: int) -> None:
    stop = frozenset(text[5] for text in continuations(LeanModel(MODEL), requests()))
    entrant = generated(requests(stop=stop), batch)
    assert entrant.texts == continuations(LeanModel(MODEL), requests(stop=stop))
    assert max(len(text) for text in entrant.texts) <= 6


@pytest.mark.parametrize(("batch", "groups"), [(1, 5), (3, 2)])
def test_speed_counts_the_tokens_and_the_time_after_the_first(
    batch: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count()  # read twice a group: when the first token is there, and at the end
    monkeypatch.setattr(baseline, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds) + 1)))
    entrant = generated(requests(tokens=12), batch)
    assert entrant.tokens_per_s == pytest.approx(5 * 11 / groups)


def test_a_share_is_rounded_to_whole_groups() -> None:
    entrant = GenerateEntrant("generate", MODEL, requests(tokens=3), 2)
    done = []
    for share in (0.2, 0.4, 0.6, 1.0):
        entrant.advance(share)
        done.append(len(entrant.texts))
    assert done == [2, 2, 4, 5]


def test_sampling_draws_other_texts_than_greedy_decoding() -> None:
    torch.manual_seed(0)
    sampled = generated(requests(temperature=5.0), 3).texts
    assert [len(text) for text in sampled] == [12] * 5
    assert sampled != generated(requests(), 3).texts
