"""A drafter along one text: its answers behind every prefix, and behind nodes of trees that hang off these.

Slot 0 of the cache holds the text. The others hold it too, and nodes of many positions' trees, each seeing its own
beginning of the text and its ancestors: so trees of different sizes fill the slots evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...planner.records.draft import Children, Ints
from ...runtime.batch.sequence import Request
from ...runtime.drafters.host_pass import recorded_children
from ...runtime.models.eagle import EagleHead
from ...runtime.models.forward import CausalModel, ForwardInput
from ...runtime.models.layout import lay_out_text
from .fed_nodes import FedNodes, NewNodes
from .portion import WHOLE, Portion

NODE_ROOM = 512  # cache positions behind the text at first; more are made when they are needed


class TextPass:
    """One drafter model reading one text after the other; a forest's `TreeDrafter`."""

    def __init__(self, drafter: CausalModel, *, longest: int, children: int, portion: Portion = WHOLE) -> None:
        self._model, self._children = drafter, children
        self._slots, self._piece_tokens = portion.slots, portion.piece_tokens
        self._cache = drafter.new_cache(1 + self._slots, longest + NODE_ROOM)
        self._features = torch.empty(0)  # of the text, for a head
        self.is_of_text_alone = not isinstance(drafter, EagleHead)  # a node is what its text would be if committed
        self._request = Request(prompt=(0,), max_new_tokens=1)
        self._base = 0  # cache column of the first node
        self._nodes = FedNodes(np.zeros(0, dtype=np.int64), self._slots)

    def read(self, text: Sequence[int], request: Request) -> Children:
        """Return (1, n, children), the best behind each emitted token, first behind text[: len(prompt) + 1]."""
        self._request, first = request, len(request.prompt)
        if isinstance(self._model, EagleHead):
            self._features = self._model.along(text)
        for start in range(0, first, self._piece_tokens):
            self._read_piece(text[start : min(start + self._piece_tokens, first)], start, take=True)
        pieces = []
        for at in range(first, len(text), self._piece_tokens):
            logits = self._read_piece(text[at : at + self._piece_tokens], at)
            places = torch.arange(at + 1, at + 1 + logits.shape[1], device=logits.device)[None]
            pieces.append(recorded_children(logits, self._children, request, places))
        tokens, log_probs = (
            np.concatenate([getattr(piece, part) for piece in pieces], axis=1) for part in ("tokens", "log_probs")
        )
        return Children(tokens=tokens, log_probs=log_probs)

    def stand(self, lengths: Sequence[int]) -> None:
        """Place row i behind the first lengths[i] tokens of the text, without nodes."""
        self._base = max(lengths)
        self._cache.spread(1 + self._slots, self._base)
        self._nodes = FedNodes(np.array(lengths, dtype=np.int64), self._slots)

    def expand(self, parents: Ints, tokens: Ints) -> Children:
        """Feed new nodes (nodes,), each below a row or an earlier node; return their children, (1, nodes, children)."""
        new = self._nodes.add(parents)
        self._make_room(self._base + int(new.places.max()) + 2)
        among = range(int(new.slots.min()), int(new.slots.max()) + 1)
        step = self._lay_out(new, tokens, among)
        logits = self._model.forward(step, self._cache)
        best = recorded_children(logits, self._children, self._request, step.positions + 1)
        own = new.slots - among.start, new.turns
        return Children(tokens=best.tokens[own][None], log_probs=best.log_probs[own][None])

    def _read_piece(self, piece: Sequence[int], start: int, *, take: bool = False) -> torch.Tensor:
        """Feed tokens of the text to slot 0; return (1, tokens, vocabulary), or only the last one's."""
        step = lay_out_text(self._model, piece, start, takes_last=take)
        if isinstance(self._model, EagleHead):
            return self._model.read(self._features[None, start : start + len(piece)], step, self._cache)
        return self._model.forward(step, self._cache)

    def _make_room(self, tokens: int) -> None:
        if tokens > self._cache.capacity:
            old = self._cache
            self._cache = self._model.new_cache(1 + self._slots, tokens + NODE_ROOM)
            self._cache.take_over(old)

    def _lay_out(self, new: NewNodes, tokens: Ints, among: range) -> ForwardInput:
        """Return the forward of new nodes; short slots are padded with tokens that nothing sees."""
        slots, shape = new.slots - among.start, (len(among), int(new.turns.max()) + 1)
        fed, positions = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        fed[slots, new.turns], positions[slots, new.turns] = tokens, new.contexts + new.depths - 1
        columns = np.full(shape, self._cache.capacity - 1)
        columns[slots, new.turns] = self._base + new.places
        seen = self._base + int(new.places.max()) + 1
        sight = np.zeros((*shape, seen), dtype=np.bool_)
        sight[:, :, 0] = True
        sight[slots, new.turns, : self._base] = np.arange(self._base) < new.contexts[:, None]
        sight[slots, new.turns, self._base :] = new.sees[:, : seen - self._base]
        device = self._model.device
        return ForwardInput(
            tokens=torch.from_numpy(fed).to(device),
            positions=torch.from_numpy(positions).to(device),
            columns=torch.from_numpy(columns).to(device),
            bias=_bias(torch.from_numpy(sight).to(device), self._model.dtype),
            seen=seen,
            first_slot=1 + among.start,
        )


def _bias(sight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(sight.shape, dtype=dtype, device=sight.device).masked_fill_(~sight, -torch.inf)
