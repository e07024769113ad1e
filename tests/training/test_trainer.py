"""Windows over a flat text, and a model that learns one by heart."""

from __future__ import annotations

import math
from itertools import groupby

import numpy as np
import pytest
import torch
from torch import Tensor

from spectune.errors import TrainingError
from spectune.training.trainer import TrainingSettings, batches, train

from ..support.tiny_models import tiny_llama

TEXT = np.arange(200, dtype=np.uint16)  # every token says where it stands


def settings(steps: int, batch: int = 4, width: int = 8, seed: int = 0) -> TrainingSettings:
    return TrainingSettings(
        steps=steps, batch=batch, sequence_tokens=width, warmup_steps=1, matrix_lr=0.02, other_lr=0.02, seed=seed
    )


def starts(steps: int, batch: int = 4, width: int = 8, seed: int = 0) -> list[int]:
    return [int(row[0]) for windows in batches(TEXT, settings(steps, batch, width, seed)) for row in windows]


def test_every_window_is_a_piece_of_the_text_one_token_longer_than_the_sequence() -> None:
    found = list(batches(TEXT, settings(30)))
    assert [tuple(windows.shape) for windows in found] == [(4, 9)] * 30
    assert all(torch.equal(row, torch.arange(int(row[0]), int(row[0]) + 9)) for windows in found for row in windows)


def test_windows_follow_the_seed() -> None:
    assert starts(10, seed=1) == starts(10, seed=1) != starts(10, seed=2)


def test_an_epoch_reads_the_text_once_in_another_order_and_from_another_shift() -> None:
    first, second = [list(epoch) for _, epoch in groupby(starts(20), key=lambda start: start % 8)][:2]
    for epoch in (first, second):
        assert epoch != sorted(epoch)
        assert set(np.diff(sorted(epoch))) == {8}  # no overlap beyond the token that is only predicted
        assert min(epoch) < 8 and max(epoch) + 8 + 8 >= len(TEXT) - 1  # from end to end


def test_a_batch_larger_than_an_epoch_is_filled_from_the_next() -> None:
    assert len(starts(3, batch=50)) == 150


@pytest.mark.parametrize(("tokens", "is_enough"), [(16, False), (17, True)])
def test_a_text_that_a_shift_can_leave_without_a_window_is_refused(tokens: int, is_enough: bool) -> None:
    if is_enough:
        assert len(list(batches(TEXT[:tokens], settings(20)))) == 20
        return
    with pytest.raises(TrainingError, match="16 tokens are too few for windows of 8"):
        next(batches(TEXT[:tokens], settings(20)))


def test_training_learns_a_text_by_heart() -> None:
    model = tiny_llama(layers=1, seed=0).float()
    text = np.tile(np.random.default_rng(0).permutation(24), 20).astype(np.uint16)

    def loss(batch: Tensor) -> Tensor:
        logits = model(input_ids=batch[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    losses = list(train(model, loss, text, settings(60, width=23)))
    assert len(losses) == 60
    assert losses[0] > 2.0 and losses[-1] < 0.2
    assert not model.training


def test_a_step_moves_every_parameter() -> None:
    model = tiny_llama(layers=1, seed=0).float()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    text = np.random.default_rng(0).integers(0, 24, 100).astype(np.uint16)
    list(train(model, lambda batch: model(input_ids=batch).logits.float().square().mean(), text, settings(1)))
    assert [name for name, weight in model.named_parameters() if torch.equal(weight, before[name])] == []


def test_a_loss_that_is_no_number_ends_the_run_at_its_step() -> None:
    model = tiny_llama(layers=1, seed=0).float()
    steps = iter([1.0, math.nan])

    def loss(batch: Tensor) -> Tensor:
        own: Tensor = model.lm_head.weight
        return own.square().mean() * next(steps)

    with pytest.raises(TrainingError, match="the loss of step 2 is nan"):
        list(train(model, loss, TEXT, settings(3)))
