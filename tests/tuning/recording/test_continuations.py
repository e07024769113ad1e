"""The target's own continuations, against transformers decoding without a cache."""

from __future__ import annotations

import pytest
import torch

from spectune.errors import NoRoomError
from spectune.profiler.records.wire import to_json
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.sampling.noise import gumbel
from spectune.tuning.recording.continuations import Continued, continuations

from ...support.limited_memory import Limit
from ...support.shelf import Shelf, StoppedError
from ...support.tiny_models import plain_logits, tiny_llama

MODEL = tiny_llama(layers=2, seed=9)
PROMPTS = [(1,), (4, 2, 7, 7), (9, 3), (0, 0, 0), (11, 5, 2, 8, 1, 6)]


def requests(temperature: float) -> list[Request]:
    return [
        Request(prompt=prompt, max_new_tokens=6 + place, temperature=temperature, seed=70 + place)
        for place, prompt in enumerate(PROMPTS)
    ]


def slowly(request: Request) -> tuple[int, ...]:
    tokens = list(request.prompt)
    for place in range(len(tokens), len(tokens) + request.max_new_tokens):
        scores = plain_logits(MODEL, tokens)[-1].float()
        if request.temperature:
            noise = gumbel(torch.tensor([request.seed]), torch.tensor([place]), len(scores))[0]
            scores = scores / request.temperature + noise
        tokens.append(int(scores.argmax()))
    return tuple(tokens[len(request.prompt) :])


@pytest.mark.parametrize("slots", [1, 2, 16])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_continuations_are_the_targets_own_however_many_run_at_once(temperature: float, slots: int) -> None:
    found = continuations(LeanModel(MODEL), requests(temperature), slots=slots)
    assert found == [slowly(request) for request in requests(temperature)]


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_a_stopped_run_decodes_only_the_groups_it_lacks_and_ends_the_same(finished: int) -> None:
    asked, shelf = requests(0.8), Shelf(stop_after=finished)
    with pytest.raises(StoppedError):
        continuations(LeanModel(MODEL), asked, slots=2, parts=shelf)
    again = Shelf(shelf.documents)
    assert continuations(LeanModel(MODEL), asked, slots=2, parts=again) == continuations(LeanModel(MODEL), asked)
    assert again.added == [f"continuation from {2 * group}" for group in range(finished, 3)]


def test_what_older_profiles_numbered_by_groups_is_not_taken_for_other_prompts() -> None:
    wrong = to_json(Continued(texts=((1,), (1,))), Continued)
    older = Shelf({f"continuation {group}": wrong for group in range(3)})
    assert continuations(LeanModel(MODEL), requests(0.0), slots=2, parts=older) == [slowly(r) for r in requests(0.0)]


def test_where_memory_is_short_fewer_prompts_are_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, shelf = requests(0.8), Shelf()
    whole = continuations(LeanModel(MODEL), asked)
    with monkeypatch.context() as patched:
        Limit(patched, tokens=40)
        assert continuations(LeanModel(MODEL), asked, parts=shelf) == whole
    groups = dict(shelf.documents)
    assert list(groups) == ["continuation from 0", "continuation from 2", "continuation from 4"]
    assert continuations(LeanModel(MODEL), asked, parts=Shelf(groups, stop_after=0)) == whole


def test_a_text_that_finds_no_memory_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    Limit(monkeypatch, tokens=0)
    with pytest.raises(NoRoomError, match=r"memory has no room for the target's own text .*; free some, or ask for"):
        continuations(LeanModel(MODEL), requests(0.0))
