"""Runs a block drafter: one forward reads the committed tokens and gives what any tree of the round needs."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch

from ...errors import ModelError
from ...planner.kernels.arrays import Ints
from ...planner.records.draft import Children, DraftBatch
from ...planner.strategies import TreePolicy
from ...planner.strategies.base import grow
from ..batch.sequence import Request, Sequence
from ..batch.transfer import fetched_together, sent
from ..growth.draft import DeviceChildren
from ..models.block import Block, BlockHead, Levels
from ..models.forward import ForwardInput
from ..sampling.filters import draft_scores, processed, with_noise
from .features import FeatureDrafter


class BlockDrafter(FeatureDrafter):
    """Runs a block drafter beside a target that taps features; trees grow on the host: its layers need no forwards."""

    def __init__(self, head: BlockHead, *, slots: int, capacity: int) -> None:
        super().__init__(head, head.reads, slots=slots, capacity=capacity, on_device=False)
        self.vocabulary, self.device = head.vocabulary, head.device
        self._head = head

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return the policy's trees from one forward; `widths` has one entry a layer, only the first cost a forward."""
        return grow(policy, BlockPass(self, sequences), len(sequences))

    def begin(self, sequences: Many[Sequence]) -> Block:
        """Read the tokens committed since the last round; return the block behind them."""
        return self._head.block(self.catch_up(sequences))

    def read(self, step: ForwardInput) -> torch.Tensor:
        """Run one forward over committed text; return states behind the wanted tokens, empty where none is wanted."""
        features = self.features_of(step)
        self.forwards += 1
        return self._head.round(features, step, self._cache)


class BlockPass:
    """One round's `LayerScorer`, which answers every layer from one block."""

    def __init__(self, drafter: BlockDrafter, sequences: Many[Sequence]) -> None:
        self._drafter, self._sequences = drafter, sequences
        self._block: Block | None = None
        self._is_penalised = any(s.request.penalises for s in sequences)
        self._depth = self._count = 0
        self._nodes: Ints = np.arange(len(sequences))[:, None]  # (batch, width), of the newest layer
        self._tokens: Ints = np.empty((0, 0, 0), dtype=np.int64)
        self._paths: Ints = np.empty((len(sequences), 1, 0), dtype=np.int64)  # (batch, width, depth)

    def root(self, children: int) -> Children:
        """Return the first layer's candidates, one row per sequence."""
        self._block, self._count = self._drafter.begin(self._sequences), len(self._sequences)
        return self._answer(self._block.root().unsqueeze(1), children)

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        """Return the children of chosen nodes of the last layer; a slot without a node gets an arbitrary answer."""
        assert self._block is not None, "a round begins with its root"
        rows, slots = np.arange(len(parents))[:, None], np.maximum(parents, 0)
        tokens = self._tokens[rows, slots, ranks]
        self._paths = np.concatenate((self._paths[rows, slots], tokens[:, :, None]), axis=2)
        if isinstance(self._block, Levels) and not self._is_penalised:
            self._depth += 1
            one = self._answer(self._block.level(self._depth).unsqueeze(1), children)
            width = tokens.shape[1]
            self._tokens = np.repeat(one.tokens, width, axis=1)
            return Children(tokens=self._tokens, log_probs=np.repeat(one.log_probs, width, axis=1))
        asked = (self._nodes[rows, slots].ravel(), tokens.ravel())
        logits = self._block.below(*(sent(ids, self._drafter.device) for ids in asked))
        self._nodes = self._count + np.arange(tokens.size).reshape(tokens.shape)
        self._count += tokens.size
        return self._answer(logits.view(*tokens.shape, -1), children)

    def _answer(self, logits: torch.Tensor, count: int) -> Children:
        paths = self._paths[:, : logits.shape[1]]
        best = block_children(draft_scores(logits, self._sequences, paths), count, self._drafter.vocabulary)
        self._tokens, log_probs = fetched_together(best.tokens, best.log_probs)
        if np.isnan(log_probs).any():
            raise ModelError("the drafter's logits are not numbers; check its weights and its dtype")
        return Children(tokens=self._tokens, log_probs=log_probs)


def block_children(scores: torch.Tensor, count: int, vocabulary: int) -> DeviceChildren:
    """Return the `count` likeliest next tokens; `scores` (batch, width, any) may end with "nothing follows"."""
    known = torch.log_softmax(scores.float(), dim=-1)[..., :vocabulary]
    log_probs, tokens = known.topk(min(count, vocabulary), dim=-1)
    return DeviceChildren(tokens=tokens, log_probs=log_probs)


def recorded_block_children(
    logits: torch.Tensor, count: int, request: Request, places: torch.Tensor, vocabulary: int
) -> Children:
    """Return (1, nodes, count): a `BlockPass`'s answer for logits (nodes, scores) at `places` (nodes,) in the text."""
    scores = with_noise(processed(logits.float().unsqueeze(0), [request]), [request], places.unsqueeze(0))
    best = block_children(scores, count, vocabulary)
    return Children(tokens=best.tokens.cpu().numpy(), log_probs=best.log_probs.cpu().numpy())
