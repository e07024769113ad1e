"""Draws of captured work are those of the host: the same scores, noise and tokens, whatever is asked for."""

from __future__ import annotations

from collections.abc import Sequence as Many
from itertools import product
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.sampling import captured_sampler as device_draws
from spectune.runtime.sampling.captured_sampler import FEW_KEPT, DeviceDraws, DrawKind, draws_ahead, kind_of
from spectune.runtime.sampling.filters import MOST_KEPT, draft_scores
from spectune.runtime.sampling.sampler import draw

pytestmark = pytest.mark.lossless
CPU, VOCABULARY, NODES = torch.device("cpu"), 300, 5
DEPTHS = np.array([0, 1, 1, 2, 3])
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.0, "top_k": 2**63},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.6, "top_k": 40, "top_p": 0.8, "min_p": 0.05},
    {"top_k": 3, "top_p": 0.5, "min_p": 0.5},
)


def sequences_of(ways: Many[dict[str, Any]], seed: int = 0) -> list[Sequence]:
    return [
        Sequence(Request(prompt=(1,) * (3 + row), max_new_tokens=9, seed=seed + 7 * row, **way), index=row)
        for row, way in enumerate(ways)
    ]


def logits_of(rows: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    drawn = torch.randn((rows, NODES, VOCABULARY), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (4 * drawn).to(dtype)


def draws_of(sequences: Many[Sequence]) -> DeviceDraws:
    requests = [s.request for s in sequences]
    kind = kind_of(requests)
    assert kind is not None
    found = DeviceDraws(kind, len(requests), CPU)
    found.put(requests)
    return found


def first_of(sequences: Many[Sequence]) -> Tensor:
    return torch.tensor([len(s.tokens) for s in sequences])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pair", [one for one in product(range(len(WAYS)), repeat=2) if any(0 < w < 7 for w in one)])
def test_the_draws_behind_a_tree_are_those_of_the_host(pair: tuple[int, int], dtype: torch.dtype) -> None:
    sequences, logits = sequences_of([WAYS[way] for way in pair]), logits_of(2, dtype, seed=sum(pair))
    depths = np.stack([DEPTHS, DEPTHS[::-1]])
    found = draws_of(sequences).drawn(logits, first_of(sequences), torch.from_numpy(depths.copy()), 3)
    assert found.tolist() == draw(logits, sequences, depths)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("depth", [0, 2])
def test_drafts_have_the_scores_of_the_host(depth: int, dtype: torch.dtype) -> None:
    sequences, logits = sequences_of(WAYS), logits_of(len(WAYS), dtype)
    paths = np.zeros((len(WAYS), NODES, depth), dtype=np.int64)
    found = draws_of(sequences).drafted(logits, first_of(sequences) + depth)
    expected = draft_scores(logits, sequences, paths)
    assert found.dtype == torch.float32 and torch.equal(found, expected)


def test_other_requests_of_the_kind_are_drawn_for_once_they_are_put() -> None:
    ways = [{"temperature": 0.8, "top_k": 5}, {"temperature": 0.5}]
    before, after = sequences_of(ways), sequences_of([{"temperature": 1.4, "top_k": 9}, {}], seed=100)
    assert kind_of([s.request for s in before]) == kind_of([s.request for s in after])
    draws, logits, depths = draws_of(before), logits_of(2, torch.float32), np.stack([DEPTHS, DEPTHS])
    draws.put([s.request for s in after])
    found = draws.drawn(logits, first_of(after), torch.from_numpy(depths), 3).tolist()
    assert found == draw(logits, after, depths) != draw(logits, before, depths)


def test_seeds_are_64_bits_wide() -> None:
    logits, depths = logits_of(1, torch.float32), DEPTHS[None]
    for seed in (-(2**63), -1, 2**53 + 1, 2**63 - 1):
        sequences = sequences_of([{"temperature": 2.0}], seed=seed)
        found = draws_of(sequences).drawn(logits, first_of(sequences), torch.from_numpy(depths), 3)
        assert found.tolist() == draw(logits, sequences, depths)


def test_settings_that_could_not_be_sent_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences, logits, depths = sequences_of([{"temperature": 2.0}], seed=5), logits_of(1, torch.float32), DEPTHS[None]
    requests = [s.request for s in sequences]
    draws = DeviceDraws(DrawKind(), 1, CPU)
    with monkeypatch.context() as spoilt:
        spoilt.setattr(device_draws, "sent", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            draws.put(requests)
    draws.put(requests)
    found = draws.drawn(logits, first_of(sequences), torch.from_numpy(depths), 3)
    assert found.tolist() == draw(logits, sequences, depths)


def test_a_penalty_hangs_on_the_text_and_is_no_work_of_any_kind() -> None:
    some = [Request(prompt=(1,), max_new_tokens=1, **way) for way in WAYS]
    penalised = Request(prompt=(1,), max_new_tokens=1, repetition_penalty=1.2)
    assert draws_ahead(some) and not draws_ahead([*some, penalised])


def test_kinds_are_few() -> None:
    def kind(**asked: Any) -> DrawKind | None:
        return kind_of([Request(prompt=(1,), max_new_tokens=1, **asked)])

    assert kind() is None and kind(top_k=4, top_p=0.5) is None  # greedy, whatever is masked
    assert kind(temperature=0.1) == kind(temperature=2.0) == DrawKind()
    assert kind(temperature=1.0, top_k=1) == kind(temperature=1.0, top_k=FEW_KEPT) == DrawKind(most_kept=FEW_KEPT)
    assert kind(temperature=1.0, top_k=FEW_KEPT + 1) == DrawKind(most_kept=2 * FEW_KEPT)
    assert kind(temperature=1.0, top_k=2**63) == kind(temperature=1.0, top_k=10**400) == DrawKind(most_kept=MOST_KEPT)
