"""What kernels draw on a CPU is what torch draws, from the same scores with the same noise."""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.runtime.backends import cpu as cpu_backend
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.drafters.head import model_drafter
from spectune.runtime.models.bits import bits
from spectune.runtime.models.forward import Draws
from spectune.runtime.models.kernels.host_draws import drawn_from
from spectune.runtime.models.kernels.host_noise import draw_noise
from spectune.runtime.models.kernels.host_scores import BLOCK
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.sampling.noise import gumbel
from spectune.runtime.sampling.sampler import draws_of

from ....support.decoded_runs import CAPACITY, Run, drafting, random_requests, run
from ....support.tiny_models import perturbed, tiny_llama

pytestmark = pytest.mark.lossless
SEEDS = (0, -1, 2**63 - 1, -(2**63), 12345)


def drawn(line: Tensor, seed: int, place: int, temperature: float) -> int:
    greatest = np.empty(-(-len(line) // BLOCK), dtype=np.int32)
    hashes = np.empty(BLOCK, dtype=np.uint64)
    return int(drawn_from(bits(line), seed, place, np.float32(temperature), greatest, hashes))


def drawn_by_torch(line: Tensor, seed: int, place: int, temperature: float) -> int:
    return int((line.float() / temperature + noise(seed, place, len(line))).numpy().argmax())


def noise(seed: int, place: int, vocabulary: int) -> Tensor:
    return gumbel(torch.tensor(seed), torch.tensor(place), vocabulary)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [1, 2, 24, BLOCK, BLOCK + 1, 5000])
@pytest.mark.parametrize("temperature", [1e-4, 0.3, 1.0, 50.0])
def test_a_draw_is_torch_s(width: int, temperature: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    for place, seed in enumerate((*SEEDS, *range(20))):
        line = (4 * torch.randn(width, generator=generator)).to(dtype)
        assert drawn(line, seed, place, temperature) == drawn_by_torch(line, seed, place, temperature)


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_scores_far_from_zero_are_drawn_alike(shift: float) -> None:
    """Sums of large scores and noise are rounded: what a bound leaves out must not have won by that."""
    for seed in range(200):
        line = torch.randn(700, generator=torch.Generator().manual_seed(seed)) + shift
        assert drawn(line, seed, 3, 1.0) == drawn_by_torch(line, seed, 3, 1.0)


def test_all_tokens_can_be_drawn_and_are_drawn_by_their_odds() -> None:
    line = torch.tensor([2.0, 1.0, 0.0, -1.0]).repeat(50)  # of two blocks
    found = np.bincount([drawn(line, 7, place, 1.0) for place in range(40_000)], minlength=200)
    odds = line.softmax(0).numpy()
    assert (found > 0).all()
    assert np.abs(found / 40_000 - odds).max() < 5 * math.sqrt(odds.max() / 40_000)


def test_what_is_never_drawn_is_not_drawn() -> None:
    line = torch.full((300,), -math.inf)
    assert drawn(line, 1, 1, 0.7) == 0
    line[[5, 200]] = torch.tensor([0.0, 1.0])
    assert {drawn(line, 1, place, 0.7) for place in range(100)} == {5, 200}


@pytest.mark.parametrize("places", [[3], [200, 250]])
def test_what_is_no_number_is_drawn_first(places: list[int]) -> None:
    line = torch.zeros(300)
    line[places] = math.nan
    assert drawn(line, 1, 1, 0.7) == places[0] == drawn_by_torch(line, 1, 1, 0.7)


def test_at_no_temperature_the_best_is_drawn() -> None:
    line = torch.randn(300, generator=torch.Generator().manual_seed(0))
    assert drawn(line, 1, 1, 0.0) == int(line.argmax())


WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 4},
    {},
    {"temperature": 1.1, "top_p": 0.7},
    {"temperature": 0.9, "min_p": 0.05, "top_p": 0.95, "top_k": 12},
)


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["chain", "eagle2"])
@pytest.mark.parametrize("slots", [1, 3])
def test_texts_are_those_that_torch_draws(
    kind: str, slots: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        replace(one, seed=place, **WAYS[place % len(WAYS)]) for place, one in enumerate(random_requests(7, tokens=20))
    ]
    by_kernels = decoded(kind, asked, slots, dtype)
    monkeypatch.setattr(cpu_backend, "bits_for_kernels", lambda logits: None)
    by_torch = decoded(kind, asked, slots, dtype)
    assert by_kernels.outputs == by_torch.outputs
    assert [one.kept for one in by_kernels.rounds] == [one.kept for one in by_torch.rounds]
    assert any(max(one.kept) > 1 for one in by_kernels.rounds)


def decoded(kind: str, asked: list[Request], slots: int, dtype: torch.dtype) -> Run:
    llama = tiny_llama(layers=2, seed=0)
    models: tuple[Any, ...] = llama, perturbed(llama, 0.06)  # Any: transformers types their `to` as it likes
    target, model = (LeanModel(each.to(dtype)) for each in models)
    schedule, drafters = drafting(kind, model_drafter(model, slots=slots, capacity=CAPACITY))
    return run(target, asked, schedule, drafters, slots=slots)


@pytest.mark.parametrize("width", [3, 4096, 10_001])
def test_threads_share_noise_and_it_is_the_same(width: int) -> None:
    seeds, places = np.array(SEEDS, dtype=np.int64), np.arange(len(SEEDS))
    alone, shared = (np.empty((len(SEEDS), width), dtype=np.float32) for _ in range(2))
    draw_noise(seeds, places, alone, False)
    draw_noise(seeds, places, shared, True)
    assert np.array_equal(alone, shared) and len(np.unique(alone)) > 0.99 * alone.size


def test_a_wrong_place_of_the_noise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the tests above: texts hang on where the kernels are told that a token stands."""
    asked = [replace(one, seed=3, temperature=1.0) for one in random_requests(4, tokens=20)]
    right = decoded("chain", asked, 1, torch.float32).outputs

    def one_further(batch: Many[Sequence]) -> Draws:
        places, settings = draws_of(batch)
        return Draws(places + np.array([0, 1, 0]), settings)

    monkeypatch.setattr(cpu_backend, "draws_of", one_further)
    assert decoded("chain", asked, 1, torch.float32).outputs != right
