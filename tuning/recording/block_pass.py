"""A block drafter along one text: what it says behind every prefix, and behind nodes of trees that hang off these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...planner.records.draft import Children, Ints
from ...runtime.batch.sequence import Request
from ...runtime.drafters.block import recorded_block_children
from ...runtime.models.block import Block, BlockHead
from ...runtime.models.layout import lay_out_text

PIECE_TOKENS = 64  # of a text, read and answered at once


class BlockTextPass:
    """One block drafter reading one text after the other; a forest's `TreeDrafter`.

    Its trees are not joined: below the target's token a block still says what it said one earlier.
    """

    is_of_text_alone = False

    def __init__(self, drafter: BlockHead, *, longest: int, children: int) -> None:
        self._model, self._children = drafter, children
        self._longest = longest
        self._cache = drafter.new_cache(1, longest)
        self._request = Request(prompt=(0,), max_new_tokens=1)
        self._said = torch.empty(0)  # (positions, places, scores), behind every token that was emitted
        self._block: Block | None = None
        self._places: Ints = np.zeros(0, dtype=np.int64)  # in the text, of the token behind each node

    def read(self, text: Sequence[int], request: Request) -> Children:
        """Return (1, n, children), the best behind each emitted token, first behind text[: len(prompt) + 1]."""
        self._request, first = request, len(request.prompt)
        features = self._model.along(text)
        said = []
        for start, end in _pieces(first, len(text)):
            step = lay_out_text(self._model, text[start:end], start)
            self._model.keep(features[None, start:end], step, self._cache)
            if start >= first:
                said.append(self._model.say(features[None, start:end], step, self._cache))
        self._said = torch.cat(said)
        places = np.arange(first + 1, len(text) + 1)
        return self._children_of(self._model.block(self._said).root(), places)

    def stand(self, lengths: Sequence[int]) -> None:
        """Place row i behind the first lengths[i] tokens of the text, without nodes."""
        self._places = np.array(lengths, dtype=np.int64)
        rows = torch.from_numpy(self._places - len(self._request.prompt) - 1)
        self._block = self._model.block(self._said[rows.to(self._said.device)])

    def expand(self, parents: Ints, tokens: Ints) -> Children:
        """Return the children of new nodes (nodes,), each below a row or an earlier node, (1, nodes, children)."""
        assert self._block is not None, "rows stand somewhere first"
        asked = (torch.from_numpy(ids).to(self._said.device) for ids in (parents, tokens))
        places = self._places[parents] + 1
        self._places = np.concatenate((self._places, places))
        return self._children_of(self._block.below(*asked), places)

    def _children_of(self, logits: torch.Tensor, places: Ints) -> Children:
        at = torch.from_numpy(places).to(logits.device)
        return recorded_block_children(logits, self._children, self._request, at, self._model.vocabulary)


def _pieces(prompt: int, length: int) -> list[tuple[int, int]]:
    starts = [*range(0, prompt, PIECE_TOKENS), *range(prompt, length, PIECE_TOKENS)]
    return [(start, min(start + PIECE_TOKENS, prompt if start < prompt else length)) for start in starts]
