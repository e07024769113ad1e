"""Scorers whose answers are tensors, for code that grows trees on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spectune.planner.records.draft import Children, Ints
from spectune.runtime.growth.draft import DeviceChildren

from .toy_drafter import ToyDrafter, ToyScorer


class RestrictedScorer(ToyScorer):
    """A ToyScorer whose last-ranked children have one given log-probability: tokens that are hardly or never drawn."""

    def __init__(self, seeds: Sequence[int], *, vocabulary: int, levels: int | None, floor: float | None):
        super().__init__([ToyDrafter(seed, vocabulary, levels) for seed in seeds])
        self.floor = floor

    def _children(self, children: int) -> Children:
        answer = super()._children(children)
        if self.floor is None:
            return answer
        is_low = np.arange(answer.tokens.shape[2]) >= 2
        return Children(tokens=answer.tokens, log_probs=np.where(is_low, np.float32(self.floor), answer.log_probs))


class DeviceToyScorer:
    """Another scorer's answers as tensors; in slots without a node it is sure of a token that does not exist."""

    device = torch.device("cpu")

    def __init__(self, scorer: ToyScorer, *, is_told: bool) -> None:
        self.scorer, self.is_told = scorer, is_told

    def root(self, children: int) -> DeviceChildren:
        return _tensors(self.scorer.root(children))

    def expand(self, parents: Tensor, ranks: Tensor, children: int) -> DeviceChildren:
        assert (ranks[parents < 0] == 0).all()
        answer = self.scorer.expand(parents.numpy(), ranks.numpy(), children)
        is_padding: Ints = (parents < 0).numpy()[:, :, None]
        return _tensors(
            Children(
                tokens=np.where(is_padding, 99, answer.tokens),
                log_probs=np.where(is_padding, np.float32(0.0), answer.log_probs),
            )
        )

    def none_open(self, is_open: Tensor) -> bool:
        return self.is_told and not bool(is_open.any())


class RandomScorer:
    """Random answers made on a device, without a look at what is asked."""

    def __init__(self, batch: int, vocabulary: int, device: torch.device) -> None:
        self.device, self.batch, self.vocabulary = device, batch, vocabulary

    def root(self, children: int) -> DeviceChildren:
        return self._answer(1, children)

    def expand(self, parents: Tensor, ranks: Tensor, children: int) -> DeviceChildren:
        assert parents.shape == ranks.shape
        return self._answer(parents.shape[1], children)

    def none_open(self, is_open: Tensor) -> bool:
        return False

    def _answer(self, width: int, children: int) -> DeviceChildren:
        logits = torch.randn(self.batch, width, self.vocabulary, device=self.device)
        log_probs, tokens = logits.log_softmax(-1).topk(min(children, self.vocabulary), dim=-1)
        return DeviceChildren(tokens=tokens, log_probs=log_probs)


def _tensors(answer: Children) -> DeviceChildren:
    return DeviceChildren(tokens=torch.from_numpy(answer.tokens), log_probs=torch.from_numpy(answer.log_probs))
