"""What a drafter's chains are worth, counted in rounds in which nothing failed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spectune.errors import TrainingError
from spectune.runtime.batch.sequence import Request
from spectune.runtime.models.forward import ForwardInput
from spectune.runtime.models.kv_cache import KeyValueCache
from spectune.runtime.models.lean import LeanModel
from spectune.training.acceptance import acceptance_of, chain_acceptance

from ..support.tiny_models import tiny_llama

LLAMA = tiny_llama(layers=2, seed=0)
REQUESTS = [Request(prompt=(1, 2, 3), max_new_tokens=9)]


class Cramped(LeanModel):
    """A drafter for which memory has no room."""

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_drafter_that_is_its_target_is_always_right() -> None:
    found = chain_acceptance(LeanModel(LLAMA), LeanModel(LLAMA), REQUESTS, 2)
    assert found.by_depth == (1.0, 1.0) and found.tokens_per_round == 3.0


def test_a_drafter_that_fails_is_told_and_not_counted_as_a_bad_one() -> None:
    with pytest.raises(TrainingError, match=r"the drafter failed where drafts are tried out .*memory"):
        chain_acceptance(LeanModel(LLAMA), Cramped(LLAMA), REQUESTS, 2)


def test_acceptance_is_counted_by_depth() -> None:
    found = acceptance_of([1, 1, 2, 4], length=3)
    assert found.by_depth == (0.5, 0.5, 1.0) and found.tokens_per_round == 2.0
