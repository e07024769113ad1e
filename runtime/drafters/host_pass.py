"""What a drafter model says along a draft that the host reads: layer by layer, or behind a recorded text."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...errors import ModelError
from ...planner.growth.grow import Children
from ..growth.draft import children_of
from ..layout import Bools, Ints
from ..requests import Request, Sequence
from ..sampling import draft_scores, processed, with_noise

if TYPE_CHECKING:
    from .model import ModelDrafter


class DraftPass:
    """One round's `LayerScorer` on the host: depth 1 from the committed text, then layer by layer."""

    def __init__(self, drafter: ModelDrafter, sequences: Many[Sequence]) -> None:
        """Start a round behind the committed text of the sequences, one per slot."""
        self._drafter = drafter
        self._sequences = sequences
        self._depth = 0
        self._tokens: Ints = np.empty((0, 0, 0), dtype=np.int64)
        self._paths: Ints = np.empty((len(sequences), 1, 0), dtype=np.int64)  # (batch, width, depth)
        self._visible: Bools = np.empty((0, 0, 0), dtype=np.bool_)

    def root(self, children: int) -> Children:
        """Return the first layer's candidates, one row per sequence."""
        return self._answer(self._drafter.catch_up(self._sequences), children)

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        """Feed the chosen nodes of the layer before and return their children.

        A slot of a row that has no more nodes is fed the first child of its first slot: some token has to stand there.
        """
        rows, slots = np.arange(len(parents))[:, None], np.maximum(parents, 0)
        tokens = self._tokens[rows, slots, ranks]
        self._paths = np.concatenate((self._paths[rows, slots], tokens[:, :, None]), axis=2)
        self._visible = self._sight(slots, rows)
        written = self._visible.shape[2] - tokens.shape[1]
        return self._answer(self._drafter.feed_layer(tokens, self._depth, self._visible, written), children)

    def _sight(self, slots: Ints, rows: Ints) -> Bools:
        batch, width = slots.shape
        own = np.broadcast_to(np.eye(width, dtype=np.bool_), (batch, width, width))
        if self._depth == 1:
            return own
        return np.concatenate((self._visible[rows, slots], own), axis=2)

    def _answer(self, logits: torch.Tensor, count: int) -> Children:
        self._depth += 1
        answer = children_of(draft_scores(logits, self._sequences, self._paths), count)
        self._tokens, log_probs = answer.tokens.cpu().numpy(), answer.log_probs.cpu().numpy()
        if np.isnan(log_probs).any():
            raise ModelError("the drafter's logits are not numbers; check its weights and its dtype")
        return Children(tokens=self._tokens, log_probs=log_probs)


def recorded_children(
    logits: torch.Tensor, count: int, request: Request, places: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a draft pass would answer behind nodes of one request's text, on the host, the best child first.

    Args:
        logits: (rows, width, vocabulary), all of the one text.
        count: children wanted; the vocabulary where that is smaller.
        request: its temperature and seed.
        places: (rows, width) int64, place in the text of the token behind each node.

    Returns:
        log-probabilities float32 and token ids int64, both (rows, width, count).
    """
    asked = [request] * len(logits)
    scores = with_noise(processed(logits.float(), asked), asked, places)
    answer = children_of(scores, count)
    return answer.log_probs.cpu(), answer.tokens.cpu()
