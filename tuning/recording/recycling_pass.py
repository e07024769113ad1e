"""Token Recycling along one text: what it looks up behind every prefix, and behind nodes of trees there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...planner.records.draft import Children, Ints
from ...runtime.batch.sequence import Request, are_greedy
from ...runtime.drafters.recycling import recalled, recycled_children
from ...runtime.models.layout import PREFILL_TOKENS, lay_out_text
from ...runtime.models.recycled import greedy_children
from ...runtime.models.recycling import RecyclingHead


class RecyclingTextPass:
    """One target's successors along one text after the other; a forest's `TreeDrafter`.

    Trees of neighbouring positions are not joined: a token later one row more is known, and another may be newer.
    """

    is_of_text_alone = False

    def __init__(self, drafter: RecyclingHead, *, longest: int, children: int) -> None:
        self._model, self._children = drafter, children
        self._cache = drafter.new_cache(1, longest)
        self._request = Request(prompt=(0,), max_new_tokens=1)
        nothing = np.zeros(0, dtype=np.int64)
        self._lengths: Ints = nothing  # of each node, the text that its tree hangs off
        self._places: Ints = nothing  # in the text, of the token behind each node

    def read(self, text: Sequence[int], request: Request) -> Children:
        """Return (1, n, children), the best behind each emitted token, first behind text[: len(prompt) + 1]."""
        self._request, first = request, len(request.prompt)
        features = self._model.along(text)[None]
        for start in range(0, len(text), PREFILL_TOKENS):
            stop = min(start + PREFILL_TOKENS, len(text))
            self._model.keep(features[:, start:stop], lay_out_text(self._model, text[start:stop], start), self._cache)
        lengths = np.arange(first + 1, len(text) + 1)
        return self._children_of(np.array(text[first:], dtype=np.int64), lengths, lengths)

    def stand(self, lengths: Sequence[int]) -> None:
        """Place row i behind the first lengths[i] tokens of the text, without nodes."""
        self._lengths = self._places = np.array(lengths, dtype=np.int64)

    def expand(self, parents: Ints, tokens: Ints) -> Children:
        """Return the children of new nodes (nodes,), each below a row or an earlier node, (1, nodes, children)."""
        lengths, places = self._lengths[parents], self._places[parents] + 1
        self._lengths = np.concatenate((self._lengths, lengths))
        self._places = np.concatenate((self._places, places))
        return self._children_of(tokens, lengths, places)

    def _children_of(self, tokens: Ints, lengths: Ints, places: Ints) -> Children:
        if are_greedy([self._request]):
            found = greedy_children(self._cache, tokens[None], lengths[None], self._children, self._model.vocabulary)
            if found is not None:
                return found
        known = recalled(self._cache, tokens[None], lengths[None])
        at = torch.from_numpy(places[None])
        return recycled_children(known, self._children, [self._request], at, self._model.vocabulary)
